#!/usr/bin/env bash
# Every fuzz target under libFuzzer and AddressSanitizer for a while: tests/fuzz.sh [SECONDS_EACH]. Needs a nightly
# toolchain, and is skipped by name without one; `cargo fuzz run TARGET` in fuzz/ does the same for one target.
set -uo pipefail
cd "$(dirname "$0")/.."
. tests/check.sh
seconds=${1:-60} LINES_SHOWN=6
if ! cargo +nightly --version >/dev/null 2>&1; then
    echo "SKIP    libFuzzer: no nightly toolchain"
    skipped=$((skipped + 1))
    summary
    exit 0
fi
host=$(rustc -vV | sed -n 's/^host: //p')
coverage="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters"
coverage+=" -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares"
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/fuzz
# With --target the flags are for the targets alone, not for build scripts and macros.
RUSTFLAGS="--cfg fuzzing -Zsanitizer=address -Ccodegen-units=1 $coverage" \
    cargo +nightly build -q --release --target "$host" --manifest-path fuzz/Cargo.toml || exit 1

for source in fuzz/fuzz_targets/*.rs; do
    target=$(basename "$source" .rs)
    work=$(mktemp -d)
    check "libFuzzer: $target for $seconds s" env ASAN_OPTIONS=detect_leaks=0 \
        "$CARGO_TARGET_DIR/$host/release/$target" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 \
        -artifact_prefix="$work/" -print_final_stats=1 "$work" "fuzz/corpus/$target"
    find "$work" -name 'crash-*' -o -name 'timeout-*' -o -name 'oom-*' | while read -r found; do
        printf 'the input, for fuzz/corpus/%s:\n' "$target" && base64 "$found"
    done
    rm -rf "$work"
done
summary
[ "$failed" -eq 0 ]
