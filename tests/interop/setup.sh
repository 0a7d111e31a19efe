# Programs of third parties, in a folder of the user's cache. Sourced.
#
# Their packages come from Debian's archive, PyPI and npm by the ordinary clients, and are unpacked: nothing is installed on the system,
# and root is not needed. What cannot be had is named on standard error.

parties=${XDG_CACHE_HOME:-$HOME/.cache}/gimmal/interop-1
go_packages=(golang-1.19-go golang-1.19-src golang-google-grpc-dev golang-golang-x-net-dev golang-golang-x-oauth2-google-dev
    golang-golang-x-oauth2-dev golang-google-cloud-compute-metadata-dev golang-golang-x-sys-dev golang-golang-x-text-dev
    golang-github-golang-protobuf-1-3-dev golang-google-genproto-dev golang-glog-dev golang-github-google-go-cmp-dev
    protoc-gen-go-1-3 protoc-gen-go-grpc protobuf-compiler libprotoc32 libprotobuf32)

# Programs, and those of their libraries that a small system lacks.
declare -A of_debian=(
    [nghttp2]="nghttp2-client libnghttp2-14 libev4 libc-ares2 libjemalloc2"
    [redis]="redis-server redis-tools libjemalloc2 liblzf1 libatomic1 liblua5.1-0 lua-cjson lua-bitop libhiredis0.14"
    [memcached]="memcached libmemcached-tools libmemcached11 libmemcachedutil2 libhashkit2 libevent-2.1-7 libsasl2-2 libdb5.3"
    [iperf3]="iperf3 libiperf0 libsctp1"
    [nginx]="nginx libpcre2-8-0 wrk libluajit-5.1-2 curl libcurl4"
    [postgres]="postgresql-15 postgresql-client-15 libpq5 libxml2 libicu72 libldap-2.5-0 libsasl2-2"
    [ssh]="openssh-server openssh-client libwrap0 libgssapi-krb5-2 libkrb5-3 libk5crypto3 libkrb5support0 libkeyutils1
        libfido2-1 libcbor0.8"
    [socat]="socat libwrap0"
    [bubblewrap]="bubblewrap"
    [podman]="podman runc conmon golang-github-containers-common golang-github-containers-image libgpgme11 libassuan0 libsubid4
        libdevmapper1.02.1 libseccomp2 libyajl2"
)

# unpacked FOLDER PACKAGE...: Debian packages, unpacked in a folder below $parties.
unpacked() {
    local into=$parties/$1 debs=$parties/debs deb
    rm -rf "$into" "$debs"
    mkdir -p "$into" "$debs"
    (cd "$debs" && apt-get -qq -o APT::Sandbox::User=root download "${@:2}") || return 1
    for deb in "$debs"/*.deb; do dpkg-deb -x "$deb" "$into" || return 1; done
    rm -rf "$debs"
}

# in_folder NAME: what follows finds the programs and libraries of a folder below $parties.
in_folder() {
    local root=$parties/$1
    export PATH="$root/usr/bin:$root/usr/sbin:$root/usr/lib/postgresql/15/bin:$PATH" LD_LIBRARY_PATH="$root/usr/lib/$(uname -m)-linux-gnu"
}

# party SECONDS NAME COMMAND...: runs a command with the programs of a folder that `debian` made. It replaces the shell.
party() {
    in_folder "$2"
    exec timeout "$1" "${@:3}"
}

# debian NAME: programs as Debian makes them.
debian() {
    local packages
    read -rd "" -a packages <<<"${of_debian[$1]}"
    [ -e "$parties/$1/ready" ] && return
    unpacked "$1" "${packages[@]}" || return 1
    (
        in_folder "$1"
        ! find "$parties/$1"/usr/{bin,sbin,lib/postgresql/15/bin} -type f -exec ldd {} + 2>/dev/null | grep 'not found'
    ) || return 1
    touch "$parties/$1/ready"
}

# with_go: what follows has Debian's Go, which `no_go` removes.
with_go() {
    local root=$parties/root
    [ -x "$root/usr/lib/go-1.19/bin/go" ] || unpacked root "${go_packages[@]}" || return 1
    export LD_LIBRARY_PATH=$root/usr/lib/$(uname -m)-linux-gnu PATH=$root/usr/lib/go-1.19/bin:$root/usr/bin:$PATH
    export GOROOT=$root/usr/lib/go-1.19 GO111MODULE=off GOPATH=$parties/go:$root/usr/share/gocode GOCACHE=$parties/gocache
    export CGO_ENABLED=0 GOFLAGS=-p=2
}

no_go() {
    local folders=("$parties/root" "$parties/go" "$parties/gocache")
    chmod -Rf u+w "${folders[@]}"
    rm -rf "${folders[@]}"
}

# grpc-go's official programs of interoperation. Debian's package leaves them out, its source has them; their protocol is compiled anew
# because Debian has another runtime for it.
grpc_go() {
    [ -x "$parties/interop_client" ] && return
    local go=$parties/go lists=$parties/lists
    local grpc=$go/src/google.golang.org/grpc
    with_go || return 1
    mkdir -p "$lists/partial" "${grpc%/*}"
    echo "deb-src http://deb.debian.org/debian bookworm main" >"$parties/sources.list"
    local ask=(-qq -o APT::Sandbox::User=root -o "Dir::Etc::sourcelist=$parties/sources.list" -o Dir::Etc::sourceparts=-
        -o "Dir::State::lists=$lists")
    apt-get "${ask[@]}" update || return 1
    (cd "$go" && apt-get "${ask[@]}" source --download-only golang-google-grpc && tar -xf golang-google-grpc_*.orig.tar.*) || return 1
    cp -r "$parties/root/usr/share/gocode/src/google.golang.org/grpc" "$grpc"
    cp -r "$go"/*/interop "$grpc/"
    rm "$grpc"/interop/grpc_testing/*.pb.go
    (
        cd "$grpc" || exit 1
        protoc --go_out=paths=source_relative:. --go-grpc_out=paths=source_relative:. -I. interop/grpc_testing/test.proto || exit 1
        # It would listen on every address.
        sed -i 's|net.Listen("tcp", ":"+p)|net.Listen("tcp", "127.0.0.1:"+p)|' interop/server/server.go
        go build -o "$parties/interop_server" ./interop/server && go build -o "$parties/client" ./interop/client
    ) || return 1
    cp "$grpc/interop/grpc_testing/test.proto" "$parties/"
    mv "$parties/client" "$parties/interop_client"
}

# Go's own tests of a connection, golang.org/x/net/nettest, between two addresses that are given.
nettest_of_go() {
    [ -x "$parties/nettest" ] && return
    with_go || return 1
    mkdir -p "$parties/go/src/nettest"
    cp tests/interop/nettest.go "$parties/go/src/nettest/nettest_test.go"
    (cd "$parties/go/src/nettest" && go test -c -o "$parties/nettest")
}

# grpcio, the C core of gRPC under Python, with the protocol of the Go programs. Where there is no built one it is not compiled, which
# takes an hour.
grpc_python() {
    [ -e "$parties/python/ready" ] && return
    local python=$parties/python
    rm -rf "$python"
    python3 -m venv "$python" >&2 || { echo "install with: apt-get install python3-venv" >&2; return 1; }
    "$python/bin/pip" install -q --only-binary :all: --timeout 20 grpcio grpcio-tools grpcio-health-checking grpcio-reflection >&2 || return 1
    "$python/bin/python" -m grpc_tools.protoc -I "$parties" --python_out="$python" --grpc_python_out="$python" test.proto || return 1
    touch "$python/ready"
}

# grpc-js, which has an HTTP/2 of its own.
grpc_js() {
    [ -e "$parties/js/ready" ] && return
    mkdir -p "$parties/js"
    (cd "$parties/js" && npm install --no-audit --no-fund --silent @grpc/grpc-js @grpc/proto-loader >&2) || return 1
    touch "$parties/js/ready"
}
