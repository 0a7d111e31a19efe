#!/usr/bin/env bash
# The project on what this machine's own toolchain does not show.
# Usage: tests/rust.sh msrv      checks every crate with the Rust that Cargo.toml declares
#        tests/rust.sh aarch64   checks the libraries for aarch64, with that Rust
# rustup keeps that toolchain in target/rustup, beside its own. Skipped where it cannot be had.
set -uo pipefail
cd "$(dirname "$0")/.."
. tests/check.sh
. tests/programs.sh
rust=$(sed -n 's/^rust-version = "\(.*\)"$/\1.0/p' Cargo.toml)
target=aarch64-unknown-linux-gnu
export RUSTUP_HOME=$PWD/target/rustup CARGO_TARGET_DIR=$PWD/target/msrv CARGO_INCREMENTAL=0

msrv() {
    check "the workspace builds with Rust $rust" \
        cargo "+$rust" check -q --locked --workspace --exclude xtask --features "$test_features"
}

# Without TLS, whose provider is made with a C compiler for that processor.
aarch64() {
    check "the libraries build for aarch64" \
        cargo "+$rust" check -q --locked --target "$target" -p gimmal -p gimmal-io -p gimmal-http -p gimmal-tonic \
        --features gimmal/verbs,gimmal/tokio,gimmal/futures,gimmal/tower,gimmal/bincode,gimmal/zerocopy,gimmal/evolve
}

case ${1:-} in msrv | aarch64) ;; *) echo "rust.sh: msrv or aarch64" >&2; exit 2 ;; esac
if timeout 600 rustup toolchain install "$rust" --profile minimal --target "$target" --no-self-update >/dev/null 2>&1; then
    "$1"
else
    skipped=1
    echo "SKIP    $1: rustup cannot bring Rust $rust"
fi
summary
