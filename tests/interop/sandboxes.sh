# shellcheck shell=bash disable=SC2154
# Shared memory between two sandboxes that have one folder in common and nothing else, and `gimmal://` without that folder. Sandboxes are
# made by bubblewrap and by podman. Sourced after check.sh, setup.sh and edges.sh; `bin` has gimmal's programs.

# In a sandbox: what a command prints is in the shared folder once it has ended.
# shellcheck disable=SC2016
into='said=/share/$1; shift; "$@" >"$said.new" 2>&1; mv "$said.new" "$said"'

# by_bubblewrap SAID COMMAND...: runs a command, which finds gimmal's programs in /gimmal and the folder `share` in /share. What it prints
# gets the name SAID there.
by_bubblewrap() {
    (
        party 100 bubblewrap bwrap --unshare-all ${net:+--share-net} --die-with-parent --ro-bind /usr /usr --symlink usr/lib /lib \
            --symlink usr/lib64 /lib64 --symlink usr/bin /bin --proc /proc --dev /dev --ro-bind "$bin" /gimmal --bind "$share" /share \
            /bin/sh -c "$into" sh "$@"
    ) >>"$folder/log" 2>&1 &
    started+=($!)
}

# podman COMMAND...: without the system's registry, network and configuration.
podman() {
    local root=$parties/podman own=$folder/containers
    LD_LIBRARY_PATH=$root/usr/lib/$(uname -m)-linux-gnu:$root/lib/$(uname -m)-linux-gnu timeout 60 "$root/usr/bin/podman" --root "$own/root" \
        --runroot "$own/run" --tmpdir "$own/tmp" --storage-driver vfs --cgroup-manager cgroupfs --events-backend none \
        --runtime "$root/usr/sbin/runc" --conmon "$root/usr/bin/conmon" "$@"
}

by_podman() {
    local system=(-v /usr:/usr:ro -v /lib:/lib:ro)
    [ ! -e /lib64 ] || system+=(-v /lib64:/lib64:ro)
    mkdir -p "$folder/containers/system/bin"
    podman run -d --network none --ulimit nofile=1024:1024 --ulimit nproc=1024:1024 "${system[@]}" -v "$(realpath "$bin"):/gimmal:ro" \
        -v "$share:/share" --rootfs "$folder/containers/system" /usr/bin/timeout 100 /usr/bin/sh -c "$into" sh "$@" >>"$folder/log" 2>&1
}

# echoes ADDRESS: round trips with the server there.
echoes() { echo gimmal-bench lat --address "$1" -n 20000 --json; }
# rtt FILE...: nanoseconds of a round trip, of several reports.
rtt() { cat "$@" | grep '^{' | jq .p50_ns | sort -g | awk '{ all[NR] = $1 } END { print all[int((NR + 1) / 2)] }'; }

# alone COMMAND...: runs a check, and ends what it started.
alone() {
    local started=() status=0
    "$@" || status=$?
    kill "${started[@]}" 2>>"$folder/log"
    wait "${started[@]}" 2>>"$folder/log"
    return $status
}

# shared_by WAY TURNS: round trips between two sandboxes, beside those between two processes outside.
shared_by() {
    local way=$1 share=$folder/$1 net='' turn command inside outside
    mkdir -m 700 "$share" || return 1
    "by_$way" server /gimmal/gimmal-bench serve --address shm:///share/inside || return 1
    "$bin/gimmal-bench" serve --address "shm://$share/outside" >>"$folder/log" 2>&1 &
    started+=($!)
    within 30 test -S "$share/inside" && within 30 test -S "$share/outside" || { echo "a server does not listen"; return 1; }
    for turn in $(seq "$2"); do
        read -ra command <<<"$(echoes shm:///share/inside)"
        "by_$way" "inside.$turn" "/gimmal/${command[0]}" "${command[@]:1}" || return 1
        within 60 test -e "$share/inside.$turn" || { echo "no report from inside"; return 1; }
        read -ra command <<<"$(echoes "shm://$share/outside")"
        "$bin/${command[0]}" "${command[@]:1}" >"$share/outside.$turn" 2>>"$folder/log" || return 1
    done
    inside=$(rtt "$share"/inside.*) outside=$(rtt "$share"/outside.*)
    echo "64 B: $inside ns inside, $outside ns outside, medians of $2"
    [ -n "$inside" ] && [ -n "$outside" ] || { cat "$share/inside.1"; return 1; }
    # A few turns on a busy machine say little.
    [ "$2" -lt 7 ] || awk -v a="$inside" -v b="$outside" 'BEGIN { exit a > 1.1 * b }'
}

# Without a common runtime folder there is no shared memory, and the reason is said.
without_folder() {
    local share=$folder/none net=1
    mkdir -m 700 "$share" || return 1
    served 21320 "$bin/gimmal" tunnel --listen gimmal://127.0.0.1:21320 --map none=tcp:127.0.0.1:1 || return 1
    by_bubblewrap doctor /gimmal/gimmal doctor gimmal://127.0.0.1:21320 || return 1
    within 30 test -e "$share/doctor"
    grep -o 'gimmal://[^ ]* answered.*' "$share/doctor"
    grep -q 'answered: tcp://.* not by shm: no server' "$share/doctor"
}

# sandboxed WAY: this machine lets it make a sandbox. Some allow no namespaces, or only to root.
sandboxed() {
    local share=$folder/try.$1 net=''
    mkdir -m 700 "$share"
    "by_$1" tried /usr/bin/id && within 20 test -e "$share/tried" && grep -q uid= "$share/tried" && return
    skipped=$((skipped + 1))
    echo "SKIP    sandboxes of $1: it cannot make one here: $(tail -n 1 "$folder/log")"
    return 1
}

# sandboxes [all]
sandboxes() {
    local turns=2
    [ -z "${1:-}" ] || turns=9
    if made bubblewrap debian bubblewrap && sandboxed bubblewrap; then
        check "shared memory between two sandboxes of bubblewrap" alone shared_by bubblewrap $turns
        check "gimmal:// from a sandbox without the folder" alone without_folder
    fi
    if made podman debian podman && sandboxed podman; then
        check "shared memory between two containers of podman" alone shared_by podman $turns
        podman kill -a >>"$folder/log" 2>&1
        podman rm -f -t 0 -a >>"$folder/log" 2>&1
    fi
}
