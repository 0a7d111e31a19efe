# shellcheck shell=bash disable=SC2154
# `gimmal://` goes by RDMA, by TCP while the device is gone, and by RDMA when it is back. Sourced by tests/lab.sh.

# chooses WAY URL: so does a client of another runtime folder, which has no shared memory with the server.
chooses() {
    local report
    report=$(XDG_RUNTIME_DIR=/tmp/elsewhere timeout 20 "$bin/gimmal" doctor "$2" 2>&1)
    printf '%s\n' "$report"
    grep -q "^fine *peer .* answered: $1://" <<<"$report"
}

for fabric in rxe siw; do
    host=$rxe netdev=v0 port=7840
    [ $fabric = rxe ] || host=$siw netdev=w0 port=7850
    url="gimmal://$host:$port"
    sleep 600 | "$bin/files" serve "$PWD/transport/src" --address "$url" >/dev/null 2>&1 &
    check "gimmal:// by RDMA over $fabric" within 60 chooses rdma "$url"
    check "gimmal:// by shared memory beside $fabric" timeout 180 "$bin/files" fetch --address "$url?need=shm" --bytes-max 1000
    rdma link delete ${fabric}0
    check "gimmal:// by TCP without $fabric" within 60 chooses tcp "$url"
    refuses "?need=rdma without $fabric" "in every way" env XDG_RUNTIME_DIR=/tmp/elsewhere \
        "$bin/gimmal" doctor "$url?need=rdma"
    rdma link add ${fabric}0 type $fabric netdev $netdev
    check "gimmal:// by RDMA when $fabric is back" within 60 chooses rdma "$url"
    # Another server's RDMA port is not mistaken for its own.
    sleep 600 | "$bin/files" serve "$PWD/transport/src" --address "rdma://$host:$((port + 3))" >/dev/null 2>&1 &
    sleep 600 | "$bin/files" serve "$PWD/transport/src" --address "tcp://$host:$((port + 2))" >/dev/null 2>&1 &
    listens $((port + 3))
    check "gimmal:// not by another server's RDMA over $fabric" within 60 chooses tcp "gimmal://$host:$((port + 2))"
    kill $(jobs -p) 2>/dev/null
    wait
done
