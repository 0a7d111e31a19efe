# What tests/backends.sh built where rdma-core is hidden, on both devices. Sourced by tests/lab.sh.
bare=target/bare/debug/verbs_smoke
if [ -x $bare ]; then
    check "built without rdma-core, run on rxe and siw" timeout 400 $bare "$rxe" "$siw"
else
    skipped=$((skipped + 1))
    printf 'SKIP    built without rdma-core: target/bare has nothing; the unit tier makes it\n'
fi
