#!/usr/bin/env bash
# The README's first command as a fresh machine runs it: built alone, without verbs.
set -uo pipefail
cd "$(dirname "$0")/.."
. tests/check.sh
export CARGO_TARGET_DIR=target/readme

check "the README's demo" timeout 1800 ./x demo
refuses "verbs not compiled in" "cargo feature" $CARGO_TARGET_DIR/release/files fetch --address "rdma://127.0.0.1:1"
summary
