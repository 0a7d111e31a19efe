#!/usr/bin/env bash
# Verbs without rdma-core: built where there is none, run where there is none. The unit tier runs it.
set -uo pipefail
cd "$(dirname "$0")/.."
. tests/check.sh

# A target folder of its own, so that nothing built beside the headers is taken for it. The lab runs what is built here.
hidden "builds where there is neither rdma-core nor clang" env CARGO_TARGET_DIR=target/bare \
    bash tests/hide.sh build cargo build -q -p gimmal-rdma -p gimmal-lab-programs --examples --bin verbs_smoke
summary
