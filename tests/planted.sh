#!/usr/bin/env bash
# The simulation must find every planted bug, and nothing where none is planted. A bug is a patch, engine/mutants/NAME.patch: its first
# line says what breaks. The patches are applied, one at a time, to a copy of the sources in target/planted.
#
# tests/planted.sh [NAME...]: all, or those named.
set -uo pipefail
cd "$(dirname "$0")/.."
. tests/check.sh
. tests/patched.sh
copy=target/planted/source
export CARGO_TARGET_DIR=$PWD/target/planted/build PROPTEST_MAX_SHRINK_ITERS=0 RUST_BACKTRACE=0
# Each patch rebuilds the engine and a test program or two: little optimisation takes the least time for both building and running.
export CARGO_INCREMENTAL=1 CARGO_PROFILE_DEV_OPT_LEVEL=1 CARGO_PROFILE_DEV_DEBUG=0

# build PROGRAM: prints the path of one of the engine's test programs, built from the copy.
build() {
    (cd "$copy" && cargo test -q -p gimmal-engine --test "$1" --no-run --message-format=json) |
        sed -n 's/.*"kind":\["test"\].*"executable":"\([^"]*\)".*/\1/p'
}

# fails SECONDS: prints which program fails first. The time is long, since this may get what others leave of the processors.
fails() {
    local seeds program path output
    # A few seeds find most bugs, and a run that never ends takes all of its time with each seed.
    for seeds in 3 20; do
        for program in sim proto_credit heart faults; do
            path=$(build $program) && [ -n "$path" ] || { echo "$program could not be built"; return 2; }
            if ! output=$(GIMMAL_SEEDS=$seeds timeout "$1" "$path" 2>&1); then
                # Worded so that nobody takes it for a failure of this tier.
                printf '%s\n' "$output" |
                    sed -n "s/^thread '\([^']*\)'.* panicked at \([^ ]*\):[0-9]*:\$/by \1, \2/p" | head -n 1
                return 0
            fi
        done
    done
    return 1
}

# The simulation finds nothing.
is_sound() {
    fails 1500
    [ $? -eq 1 ]
}

# found NAME: the patch applies, what it makes can be built, and the simulation fails.
found() {
    local status
    head -n 1 "engine/mutants/$1.patch"
    patched "engine/mutants/$1.patch" || return 1
    fails 900
    status=$?
    patched "engine/mutants/$1.patch" --reverse || return 1
    [ $status -ne 1 ] || echo "nobody noticed"
    return $status
}

copy_sources || exit 1
[ $# -gt 0 ] || { check "nothing is found where no bug is planted" is_sound; set -- engine/mutants/*.patch; }
for bug in "$@"; do
    bug=$(basename "$bug" .patch)
    check "found: $bug" found "$bug"
done
summary
