# Part of tests/lab.sh: the CM against rdma-core's own programs, and its edges, on rxe and siw.

rxe6=$GIMMAL_RXE_ADDR6 siw6=$GIMMAL_SIW_ADDR6
cm_port=9100

# both SERVER CLIENT: runs the server in the background, the client when it listens on $cm_port; both must end with 0.
both() {
    local server status
    timeout 180 $1 >/tmp/cm.server 2>&1 &
    server=$!
    listens $cm_port
    timeout 180 $2
    status=$?
    wait $server || { echo "the server ended with $?"; status=1; }
    tail -n 1 /tmp/cm.server
    return $status
}

# beside SERVER CLIENT: a server that never ends by itself.
beside() {
    local server status
    timeout 180 $1 >/tmp/cm.server 2>&1 &
    server=$!
    listens $cm_port
    timeout 180 $2
    status=$?
    kill $server
    return $status
}

for address in "$rxe" "$siw"; do
    check "two ids connected by gimmal-rdma alone, $address" timeout 180 "$bin/examples/connect" "$address"
done

for address in "$rxe" "$siw" "$rxe6" "$siw6"; do
    cm_port=$((cm_port + 1))
    check "rping: our client, its server, $address" both \
        "rping -s -a $address -p $cm_port" "$bin/examples/rping -c -a $address -p $cm_port -C 1000"
    cm_port=$((cm_port + 1))
    check "rping: its client, our server, $address" both \
        "$bin/examples/rping -s -a $address -p $cm_port" "rping -c -a $address -p $cm_port -C 1000 -V"
done
cm_port=$((cm_port + 1))
check "rping with queue pairs of our own making, $rxe" both \
    "rping -s -q -a $rxe -p $cm_port -S 4000" "$bin/examples/rping -q -c -a $rxe -p $cm_port -C 100 -S 4000"
refuses "a queue pair of our own making on iWARP" "CONNECT_RESPONSE" "$bin/examples/rping" -q -c -a "$siw" -p 9199

# Its server sends first. MPA leaves that to the active side, and siw takes data right behind the reply for an error, so over siw
# they connect and disconnect only; rping sends both ways there.
for address in "$rxe" "$siw" "$rxe6" "$siw6"; do
    messages=10 && [[ $address == "$siw" || $address == "$siw6" ]] && messages=0
    cm_port=$((cm_port + 1))
    check "ucmatose: our client, its server, $address" both \
        "ucmatose -b $address -p $cm_port -c 5 -C $messages" "$bin/cmatose -s $address -p $cm_port -c 5 -C $messages"
    cm_port=$((cm_port + 1))
    check "ucmatose: its client, our server, $address" both \
        "$bin/cmatose -b $address -p $cm_port -c 5 -C $messages" "ucmatose -s $address -p $cm_port -c 5 -C $messages"
done

for address in "$rxe" "$siw"; do
    cm_port=7471
    check "rdma_server: our client, its server, $address" both "rdma_server -s $address" "$bin/examples/client $address"
    check "rdma_client: its client, our server, $address" both "$bin/examples/server $address" "rdma_client -s $address"
    cm_port=9180
    check "cmtime: our client, its server, $address" beside \
        "cmtime -b $address -p $cm_port -c 50" "$bin/cmatose -s $address -p $cm_port -c 50 -S 0"
    cm_port=9181
    check "cmtime: its client, our server, $address" both \
        "$bin/cmatose -b $address -p $cm_port -c 50 -S 0" "cmtime -s $address -p $cm_port -c 50"
done

printf 'gimmal-test 9666/%s\n' tcp udp >>/etc/services
count "the CM's edges on rxe" opened cm_checks.rxe timeout 600 "$bin/cm_checks" all "$rxe"
count "the CM's edges on siw" opened cm_checks.siw timeout 600 "$bin/cm_checks" all "$siw"
count "the CM's edges over IPv6 on rxe" timeout 600 "$bin/cm_checks" all "$rxe6"
count "the CM's edges over IPv6 on siw" timeout 600 "$bin/cm_checks" all "$siw6"

count "several devices in one process" timeout 300 "$bin/cm_checks" devices "$rxe" "$siw"
count "several devices in one process, IPv6" timeout 300 "$bin/cm_checks" devices "$rxe6" "$siw6"

# A name whose first address has no device: the list is tried in order.
printf '%s several.gimmal.test\n' 127.0.0.2 "$rxe" >>/etc/hosts
count "a name with several addresses" timeout 180 "$bin/cm_checks" names "$rxe" several.gimmal.test

# The kernel gives up on a silent host after 70 s: beside the rest.
ip neigh replace "${rxe%.*}.78" lladdr 02:00:00:00:00:78 nud permanent dev "$(ip -o route get "${rxe%.*}.78" | sed 's/.* dev \([^ ]*\).*/\1/')"
"$bin/cm_checks" unreachable "$rxe" "${rxe%.*}.78" >/tmp/cm.unreachable 2>&1 &
unreachable=$!
gave_up() { timeout 300 tail --pid="$unreachable" -f /dev/null; cat /tmp/cm.unreachable; }

# A host that has a hardware address and never answers: rdma_connect blocks there on siw.
for address in "$rxe" "$siw"; do
    silent=${address%.*}.77
    ip neigh replace "$silent" lladdr 02:00:00:00:00:77 nud permanent \
        dev "$(ip -o route get "$silent" | sed 's/.* dev \([^ ]*\).*/\1/')"
    count "a silent host, from $address" timeout 180 "$bin/cm_checks" silent "$address" "$silent"
done

# siw's READs cross the loopback device: a delay there makes round trips visible.
if tc qdisc add dev lo root netem delay 200ms; then
    count "READs in flight on siw" timeout 180 "$bin/cm_checks" reads "$siw"
    tc qdisc del dev lo root
fi

count "the kernel gives up on a silent host" gave_up
