#!/usr/bin/env bash
# Runs inside a guest of two memory nodes, a processor each: what is made for a port lies on the node of its thread.
set -uo pipefail
cd "$(dirname "$0")/.."
. tests/check.sh
bin=${bin:-target/release}

for owner in 0 1; do
    for url in "shm:///tmp/nodes" "rdma://$GIMMAL_RXE_ADDR:7990" "rdma://$GIMMAL_SIW_ADDR:7991"; do
        check "a port of node $owner lies there: $url" timeout 60 "$bin/nodes" $owner $((1 - owner)) "$url"
    done
done
refuses "the check knows one node from two" "OTHER is no other node" "$bin/nodes" 0 0 "shm:///tmp/nodes"
summary
