#!/usr/bin/env bash
# What takes longer than CI allows. Writes its summary to tests/soak-summary.txt, which is committed.
# Usage: tests/soak.sh [HOW LONG CALLS ARE VERIFIED: 1h]
set -uo pipefail
cd "$(dirname "$0")/.."
. tests/check.sh
cargo build --release -q -p gimmal-examples -p gimmal-bench || exit 1
bin=target/release long=${1:-1h}

hundred_kills() {
    local round
    for round in $(seq 100); do
        "$bin/fates" --address "shm://soak-$$-$round" || return 1
    done | tail -n 2
}

everything() {
    check "100 servers killed among 100 calls each" \
        timeout 600 bash -c "$(declare -f hundred_kills); bin=$bin; hundred_kills"
    check "10^7 echoes, window 32" \
        timeout 300 "$bin/gimmal-bench" rate --provider shm --layer engine --loopback -s 64 -n 10000000 -O 32
    check "10^6 calls, window 32" \
        timeout 300 "$bin/gimmal-bench" rate --provider shm --layer rpc --loopback -s 64 -n 1000000 -O 32
    count "the quick suite three times" bash tests/steady.sh
    check "verified calls for $long, a kill every minute" \
        "$bin/gimmal-bench" soak --loopback -D "$long" --restart 1m --interval 5m -s 64,4k,64k
    check "10^7 calls among cancels, deadlines and restarts" env GIMMAL_CALLS=10000000 \
        timeout 3000 cargo test -q --release -p gimmal-rpc --features verbs --test churn shm::
    check "handlers that block for 30 s" env GIMMAL_BLOCK_MS=30000 \
        timeout 300 cargo test -q -p gimmal-rpc --test busy
    check "9,000 runs of the simulated engine, 1,000 messages each" env GIMMAL_SEEDS=3000 GIMMAL_MESSAGES=1000 \
        timeout 3000 cargo test -q --release -p gimmal-engine --test sim
    check "1,000 servers killed at random moments" env GIMMAL_KILLS=1000 \
        timeout 900 cargo test -q -p gimmal-rpc --test kill
    check "10^6 cancelled calls of each client on tokio" env GIMMAL_CANCELS=1000000 \
        timeout 600 cargo test -q --release -p gimmal --features tokio,futures --test tokio_client cancelled
    check "3 x 10^7 hostile operations" env GIMMAL_HOSTILE_OPERATIONS=10000000 GIMMAL_FUZZ_INPUTS=1000000 \
        timeout 1800 cargo test -q --release -p gimmal-rpc --test attack --test fuzz
    check "a peer at all limits of shared memory for 30 s" env GIMMAL_LIMITS_SECONDS=30 \
        timeout 600 cargo test -q -p gimmal-transport --features testing --lib shm::tests::limits -- --nocapture
    count "libFuzzer, a minute for each target" bash tests/fuzz.sh 60
    count "sanitizers" bash tests/sanitize.sh
    check "every entry of the hot path's ledger is worth its place" env LINES_SHOWN=400 timeout 14400 cargo xtask bench ledger
    summary
}

record=$(mktemp)
trap 'rm -f "$record"' EXIT
everything | tee "$record"
status=$?
{
    date -u '+soak of %Y-%m-%d'
    uname -srm
    grep -E '^(ok|FAILED|SKIP) |^[0-9]+ passed' "$record"
} >tests/soak-summary.txt
exit $status
