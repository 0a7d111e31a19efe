# The programs that tests/backends.sh built where rdma-core is hidden, on both devices. Sourced by tests/lab.sh.
bare=target/bare/debug/examples
if [ -x $bare/verbs_smoke ] && [ -x $bare/conformance ]; then
    check "built without rdma-core, run on rxe and siw" timeout 170 $bare/verbs_smoke "$rxe" "$siw"
    count "built without rdma-core: conformance on siw" timeout 240 $bare/conformance --provider verbs --address "rdma://$siw:0"
else
    skipped=$((skipped + 1))
    printf 'SKIP    built without rdma-core: target/bare has nothing; the unit tier makes it\n'
fi
