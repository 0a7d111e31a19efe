# Two edges between a client and a server of gRPC, and grpc-go's client. Sourced after check.sh; `bin` has gimmal's programs, `interop`
# those of grpc-go.

folder=$(mktemp -d)
started=()

stopped() {
    kill "${started[@]}" 2>/dev/null
    wait "${started[@]}" 2>/dev/null
    rm -rf "$folder"
}

# is_up PORT: whether somebody listens. Asked without a connection, which a server would see.
is_up() { grep -qs ":$(printf %04X "$1") [0-9A-F]*:0000 0A " /proc/net/tcp /proc/net/tcp6; }

# served PORT COMMAND...: starts a server that listens at the port. Without it nothing else makes sense.
served() {
    if ! is_up "$1"; then
        "${@:2}" >>"$folder/log" 2>&1 &
        started+=($!)
        within 60 is_up "$1" && return
    fi
    echo "FAILED  ${*:2}: it does not listen, or somebody else does"
    cat "$folder/log"
    failed=$((failed + 1))
    return 1
}

# edges URL SERVER-PORT: from port 21200 by HTTP/2, by gimmal over the URL, by HTTP/2 to the server.
edges() {
    "$bin/gimmal" edge --listen "$1" --to "http://127.0.0.1:$2" >>"$folder/log" 2>&1 &
    started+=($!)
    served 21200 "$bin/gimmal" edge --listen http://127.0.0.1:21200 --to "$1"
}

# ended [SIGNAL]: the last program ends in order, by SIGTERM or another signal.
ended() {
    local status=0
    kill -s "${1:-TERM}" "${started[-1]}" && wait "${started[-1]}" || status=$?
    unset "started[-1]"
    if [ "$status" -eq 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
    [ "$status" -eq 0 ] || { echo "FAILED  a program ended with $status:"; tail -n 5 "$folder/log"; }
}

go_cases=(empty_unary large_unary client_streaming server_streaming ping_pong empty_stream cancel_after_begin
    cancel_after_first_response timeout_on_sleeping_server custom_metadata status_code_and_message special_status_message
    unimplemented_method unimplemented_service)

# by_go PORT: grpc-go's client; prints `N passed, N failed`.
by_go() {
    local case good=0 bad=0
    for case in "${go_cases[@]}"; do
        if timeout 60 "$interop/interop_client" -server_host 127.0.0.1 -server_port "$1" -test_case "$case" 2>&1; then
            good=$((good + 1))
        else
            bad=$((bad + 1))
            echo "FAILED  $case"
        fi
    done
    echo "$good passed, $bad failed"
    [ "$bad" -eq 0 ]
}
