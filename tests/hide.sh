#!/usr/bin/env bash
# hide.sh build|libraries COMMAND...: runs COMMAND on a machine that seems to have no rdma-core.
#   build      neither headers nor libraries of rdma-core, nor clang: what a build must not need
#   libraries  libibverbs and librdmacm cannot be opened
# In a mount namespace of its own; exit code 77 when the system allows none.
set -euo pipefail
what=$1
shift

if [ "${GIMMAL_HIDDEN:-}" != 1 ]; then
    flags=(-m)
    [ "$(id -u)" = 0 ] || flags=(-Urm)
    unshare "${flags[@]}" true 2>/dev/null || exit 77
    GIMMAL_HIDDEN=1 exec unshare "${flags[@]}" bash "$0" "$what" "$@"
fi

empty_folder() { [ ! -d "$1" ] || mount -t tmpfs none "$1"; }
empty_file() { [ ! -f "$1" ] || mount --bind /dev/null "$(readlink -f "$1")"; }

for file in /usr/lib/*/libibverbs.so* /usr/lib/*/librdmacm.so* /usr/lib64/libibverbs.so* /usr/lib64/librdmacm.so*; do
    empty_file "$file"
done
if [ "$what" = build ]; then
    for folder in /usr/include/infiniband /usr/include/rdma /usr/lib/llvm* /usr/lib/*/pkgconfig; do
        empty_folder "$folder"
    done
    for file in /usr/lib/*/libclang*.so* /usr/bin/clang*; do
        empty_file "$file"
    done
    unset LIBCLANG_PATH
fi
unset GIMMAL_HIDDEN
exec "$@"
