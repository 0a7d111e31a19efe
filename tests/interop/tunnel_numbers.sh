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

for name in redis iperf3; do
    front=$((port[$name] + way[socat]))
    served $front party 3000 socat socat "TCP-LISTEN:$front,bind=127.0.0.1,fork,reuseaddr,nodelay" "TCP:127.0.0.1:${port[$name]},nodelay" || exit 1
done
tunnelled tcp tcp://127.0.0.1:21290 && tunnelled shm "shm://numbers-$$" || exit 1
compared "${1:-5}" direct socat tcp shm
added=$(awk '{ us[$1] = $2 } END { printf "%.2f", (us["tcp"] - us["direct"]) / (us["socat"] - us["direct"]) }' "$folder/table")
bulk=$(awk '{ rate[$1] = $3 } END { printf "%.2f", rate["tcp"] / rate["socat"] }' "$folder/table")
echo "over tcp the tunnel adds $added x what socat adds, and moves $bulk x what socat moves"
check "it adds at most 2 x what socat adds" awk -v it="$added" 'BEGIN { exit it > 2 }'
check "it moves at least 0.8 x what socat moves" awk -v it="$bulk" 'BEGIN { exit it < 0.8 }'
summary
