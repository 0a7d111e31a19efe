# The programs that tests/backends.sh built where rdma-core is hidden, on both devices. Sourced by tests/lab.sh.
bare=target/bare/debug/examples
if [ -x $bare/verbs_smoke ] && [ -x $bare/conformance ] && [ -x $bare/cm_checks ]; then
    check "built without rdma-core, run on rxe and siw" timeout 170 $bare/verbs_smoke "$rxe" "$siw"
    for address in "$rxe" "$siw"; do
        count "built without rdma-core: conformance on $address" timeout 240 \
            $bare/conformance --provider verbs --address "rdma://$address:0"
    done
    count "built without rdma-core: the CM's edges on $rxe" timeout 150 $bare/cm_checks all "$rxe"
else
    skipped=$((skipped + 1))
    printf 'SKIP    built without rdma-core: target/bare has nothing; the unit tier makes it\n'
fi
