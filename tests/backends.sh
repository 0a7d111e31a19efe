#!/usr/bin/env bash
# Verbs without rdma-core: built where there is none, run where there is none. The unit tier runs it after the tests of
# the other backend, `rdma-sys`.
set -uo pipefail
cd "$(dirname "$0")/.."
. tests/check.sh

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

target=target/bare
files=$target/debug/files

links_neither() {
    local libraries
    libraries=$(ldd "$files") || return 1
    printf '%s\n' "$libraries"
    [[ $libraries == *libc.so* && $libraries != *ibverbs* && $libraries != *rdmacm* ]]
}

says_what_is_missing() {
    local output
    output=$(RUST_BACKTRACE=0 bash tests/hide.sh libraries "$files" fetch --address rdma://127.0.0.1:1 2>&1 </dev/null) && return 1
    printf '%s\n' "$output"
    [[ $output == *"verbs is not available: librdmacm.so.1 cannot be opened: "*"; install with: apt-get install librdmacm1 ibverbs-providers"* ]] &&
        [[ $output != *panicked* ]]
}

shm_still_works() { bash tests/hide.sh libraries timeout 120 "$files" demo --provider shm --bytes-max 1000000; }

# A target folder of its own, so that nothing built beside the headers is taken for it. The lab runs what is built here.
hidden "builds where there is neither rdma-core nor clang" env CARGO_TARGET_DIR=$target \
    bash tests/hide.sh build cargo build -q -p gimmal-examples -p gimmal-transport --bins --examples \
    --features gimmal-examples/verbs,gimmal-transport/verbs,gimmal-transport/conformance
if [ -x "$files" ]; then
    hidden "the program links neither library" links_neither
    hidden "without the libraries it says what is missing" says_what_is_missing
    hidden "without the libraries shared memory works" shm_still_works
fi
summary
