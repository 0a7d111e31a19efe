#!/usr/bin/env bash
# Runs inside a guest without RDMA: `gimmal doctor` names that one thing.
set -uo pipefail
cd "$(dirname "$0")/.."
. tests/check.sh
bin=${bin:-target/release}

names_the_kernel() {
    local report
    report=$("$bin/gimmal" doctor rdma://10.0.0.1:1) && return 1
    printf '%s\n' "$report"
    [ "$(grep -c '^WRONG' <<<"$report")" = 1 ] && grep -q '^WRONG  *kernel modules' <<<"$report" &&
        grep -q '^not checked  *peer' <<<"$report"
}
check "doctor in a guest without RDMA names the modules" names_the_kernel
check "devices in a guest without RDMA are none" sh -c "$bin/gimmal devices | grep 'no RDMA device'"
summary
