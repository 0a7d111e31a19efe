#!/usr/bin/env bash
# The harness runs and says what it must; its numbers are printed and not judged.
set -uo pipefail
cd "$(dirname "$0")/.."
. tests/check.sh
cargo build --release -q -p gimmal-bench || exit 1
for layer in engine rpc; do
    for mode in inline handoff; do
        check "lat $layer $mode" timeout 60 target/release/gimmal-bench lat --provider shm --layer $layer --mode $mode --loopback -s 64 -n 20000
    done
    check "rate $layer" timeout 60 target/release/gimmal-bench rate --provider shm --layer $layer --loopback -s 64 -n 50000 -O 32
done
check "criterion benches run" timeout 300 cargo bench -q -p gimmal-bench --bench pieces -- --test
summary
