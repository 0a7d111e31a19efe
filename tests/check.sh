# Sourced by the tiers, in guests by a plain sh: runs checks, prints a line for each, and the sum. What is searched is read
# to its end, so that nobody writes into a closed pipe.
passed=0 failed=0 skipped=0

# check NAME COMMAND...: must end with 0. The end of its output is shown, indented: LINES_SHOWN lines, 45 of a failure.
check() {
    local name=$1 output status start=$SECONDS lines=${LINES_SHOWN:-45}
    shift
    output=$("$@" 2>&1)
    status=$?
    [ "$status" -eq 0 ] || [ "$lines" -ge 45 ] || lines=45
    if [ "$status" -eq 0 ]; then
        passed=$((passed + 1))
        printf 'ok      %s (%d s)\n' "$name" $((SECONDS - start))
    else
        failed=$((failed + 1))
        printf 'FAILED  %s: exit code %d\n' "$name" "$status"
    fi
    printf '%s\n' "$output" | tail -n "$lines" | sed 's/^/        /; s/passed, /passed; /g'
}

# refuses NAME TEXT COMMAND...: must fail within 60 s, with TEXT on standard error.
refuses() {
    local name=$1 text=$2 output status
    shift 2
    output=$(timeout 60 "$@" 2>&1 </dev/null)
    status=$?
    if [ "$status" -ne 0 ] && [ "$status" -ne 124 ] && printf '%s\n' "$output" | grep -i -- "$text" >/dev/null; then
        passed=$((passed + 1))
        printf 'ok      refused: %s\n' "$name"
    else
        failed=$((failed + 1))
        printf 'FAILED  refused: %s: exit code %d, wanted "%s"\n' "$name" "$status" "$text"
    fi
    printf '%s\n' "$output" | tail -n 5 | sed 's/^/        /'
}

# count NAME COMMAND...: a program that prints `N passed, N failed[, N skipped]` last; its numbers are added.
count() {
    local name=$1 output status line p f s start=$SECONDS
    shift
    output=$("$@" 2>&1)
    status=$?
    line=$(printf '%s\n' "$output" | grep -E '[0-9]+ passed, [0-9]+ failed' | tail -n 1)
    p=$(printf '%s' "$line" | grep -oE '[0-9]+ passed' | grep -oE '[0-9]+')
    f=$(printf '%s' "$line" | grep -oE '[0-9]+ failed' | grep -oE '[0-9]+')
    s=$(printf '%s' "$line" | grep -oE '[0-9]+ skipped' | grep -oE '[0-9]+')
    passed=$((passed + ${p:-0})) failed=$((failed + ${f:-0})) skipped=$((skipped + ${s:-0}))
    if [ "$status" -ne 0 ] && [ "${f:-0}" -eq 0 ] || [ "${p:-0}" -eq 0 ]; then
        failed=$((failed + 1))
        printf 'FAILED  %s: exit code %d\n' "$name" "$status"
        printf '%s\n' "$output" | tail -n 30 | sed 's/^/        /; s/passed, /passed; /g'
    else
        [ "${f:-0}" -eq 0 ] && printf 'ok      ' || printf 'FAILED  '
        printf '%s: %s cases passed, %s failed, %s skipped (%d s)\n' "$name" "${p:-0}" "${f:-0}" "${s:-0}" $((SECONDS - start))
        printf '%s\n' "$output" | grep -E '^(SKIP|FAILED)' | sed 's/^/        /'
        if [ "${f:-0}" -gt 0 ]; then printf '%s\n' "$output" | grep -E -A3 'FAILED$|panicked at' | sed 's/^/        /'; fi
    fi
}

# hidden NAME COMMAND...: as `check`, with rdma-core hidden as tests/hide.sh does; SKIP where that is not allowed.
hidden() {
    local name=$1
    shift
    if ! bash tests/hide.sh libraries true 2>/dev/null; then
        skipped=$((skipped + 1))
        printf 'SKIP    %s: this system allows no mount namespace\n' "$name"
        return
    fi
    check "$name" "$@"
}

# within SECONDS COMMAND...: waits until it ends with 0.
within() {
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        [ $SECONDS -lt $end ] || return 1
        sleep 0.1
    done
}

# listens PORT: waits until a CM id does. Not every program says when it is ready.
has_listener() { rdma resource show cm_id 2>/dev/null | grep "state LISTEN .*:$1 " >/dev/null; }
listens() { within 60 has_listener "$1" || { echo "nobody listens on port $1"; return 1; }; }

# one_sided ADDRESS TIMES: a server whose memory another process uses. It serves until the other has ended, and lives then.
one_sided() {
    local server status
    timeout 300 "$bin/examples/one_sided" serve --address "$1" --seconds 600 &
    server=$!
    timeout 200 "$bin/examples/one_sided" use --address "$1" --times "$2"
    status=$?
    kill "$server" || { echo "the server had ended"; status=1; }
    wait "$server"
    return $status
}

summary() {
    printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
    [ "$failed" -eq 0 ]
}
