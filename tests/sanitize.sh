#!/usr/bin/env bash
# AddressSanitizer and ThreadSanitizer over what touches memory by hand, std built with them: its locks are seen, and nothing
# has to be suppressed. Needs a nightly toolchain with its source, and is skipped by name without.
set -uo pipefail
cd "$(dirname "$0")/.."
. tests/check.sh
LINES_SHOWN=6
source=$(rustc +nightly --print sysroot 2>/dev/null)/lib/rustlib/src/rust/library/Cargo.lock
if [ ! -f "$source" ]; then
    echo "SKIP    sanitizers: no nightly toolchain with its source (rustup toolchain install nightly -c rust-src)"
    skipped=$((skipped + 4))
    summary
    exit 0
fi
host=$(rustc -vV | sed -n 's/^host: //p')
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/sanitize RUST_BACKTRACE=0 GIMMAL_HOSTILE_OPERATIONS=300000

# under SANITIZER TESTS...: builds and runs them instrumented.
under() {
    local sanitizer=$1
    shift
    RUSTFLAGS="-Zsanitizer=$sanitizer" cargo +nightly test -q -Zbuild-std --target "$host" "$@"
}

# What was freed waits to be touched, but not so much of it that it looks like a leak to the test of a flood.
export ASAN_OPTIONS=detect_leaks=0:quarantine_size_mb=16
check "AddressSanitizer: transport" under address -p gimmal-transport --lib --features conformance
check "AddressSanitizer: hostile peers" under address -p gimmal-rpc --test attack --test fuzz
check "ThreadSanitizer: transport" under thread -p gimmal-transport --lib --features conformance
check "ThreadSanitizer: calls from many threads" under thread -p gimmal-rpc --test calls
summary
[ "$failed" -eq 0 ]
