#!/usr/bin/env bash
# Rules of the house that no compiler checks. Prints what breaks them; one line a rule.
set -uo pipefail
cd "$(dirname "$0")/.."
passed=0 failed=0

# rule NAME: reads offenders from stdin.
rule() {
    local offenders
    offenders=$(cat)
    if [ -z "$offenders" ]; then
        passed=$((passed + 1)) && printf 'ok      %s\n' "$1"
    else
        failed=$((failed + 1)) && printf 'FAILED  %s\n%s\n' "$1" "$offenders"
    fi
}

sources() { git ls-files "$@"; }

unsafe_outside() {
    grep -HnE '^[^/]*\bunsafe( \{|\{| fn| impl)' $(sources '*.rs') | grep -vE '^transport/src/(mem|sync|shm|verbs|floor)/|^transport/rdma/src/'
}

without_forbid() {
    for root in transport/sim testkit engine rpc rpc/macros gimmal bench cli examples lab lab/programs; do
        for file in "$root/src/lib.rs" "$root/src/main.rs"; do
            [ ! -f "$file" ] || grep -qF '#![forbid(unsafe_code)]' "$file" || echo "$file"
        done
    done
}

provider_imports() {
    for provider in verbs shm; do
        others=$(printf '%s\n' verbs shm | grep -v "$provider" | paste -sd'|')
        grep -nE "crate::($others)::" $(sources "transport/src/$provider/*.rs") /dev/null
    done
}

undocumented_knobs() {
    grep -ohE '^    pub [a-z_]+:' engine/src/config.rs transport/src/config.rs | sed 's/.*pub //; s/://' | sort -u |
        while read -r field; do grep -q "\`[a-z_.]*$field\`" tuning.md || echo "$field"; done
}

# Bytes of requests and answers are copied only where a counter says so.
uncounted_copies() {
    grep -nE '(copy_from|extend_from|clone_from)_slice|\bcopy\(|\.to_vec\(\)' \
        $(sources 'rpc/src/node/*.rs' rpc/src/{calls,cell,channel,client,large,local,workers}.rs rpc/src/local/*.rs | grep -v '/sim_') |
        grep -vE 'encode\(\)\)|// (counted|an item|a status|metadata|a draft)$|b"'
}

lonely_sync_points() {
    grep -ohE 'SYNC POINT: [a-z -]+' $(sources '*.rs') | sort | uniq -c | awk '$1 < 2'
}

# Methods of builders that no test of the same file calls in pairs with the others. A peer of a datagram end point needs a
# device, and ledgers begin once.
untested_builders() {
    grep -HoE 'pub (const )?fn [a-z_]+\(mut self\b[^{]*-> Self' $(sources 'transport/src/*.rs' 'transport/rdma/src/*.rs' 'engine/src/*.rs' 'rpc/src/*.rs') |
        grep -vE '^transport/src/mem/loan|^transport/rdma/src/datagram/peer|^engine/src/proto/' |
        while IFS=: read -r file method; do
            name=${method#*fn } name=${name%%(*}
            grep -qE "\(\"$name\",|^ +\"$name\",$" "$file" || echo "$file: $name"
        done
}

# Names in backquotes in the table of faults that are no test.
untested_faults() {
    grep -oE '`[a-z0-9_]+`' tests/faults.md | tr -d '`' | sort -u | while read -r name; do
        grep -qrE "(fn )?\\b$name\\b *(\\(|\$)" $(sources '*.rs') || echo "$name"
    done
}

# System calls that a signal can interrupt, made without being started again. Waits are not among them: they end sooner.
interruptible_calls() {
    local file
    for file in $(sources 'transport/src/*.rs' 'transport/rdma/src/*.rs' 'engine/src/*.rs' 'rpc/src/*.rs' 'cli/src/*.rs' | grep -vE '/tests?(/|\.rs)|/attack\.rs|/conformance/'); do
        sed '/^#\[cfg(.*test.*)\]/,$d' "$file" | awk -v file="$file" '
            /(fs::(ftruncate|fallocate|flock|open|openat|memfd_create)|net::(accept[a-z_]*|connect|send[a-z_]*|recv[a-z_]*)|rand::getrandom)\(/ &&
                !/retry_on_intr|in_pieces/ && last !~ /retry_on_intr/ { print file ":" FNR ": " $0 }
            { last = $0 }'
    done
}

# Licences that deny.toml does not allow, of everything that is compiled in; cargo-deny checks more where it is installed.
foreign_licences() {
    if cargo deny --version >/dev/null 2>&1; then
        cargo deny --log-level error check licenses bans sources 2>&1 | tail -n 20
        return
    fi
    command -v python3 >/dev/null || { echo "neither cargo-deny nor python3 is here"; return; }
    local allowed
    allowed=$(sed -n 's/^allow = \[\(.*\)\]/\1/p' deny.toml | tr -d '"' | tr ',' '\n' | sed 's/^ //')
    cargo metadata --format-version 1 --all-features --locked 2>/dev/null |
        python3 -c '
import json, re, sys
allowed = set(sys.argv[1].splitlines())
# Their licence is a file; what it says was read.
read = {"rdma-sys": "MIT"}
def fits(text):
    return any(all(part.strip(" ()") in allowed for part in re.split(r" AND ", choice)) for choice in re.split(r" OR |/", text))
for package in json.load(sys.stdin)["packages"]:
    licence = package["license"] or read.get(package["name"]) or ("in " + package["license_file"] if package["license_file"] else "none")
    if not fits(licence):
        print(package["name"], package["version"] + ":", licence)
    if package["source"] and not package["source"].startswith("registry+https://github.com/rust-lang/crates.io-index"):
        print(package["name"], "comes from", package["source"])
' "$allowed"
}

# Locks, and queues that grow, in the files every message passes. Tests at a file's end may use them.
HOT='engine/src/connection.rs engine/src/connection/send.rs engine/src/connection/settle.rs engine/src/io.rs engine/src/message.rs
engine/src/table.rs engine/src/holds.rs engine/src/worker/turn.rs engine/src/worker/receive.rs engine/src/worker/seek.rs engine/src/worker/mod.rs engine/src/worker/idle.rs engine/src/worker/inbox.rs engine/src/worker/duty.rs
engine/src/proto/*.rs transport/src/frame.rs transport/src/batch.rs transport/src/any/port.rs transport/src/any/used.rs
transport/src/shm/port.rs transport/src/shm/live.rs transport/src/shm/look.rs transport/src/shm/park.rs transport/src/shm/slot.rs
transport/src/verbs/data/port.rs transport/src/verbs/data/poll.rs transport/src/verbs/data/rx.rs transport/src/verbs/data/tx.rs transport/rdma/src/verbs/cq.rs transport/rdma/src/verbs/lists.rs
transport/src/verbs/srq/slots.rs transport/src/share.rs
transport/src/mem/rx_frame.rs transport/src/mem/run.rs transport/src/mem/hold.rs
transport/src/sync/doorbell.rs transport/src/sync/publish.rs transport/src/sync/release.rs transport/src/sync/wake.rs transport/src/sync/word.rs
rpc/src/calls.rs rpc/src/calls/*.rs rpc/src/frame.rs rpc/src/cell.rs rpc/src/inline.rs rpc/src/node/caller.rs rpc/src/node/dispatch.rs'
locks_in_hot_files() {
    local file
    for file in $HOT; do
        [ -f "$file" ] || { echo "$file is not there"; continue; }
        sed '/^#\[cfg(.*test.*)\]/,$d' "$file" |
            grep -nE '\b(Mutex|RwLock|Condvar|SegQueue|Injector|LinkedList)\b|mpsc::channel\(|channel::unbounded' | sed "s|^|$file:|"
    done
}

# Threads that std starts take signals from the application; ours are started with a name. Tests may start any.
threads_with_signals() {
    local file
    for file in $(sources {transport,transport/rdma,engine,rpc,gimmal,cli}/'src/*.rs' |
        grep -vE '/tests(/|\.rs)|/conformance/|_tests\.rs$|sync/loom_|^transport/src/sync/thread\.rs$|^transport/rdma/src/thread\.rs$'); do
        sed '/^#\[cfg(.*test.*)\]/,$d' "$file" | grep -nE 'thread::(Builder|scope)\b|thread::spawn\([^"f]' |
            sed "s|^|$file:|"
    done
}

# Shifts that pack numbers into a word, and could push one into its neighbour: transport/src/pack.rs does it, with proofs.
packed_by_hand() {
    grep -nE '[]A-Za-z_)] <<=? |^ *<<=? ' $(sources transport/src transport/rdma/src engine/src rpc/src | grep '\.rs$' | grep -vE '/tests?/|^transport/src/pack\.rs$') |
        grep -vE ':[0-9]+: *//|// cut on purpose: [a-z]'
}

# Checks that a release build leaves out. The floors, which the bench measures against, may have some.
left_out_of_releases() {
    grep -nE '\bdebug_assert(_eq|_ne)?!' $(sources transport/src transport/rdma/src engine/src rpc/src gimmal/src | grep '\.rs$' | grep -v '^transport/src/floor/')
}

# Futures whose documentation does not say what is lost when they are dropped before they are ready.
unsaid_cancel_safety() {
    awk '/^ *\/\/\// { doc = doc $0; next }
        /^ *#\[/ { next }
        /pub async fn/ && doc !~ /[Cc]ancel safe/ { print FILENAME ":" FNR ":" $0 }
        { doc = "" }' $(sources 'rpc/src/*.rs')
}

# Wakers are foreign code, and may panic.
bare_wakes() {
    grep -nE '(waker|task)\.wake\(\)|Waker::wake\b' $(sources 'rpc/src/*.rs' | grep -vE '^rpc/src/wake.rs$|/sim_tests|tests\.rs$')
}

long_files() { wc -l $(sources '*.rs') | awk '$2 != "total" && $1 > 600 { print $2 ": " $1 " lines" }'; }

rule 'unsafe only in transport/src/{mem,sync,shm,verbs,floor} and transport/rdma/src' < <(unsafe_outside)
rule 'forbid(unsafe_code) in every crate above transport' < <(without_forbid)
rule 'rdma_sys is named in rdma/src/sys/rdma.rs only' < <(grep -ln 'rdma_sys' $(sources '*.rs') | grep -v '^transport/rdma/src/sys/rdma.rs$')
# What it must not know: it is a library of its own.
rule 'the rdma crate knows no word of gimmal' < <(grep -niE '\b(gimmal|gimmal_transport|hello|credit|loan)\b' $(sources 'transport/rdma/src/*.rs'))
rule 'engine and rpc name no provider' < <(grep -nE 'transport::(verbs|shm)\b' $(sources 'engine/src/*.rs' 'rpc/src/*.rs'))
rule 'providers do not import each other' < <(provider_imports)
rule 'no locks and no unbounded queues in the files every message passes' < <(locks_in_hot_files)
rule 'threads are started by transport::thread::spawn' < <(threads_with_signals)
rule 'no file over 600 lines' < <(long_files)
rule 'numbers are packed by pack.rs' < <(packed_by_hand)
rule 'checks hold in release builds too' < <(left_out_of_releases)
rule 'copies of requests and answers are counted' < <(uncounted_copies)
rule 'nothing left to do in the code' < <(grep -nE '(^|[^a-z_])(todo!|unimplemented!|dbg!)\(' $(sources '*.rs'))
rule 'only rpc/src/wake.rs wakes' < <(bare_wakes)
rule 'SAFETY comments argue' < <(grep -nE 'SAFETY: *(ffi|todo|\?)' $(sources '*.rs'))
rule 'every SYNC POINT has its other end' < <(lonely_sync_points)
rule 'every config field is in tuning.md' < <(undocumented_knobs)

rule 'every method of a builder is tested in pairs' < <(untested_builders)
rule 'every future of rpc says whether it is cancel safe' < <(unsaid_cancel_safety)
rule 'every test named in tests/faults.md exists' < <(untested_faults)
rule 'calls that a signal can interrupt are started again' < <(interruptible_calls)
rule 'licences and sources are those of deny.toml' < <(foreign_licences)

printf '%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" -eq 0 ]
