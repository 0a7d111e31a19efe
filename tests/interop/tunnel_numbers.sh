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

# socat FROM TO: one from a port to another.
socat() { served "$1" party 3000 socat socat "TCP-LISTEN:$1,bind=127.0.0.1,fork,reuseaddr,nodelay" "TCP:127.0.0.1:$2,nodelay"; }
for name in redis iperf3; do
    front=$((port[$name] + way[socat]))
    socat $front "${port[$name]}" && socat $((port[$name] + way[socats])) $front || exit 1
done
tunnelled tcp tcp://127.0.0.1:21290 && tunnelled shm "shm://numbers-$$" || exit 1
compared "${1:-5}" direct socat socats tcp shm
# beside WAY: what the tunnel adds to a round trip over TCP, and what it moves, in terms of that way.
beside() {
    awk -v way="$1" '{ us[$1] = $2; rate[$1] = $3 }
        END { printf "%.2f %.2f\n", (us["tcp"] - us["direct"]) / (us[way] - us["direct"]), rate["tcp"] / rate[way] }' "$folder/table"
}
read -r added bulk < <(beside socat)
read -r added_to_two _ < <(beside socats)
echo "over tcp the tunnel adds $added x what socat adds, $added_to_two x what two in a row add, and moves $bulk x what socat moves"
# A tunnel is two processes: each wakes twice for a question and its answer, as each of two socats does.
check "it adds at most 2 x what socat adds" awk -v it="$added" 'BEGIN { exit it > 2 }'
check "it moves at least 0.8 x what socat moves" awk -v it="$bulk" 'BEGIN { exit it < 0.8 }'
summary
