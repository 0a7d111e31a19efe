#!/usr/bin/env bash
# The conformance suite on the providers that need no device, with its counts; the lab tier does the others.
set -uo pipefail
cd "$(dirname "$0")/.."
. tests/check.sh
. tests/programs.sh
programs || exit 1
count "conformance on sim" timeout 120 target/release/examples/conformance --provider sim --passed 130
count "conformance on shm" timeout 120 target/release/examples/conformance --provider shm --passed 124
summary
