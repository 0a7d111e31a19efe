# Sourced by what builds changed copies of the sources: planted bugs, and the ledger's entries taken out.
# $copy is the folder of the copy, below the root.

# Copies what git knows and what it does not ignore. The files are new, so cargo never takes an older build for this one.
copy_sources() {
    rm -rf "$copy" && mkdir -p "$copy" &&
        git ls-files -z --cached --others --exclude-standard | tar -c --null --ignore-failed-read -T - | tar -x -m -C "$copy"
}

# patched PATCH [--reverse]: applies a patch to the copy, or takes it back. The place may have moved, but its lines must be there.
patched() { git apply --recount -C1 --directory="$copy" "${@:2}" "$1"; }
