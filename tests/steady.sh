#!/usr/bin/env bash
# The quick suite three times: in each state of the host that runs share, the inline ratios over shared memory agree within
# 15 %, and no run takes two minutes. Usage: tests/steady.sh [RUNS [FOLDER for their records]]
set -uo pipefail
cd "$(dirname "$0")/.."
. tests/check.sh
runs=${1:-3} folder=${2:-} bin=${BIN:-target/release/gimmal-bench}
if [ -z "$folder" ]; then
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
fi
records=()
for number in $(seq "$runs"); do
    records+=("$folder/$number.json")
    LINES_SHOWN=60 check "the quick suite, run $number" timeout 120 "$bin" suite quick --save "$folder/$number.json"
done
LINES_SHOWN=100 check "the runs agree" "$bin" agree "${records[@]}" --within 15
summary
