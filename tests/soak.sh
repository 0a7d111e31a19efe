#!/usr/bin/env bash
# What takes longer than CI allows, in parts. What each part came to last stands in tests/soak-summary.txt, which is committed.
# Usage: tests/soak.sh [HOW LONG CALLS ARE VERIFIED: 1h] [PART...: calls steady numbers peers fuzz seeds programs packages losses ledger page; all of them]
set -uo pipefail
cd "$(dirname "$0")/.."
. tests/check.sh
. tests/programs.sh
parts=(calls steady numbers peers fuzz seeds programs packages losses ledger page)
long=${1:-1h}
[ $# -lt 2 ] || parts=("${@:2}")
programs && cargo build --release -q -p gimmal-lab || exit 1
bin=target/release

hundred_kills() {
    local round
    for round in $(seq 100); do
        "$bin/fates" --address "shm://soak-$$-$round" || return 1
    done | tail -n 2
}

# Calls, for long and among kills, on what the machine has.
calls() {
    check "100 servers killed among 100 calls each" \
        timeout 600 bash -c "$(declare -f hundred_kills); bin=$bin; hundred_kills"
    check "10^7 echoes, window 32" \
        timeout 300 "$bin/gimmal-bench" rate --provider shm --layer engine --loopback -s 64 -n 10000000 -O 32
    check "10^6 calls, window 32" \
        timeout 300 "$bin/gimmal-bench" rate --provider shm --layer rpc --loopback -s 64 -n 1000000 -O 32
    check "verified calls for $long, a kill every minute" \
        "$bin/gimmal-bench" soak --loopback -D "$long" --restart 1m --interval 5m -s 64,4k,64k
    check "10^7 calls among cancels, deadlines and restarts" env GIMMAL_CALLS=10000000 \
        timeout 3000 cargo test -q --release -p gimmal-rpc --features verbs --test churn shm::
    check "handlers that block for 30 s" env GIMMAL_BLOCK_MS=30000 \
        timeout 300 cargo test -q -p gimmal-rpc --test busy
    check "much waits for a handler that blocks for 25 s" \
        timeout 300 cargo test -q -p gimmal-rpc --test busy -- --ignored r62_what_waits
    check "1,000 servers killed at random moments" env GIMMAL_KILLS=1000 \
        timeout 900 cargo test -q -p gimmal-rpc --test kill
    check "10,000 uploads given up in each way" env GIMMAL_UPLOADS=10000 \
        timeout 1800 cargo test -q --release -p gimmal-rpc --test ends an_upload_that_is_given_up
    check "100 storms of 1,000 byte streams each, in memory and over TCP" env GIMMAL_STORMS=100 \
        timeout 900 cargo test -q --release -p gimmal-io --test many storms
    check "1 GiB each way through TLS on a stream, in memory and over TCP" env GIMMAL_TLS_MIB=1024 \
        timeout 900 cargo test -q --release -p gimmal-io --test tls
    check "10,000 connections at rest, a client and a server" env GIMMAL_IDLE_CONNECTIONS=10000 \
        timeout 600 cargo test -q --release -p gimmal-rpc --features shm,tcp,tls --test idle -- --nocapture
    check "10^6 cancelled calls of each client on tokio" env GIMMAL_CANCELS=1000000 \
        timeout 600 cargo test -q --release -p gimmal --features tokio,futures --test tokio_client cancelled
}

# For a machine that does nothing else.
steady() {
    count "the quick suite three times" bash tests/steady.sh
}

# Times that are judged on a machine that does nothing else.
numbers() {
    check "what TLS adds to a round trip" \
        timeout 900 cargo test -q --release -p gimmal-rpc --features shm,tcp,tls --test tls at_most_3_us -- --ignored --nocapture
    check "rates of tonic's stubs in 48 cells, beside tonic's own transport" \
        timeout 900 cargo test -q --release "${program_set[@]}" --test rates -- --ignored --exact --nocapture rates_of_all_cells_are_not_below_tonics
    check "64 B beside bulk over TCP, and beside a stream of iperf3" \
        timeout 900 cargo test -q --release -p gimmal-bench --test beside_bulk -- --ignored --nocapture
}

# Peers that mean harm.
peers() {
    check "a peer at all limits of shared memory for 30 s" env GIMMAL_LIMITS_SECONDS=30 \
        timeout 900 cargo test -q --release -p gimmal-transport --features testing --lib shm::tests::limits -- --nocapture
    check "a client at all limits of calls for 30 s" env GIMMAL_LIMITS_SECONDS=30 \
        timeout 900 cargo test -q --release -p gimmal-rpc --features verbs --test crowd -- --nocapture
}

# Bytes that mean harm.
fuzz() {
    check "3 x 10^7 hostile operations" env GIMMAL_HOSTILE_OPERATIONS=10000000 GIMMAL_FUZZ_INPUTS=1000000 \
        timeout 1800 cargo test -q --release -p gimmal-rpc --test attack --test fuzz
    count "libFuzzer, a minute for each target" bash tests/fuzz.sh 60
    count "sanitizers" bash tests/sanitize.sh
}

# Simulated worlds.
seeds() {
    check "9,000 runs of the simulated engine, 1,000 messages each" env GIMMAL_SEEDS=3000 GIMMAL_MESSAGES=1000 \
        timeout 3000 cargo test -q --release -p gimmal-engine --test sim
    check "16,000 byte streams on 1,000 simulated worlds of each medium" env GIMMAL_SEEDS=1000 \
        timeout 1800 cargo test -q --release -p gimmal-rpc --lib byte_streams_give_every_byte_and_every_end_once
    check "360,000 calls of tonic's stubs on 1,000 simulated worlds of each medium" env GIMMAL_SEEDS=1000 \
        timeout 1800 cargo test -q --release -p gimmal-tonic --test worlds
}

# Programs of third parties.
programs_of_others() {
    count "gRPC of other languages, 10^6 requests through two edges, programs of Debian through tunnels" bash tests/interop/run.sh all
    count "the same through tunnels over rxe and siw" "$bin/gimmal-lab" run --fabric both --timeout-s 3000 -- \
        env GIMMAL_PROGRAMS=all bash tests/lab.sh tunnel
    count "what a tunnel costs, beside socat" bash tests/interop/tunnel_numbers.sh
}

# What others build: every package by itself.
packages() {
    count "every published crate builds from its package" bash tests/packages.sh all
    count "the Debian package, in a chroot" bash tests/deb.sh
}

# A bad network between two guests.
losses() {
    check "10^6 calls at 1 % loss, 10^5 at 10 %, 2 x 10^4 at 30 %, over tcp and rxe" env GIMMAL_LOSSES=long \
        timeout 15000 bash tests/pair.sh losses
}

ledger() {
    check "every entry of the hot path's ledger is worth its place" env LINES_SHOWN=400 timeout 14400 cargo xtask bench ledger
}

# The page of the suite `quick`, opened at the widths of a laptop and of a phone, light and dark, where there is Chromium.
page() {
    count "the bench's page in a browser" cargo xtask bench page
}

# recorded PART FILE: puts what a part came to into the summary, in place of what it came to before.
recorded() {
    local file=tests/soak-summary.txt rest
    exec 8>>"$file" && flock 8
    rest=$(awk -v begin="== $1 " '/^== / { mine = index($0, begin) == 1 } !mine' "$file")
    {
        printf '%s\n' "$rest"
        printf '== %s  %s  %s\n' "$1" "$(date -u +%F)" "$(uname -srm)"
        grep -E '^(ok|FAILED|SKIP) ' "$2"
    } | sed '/^$/d' >"$2.all" && cat "$2.all" >"$file"
    rm -f "$2.all"
    exec 8>&-
}

record=$(mktemp)
trap 'rm -f "$record"' EXIT
for part in "${parts[@]}"; do
    command=$part
    [ "$part" != programs ] || command=programs_of_others
    declare -F "$command" >/dev/null || { echo "soak: there is no part $part" >&2; exit 2; }
    # Not by a pipe: the part's counts are this shell's.
    "$command" > >(tee "$record") 2>&1
    wait $!
    recorded "$part" "$record"
done
summary
