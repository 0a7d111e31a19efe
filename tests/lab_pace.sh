#!/usr/bin/env bash
# Runs inside a guest that has rxe, with nothing beside it: what a connection costs, as rdma-core's `cmtime` counts it.
set -uo pipefail
cd "$(dirname "$0")/.."
. tests/check.sh
bin=target/release

# cmtime_steps ADDRESS COUNT: cmtime's steps, us for each connection, and their sum.
cmtime_steps() {
    local port=$((7900 + RANDOM % 90)) server
    # The server does not end by itself.
    cmtime -c "$2" -p $port >/dev/null 2>&1 &
    server=$!
    listens $port >/dev/null
    timeout 30 cmtime -s "$1" -p $port -c "$2" 2>/dev/null </dev/null | awk -F: '
        /us \/ conn/ { steps = 1; next }
        steps && NF == 2 { n = split($2, field, " "); sum += field[n]; printf "  %-49s  %10.0f\n", $1, field[n] }
        END { printf "  sum                                                %10.0f\n", sum }'
    kill -9 $server 2>/dev/null
    wait $server 2>/dev/null
}

# beside_cmtime ADDRESS COUNT: five runs of each in turn, the medians, their ratio; the last of each in its parts. cmtime
# registers no memory, so the ratio is that without what registering took at our end; the server's is in it. Both are printed.
beside_cmtime() {
    local theirs=() ours=() bare=() round steps parts sum
    # What the first connection between two addresses costs is in neither.
    cmtime_steps "$1" 1 >/dev/null
    for round in 1 2 3 4 5; do
        steps=$(cmtime_steps "$1" "$2")
        theirs+=("$(awk '$1 == "sum" { print $2 }' <<<"$steps")")
        parts=$(timeout 100 "$bin/live" cycles --address "rdma://$1:7820" --in-flight "$2" --rounds 1) || return 1
        sum=$(awk '$1 == "sum" { print $2 }' <<<"$parts")
        ours+=("$sum")
        bare+=("$((sum - $(awk '$1 == "registering" { print $NF }' <<<"$parts")))")
    done
    printf 'cmtime -c %s, us for each connection\n%s\nours: %s\n' "$2" "$steps" "$parts"
    theirs=$(printf '%s\n' "${theirs[@]}" | sort -n | sed -n 3p)
    ours=$(printf '%s\n' "${ours[@]}" | sort -n | sed -n 3p)
    bare=$(printf '%s\n' "${bare[@]}" | sort -n | sed -n 3p)
    [ "${theirs:-0}" -gt 0 ] || return 1
    awk -v ours="$ours" -v bare="$bare" -v theirs="$theirs" -v count="$2" 'BEGIN {
        printf "cmtime -c %d: %d us, ours: %d us, medians of 5 in turn: %.2f x, wanted at most 1.20 x; with registering %.2f x\n",
            count, theirs, bare, bare / theirs, ours / theirs }'
}

for count in 10 100; do
    check "the time of a connection beside cmtime -c $count" beside_cmtime "$GIMMAL_RXE_ADDR" $count
done
summary
