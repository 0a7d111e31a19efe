#!/usr/bin/env bash
# What the bench prints of other programs, beside what they print themselves, started by hand: same cores, same size, in
# turns. Usage: tests/agree.sh [PAIRS [NAMES]]; NAMES is a pattern of grep -E. On shm here, and over rxe and siw inside the lab:
#   target/release/gimmal-lab run --fabric both --timeout-s 1800 -- bash "$PWD/tests/agree.sh" 21
set -uo pipefail
cd "$(dirname "$0")/.."
. tests/check.sh
pairs=${1:-7} names=${2:-.} bin=${BIN:-target/release/gimmal-bench} port=$((20000 + RANDOM % 20000)) scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# row NAME ARGS...: the value of the row that begins with NAME.
row() {
    local name=$1
    shift
    timeout 120 "$bin" "$@" --loopback --pairs 1 --json 2>/dev/null |
        grep -oE "\"name\":\"$name[^}]*" | grep -oE '"value":[0-9.]+' | head -n 1 | cut -d: -f2
}

# Whether somebody listens on $port, over TCP or the CM.
listening() {
    grep -qi ":$(printf %04x $port) [0:]* 0A " /proc/net/tcp /proc/net/tcp6 2>/dev/null ||
        { [ -n "${GIMMAL_LAB:-}" ] && grep -q "LISTEN .*:$port " <<<"$(rdma resource show cm_id 2>/dev/null)"; }
}

# alone PROGRAM PARSER SERVER_ARGS -- CLIENT_ARGS: the program's own number; server on core 1, client on core 0.
alone() {
    local program=$1 parser=$2 server=() i
    shift 2
    while [ "$1" != -- ]; do server+=("$1"); shift; done
    shift
    timeout -k 1 100 taskset -c 1 "$program" "${server[@]}" >"$scratch/server" 2>&1 &
    # Both of a pair are to meet the same state of the host: no second is spent waiting.
    for i in $(seq 100); do
        listening && break
        sleep 0.03
    done
    timeout -k 1 90 taskset -c 0 "$program" "$@" 2>&1 | "$parser"
    kill $! 2>/dev/null
    wait $! 2>/dev/null
}
# Round trips in ns, or messages or bytes per second, from their columns.
ucx_latency() { awk -F, 'found && $1 ~ /^ *[0-9]+$/ { value = $2 * 2000 } /^iterations,/ { found = 1 } END { print value }'; }
ucx_rate() { awk -F, 'found && $1 ~ /^ *[0-9]+$/ { value = $8 } /^iterations,/ { found = 1 } END { print value }'; }
pingpong() { awk '$1 == 64 { print $7 * 2000 }'; }
perftest_latency() { awk '$1 == 64 && NF >= 9 { print $5 * 2000 }'; }
perftest_rate() { awk '$1 == 64 && NF == 5 { print $5 * 1e6 }'; }
perftest_bytes() { awk '$1 == 65536 && NF == 5 { print $4 * 1048576 }'; }

# compare NAME LIMIT_PERCENT: if NAME is asked for.
compare() {
    if grep -qE "$names" <<<"$1"; then check "$1" agrees "$2"; fi
}

# agrees LIMIT_PERCENT: `ours` and `theirs` print a number each; the median of ours over theirs is within the limit.
agrees() {
    local limit=$1 pair one other ratios=()
    for pair in $(seq "$pairs"); do
        port=$((port + 3))
        # A B, B A: what drifts one way cancels.
        if [ $((pair % 2)) -eq 0 ]; then one=$(ours) other=$(theirs); else other=$(theirs) one=$(ours); fi
        if [ -z "$one" ] || [ -z "$other" ]; then
            echo "pair $pair: no number (ours: ${one:-none}, by hand: ${other:-none})"
            return 1
        fi
        printf 'pair %d: in the bench %.0f, by hand %.0f\n' "$pair" "$one" "$other"
        ratios+=("$(awk -v a="$one" -v b="$other" 'BEGIN { print a / b }')")
    done
    printf '%s\n' "${ratios[@]}" | sort -g | awk -v limit="$limit" '
        { value[NR] = $1 }
        END {
            median = (value[int((NR + 1) / 2)] + value[int(NR / 2) + 1]) / 2
            printf "in the bench over by hand: median %.3f (%.3f to %.3f, %d pairs), limit %d %%\n", median, value[1], value[NR], NR, limit
            off = median > 1 ? median - 1 : 1 - median
            exit off * 100 > limit
        }'
}

# has PROGRAM...: else they are counted as skipped.
has() {
    command -v "$1" >/dev/null && return 0
    skipped=$((skipped + ${2:-1}))
    echo "SKIP    $1 is not installed"
    return 1
}

count=${COUNT:-$([ -n "${GIMMAL_LAB:-}" ] && echo 500 || echo 100000)}
# They take a tenth of a round trip; fewer would be over within one state of the host.
messages=$((10 * count))
if [ -z "${GIMMAL_LAB:-}" ]; then
    export UCX_LOG_LEVEL=error
    ucx() { UCX_TLS=posix,self alone ucx_perftest "$1" -p $port -- 127.0.0.1 -p $port -t "$2" -s 64 -n "$3" -w $(($3 / 10)) -f -v "${@:4}"; }
    has ucx_perftest 2 && {
        ours() { row ucx_perftest lat --cpus 0,1 -n $count --against ucx; }
        theirs() { ucx ucx_latency ucp_am_lat $count; }
        compare "ucx_perftest ucp_am_lat, posix" 10
        ours() { row ucx_perftest rate --cpus 0,1 -n $messages -O 32 --against ucx; }
        theirs() { ucx ucx_rate ucp_am_bw $messages -O 32; }
        compare "ucx_perftest ucp_am_bw, posix" 10
    }
    has fi_pingpong && {
        ours() { row fi_pingpong lat --cpus 0,1 -n $count --against libfabric; }
        theirs() { alone fi_pingpong pingpong -p shm -e rdm -I $count -S 64 -B $port -- -p shm -e rdm -I $count -S 64 -P $port 127.0.0.1; }
        compare "fi_pingpong, shm" 10
    }
else
    verbs() { row "$1" "$2" --cpus 0,1 --provider verbs --address "rdma://$host:0" --warmup 10 -n "$3" "${@:4}"; }
    perftest() { alone "$1" "$2" -R -F -p $port "${@:3}" -- -R -F -p $port "${@:3}" "$host"; }
    for fabric in rxe siw; do
        host=$GIMMAL_RXE_ADDR && [ $fabric = siw ] && host=$GIMMAL_SIW_ADDR
        has ib_send_lat 3 && {
            ours() { verbs ib_send_lat lat "$count" --against perftest; }
            theirs() { perftest ib_send_lat perftest_latency -s 64 -n "$count"; }
            compare "ib_send_lat, $fabric" 20
            ours() { verbs ib_send_bw rate "$messages" -O 32 --against perftest; }
            theirs() { perftest ib_send_bw perftest_rate -s 64 -n "$messages" -t 32; }
            compare "ib_send_bw, $fabric" 20
        }
        has fi_pingpong && {
            # It does not warm up, and prints a mean: with few messages that is one of its start.
            ours() { verbs fi_pingpong lat "$messages" --against libfabric; }
            theirs() { alone fi_pingpong pingpong -p verbs -e msg -I "$messages" -S 64 -B $port -- -p verbs -e msg -I "$messages" -S 64 -P $port "$host"; }
            compare "fi_pingpong, verbs, $fabric" 20
        }
    done
    host=$GIMMAL_RXE_ADDR
    has ucx_perftest && {
        # The first address of rxe that is IPv6: over IPv4 the two sides of UCX do not find each other.
        export UCX_NET_DEVICES=rxe0:1 UCX_TLS=rc_verbs,ud_verbs,self UCX_LOG_LEVEL=error UCX_IB_GID_INDEX=0
        ours() { verbs ucx_perftest lat "$count" --against ucx; }
        theirs() { alone ucx_perftest ucx_latency -p $port -- "$host" -p $port -t ucp_am_lat -s 64 -n "$count" -w $((count / 10)) -f -v; }
        compare "ucx_perftest ucp_am_lat, rc_verbs, rxe" 20
    }
    check "UCX has no iWARP, and its row says so" sh -c \
        "$bin lat --provider verbs --loopback --address rdma://$GIMMAL_SIW_ADDR:0 -n 20 --warmup 2 --pairs 1 --against ucx | grep 'UCX has no iWARP'"
fi
summary
