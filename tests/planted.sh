#!/usr/bin/env bash
# The simulation must find every planted bug (engine/src/planted.rs), and nothing where none is planted.
set -uo pipefail
cd "$(dirname "$0")/.."
. tests/check.sh
export CARGO_TARGET_DIR=target/planted RUSTFLAGS="--cfg planted" PROPTEST_MAX_SHRINK_ITERS=0 RUST_BACKTRACE=0
programs=$(cargo test --release -q -p gimmal-engine --test sim --test proto_credit --test heart --test faults --no-run --message-format=json |
    sed -n 's/.*"kind":\["test"\].*"executable":"\([^"]*\)".*/\1/p')
[ -n "$programs" ] || exit 1

all_pass() {
    local seeds program
    for seeds in 3 20; do
        for program in $programs; do GIMMAL_SEEDS=$seeds timeout 1500 "$program" || return 1; done
    done
}

# Which program finds the bug first. The times are long, since it may get what others leave of the processors.
found() {
    local seeds program output
    # A few seeds find most, and a bug by which a run never ends takes as long as it may in each.
    for seeds in 3 20; do
        for program in $programs; do
            if ! output=$(GIMMAL_BUG=$1 GIMMAL_SEEDS=$seeds timeout 900 "$program" 2>&1); then
                # Told in words that nobody takes for a failure.
                printf '%s\n' "$output" | sed -n "s/^thread '\([^']*\)'.* panicked at \([^ ]*\):[0-9]*:\$/by \1, \2/p" | head -n 1
                return 0
            fi
        done
    done
    echo "nobody noticed"
    return 1
}

check "nothing is found where no bug is planted" all_pass
bugs=$(sed -n '/enum Bug/,/^}/ s/^    \([A-Z][A-Za-z]*\),$/\1/p' engine/src/planted.rs)
for bug in $bugs; do
    check "found: $bug" found "$bug"
done
summary
