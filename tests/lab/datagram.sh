# Sourced by tests/lab.sh: datagrams over RDMA_PS_UDP, ours against ours and against rdma-core's programs.
rxe6=$GIMMAL_RXE_ADDR6

# both READY FIRST SECOND: SECOND starts when READY holds of FIRST; both must end with 0.
both() {
    local log status pid since=$SECONDS
    log=$(mktemp)
    timeout 200 stdbuf -oL sh -c "$2" >"$log" 2>&1 &
    pid=$!
    until $1 "$log"; do
        [ $((SECONDS - since)) -lt 60 ] || break
        sleep 0.1
    done
    timeout 120 sh -c "$3"
    status=$?
    wait "$pid" || status=1
    cat "$log"
    rm -f "$log"
    return $status
}

serves() { grep -q "LISTEN ps UDP" <<<"$(rdma resource show cm_id)"; }
joined() { grep -q joined "$1"; }
both_joined() { [ "$(grep -c joined "$1")" -ge 2 ]; }

skip() {
    skipped=$((skipped + 1))
    printf 'SKIP    %s: %s\n' "$1" "$2"
}

count "datagrams on rxe and siw" opened datagram_checks timeout 600 "$bin/datagram_checks" "$rxe" "$rxe6" "$siw"

for address in "$rxe" "$rxe6"; do
    args="-c 3 -C 50 -S 1000"
    server="-b $address $args" client="-s $address $args"
    check "udaddy, ours and ours, $address" both serves "$bin/udaddy $server" "$bin/udaddy $client"
    check "udaddy, ours serves theirs, $address" both serves "$bin/udaddy $server" "udaddy $client"
    check "udaddy, theirs serves ours, $address" both serves "udaddy $server" "$bin/udaddy $client"
    mtu="-C 8 -S 4096"
    check "udaddy, ours serves theirs, whole packets, $address" \
        both serves "$bin/udaddy -b $address $mtu" "udaddy -s $address $mtu"
done
refuses "udaddy above the path MTU" "path MTU" "$bin/udaddy" -s "$rxe" -b "$rxe" -S 4097

for group in 239.5.5.5 ff12::5555; do
    address=$rxe && [ $group = ff12::5555 ] && address=$rxe6
    args="-m $group -b $address -C 20 -S 1000"
    ours="$bin/mckey $args"
    check "mckey, ours to ours, $group" both joined "$ours" "$ours -s"
    check "mckey, ours to ours, send-only, $group" both joined "$ours" "$ours -s -o"
    # Not by a pipe: mckey fails, and the pipe with it.
    if [[ $(timeout 60 mckey $args -s 2>&1) == *524* ]]; then
        skip "mckey, theirs, $group" "the kernel's CM refuses IPv6 groups on RoCE v2 (524), and theirs has no other way"
    else
        check "mckey, theirs to ours, $group" both joined "$ours" "mckey $args -s"
        check "mckey, ours to theirs, $group" both joined "mckey $args" "$ours -s"
        check "mckey, ours to theirs, send-only, $group" both joined "mckey $args" "$ours -s -o"
    fi
    subscribe="$bin/examples/subscribe --group $group --local $address --count 200 --quiet"
    publish="$bin/examples/publish --group $group --local $address --count 200 --interval-us 500"
    check "publish to two subscribers, $group" both both_joined "$subscribe & one=\$!; $subscribe && wait \$one" "$publish"
done
refuses "a subscriber whose time is over" "of 5 messages came" \
    "$bin/examples/subscribe" --group 239.5.5.7 --local "$rxe" --count 5 --timeout-ms 500
refuses "udaddy on siw" "iWARP" "$bin/udaddy" -b "$siw"
refuses "mckey on siw" "iWARP" "$bin/mckey" -m 239.5.5.5 -b "$siw"
refuses "an address of no device" "no RDMA device" "$bin/mckey" -m 239.5.5.5 -b 127.0.0.1
skip "udaddy and mckey on siw" "iWARP has no datagrams (UD)"

# A device of its own: the others are in use by the rest of the tier.
spare() {
    ip link add u0 type veth peer name u1 && ip address add 10.77.9.1/24 dev u0 && ip link set u0 up &&
        ip link set u1 up && rdma link add rxe9 type rxe netdev u0
}
# GIDs follow addresses a moment later.
has_address() { grep -q "::ffff:10.77.9.1 " <<<"$("$bin/gimmal" devices)"; }
is_back() {
    rdma link add rxe9 type rxe netdev u0 && within 60 has_address && return
    echo "rxe9 is not back with its address:"
    "$bin/gimmal" devices
    return 1
}
sends_again() {
    is_back && timeout 60 "$bin/mckey" -m 239.5.5.5 -b 10.77.9.1 -s -C 3
}
if spare; then
    within 60 has_address || "$bin/gimmal" devices
    check "a device deleted under datagrams" timeout 120 "$bin/datagram_checks" --remove rxe9 10.77.9.1
    check "the same device, added again" sends_again
    # Again a connection, and again it comes back.
    count "a device deleted under a connection" timeout 120 "$bin/cm_checks" removal 10.77.9.1 rxe9
    check "a group joined again on the device that is back" sends_again
    count "a device that nobody uses is let go" timeout 120 "$bin/cm_checks" unused 10.77.9.1 rxe9 "$rxe"
    is_back
    count "a device on which every connection failed is let go" timeout 120 "$bin/cm_checks" refused 10.77.9.1 rxe9
    ip link delete u0
else
    skip "a device deleted under datagrams" "no second rxe device can be made here"
fi
check "no datagram queue pair is left" within 60 none_left UD
