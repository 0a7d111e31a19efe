#!/usr/bin/env bash
# Every test tier, or the ones named. Started by `./x test`, which sees to the packages.
# Last line: `N passed, N failed, N skipped`; exit code 0 only when none failed.
set -uo pipefail
cd "$(dirname "$0")/.."
. tests/programs.sh
# A fresh build is shorter, and half as large, when nothing is kept for the next change.
export CARGO_INCREMENTAL=${CARGO_INCREMENTAL:-0}
export CARGO_TERM_COLOR=never RUST_BACKTRACE=${RUST_BACKTRACE:-0}

tiers=("$@")
[ ${#tiers[@]} -gt 0 ] || tiers=(fmt lint doc unit bincode sysfs seeds planted hostile churn conformance loom tidy bench demo lab)

passed=0 failed=0 skipped=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# Adds up the closing lines of whatever ran: the Rust test runner's, and the plain one of our own programs.
count() {
    awk '
        /^test result: / { for (i = 1; i <= NF; i++) {
            if ($i ~ /^passed;/) p += $(i-1); if ($i ~ /^failed;/) f += $(i-1); if ($i ~ /^ignored;/) s += $(i-1) } }
        /(^|: )[0-9]+ passed, [0-9]+ failed(, [0-9]+ skipped)?$/ { for (i = 1; i <= NF; i++) {
            if ($i ~ /^passed,/) p += $(i-1); if ($i ~ /^failed,?$/) f += $(i-1); if ($i == "skipped") s += $(i-1) } }
        END { print p + 0, f + 0, s + 0 }' "$log"
}

# tier NAME COMMAND...: runs it with its output shown, and counts.
tier() {
    local name=$1 start=$SECONDS status p f s
    shift
    printf '\n== %s: %s\n' "$name" "$*"
    "$@" 2>&1 | tee "$log"
    status=${PIPESTATUS[0]}
    read -r p f s < <(count)
    if [ "$status" -ne 0 ] && [ "$f" -eq 0 ]; then f=1; fi
    if [ $((p + f + s)) -eq 0 ]; then p=1; fi
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    printf -- '-- %s: %d passed, %d failed, %d skipped in %d s\n' "$name" "$p" "$f" "$s" $((SECONDS - start)) | sed 's/passed,/ok,/'
    [ "$f" -eq 0 ]
}

# All features, which is the backend `rdma-sys`; then the default one; then no verbs at all.
lint_tier() {
    cargo clippy -q --workspace --all-targets --all-features -- -D warnings &&
        cargo clippy -q -p gimmal-transport --all-targets --features verbs,conformance,floor -- -D warnings &&
        cargo clippy -q -p gimmal-transport -- -D warnings
}

# The default build needs neither headers nor clang; the other backend of verbs is tested and compared with it here.
unit_tier() {
    local status=0
    cargo test -q --workspace --no-fail-fast --features $test_features ||
        status=1
    cargo test -q -p gimmal-transport --lib --features conformance,rdma-sys || status=1
    bash tests/backends.sh || status=1
    return $status
}

lab_tier() {
    programs || return 1
    # As the unit tier made them; but many calls want speed.
    lab_programs --workspace --features $test_features || return 1
    lab_programs --release -p gimmal-rpc --features verbs --test churn || return 1
    local status=0
    target/release/gimmal-lab run --fabric none --timeout-s 120 -- bash "$PWD/tests/lab_none.sh" || status=1
    target/release/gimmal-lab run --fabric both --timeout-s 2100 -- bash "$PWD/tests/lab.sh" || status=1
    bash tests/pair.sh || status=1
    return $status
}

for name in "${tiers[@]}"; do
    case $name in
        fmt) tier fmt cargo fmt --all --check ;;
        lint) tier lint lint_tier ;;
        doc) RUSTDOCFLAGS="-D warnings" tier doc cargo doc -q --workspace --all-features --no-deps ;;
        unit) tier unit unit_tier ;;
        bincode) tier bincode cargo test -q -p gimmal-rpc --no-fail-fast --features test-bincode \
            --test calls --test failures --test streams --test hostile ;;
        sysfs) tier sysfs cargo test -q -p gimmal-engine --lib place ;;
        # 2,100 runs of 1,000 messages there and back, 700 seeds on each of three media.
        seeds)
            GIMMAL_SEEDS=700 GIMMAL_MESSAGES=1000 GIMMAL_FAULT_SEEDS=100 tier seeds \
                cargo test --release -q -p gimmal-engine --test sim --test faults
            # 1,050 worlds for each behaviour of calls. With the lab's features, so that it is compiled once.
            GIMMAL_SEEDS=350 tier seeds cargo test --release -q -p gimmal-rpc --features verbs --lib sim_ ;;
        # 3 x 3,400,000 hostile operations, and 200,000 spoiled inputs for each parser. With the lab's features, so that it
        # is compiled once.
        hostile) GIMMAL_HOSTILE_OPERATIONS=3400000 GIMMAL_FUZZ_INPUTS=200000 tier hostile \
            cargo test --release -q -p gimmal-rpc --features verbs --test attack --test fuzz -- --nocapture ;;
        planted) tier planted bash tests/planted.sh ;;
        churn) GIMMAL_CALLS=1000000 tier churn cargo test --release -q -p gimmal-rpc --features verbs --test churn shm:: ;;
        conformance) tier conformance bash tests/conformance.sh ;;
        loom) RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom tier loom \
            cargo test -q -p gimmal-transport --release --lib --no-default-features loom_ ;;
        tidy) tier tidy bash tests/tidy.sh ;;
        bench) tier bench bash tests/bench.sh ;;
        demo) tier demo bash tests/demo.sh ;;
        lab) tier lab lab_tier ;;
        *) echo "unknown tier $name" >&2; exit 2 ;;
    esac
done

printf '\n%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
[ "$failed" -eq 0 ]
