# shellcheck shell=bash disable=SC2154
# Connections that come and go, devices that are removed, many clients at once. Sourced by tests/lab.sh.

# cmtime_us ADDRESS COUNT: the sum of cmtime's steps, us for each connection, the median of 5 runs after one more.
cmtime_us() {
    local port=$((7900 + RANDOM % 90)) sums=() round server
    for round in warm 1 2 3 4 5; do
        port=$((port + 1))
        # The server does not end by itself.
        cmtime -c "$2" -p $port >/dev/null 2>&1 &
        server=$!
        sleep 0.7
        sums+=("$(timeout 30 cmtime -s "$1" -p $port -c "$2" 2>/dev/null </dev/null |
            awk '/us \/ conn/ { steps = 1; next } steps && NF >= 5 { sum += $NF } END { printf "%.0f\n", sum }')")
        kill -9 $server 2>/dev/null
        wait $server 2>/dev/null
    done
    sums=("${sums[@]:1}")
    printf '%s\n' "${sums[@]}" | sort -n | sed -n 3p
}

for count in 10 100; do
    theirs=$(cmtime_us "$rxe" $count)
    if [ "${theirs:-0}" -gt 0 ]; then
        check "the time of a connection beside cmtime -c $count" timeout 100 \
            "$bin/live" cycles --address "rdma://$rxe:7820" --in-flight $count --cmtime-us "$theirs"
    else
        skipped=$((skipped + 1))
        echo "SKIP    cmtime -c $count printed no times"
    fi
done
for fabric in rxe siw; do
    host=$rxe && [ $fabric = siw ] && host=$siw
    check "1,000 connections leave nothing on $fabric" timeout 200 \
        "$bin/live" cycles --address "rdma://$host:7821" --in-flight 10 --total 1000
    check "r11 200 clients at once over $fabric" timeout 100 "$bin/live" storm --address "rdma://$host:7822" --clients 200
    check "r19 $fabric is removed under load" timeout 100 \
        "$bin/live" removal --address "rdma://$host:7823" --device ${fabric}0
done
check "r11 1,000 clients at once over shm" timeout 120 "$bin/live" storm --address shm://storm --clients 1000
