#!/usr/bin/env bash
# The main job and the examples over shared memory and TCP, and what bad input is answered with.
set -uo pipefail
cd "$(dirname "$0")/.."
. tests/check.sh
. tests/programs.sh
programs || exit 1
bin=target/release

check "hello" sh -c "$bin/hello | grep 'good day, Ada'"
check "hello is the README's" bash -c 'sed -n "/^\`\`\`rust/,/^\`\`\`$/p" README.md | sed "1d;\$d" | diff - <(sed 1,4d examples/src/bin/hello.rs)'
check "chat" sh -c "$bin/chat | grep 'Bob said 2, Ada said 1'"
check "kv" sh -c "$bin/kv | grep -A9 'get  large: 1048576 bytes, 1048576 of them x' | grep '2 copied'"
check "driven" sh -c "$bin/driven | grep 'are 338350'"
check "tokio_server" sh -c "timeout 120 $bin/tokio_server | grep -A1 'Ada: 3' | grep 'ended: true'"
check "web" sh -c "timeout 120 $bin/web | grep -A2 '200 OK, hello Ada' | grep '408 Request Timeout'"
check "traced" sh -c "timeout 120 $bin/examples/traced | grep 'one trace: front is_well check health'"
check "on_smol" sh -c "timeout 120 $bin/on_smol | grep -A1 'is 5050, and 5050' | grep 'ended: true'"
# Its policy drops the oldest: a reader whom the host held up has lost some, but never the newest.
check "news" sh -c "$bin/news | grep 'a     read .*the last was \"headline 1000\"'"
check "pool" sh -c "$bin/pool | grep '16 resource exhausted'"
check "upgrade" sh -c "timeout 180 $bin/upgrade | grep '^0 wrong answers, 0 failed calls'"
check "watch" sh -c "$bin/watch | grep 'readings sent'"
# over_tcp TEXT NAME ARGS...: the example prints the text.
over_tcp() {
    local wanted=$1 name=$2
    shift 2
    check "$name over tcp" sh -c "timeout 180 $bin/$name $* | grep '$wanted'"
}
any=tcp://127.0.0.1:0
over_tcp "Bob said 2, Ada said 1" chat $any
over_tcp "get  large: 1048576 bytes, 1048576 of them x" kv $any
over_tcp "are 338350" driven $any
over_tcp "ended: true" tokio_server $any
over_tcp "is 5050, and 5050" on_smol $any
over_tcp "the last was .headline 1000" news $any
over_tcp "16 resource exhausted" pool $any
over_tcp "readings sent" watch $any
over_tcp "^0 wrong answers, 0 failed calls" upgrade tcp://127.0.0.1:7620 tcp://127.0.0.1:7621
over_tcp "a restarted server is reached" fates --bound-ms 30000 --address tcp://127.0.0.1:7600
check "demo over tcp" timeout 180 "$bin/files" demo --provider tcp --bytes-max 50000000
check "demo over shm" timeout 180 "$bin/files" demo --provider shm
check "demo of a folder" timeout 180 "$bin/files" demo /usr/share/doc --bytes-max 20000000
check "a server killed among 100 calls" timeout 180 "$bin/fates" --address shm://fates-$$ --bound-ms 30000
check "nothing is left of it" sh -c '! ls "${XDG_RUNTIME_DIR:-/tmp/gimmal-$(id -u)}"/gimmal/fates-'$$' /tmp/gimmal-$(id -u)/fates-'$$' 2>/dev/null | grep -v lock'

check "one-sided operations of another process" one_sided "shm://board-$$" 10000

# Verbs come by dlopen: without rdma-core the same program says what is missing, and shared memory works.
links_neither() {
    local libraries
    libraries=$(ldd "$bin/files") || return 1
    printf '%s\n' "$libraries"
    [[ $libraries == *libc.so* && $libraries != *ibverbs* && $libraries != *rdmacm* ]]
}
says_what_is_missing() {
    local output
    output=$(bash tests/hide.sh libraries "$bin/files" fetch --address rdma://127.0.0.1:1 2>&1 </dev/null) && return 1
    printf '%s\n' "$output"
    [[ $output == *"verbs is not available: librdmacm.so.1 cannot be opened: "*"; install with: apt-get install librdmacm1 ibverbs-providers"* ]] &&
        [[ $output != *panicked* ]]
}
check "the program links neither library of rdma-core" links_neither
hidden "without the libraries it says what is missing" says_what_is_missing
hidden "without the libraries shared memory works" bash tests/hide.sh libraries timeout 120 "$bin/files" demo --provider shm --bytes-max 1000000

refuses "no such folder" "is not a folder" "$bin/files" demo /no/such/folder
refuses "no server" "no server is listening" "$bin/files" fetch --address "shm://nobody-$$"
refuses "a bad address" "is not an address" "$bin/files" fetch --address "http://x"
# It serves until its input ends.
input=$(mktemp -u) && mkfifo "$input"
"$bin/files" serve /usr/share/doc --address "shm://twice-$$" <"$input" >/dev/null 2>&1 &
server=$!
exec 3>"$input"
within 60 "$bin/gimmal" doctor "shm://twice-$$" >/dev/null 2>&1
refuses "a socket path in use" "uses it; stop that process" "$bin/files" serve /usr/share/doc --address "shm://twice-$$"
check "doctor: a live server over shared memory" timeout 60 "$bin/gimmal" doctor "shm://twice-$$"
refuses "doctor: nobody listens" "WRONG  *peer" "$bin/gimmal" doctor "shm://nobody-$$"
exec 3>&-
wait "$server"
rm "$input"
if [ -e /sys/class/infiniband_verbs ]; then
    check "devices of this machine" timeout 60 "$bin/gimmal" devices
else
    # Libraries may be missing too; here the kernel's part is the point, and nothing that follows from it.
    refuses "doctor: an address of RDMA on a machine without" "WRONG  *kernel modules" "$bin/gimmal" doctor rdma://10.0.0.1:1
    check "doctor: of what follows nothing is blamed" \
        sh -c "! $bin/gimmal doctor rdma://10.0.0.1:1 | grep -E '^WRONG +(device|link|address)'"
    check "doctor: a machine without RDMA is well for shared memory" "$bin/gimmal" doctor
fi
summary
