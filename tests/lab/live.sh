# shellcheck shell=bash disable=SC2154
# Connections that come and go, devices that are removed, many clients at once. Sourced by tests/lab.sh.

for fabric in rxe siw; do
    host=$rxe && [ $fabric = siw ] && host=$siw
    check "1,000 connections leave nothing on $fabric" timeout 300 \
        "$bin/live" cycles --address "rdma://$host:7821" --in-flight 10 --total 1000
    check "r11 1,000 clients at once over $fabric" timeout 300 "$bin/live" storm --address "rdma://$host:7822" --clients 1000
    check "r19 $fabric is removed under load" timeout 200 \
        "$bin/live" removal --address "rdma://$host:7823" --device ${fabric}0
    count "devices that a process holds, and what it hears of them, $fabric" timeout 300 "$bin/verbs_smoke" --held "$host"
done
check "r11 1,000 clients at once over shm" timeout 240 "$bin/live" storm --address shm://storm --clients 1000
