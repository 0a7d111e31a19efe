#!/usr/bin/env bash
# The Debian package of the programs: built, read by lintian, installed in a chroot that debootstrap makes, tried there, and purged without
# a trace. It stays in target/deb. Nothing but Debian's own tools is needed; what is missing skips its checks.
# Usage: tests/deb.sh [FOLDER OF PROGRAMS THAT ARE BUILT ALREADY]. DEBFULLNAME and DEBEMAIL name the maintainer.
set -uo pipefail
cd "$(dirname "$0")/.."
. tests/check.sh
LINES_SHOWN=12
out=$PWD/target/deb tree=$PWD/target/deb/tree root=$PWD/target/deb/root
bin=${1:-target/release}
version=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"$/\1/p' Cargo.toml)-1
architecture=$(dpkg --print-architecture 2>/dev/null)
deb=$out/gimmal_${version}_$architecture.deb
maintainer="${DEBFULLNAME:-The maintainers of gimmal} <${DEBEMAIL:-maintainers@gimmal.example}>"
epoch=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}

skip() {
    skipped=$((skipped + 1))
    printf 'SKIP    %s: %s\n' "$1" "$2"
}

put() { install -D -m "$1" "$2" "$tree/$3"; }
packed() { mkdir -p "$(dirname "$tree/$1")" && gzip -9n >"$tree/$1" && chmod 644 "$tree/$1"; }

# The files, where Debian has them.
lay() {
    local program file pages
    rm -rf "$tree" && mkdir -p "$tree/DEBIAN" || return 1
    for program in gimmal gimmal-bench; do
        pages=$out/pages/$program
        rm -rf "$pages"
        put 755 "$bin/$program" "usr/bin/$program" || return 1
        strip --strip-unneeded --remove-section=.comment --remove-section=.note "$tree/usr/bin/$program" || return 1
        "$bin/$program" pages "$pages" || return 1
        put 644 "$pages/$program.bash" "usr/share/bash-completion/completions/$program" || return 1
        put 644 "$pages/_$program" "usr/share/zsh/vendor-completions/_$program" || return 1
        put 644 "$pages/$program.fish" "usr/share/fish/vendor_completions.d/$program.fish" || return 1
        for file in "$pages"/*.1; do packed "usr/share/man/man1/${file##*/}.gz" <"$file" || return 1; done
    done
    for file in cli/systemd/*; do put 644 "$file" "lib/systemd/system/${file##*/}" || return 1; done
    put 644 cli/limits.d/gimmal.conf etc/security/limits.d/gimmal.conf || return 1
    packed usr/share/doc/gimmal/changelog.gz <CHANGELOG.md
    packed usr/share/doc/gimmal/changelog.Debian.gz <<TEXT
gimmal ($version) unstable; urgency=medium

  * The changes are those of /usr/share/doc/gimmal/changelog.gz.

 -- $maintainer  $(LC_ALL=C date -u -R -d "@$epoch")
TEXT
    {
        printf 'Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\nUpstream-Name: gimmal\n\n'
        printf 'Files: *\nCopyright: %s The gimmal authors\nLicense: MIT or Apache-2.0\n\nLicense: MIT\n' "$(date -u -d "@$epoch" +%Y)"
        sed 's/^$/./; s/^/ /' LICENSE-MIT
        printf '\nLicense: Apache-2.0\n On Debian systems the text of the licence is in /usr/share/common-licenses/Apache-2.0.\n'
    } >"$out/copyright"
    put 644 "$out/copyright" usr/share/doc/gimmal/copyright
}

# The libraries that the programs are linked with, as dependencies.
libraries() {
    mkdir -p "$out/debian" && : >"$out/debian/control"
    (cd "$out" && dpkg-shlibdeps -O tree/usr/bin/gimmal tree/usr/bin/gimmal-bench 2>/dev/null) | sed -n 's/^shlibs:Depends=//p'
}

build() {
    local depends
    lay || return 1
    depends=$(libraries)
    [ -n "$depends" ] || { echo "dpkg-shlibdeps found no libraries"; return 1; }
    cat >"$tree/DEBIAN/control" <<TEXT
Package: gimmal
Version: $version
Architecture: $architecture
Maintainer: $maintainer
Installed-Size: $(du -sk --exclude=DEBIAN "$tree" | cut -f1)
Depends: $depends
Recommends: ibverbs-providers, librdmacm1
Section: net
Priority: optional
Description: RPC over shared memory, RDMA and TCP: tools and benchmark
 gimmal checks a machine for what RDMA and shared memory need, looks at live
 servers, calls their methods with JSON, and carries connections of programs
 that do not know it. gimmal-bench measures its layers beside sockets.
TEXT
    echo /etc/security/limits.d/gimmal.conf >"$tree/DEBIAN/conffiles"
    (cd "$tree" && find etc lib usr -type f -exec md5sum {} + >DEBIAN/md5sums)
    find "$tree" -type d -exec chmod 755 {} +
    find "$tree" -exec touch -h -d "@$epoch" {} +
    SOURCE_DATE_EPOCH=$epoch dpkg-deb --root-owner-group -Zxz --build "$tree" "$deb"
}

# inside COMMAND...: in the chroot, with the kernel's folders, which go when it ends.
inside() {
    unshare -m bash -c 'mount --rbind /proc "$0/proc" && mount --rbind /sys "$0/sys" && exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root chroot "$0" "$@"' \
        "$root" "$@"
}

# What dpkg itself writes down of every package that ever was is not ours.
files() { (cd "$root" && find . -xdev \( -path ./var/lib/dpkg -o -path ./var/log -o -path ./var/cache \) -prune -o -print | sort); }

programs_run() {
    local status report
    inside gimmal --version && inside gimmal-bench --version || return 1
    report=$(inside gimmal doctor --json)
    status=$?
    echo "$report" | head -c 2000
    # 1: this machine lacks something, which is what it is to say.
    [ $status -le 1 ] && grep '"ok"' <<<"$report" >/dev/null
}

belongings() {
    inside dpkg -L gimmal | grep -E '/man1/gimmal\.1\.gz|completions/gimmal$|/gimmal@\.service|limits\.d/' || return 1
    ! inside dpkg -V gimmal | grep .
}

purge() {
    inside dpkg --purge gimmal >/dev/null || return 1
    files >"$out/after"
    diff "$out/before" "$out/after" && [ -z "$(find "$root/var/lib/dpkg" -name '*gimmal*')" ]
}

chroot_checks() {
    local why="" needed
    [ "$(id -u)" = 0 ] || why="it needs root"
    command -v debootstrap >/dev/null || why="debootstrap is not installed"
    rm -rf "$root"
    mkdir -p "$out/cache"
    needed=$(dpkg-deb -f "$deb" Depends | sed 's/([^)]*)//g; s/ //g')
    [ -n "$why" ] || timeout 900 debootstrap --variant=minbase --include="$needed" --cache-dir="$out/cache" bookworm "$root" \
        http://deb.debian.org/debian >"$out/debootstrap.log" 2>&1 || why="debootstrap: $(tail -n 1 "$out/debootstrap.log")"
    if [ -n "$why" ]; then
        skip "the package in a chroot" "$why"
        return
    fi
    files >"$out/before"
    cp "$deb" "$root/var/cache/gimmal.deb"
    check "it installs" inside dpkg -i /var/cache/gimmal.deb
    check "its files are those of the package" belongings
    check "its programs run there" programs_run
    check "a purge leaves nothing" purge
    rm -rf "$root"
}

mkdir -p "$out"
if ! command -v dpkg-shlibdeps >/dev/null; then
    skip "the Debian package" "dpkg-dev is not installed"
elif [ $# -eq 0 ] && ! cargo build --release -q --locked -p gimmal-cli -p gimmal-bench --features gimmal-bench/verbs; then
    failed=1
    echo "FAILED  the programs do not build"
else
    check "the package" build
    if command -v lintian >/dev/null; then
        check "lintian finds no error" lintian --allow-root --fail-on error "$deb"
    else
        skip "lintian" "it is not installed"
    fi
    chroot_checks
fi
summary
