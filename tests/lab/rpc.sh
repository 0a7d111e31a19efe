# The RPC layer's behaviour over real devices: the same cases as over shared memory. Sourced by tests/lab.sh.

for fabric in rxe siw; do
    for program in calls pipeline failures hostile streams driver metadata topics reconnect security lifetime balance layers codecs busy; do
        count "rpc $program over $fabric" cases "$program" "$fabric::"
    done
done
for fabric in rxe siw; do
    GIMMAL_CALLS=50000 GIMMAL_RESTART_MS=4000 \
        count "50,000 calls among cancels, deadlines and restarts over $fabric" cases churn "$fabric::"
done
check "hot restart over rxe" env GIMMAL_RESTART_URL="rdma://$rxe:7612" timeout 300 "$bin/lab-restart"
check "hot restart over siw" env GIMMAL_RESTART_URL="rdma://$siw:7613" timeout 300 "$bin/lab-restart"
check "kill -9 over rxe" env GIMMAL_KILL_URL="rdma://$rxe:7610" timeout 300 "$bin/lab-kill"
check "kill -9 over siw" env GIMMAL_KILL_URL="rdma://$siw:7611" timeout 300 "$bin/lab-kill"
for device in "$rxe" "$siw"; do
    check "chat over $device" sh -c "timeout 180 $bin/chat rdma://$device:7621 | grep 'Bob said 2, Ada said 1'"
    check "news over $device" sh -c "timeout 180 $bin/news rdma://$device:7622 | grep 'the last was \"headline 1000\"'"
    check "pool over $device" sh -c "timeout 180 $bin/pool rdma://$device:7623 | grep '16 resource exhausted'"
    check "watch over $device" sh -c "timeout 180 $bin/watch rdma://$device:7624 | grep 'readings sent'"
    check "driven over $device" sh -c "timeout 180 $bin/driven rdma://$device:7626 | grep 'are 338350'"
    check "kv over $device" sh -c "timeout 180 $bin/kv rdma://$device:7625 | grep -A9 'get  large: 1048576 bytes, 1048576 of them x' |
        grep 'lent: 1 registered, 1 known already, 0 copied'"
done
