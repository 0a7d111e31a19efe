#!/usr/bin/env bash
# AddressSanitizer and ThreadSanitizer over what touches memory by hand. Needs a nightly toolchain, and is skipped by name
# without one. std itself is not instrumented (that needs its source), so ThreadSanitizer is told that this is meant.
set -uo pipefail
cd "$(dirname "$0")/.."
. tests/check.sh
LINES_SHOWN=6
if ! cargo +nightly --version >/dev/null 2>&1; then
    echo "SKIP    sanitizers: no nightly toolchain"
    skipped=$((skipped + 2))
    summary
    exit 0
fi
host=$(rustc -vV | sed -n 's/^host: //p')
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/sanitize RUST_BACKTRACE=0 GIMMAL_HOSTILE_OPERATIONS=300000

# under SANITIZER TESTS...: builds and runs them instrumented.
under() {
    local sanitizer=$1
    shift
    RUSTFLAGS="-Zsanitizer=$sanitizer -Cunsafe-allow-abi-mismatch=sanitizer" \
        cargo +nightly test -q --target "$host" "$@"
}

export ASAN_OPTIONS=detect_leaks=0 TSAN_OPTIONS="suppressions=$PWD/tests/tsan.txt"
check "AddressSanitizer: transport" under address -p gimmal-transport --lib --features conformance
check "AddressSanitizer: hostile peers" under address -p gimmal-rpc --test attack --test fuzz
check "ThreadSanitizer: transport" under thread -p gimmal-transport --lib --features conformance
check "ThreadSanitizer: calls from many threads" under thread -p gimmal-rpc --test calls
summary
[ "$failed" -eq 0 ]
