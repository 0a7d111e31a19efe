#!/usr/bin/env bash
# The published crates as packages: each has what crates.io asks for, and a fresh project, which knows nothing else of ours, builds and
# runs the README's example from them, offline. `tests/packages.sh all` builds every package too.
set -uo pipefail
cd "$(dirname "$0")/.."
. tests/check.sh
LINES_SHOWN=12
folder=$PWD/target/packages
# A folder of their own, so that no other build waits for its lock.
export CARGO_TARGET_DIR=$folder/target
names=($(cargo metadata --no-deps --format-version 1 --locked | jq -r '.packages[] | select(.publish == null).name'))
version=$(cargo metadata --no-deps --format-version 1 --locked | jq -r '.packages[] | select(.name == "gimmal").version')

# Makes every package. What is not committed yet belongs to it.
make() { cargo package --offline --locked --allow-dirty "$@" "${names[@]/#/--package=}"; }

# Unpacks them, in place of those of an earlier run.
unpack() {
    local name
    rm -rf "$folder/crates"
    mkdir -p "$folder/crates"
    for name in "${names[@]}"; do tar -xzf "$CARGO_TARGET_DIR/package/$name-$version.crate" -C "$folder/crates" || return 1; done
    du -sh "$folder/crates"
}

# complete NAME: the package says what it is, has its licences, names no path, and is small.
complete() {
    local name=$1 root=$folder/crates/$1-$version size file
    for file in LICENSE-MIT LICENSE-APACHE README.md; do
        [ -s "$root/$file" ] || { echo "$name has no $file"; return 1; }
    done
    if grep -nE '^path = "(\.\.|/)' "$root/Cargo.toml"; then echo "$name names a path"; return 1; fi
    for file in description license keywords categories documentation rust-version; do
        grep -E "^$file = " "$root/Cargo.toml" >/dev/null || { echo "$name has no $file"; return 1; }
    done
    size=$(stat -c %s "$CARGO_TARGET_DIR/package/$name-$version.crate")
    [ "$size" -le 500000 ] || { echo "$name has $size bytes, above 500,000"; return 1; }
    echo "$size bytes"
}

# block LANGUAGE: the first block of that language below the README's heading Example.
block() { awk -v begin="\`\`\`$1" '/^## /{ on = $2 == "Example" } on && !done && $0 == "```" { done = in_it } on && in_it && !done; on && $0 == begin { in_it = 1 }' README.md; }

# A project as the README tells to make it; `gimmal` is what crates.io would have, everything else what cargo downloaded before.
project() {
    local name
    rm -rf "$folder/fresh"
    mkdir -p "$folder/fresh/src"
    block rust >"$folder/fresh/src/main.rs"
    {
        printf '[package]\nname = "fresh"\nversion = "0.0.0"\nedition = "2024"\n\n'
        block toml | sed "s|^gimmal = .*|gimmal = \"$version\"|"
        printf '\n[workspace]\n\n[patch.crates-io]\n'
        for name in "${names[@]}"; do printf '%s = { path = "%s" }\n' "$name" "$folder/crates/$name-$version"; done
    } >"$folder/fresh/Cargo.toml"
    cp Cargo.lock "$folder/fresh/"
    grep -c . "$folder/fresh/src/main.rs" "$folder/fresh/Cargo.toml"
}

build() { (cd "$folder/fresh" && cargo build --offline -q 2>&1 | grep -v 'was not used in the crate graph' ; exit "${PIPESTATUS[0]}"); }

greets() {
    local runtime said
    runtime=$(mktemp -d)
    said=$(XDG_RUNTIME_DIR=$runtime timeout 60 "$CARGO_TARGET_DIR/debug/fresh")
    rm -rf "$runtime"
    echo "$said"
    [[ $said == "good day, Ada"* ]]
}

check "${#names[@]} packages" make --no-verify
check "they unpack" unpack
for name in "${names[@]}"; do check "$name is complete" complete "$name"; done
check "a project by the README" project
check "it builds from the packages, offline" build
check "it runs" greets
[ "${1:-}" != all ] || check "every package builds" make
summary
