#!/usr/bin/env bash
# What a tunnel costs on one host, beside socat: 64 B asked of redis over one connection, and bytes of iperf3 over one. The ways take turns.
# Usage: BIN=FOLDER tests/interop/tunnel_numbers.sh [ROUNDS]
set -uo pipefail
cd "$(dirname "$0")/../.."
. tests/check.sh
. tests/programs.sh
. tests/interop/setup.sh
. tests/interop/edges.sh
. tests/interop/tunnels.sh
bin=${BIN:-}
[ -n "$bin" ] || { programs || exit 1; bin=target/release; }
mkdir -p "$parties"
trap stopped EXIT
export XDG_RUNTIME_DIR=$folder
for name in redis iperf3 socat; do debian "$name" || { echo "$name cannot be had here"; exit 1; }; done
serve_redis && serve_iperf3 || exit 1

# A way is a number that its ports have beside those of the servers.
declare -A way=([direct]=0 [socat]=100 [tcp]=200 [shm]=300)
for name in redis iperf3; do
    front=$((port[$name] + way[socat]))
    served $front party 3000 socat socat "TCP-LISTEN:$front,bind=127.0.0.1,fork,reuseaddr,nodelay" "TCP:127.0.0.1:${port[$name]},nodelay" || exit 1
done
for url in tcp://127.0.0.1:21290 "shm://numbers-$$"; do
    "$bin/gimmal" tunnel --listen "$url" --map "redis=tcp:127.0.0.1:${port[redis]}" --map "iperf3=tcp:127.0.0.1:${port[iperf3]}" >>"$folder/log" 2>&1 &
    started+=($!)
    for name in redis iperf3; do
        front=$((port[$name] + way[${url%%:*}]))
        served $front "$bin/gimmal" tunnel --listen "tcp:127.0.0.1:$front" --to "$url/$name" || exit 1
    done
done

# Microseconds of a question and its answer: the median.
asked() { (party 60 redis redis-benchmark -h 127.0.0.1 -p "$1" -t get -d 64 -c 1 -n 20000 --csv) | awk -F'"' '/GET/ { print 1000 * $10 }'; }
# MB a second.
moved() { (party 60 iperf3 iperf3 -c 127.0.0.1 -p "$1" -t 1 -J) | jq '.end.sum_received.bits_per_second / 8e6'; }
(party 9 redis redis-cli -h 127.0.0.1 -p "${port[redis]}" set key:__rand_int__ "$(head -c 64 /dev/zero | tr '\0' x)") >>"$folder/log"
for _ in $(seq "${1:-5}"); do
    for name in "${!way[@]}"; do
        asked $((port[redis] + way[$name])) >>"$folder/asked.$name"
        moved $((port[iperf3] + way[$name])) >>"$folder/moved.$name"
    done
done
median() { sort -g "$1" | awk '{ all[NR] = $1 } END { print all[int((NR + 1) / 2)] }'; }
printf '%-8s %14s %14s\n' way '64 B, us' 'MB/s'
for name in direct socat tcp shm; do
    printf '%-8s %14.1f %14.0f\n' $name "$(median "$folder/asked.$name")" "$(median "$folder/moved.$name")"
done | tee "$folder/table"
added=$(awk '{ us[$1] = $2 } END { printf "%.2f", (us["tcp"] - us["direct"]) / (us["socat"] - us["direct"]) }' "$folder/table")
bulk=$(awk '{ rate[$1] = $3 } END { printf "%.2f", rate["tcp"] / rate["socat"] }' "$folder/table")
echo "over tcp the tunnel adds $added x what socat adds, and moves $bulk x what socat moves"
check "it adds at most 2 x what socat adds" awk -v it="$added" 'BEGIN { exit it > 2 }'
check "it moves at least 0.8 x what socat moves" awk -v it="$bulk" 'BEGIN { exit it < 0.8 }'
summary
