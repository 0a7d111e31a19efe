#!/usr/bin/env bash
# Programs of third parties: those that speak gRPC over HTTP/2, through `gimmal edge`, gimmal, and another edge, both ways round; others
# through `gimmal tunnel`; and sandboxes with shared memory between them. `tests/interop/run.sh` asks grpc-go's server by two clients; with
# `all`, two servers by three clients, and makes a million requests. It takes the small ones of the others; with `all`, all.
# `BIN` has gimmal's own programs.
set -uo pipefail
cd "$(dirname "$0")/../.."
. tests/check.sh
. tests/programs.sh
. tests/interop/setup.sh
. tests/interop/edges.sh
. tests/interop/tunnels.sh
. tests/interop/sandboxes.sh
LINES_SHOWN=6
bin=${BIN:-}
[ -n "$bin" ] || { programs || exit 1; bin=target/release; }
interop=$parties
mkdir -p "$parties"
# The lab runs them over its devices.
ln -sfn "$parties" "$bin/interop"
trap stopped EXIT
export XDG_RUNTIME_DIR=$folder

# made NAME STEP...: makes a third party's program; SKIP where its packages cannot be had, or not within the time that is left for all of
# them: 240 s, with `all` ten times that.
making_s=240
[ -z "${1:-}" ] || making_s=2400
made() {
    local output status start=$SECONDS
    output=$(timeout -k 5 $((making_s + 1)) bash -c '. tests/interop/setup.sh; "$@"' made "${@:2}" 2>&1)
    status=$?
    making_s=$((making_s - SECONDS + start > 0 ? making_s - SECONDS + start : 0))
    [ $status -ne 0 ] || return 0
    [ $status -ne 124 ] || output="no time is left to get it"
    skipped=$((skipped + 1))
    echo "SKIP    $1: its packages cannot be had here: $(tail -n 1 <<<"$output")"
    return 1
}

# python SECONDS PROGRAM ARGS...: a program of this folder, with grpcio.
python() { PYTHONPATH=$parties/python exec timeout "$1" "$parties/python/bin/python" "tests/interop/$2" "${@:3}"; }
by_python() { (python 60 client.py "127.0.0.1:$1"); }
by_python_under_tls() { (python 60 client.py "127.0.0.1:$1" "$folder/edge.pem"); }
of_tonic() { (python 60 reflection.py "127.0.0.1:$1"); }
by_js() { NODE_PATH=$parties/js/node_modules timeout 60 node tests/interop/client.js "127.0.0.1:$1" "$parties/test.proto"; }

# Empty calls, 100 connections with 100 streams each; none may fail.
by_h2load() {
    local output
    printf '\0\0\0\0\0' >"$folder/empty"
    output=$(party 600 nghttp2 h2load -c100 -m100 -n "$2" -H 'content-type: application/grpc' \
        -H 'te: trailers' -d "$folder/empty" "http://127.0.0.1:$1/grpc.testing.TestService/EmptyCall")
    grep -E '^(finished|requests|status codes)' <<<"$output"
    grep -q "^requests: $2 total, $2 started, $2 done, $2 succeeded, 0 failed, 0 errored, 0 timeout" <<<"$output"
}

# under_tls SERVER-PORT: the first edge speaks TLS to its clients.
under_tls() {
    local url=shm://interop-tls-$$
    if ! command -v openssl >/dev/null; then
        skipped=$((skipped + 1))
        echo "SKIP    python's client under TLS: there is no openssl to make a certificate with"
        return
    fi
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=edge \
        -addext subjectAltName=IP:127.0.0.1 -keyout "$folder/edge.key" -out "$folder/edge.pem" 2>>"$folder/log" || return
    "$bin/gimmal" edge --listen "$url" --to "http://127.0.0.1:$1" >>"$folder/log" 2>&1 &
    started+=($!)
    served 21200 "$bin/gimmal" edge --listen https://127.0.0.1:21200 --to "$url" --cert "$folder/edge.pem" --cert-key "$folder/edge.key" || return
    count "python's client under TLS to the server at $1" by_python_under_tls 21200
    ended; ended
}

grpc() {
    local all=${1:-} url clients=(go) servers=(21000) client server requests=20000
    made grpc-go grpc_go || return
    served 21000 "$parties/interop_server" -port 21000 || return
    if made grpcio grpc_python; then
        clients+=(python)
        [ -z "$all" ] || servers+=(21001)
        served 21001 python 900 server.py 127.0.0.1:21001 || return
    fi
    [ -z "$all" ] || requests=1000000
    [ -z "$all" ] || ! made grpc-js grpc_js || clients+=(js)
    for url in "shm://interop-$$" tcp://127.0.0.1:21100; do
        for server in "${servers[@]}"; do
            edges "$url" "$server" || return
            for client in "${clients[@]}"; do
                count "$client's client over ${url%%:*} to the server at $server" "by_$client" 21200
            done
            ended; ended
        done
    done
    if [ -e "$parties/python/ready" ]; then
        "$bin/examples/reflected" "shm://reflected-$$" >>"$folder/log" 2>&1 &
        started+=($!)
        served 21200 "$bin/gimmal" edge --listen http://127.0.0.1:21200 --to "shm://reflected-$$" || return
        count "health and reflection of a tonic server by python's client" of_tonic 21200
        ended; ended INT
    fi
    [ ! -e "$parties/python/ready" ] || under_tls 21000 || return
    made h2load debian nghttp2 || return
    edges "shm://interop-$$" 21000 || return
    check "$requests requests by h2load" by_h2load 21200 "$requests"
    ended; ended
}

grpc "$@"
tunnels "$@"
sandboxes "$@"
no_go
summary
