#!/usr/bin/env bash
# The conformance suite on the providers that need no device, with its counts; the lab tier does the others.
# Usage: tests/conformance.sh [PROGRAM: the suite's, which is there already; by default it is built for speed]
set -uo pipefail
cd "$(dirname "$0")/.."
. tests/check.sh
. tests/programs.sh
program=${1:-target/release/examples/conformance}
[ $# -gt 0 ] || programs || exit 1
count "conformance on sim" timeout 400 "$program" --provider sim --passed 130
count "conformance on shm" timeout 400 "$program" --provider shm --passed 124
summary
