# The bench on real verbs, beside perftest where it is installed: few calls, and no number is judged.

# beside HOST PROGRAM ARGS...: the row of PROGRAM has a ratio.
beside() {
    local host=$1 program=$2 output
    shift 2
    output=$(timeout 100 "$bin/gimmal-bench" "$@" --provider verbs --loopback --address "rdma://$host:0" \
        --against perftest --pairs 1 --warmup 10) || return 1
    printf '%s\n' "$output"
    grep -q "$program.*ours is" <<<"$output"
}
if command -v ib_send_lat >/dev/null; then
    check "bench beside ib_send_lat, rxe" beside "$rxe" ib_send_lat lat -n 100
    check "loans beside ib_read_bw, rxe" beside "$rxe" ib_read_bw bw -s 64k -n 10
else
    skipped=$((skipped + 2))
    printf 'SKIP    %s: perftest is not installed\n' "bench beside ib_send_lat" "loans beside ib_read_bw"
fi
for host in "$rxe" "$siw"; do
    for line in "lat -n 100" "rpc -n 100" "rate -n 500 -O 8" "bw -s 64k -n 10" "scale -n 100 --connections 1,4"; do
        # shellcheck disable=SC2086
        check "$line over $host" timeout 60 "$bin/gimmal-bench" $line --provider verbs --loopback --address "rdma://$host:0"
    done
done
check "connections step by step, rxe" timeout 60 "$bin/gimmal-bench" conn --provider verbs --loopback --address "rdma://$rxe:0" -n 5
check "open loop, siw" timeout 60 "$bin/gimmal-bench" load --provider verbs --loopback --address "rdma://$siw:0" -n 200 --rates 100 -D 2
