#!/usr/bin/env bash
# AddressSanitizer and ThreadSanitizer over what touches memory by hand, on a nightly toolchain. With its source std is built with
# them too: its locks are seen, and nothing has to be suppressed. Without, ThreadSanitizer would report every lock of std and is
# skipped by name, and AddressSanitizer sees our own code alone. Without a nightly all of it is skipped.
#
#     tests/sanitize.sh [--no-run]      with it, the tests are built only
set -uo pipefail
cd "$(dirname "$0")/.."
. tests/check.sh
LINES_SHOWN=6
# skip COUNT WHY: checks that cannot run here.
skip() {
    for _ in $(seq "$1"); do echo "SKIP    $2"; done
    skipped=$((skipped + $1))
}
# What is not there is not fetched.
export RUSTUP_AUTO_INSTALL=0
sysroot=$(rustc +nightly --print sysroot 2>/dev/null) || sysroot=
minor=$(rustc +nightly --version 2>/dev/null | sed -nE 's/^rustc 1\.([0-9]+).*/\1/p')
least=$(sed -nE 's/^rust-version = "1\.([0-9]+).*/\1/p' Cargo.toml)
if [ -z "$sysroot" ] || [ "${minor:-0}" -lt "$least" ]; then
    skip 4 "sanitizers: no nightly toolchain of 1.$least or later (rustup toolchain install nightly -c rust-src)"
    summary
    exit 0
fi
with_std=()
[ -f "$sysroot/lib/rustlib/src/rust/library/Cargo.lock" ] && with_std=(-Zbuild-std)
host=$(rustc -vV | sed -n 's/^host: //p')
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/sanitize RUST_BACKTRACE=0 GIMMAL_HOSTILE_OPERATIONS=300000

options=("$@")
# under SANITIZER TESTS...: builds and runs them instrumented.
under() {
    local sanitizer=$1
    shift
    RUSTFLAGS="-Zsanitizer=$sanitizer" cargo +nightly test -q ${with_std[@]+"${with_std[@]}"} --target "$host" ${options[@]+"${options[@]}"} "$@"
}

# What was freed waits to be touched, but not so much of it that it looks like a leak to the test of a flood.
export ASAN_OPTIONS=detect_leaks=0:quarantine_size_mb=16
check "AddressSanitizer: transport" under address -p gimmal-rdma -p gimmal-transport -p gimmal-sim --lib --features gimmal-transport/testing
check "AddressSanitizer: hostile peers" under address -p gimmal-rpc --test attack --test fuzz
if [ ${#with_std[@]} -gt 0 ]; then
    check "ThreadSanitizer: transport" under thread -p gimmal-transport -p gimmal-sim --lib --features gimmal-transport/testing
    check "ThreadSanitizer: calls from many threads" under thread -p gimmal-rpc --test calls
else
    skip 2 "ThreadSanitizer: the nightly toolchain has no source (rustup component add rust-src --toolchain nightly)"
fi
summary
[ "$failed" -eq 0 ]
