#!/usr/bin/env bash
# Runs inside a guest that has rxe and siw: the real CM, real verbs, two processes. Binaries are built by the host.
# Usage: tests/lab.sh [PART...: the names in tests/lab; all of them]
set -uo pipefail
cd "$(dirname "$0")/.."
. tests/check.sh
bin=target/release
rxe=$GIMMAL_RXE_ADDR siw=$GIMMAL_SIW_ADDR
# opened NAME COMMAND...: runs it, and keeps its last line for the comparison with the other backend.
opened() {
    local name=$1
    shift
    "$@" | tee "/tmp/opened.$name"
    return "${PIPESTATUS[0]}"
}
# none_left TYPE: no queue pair of it.
none_left() { ! grep "type $1" <<<"$(rdma resource show qp)"; }

# cases NAME FILTER: a Rust test program's ignored cases, counted.
cases() { counted timeout 600 "$bin/lab-$1" --ignored "$2"; }
# counted COMMAND...: what a Rust test program prints, as `count` reads it.
counted() { "$@" 2>&1 | sed 's/ passed; / passed, /; s/ failed; .*/ failed/'; }

[ $# -gt 0 ] || set -- $(cd tests/lab && echo *.sh)
for part; do
    . "tests/lab/${part%.sh}.sh"
done
check "nothing is left on the devices" within 60 none_left RC
summary
