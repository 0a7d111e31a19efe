#!/usr/bin/env bash
# Every service of the examples, called by the command line: JSON goes in, and what comes out is JSON, as jq sees it.
# `tests/cli.sh FOLDER` takes programs that are built already.
set -uo pipefail
cd "$(dirname "$0")/.."
. tests/check.sh
. tests/programs.sh
LINES_SHOWN=4
[ $# -gt 0 ] || programs || exit 1
bin=${1:-target/release}
# Another release's, to call these programs with.
gimmal=${GIMMAL:-$bin/gimmal}
folder=$(mktemp -d)
run=cli-$$
servers=()

end() {
    kill "${servers[@]}" 2>/dev/null
    wait 2>/dev/null
    rm -rf "$folder"
}
trap end EXIT

# The examples print what they do, and end. A full pipe holds each one at its first line, so its server lives.
mkfifo "$folder/full"
exec 7<>"$folder/full"
dd if=/dev/zero of="$folder/full" bs=4096 count=65536 oflag=nonblock 2>/dev/null

# held PROGRAM ARGS...: starts an example that stays there.
held() {
    "$bin/$1" "${@:2}" >&7 2>"$folder/$1.log" &
    servers+=($!)
}

# call SERVER ARGS...: waits until the server listens, and calls.
listens_at() { "$gimmal" call --timeout-ms 60000 "$1" >/dev/null 2>&1; }
call() {
    within 60 listens_at "$1" || { echo "nobody listens at $1"; return 1; }
    timeout 120 "$gimmal" call --timeout-ms 60000 "$@" </dev/null
}

# gives NAME FILTER SERVER METHOD ARGS...: every line of the answer is JSON, and the filter is true of all lines together.
gives() { check "$1" answers "${@:2}"; }
answers() {
    local output
    output=$(call "${@:2}") || return 1
    printf '%s\n' "$output"
    jq -es "$1" <<<"$output" >/dev/null
}

held hello
gives "Greeter.hello" '.[0] | startswith("good day, Ada")' shm://greeter Greeter.hello '"Ada"'

held chat "shm://$run-chat"
chat() {
    local heard
    within 60 listens_at "shm://$run-chat" || return 1
    heard=$(printf '"from here"\n"again"\n' | timeout 120 "$gimmal" call --timeout-ms 60000 "shm://$run-chat" Chat.join '"Eve"')
    printf '%s\n' "$heard"
    jq -es 'index("Eve is here") != null and index("Eve: again") != null and .[-1] == 2' <<<"$heard" >/dev/null
}
check "Chat.join, items both ways" chat

held kv "shm://$run-kv"
gives "Kv.put, with bulk" '.[0] == true' "shm://$run-kv" Kv.put '"word"' --bulk "a value"
gives "Kv.get, with a loan" '.[0] | .answer == 7 and .loan == "a value"' "shm://$run-kv" Kv.get '"word"'
gives "Kv.peek, raw" '.[0].answer == "a value"' "shm://$run-kv" Kv.peek word --json
missing() {
    local output
    output=$(call "shm://$run-kv" Kv.get '"nothing"' --json) && return 1
    printf '%s\n' "$output"
    jq -e '.error | type == "string"' <<<"$output" >/dev/null
}
check "Kv.get, the method's error" missing

held driven "shm://$run-driven"
gives "Squares.square" '.[0] == 144' "shm://$run-driven" Squares.square 12

held on_smol "shm://$run-smol"
gives "Sleepy.sum" '.[0] == 5050' "shm://$run-smol" Sleepy.sum 1 101
gives "Sleepy.sum_here" '.[0] == 5050' "shm://$run-smol" Sleepy.sum_here 101

held news "shm://$run-news"
gives "News.follow, a stream and its end" '.[-1] | length == 2 and .[0] >= 0' "shm://$run-news" News.follow

held pool "shm://$run-pool"
gives "Work.grind" '.[0] | type == "number"' "shm://$run-pool" Work.grind 1

held watch "shm://$run-watch"
gives "Gauge.stop, one-way" '.[0] == null' "shm://$run-watch" Gauge.stop
gives "Gauge.watch, a stream" 'length == 2 and .[1] == .[0] + 1' "shm://$run-watch" Gauge.watch '"boiler"'

held tokio_server serve "shm://$run-visits"
gives "Visits.visit" '.[0] == 1' "shm://$run-visits" Visits.visit '"Ada"'
followed() {
    timeout 120 "$gimmal" call --timeout-ms 60000 "shm://$run-visits" Visits.follow </dev/null >"$folder/totals" &
    within 60 test -s "$folder/totals"
    kill $!
    wait $!
    cat "$folder/totals"
    jq -es '.[0] == 1' <"$folder/totals" >/dev/null
}
check "Visits.follow, a stream without an end" followed

held fates --address "shm://$run-fates" --journal "$folder/journal"
gives "Work.run" '.[0] == 7' "shm://$run-fates" Work.run 7

mkdir "$folder/served" && echo content >"$folder/served/file"
mkfifo "$folder/input"
exec 8<>"$folder/input"
"$bin/files" serve "$folder/served" --address "shm://$run-files" <"$folder/input" >/dev/null 2>&1 &
servers+=($!)
files=shm://$run-files
gives "Files.list" '.[0] | tostring | contains("file")' "$files" Files.list '""' 0
gives "Files.stat" '.[0] | type == "object"' "$files" Files.stat '"file"'
gives "Files.read_ahead, a list" '.[0] == null' "$files" Files.read_ahead '["file"]'
gives "Files.fetch" '.[0] | tostring | contains("content")' "$files" Files.fetch '"file"'

# It replaces its servers for some seconds, by ones of the other version, and ends: again and again, until it is called.
upgrades() {
    trap 'kill $!; exit' TERM
    while :; do
        "$bin/upgrade" "shm://$run-a" "shm://$run-b" >/dev/null 2>&1 &
        wait $!
    done
}
upgrades &
servers+=($!)
paid() { answers '.[0] | .id == 7 and .cents == 300' "shm://$run-a" Till.pay '{"id": 7, "cents": 300}'; }
check "Till.pay, structs by name" within 60 paid
kill "${servers[-1]}"
wait "${servers[-1]}" 2>/dev/null
unset 'servers[-1]'

described() {
    local server services=0
    for server in greeter "$run"-{chat,kv,driven,smol,news,pool,watch,visits,fates,files}; do
        timeout 120 "$gimmal" describe --timeout-ms 60000 "shm://$server" --json | jq -e 'length > 0' >/dev/null || return 1
        services=$((services + 1))
    done
    echo "$services servers"
}
check "each of them is described as JSON" described

# With our program where the installed one would be.
unit() {
    sed "s|/usr/bin/gimmal|$(realpath "$gimmal")|" cli/systemd/gimmal@.service >"$folder/gimmal@redis.service" &&
        systemd-analyze verify --man=no "$folder/gimmal@redis.service"
}
if command -v systemd-analyze >/dev/null; then
    check "the unit is one that systemd takes" unit
else
    skipped=$((skipped + 1))
    echo "SKIP    the unit is one that systemd takes: there is no systemd-analyze"
fi
summary
