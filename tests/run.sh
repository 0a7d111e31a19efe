#!/usr/bin/env bash
# Every test tier, or the ones named. Started by `./x test`, which sees to the packages.
# A terminal shows all that the tiers print; elsewhere a line for each and what was measured against a bound, and all of it
# is in target/tests/TIER.log. Last line: `N passed, N failed, N skipped`; exit code 0 only when none failed.
set -uo pipefail
cd "$(dirname "$0")/.."
. tests/programs.sh
# A fresh build is shorter, and half as large, when nothing is kept for the next change.
export CARGO_INCREMENTAL=${CARGO_INCREMENTAL:-0}
export CARGO_TERM_COLOR=never RUST_BACKTRACE=${RUST_BACKTRACE:-0}

tiers=("$@")
[ ${#tiers[@]} -gt 0 ] || tiers=(fmt lint doc unit compile rdma_sys bincode sysfs seeds worlds planted hostile sanitize churn conformance loom tidy bench demo readme lab)

# What computes for long and has a build of its own: beside everything that times nothing, on what that leaves of the processors.
from_start=" planted loom "
# What runs with nothing beside it.
alone=" bench demo "
# What mostly compiles or computes, and shares a build with what comes before: the same, beside the lab.
beside_lab=" lint doc worlds compile seeds "
# What has a build of its own, made there too, and is run when the lab is done, with nothing beside it.
after_lab=" rdma_sys bincode readme "

# A line for each tier; what failed, in its own words; the output of what runs beside the lab; a file that is there when
# that may begin.
notes=$(mktemp -d)
counts=$notes/counts aside=$notes/aside begun=$notes/begun failures=$notes/failures
touch "$counts" "$aside" "$failures"
# The process group of what runs beside the tiers.
lane=
lane_gets() { [ -z "$lane" ] || kill -s "$1" -- "-$lane" 2>/dev/null || true; }
trap 'lane_gets KILL; rm -rf "$notes"' EXIT
logs=target/tests
rm -rf "$logs"
mkdir -p "$logs"

# Adds up the closing lines of whatever ran: the Rust test runner's, and the plain one of our own programs.
count() {
    awk '
        /^test result: / { for (i = 1; i <= NF; i++) {
            if ($i ~ /^passed;/) p += $(i-1); if ($i ~ /^failed;/) f += $(i-1); if ($i ~ /^ignored;/) s += $(i-1) } }
        /(^|: )[0-9]+ passed, [0-9]+ failed(, [0-9]+ skipped)?$/ { for (i = 1; i <= NF; i++) {
            if ($i ~ /^passed,/) p += $(i-1); if ($i ~ /^failed,?$/) f += $(i-1); if ($i == "skipped") s += $(i-1) } }
        END { print p + 0, f + 0, s + 0 }' "$1"
}

# tier NAME COMMAND...: runs it and counts.
tier() {
    local name=$1 start=$SECONDS log status p f s
    shift
    log=$(mktemp -p "$notes")
    printf '\n== %s: %s\n' "$name" "$*"
    if [ -t 1 ]; then
        "$@" 2>&1 | tee "$log"
        status=${PIPESTATUS[0]}
    else
        "$@" >"$log" 2>&1
        status=$?
        grep -E 'wanted (at most )?[0-9]' "$log"
    fi
    read -r p f s < <(count "$log")
    if [ "$status" -ne 0 ] && [ "$f" -eq 0 ]; then f=1; fi
    if [ "$f" -ne 0 ]; then
        {
            grep -E -A8 'FAILED|panicked at|^error' "$log" | head -n 60
            echo "... and its end:"
            tail -n 20 "$log"
        } | sed "s/^/$name: /" >>"$failures"
    fi
    cat "$log" >>"$logs/$name.log"
    if [ $((p + f + s)) -eq 0 ]; then p=1; fi
    echo "$p $f $s" >>"$counts"
    printf -- '-- %s: %d passed, %d failed, %d skipped in %d s\n' "$name" "$p" "$f" "$s" $((SECONDS - start)) | sed 's/passed,/ok,/'
}

# Each provider alone, so that none is needed by another; all features, which is the backend `rdma-sys`; the default one; no verbs at all.
lint_tier() {
    local alone
    for alone in "" shm verbs; do
        cargo clippy -q -p gimmal-transport -p gimmal-engine --lib --no-default-features --features "$alone" \
            -- -D warnings || return 1
    done
    cargo clippy -q --workspace --all-targets --all-features -- -D warnings &&
        cargo clippy -q -p gimmal-transport --all-targets --features verbs,conformance,floor -- -D warnings &&
        cargo clippy -q -p gimmal-transport -- -D warnings &&
        cargo clippy -q -p gimmal-rdma --all-targets -- -D warnings
}

# The default build needs neither headers nor clang.
unit_tier() {
    local status=0
    # Seeds enough to see that they run; the tiers `seeds` and `worlds` have many.
    GIMMAL_SEEDS=16 cargo test -q --workspace --exclude xtask --no-fail-fast --features $test_features || status=1
    bash tests/backends.sh || status=1
    return $status
}

# The other backend of verbs, compared with ours: rdma_sys_tests ARGS...
rdma_sys_tests() {
    cargo test -q -p gimmal-rdma -p gimmal-transport --lib --features gimmal-transport/conformance,gimmal-transport/rdma-sys "$@"
}

# The second codec: bincode_tests ARGS...
bincode_tests() {
    cargo test -q -p gimmal-rpc --no-fail-fast --features test-bincode \
        --test calls --test failures --test streams --test hostile --test nested "$@"
}

lab_builds() {
    programs || return 1
    # As the unit tier made them; but many calls want speed.
    lab_programs cargo test -q --workspace --features $test_features || return 1
    lab_programs program_tests --test churn
}

lab_tier() {
    lab_builds || return 1
    local status=0
    # Timed, so before the others begin.
    lane_gets STOP
    target/release/gimmal-lab run --fabric rxe --timeout-s 300 -- bash "$PWD/tests/lab_pace.sh" || status=1
    touch "$begun"
    lane_gets CONT
    target/release/gimmal-lab run --fabric none --timeout-s 120 -- bash "$PWD/tests/lab_none.sh" || status=1
    target/release/gimmal-lab run --nodes 2 --fabric both --timeout-s 300 -- bash "$PWD/tests/lab_nodes.sh" || status=1
    target/release/gimmal-lab run --fabric both --timeout-s 2100 -- bash "$PWD/tests/lab.sh" || status=1
    bash tests/pair.sh || status=1
    return $status
}

# run TIER...
run() {
    while [ $# -gt 0 ]; do
        if [[ $alone == *" $1 "* ]]; then lane_gets STOP; else lane_gets CONT; fi
        case $1 in
            fmt) tier fmt cargo fmt --all --check ;;
            lint) tier lint lint_tier ;;
            doc) RUSTDOCFLAGS="-D warnings" tier doc cargo doc -q --workspace --all-features --no-deps ;;
            unit) tier unit unit_tier ;;
            rdma_sys) tier rdma_sys rdma_sys_tests ;;
            bincode) tier bincode bincode_tests ;;
            sysfs) tier sysfs cargo test -q -p gimmal-engine --lib place ;;
            # 2,100 runs of 1,000 messages there and back, 700 seeds on each of three media.
            seeds)
                GIMMAL_SEEDS=700 GIMMAL_MESSAGES=1000 GIMMAL_FAULT_SEEDS=100 tier seeds \
                    program_tests --test sim --test faults ;;
            # 1,050 worlds for each behaviour of calls.
            worlds) GIMMAL_SEEDS=350 tier worlds rpc_tests sim_ ;;
            compile) tier compile cargo test -q --workspace --features $test_features --test compile ;;
            # 3 x 3,400,000 hostile operations, and 200,000 spoiled inputs for each parser.
            hostile) GIMMAL_HOSTILE_OPERATIONS=3400000 GIMMAL_FUZZ_INPUTS=200000 tier hostile \
                program_tests --test attack --test fuzz -- --nocapture ;;
            sanitize) tier sanitize bash tests/sanitize.sh ;;
            planted) tier planted cargo xtask planted ;;
            churn) GIMMAL_CALLS=1000000 tier churn program_tests --test churn shm:: ;;
            conformance) tier conformance bash tests/conformance.sh ;;
            loom) RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom tier loom \
                cargo test -q -p gimmal-transport --release --lib --no-default-features loom_ ;;
            tidy) tier tidy tidy_tier ;;
            bench) tier bench bash tests/bench.sh ;;
            demo) tier demo bash tests/demo.sh ;;
            readme) tier readme bash tests/readme.sh ;;
            lab) tier lab lab_tier ;;
            *) echo "unknown tier $1" >&2; exit 2 ;;
        esac
        shift
    done
}

# The rules, and that each of them finds what is planted for it.
tidy_tier() { cargo xtask tidy && cargo test -q -p xtask --lib; }

# prepare TIER...: its build, which need not be alone. The README's first command times what it does.
prepare() {
    while [ $# -gt 0 ]; do
        case $1 in
            rdma_sys) rdma_sys_tests --no-run ;;
            bincode) bincode_tests --no-run ;;
            readme) CARGO_TARGET_DIR=target/readme cargo build --release -q -p gimmal-examples --bin files ;;
        esac
        shift
    done
}

first=() early=() beside=() last=()
for name in "${tiers[@]}"; do
    if [[ " ${tiers[*]} " != *" lab "* ]]; then
        first+=("$name")
    elif [[ $from_start == *" $name "* ]]; then
        early+=("$name")
    elif [[ $beside_lab == *" $name "* ]]; then
        beside+=("$name")
    elif [[ $after_lab == *" $name "* ]]; then
        last+=("$name")
    else
        first+=("$name")
    fi
done
if [ $((${#early[@]} + ${#beside[@]} + ${#last[@]})) -gt 0 ]; then
    # A process group of its own, to be halted as one. Its output is shown when the lab is done. What is beside the lab begins when
    # that has built, or was never reached; it ends with us.
    set -m
    (
        chrt --idle --pid 0 "$BASHPID" 2>/dev/null || renice -n 19 "$BASHPID" >/dev/null
        run "${early[@]}"
        until [ -e "$begun" ]; do [ -d "$notes" ] && sleep 1 || exit; done
        run "${beside[@]}"
        prepare "${last[@]}"
    ) >"$aside" 2>&1 </dev/null &
    lane=$!
    set +m
fi
run "${first[@]}"
touch "$begun"
lane_gets CONT
wait
lane=
cat "$aside"
run "${last[@]}"

# A person who reads only the end finds there what failed.
[ ! -s "$failures" ] || { printf '\n== what failed\n'; cat "$failures"; }
read -r passed failed skipped < <(awk '{ p += $1; f += $2; s += $3 } END { print p + 0, f + 0, s + 0 }' "$counts")
printf '\n%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
[ "$failed" -eq 0 ]
