#!/usr/bin/env bash
# The bench's page in headless Chromium: no errors on its console, and pictures of it.
# Usage: tests/page.sh [FOLDER for report.png and stall.png]; bench/docs has those of a machine that was still.
set -uo pipefail
cd "$(dirname "$0")/.."
. tests/check.sh
bin=${BIN:-target/release/gimmal-bench} scratch=$(mktemp -d) folder=${1:-}
trap 'rm -rf "$scratch"' EXIT
browser=$(command -v chromium || command -v google-chrome || true)

records() {
    "$bin" lat --loopback -s 64..4k -n "$1" --pairs 9 --against uds,ucx --json &&
        "$bin" rate --loopback -O 32 -s 64..4k -n "$1" --pairs 7 --json
}
stalls() { "$bin" load --loopback -O 1 -n 20k --rates "$1" -D 3 --stall 100 --json; }

# picture NAME PAGE HEIGHT: opens it; what it says on its console is an error.
picture() {
    timeout 120 "$browser" --headless --no-sandbox --disable-gpu --hide-scrollbars --enable-logging=stderr \
        --window-size="1000,$3" --screenshot="$scratch/$1.png" "file://$2" 2>"$scratch/log" || return 1
    if grep CONSOLE "$scratch/log"; then return 1; fi
    file "$scratch/$1.png" 2>/dev/null || ls -l "$scratch/$1.png"
    [ -z "$folder" ] || [ "$1" = two ] || cp "$scratch/$1.png" "$folder/"
}
if [ -n "$folder" ]; then
    records 140000 >"$scratch/records" 2>/dev/null
    stalls 500,1k,2k,5k,10k,20k >"$scratch/stalls" 2>/dev/null
else
    records 2000 >"$scratch/records" 2>/dev/null
    stalls 500,1k >"$scratch/stalls" 2>/dev/null
fi
check "a page of several sizes" "$bin" report "$scratch/records" -o "$scratch/report.html"
check "a page of two runs" "$bin" report "$scratch/records" "$scratch/records" -o "$scratch/two.html"
check "a page of stalls" "$bin" report "$scratch/stalls" -o "$scratch/stall.html"
if [ -n "$browser" ]; then
    check "it opens in a browser" picture report "$scratch/report.html" 2400
    check "two runs open in a browser" picture two "$scratch/two.html" 4200
    check "stalls open in a browser" picture stall "$scratch/stall.html" 1500
else
    skipped=$((skipped + 3))
    echo "SKIP    no chromium: the pages were made and not opened"
fi
summary
