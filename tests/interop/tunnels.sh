# Programs of third parties through `gimmal tunnel`, each with a verdict of its own. Sourced after check.sh, setup.sh and edges.sh; `bin`
# has gimmal's programs, `parties` the others, each in a folder that `debian` made.

# Where each program's server listens; its end of the tunnel does so 100 higher.
declare -A port=([redis]=21300 [memcached]=21301 [iperf3]=21302 [nginx]=21303 [postgres]=21304 [ssh]=21305 [nettest]=21306)

# The lab is slow. Less there: requests of redis, MiB of a value, and questions of which each is waited for; more: seconds of iperf3.
asks=50000 value=64 questions=20000 moves=1

# bytes MIB: makes a file that no program knows.
bytes() { [ -e "$folder/$1m" ] || head -c "$1M" /dev/urandom >"$folder/$1m"; }

# served_by NAME COMMAND...: starts the server of a program.
served_by() { served "${port[$1]}" party 3000 "$@"; }

serve_redis() { served_by redis redis-server --port "${port[redis]}" --bind 127.0.0.1 --dir "$folder" --save '' --appendonly no; }
by_redis() {
    local at=(-h 127.0.0.1 -p "$1") rates
    rates=$(party 60 redis redis-benchmark "${at[@]}" -t ping_mbulk,set,get -n $asks -c 50 -P 16 -d 1024 --csv)
    printf '%s\n' "$rates"
    [ "$(grep -cE '^"[A-Z_]+","[1-9]' <<<"$rates")" = 3 ] || return 1
    (party 20 redis redis-cli "${at[@]}" -x set value <"$folder/${value}m") || return 1
    # It adds the end of a line.
    (party 20 redis redis-cli "${at[@]}" --raw get value) | head -c -1 | cmp - "$folder/${value}m"
}

serve_memcached() { served_by memcached memcached -u "$(id -un)" -l 127.0.0.1 -p "${port[memcached]}" -U 0 -m 64; }
by_memcached() {
    (party 60 memcached memccapable -h 127.0.0.1 -p "$1" -a 2>&1) | tail -n 1 | grep 'All tests passed' || return 1
    local said
    # Half of what it gets it compares with what it set.
    said=$(party 60 memcached memcaslap -s "127.0.0.1:$1" -T 1 -c 16 -t 1s -v 0.5)
    tail -n 1 <<<"$said"
    grep 'TPS: [1-9]' <<<"$said" >/dev/null && grep -x 'verify_failed: 0' <<<"$said" && grep -x 'verify_misses: 0' <<<"$said"
}

serve_iperf3() { served_by iperf3 iperf3 -s -B 127.0.0.1 -p "${port[iperf3]}"; }
by_iperf3() {
    local sums
    sums=$(party 60 iperf3 iperf3 -c 127.0.0.1 -p "$1" --bidir -P 8 -t $moves -f M) || return 1
    sums=$(grep SUM <<<"$sums" | tail -n 4)
    printf '%s\n' "$sums"
    [ "$(grep -cE ' [0-9.]*[1-9][0-9.]* MBytes/sec.*receiver' <<<"$sums")" = 2 ]
}

serve_nginx() {
    mkdir -p "$folder/www"
    ln -f "$folder/64m" "$folder/www/64m"
    head -c 16384 /dev/urandom >"$folder/www/16k"
    cat >"$folder/nginx.conf" <<END
daemon off; worker_processes 1; pid $folder/nginx.pid; error_log stderr; worker_rlimit_nofile 8192;
$([ "$(id -u)" != 0 ] || echo "user $(id -un) $(id -gn);")
events { worker_connections 4096; }
http { access_log off; sendfile on; client_max_body_size 1g; client_body_temp_path $folder/www; proxy_temp_path $folder/www;
  fastcgi_temp_path $folder/www; uwsgi_temp_path $folder/www; scgi_temp_path $folder/www;
  server { listen 127.0.0.1:${port[nginx]} backlog=2048; root $folder/www; dav_methods PUT; } }
END
    served_by nginx nginx -c "$folder/nginx.conf" -e stderr
}
by_nginx() {
    local said
    (party 60 nginx curl -sS "http://127.0.0.1:$1/64m") | cmp - "$folder/64m" || return 1
    (party 60 nginx curl -sS -T "$folder/64m" "http://127.0.0.1:$1/put") && cmp "$folder/www/put" "$folder/64m" || return 1
    rm "$folder/www/put"
    # 1,000 connections at once.
    said=$(party 60 nginx wrk -t 1 -c 1000 -d 2s --timeout 10s "http://127.0.0.1:$1/16k")
    printf '%s\n' "$said"
    grep 'Requests/sec: *[0-9.]*[1-9]' <<<"$said" && ! grep -E 'Socket errors|Non-2xx' <<<"$said"
}

# allowed NAME NAMESPACE: whether this user may have one. Else the program is skipped.
allowed() {
    unshare "$2" true 2>/dev/null && return
    skipped=$((skipped + 1))
    echo "SKIP    $1: this system allows no namespace of the kind ${2#--}"
    return 1
}

# In a namespace of its own it is some user that is not root, and its files are this user's.
serve_postgres() {
    local data=$folder/data
    allowed postgres --user || return
    (party 60 postgres unshare --user initdb -D "$data" -U postgres -A trust --no-sync -E UTF8 --no-locale) >>"$folder/log" 2>&1
    served_by postgres unshare --user postgres -D "$data" -p "${port[postgres]}" -c listen_addresses=127.0.0.1 \
        -c unix_socket_directories= -c fsync=off -c shared_buffers=64MB && within 60 postgres_is_ready "${port[postgres]}"
}
postgres_is_ready() { (party 5 postgres pg_isready -q -h 127.0.0.1 -p "$1"); }
by_postgres() {
    export PGHOST=127.0.0.1 PGPORT=$1 PGUSER=postgres PGDATABASE=postgres
    local said rows="select g, repeat('x', 100) from generate_series(1, 500000) g"
    (party 60 postgres pgbench -i -s 2 -q) || return 1
    said=$(party 60 postgres pgbench -c 8 -j 2 -T 3) && grep 'failed transactions: 0 ' <<<"$said" || return 1
    [ "$(party 60 postgres psql -Atc "copy ($rows) to stdout" | md5sum)" = "dc931865f54a731ffcd04b52a2bb2b49  -" ] || return 1
    # And back.
    (party 60 postgres psql -qAtc "copy ($rows) to stdout") >"$folder/rows"
    (party 60 postgres psql -qAtc 'drop table if exists t; create table t(g int, x text)' -c '\copy t from stdin' \
        -c 'select count(*), sum(g), sum(length(x)) from t' <"$folder/rows") | grep -x '500000|125000250000|50000000'
}

# Only root may have the system user that it wants, which a mount namespace shows to nobody else.
serve_ssh() {
    local at=$folder/ssh
    allowed ssh --mount || return
    mkdir -p "$at"
    (cat /etc/passwd && echo 'sshd:x:65533:65534::/run/sshd:/usr/sbin/nologin') | awk -F: '!s[$1]++' >"$at/passwd"
    for key in host id; do (party 10 ssh ssh-keygen -q -t ed25519 -N '' -f "$at/$key"); done
    printf '%s\n' "Port ${port[ssh]}" 'ListenAddress 127.0.0.1' "HostKey $at/host" "AuthorizedKeysFile $at/id.pub" 'PidFile none' \
        'StrictModes no' 'UsePAM no' 'PermitRootLogin prohibit-password' 'PasswordAuthentication no' \
        'KbdInteractiveAuthentication no' 'Subsystem sftp internal-sftp' >"$at/conf"
    served_by ssh unshare --mount sh -c "mount --bind $at/passwd /etc/passwd && mount -t tmpfs tmpfs /run && mkdir /run/sshd &&
        exec $parties/ssh/usr/sbin/sshd -D -e -f $at/conf"
}
by_ssh() {
    local at=$folder/ssh file=$folder/${SFTP_MIB:-64}m
    printf 'put %s %s\nget %s %s\n' "$file" "$folder/there" "$folder/there" "$folder/back" >"$at/batch"
    (party 300 ssh sftp -S "$parties/ssh/usr/bin/ssh" -q -F none -i "$at/id" -o "UserKnownHostsFile=$at/known" -o StrictHostKeyChecking=no \
        -o IdentitiesOnly=yes -P "$1" -b "$at/batch" root@127.0.0.1) && cmp "$file" "$folder/back" && rm "$folder/there" "$folder/back"
}

# Its server is the test itself.
serve_nettest() { :; }
by_nettest() { timeout 180 "$parties/nettest" -test.timeout 150s -test.run Conn -back "127.0.0.1:${port[nettest]}" -front "127.0.0.1:$1"; }

# carried URL NAME...: programs through a tunnel over the URL, with one end at their servers, and one for each at the programs.
carried() {
    local name maps=()
    for name in "${@:2}"; do maps+=(--map "$name=tcp:127.0.0.1:${port[$name]}"); done
    "$bin/gimmal" tunnel --listen "$1" "${maps[@]}" >>"$folder/log" 2>&1 &
    started+=($!)
    for name in "${@:2}"; do
        served $((port[$name] + 100)) "$bin/gimmal" tunnel --listen "tcp:127.0.0.1:$((port[$name] + 100))" --to "$1/$name" || return
        check "$name over ${fabric:-${1%%:*}}" "by_$name" $((port[$name] + 100))
        ended
    done
    ended
}

# A way from a program to its server is a number that its ports have beside those of the servers.
declare -A way=([direct]=0 [socat]=100 [tcp]=200 [shm]=300 [rxe]=400 [siw]=500 [socats]=600)

# tunnelled WAY URL: a tunnel over the URL to redis and iperf3, in front of them as WAY.
tunnelled() {
    local name front
    "$bin/gimmal" tunnel --listen "$2" --map "redis=tcp:127.0.0.1:${port[redis]}" --map "iperf3=tcp:127.0.0.1:${port[iperf3]}" >>"$folder/log" 2>&1 &
    started+=($!)
    for name in redis iperf3; do
        front=$((port[$name] + way[$1]))
        served $front "$bin/gimmal" tunnel --listen "tcp:127.0.0.1:$front" --to "$2/$name" || return 1
    done
}
# Microseconds of a question and its answer: the median.
asked() { (party 60 redis redis-benchmark -h 127.0.0.1 -p "$1" -t get -d 64 -c 1 -n $questions --csv) | awk -F'"' '/GET/ { print 1000 * $10 }'; }
# MB a second.
moved() { (party 60 iperf3 iperf3 -c 127.0.0.1 -p "$1" -t $moves -J) | jq '.end.sum_received.bits_per_second / 8e6'; }
median() { sort -g "$1" | awk '{ all[NR] = $1 } END { print all[int((NR + 1) / 2)] }'; }
# compared ROUNDS WAY...: 64 B asked of redis over one connection, and bytes of iperf3 over one, as the median of so many rounds, in
# which the ways take turns. The table is in $folder, too.
compared() {
    local name
    (party 9 redis redis-cli -h 127.0.0.1 -p "${port[redis]}" set key:__rand_int__ "$(head -c 64 /dev/zero | tr '\0' x)") >>"$folder/log"
    for _ in $(seq "$1"); do
        for name in "${@:2}"; do
            asked $((port[redis] + way[$name])) >>"$folder/asked.$name"
            moved $((port[iperf3] + way[$name])) >>"$folder/moved.$name"
        done
    done
    {
        printf '%-8s %14s %14s\n' way '64 B, us' 'MB/s'
        for name in "${@:2}"; do
            printf '%-8s %14.1f %14.1f\n' "$name" "$(median "$folder/asked.$name")" "$(median "$folder/moved.$name")"
        done
    } | tee "$folder/table"
    # Every question was answered. Of the bytes nothing may have arrived yet where the machine is busy.
    ! awk 'NR > 1 && !($2 > 0)' "$folder/table" | grep . >/dev/null
}

# servers NAME...: starts them, and puts the names of those that run in `running`.
running=()
servers() {
    local name
    bytes $value
    for name in "$@"; do ! "serve_$name" || running+=("$name"); done
}

# tunnels [all]: over shared memory and TCP.
tunnels() {
    local name url got=() names=(redis memcached iperf3 nginx)
    [ -z "${1:-}" ] || names+=(postgres ssh)
    # As many as this user may have: 1,000 connections are more than the usual 1,024 files.
    ulimit -n "$(ulimit -Hn)"
    for name in "${names[@]}"; do ! made "$name" debian "$name" || got+=("$name"); done
    ! made nettest nettest_of_go || got+=(nettest)
    [ -z "${1:-}" ] || bytes "${SFTP_MIB:=1024}"
    servers "${got[@]}"
    for url in "shm://tunnel-$$" tcp://127.0.0.1:21290; do carried "$url" "${running[@]}"; done
}
