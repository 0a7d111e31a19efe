# The RPC layer's behaviour over real devices: the same cases as over shared memory. Sourced by tests/lab.sh.

# cases NAME FILTER: a Rust test program's ignored cases, counted.
cases() { timeout 120 "$bin/lab-$1" --ignored "$2" 2>&1 | sed 's/ passed; / passed, /; s/ failed; .*/ failed/'; }

for fabric in rxe siw; do
    for program in calls failures hostile streams reconnect security lifetime; do
        count "rpc $program over $fabric" cases "$program" "$fabric::"
    done
done
check "hot restart over rxe" env GIMMAL_RESTART_URL="rdma://$rxe:7612" timeout 120 "$bin/lab-restart"
check "hot restart over siw" env GIMMAL_RESTART_URL="rdma://$siw:7613" timeout 120 "$bin/lab-restart"
check "kill -9 over rxe" env GIMMAL_KILL_URL="rdma://$rxe:7610" timeout 120 "$bin/lab-kill"
check "kill -9 over siw" env GIMMAL_KILL_URL="rdma://$siw:7611" timeout 120 "$bin/lab-kill"
