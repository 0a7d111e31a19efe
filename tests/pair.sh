#!/usr/bin/env bash
# Two guests on one wire, called by the lab tier on the host: connections while the network, the server's process and
# its host go away and come back, and while the network loses packets. The client tells the server's host what to do to
# itself. GIMMAL_LOSSES=long: so many calls over a bad network, in place of a minute of them.
# Usage: tests/pair.sh [PART...: network losses power far packets; all of them]
set -uo pipefail
cd "$(dirname "$0")/.."
lab=${GIMMAL_LAB_TOOL:-target/release/gimmal-lab}
live=${GIMMAL_LIVE:-$PWD/target/release/live}
pulls=${GIMMAL_PULLS:-$PWD/target/release/pulls}
parts=$*
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# Impatient: dead after 1 s, by the heartbeat (the device tries for 2 s). Patient: 15 s, and the device tries again for 17 s (4.096 us * 2^19 * 8).
impatient="--ack-timeout 16"
patient="--heartbeat-ms 15000 --ack-timeout 19"
verdict='^b| \(ok \|FAILED\) '
serve="(while :; do $live host --address rdma://\$GIMMAL_LOCAL_ADDR:7801 $impatient; done >/tmp/host 2>&1 &)
($live host --address rdma://\$GIMMAL_LOCAL_ADDR:7802 $patient >/tmp/patient 2>&1 &)
($live host --address tcp://\$GIMMAL_LOCAL_ADDR:7804 >/tmp/tcp 2>&1 &)
($live host --address tcp://\$GIMMAL_LOCAL_ADDR:7805 --heartbeat-ms 15000 >/tmp/patient-tcp 2>&1 &)"
checks=". tests/check.sh
visit() { timeout 60 $live visit --address rdma://\$GIMMAL_PEER_ADDR:\"\$@\"; }
tcp() { timeout 60 $live visit --address tcp://\$GIMMAL_PEER_ADDR:\"\$@\"; }
reach() { visit \"\$@\" --event reach >/tmp/reach 2>&1 || { echo \"the server is not there: \$(tail -n 1 /tmp/reach)\"; exit 1; }; }"

# both PART CHECKS SCRIPT [SECONDS]: the server in guest a, the script of so many checks in guest b. What guest a comes to is of no
# interest. Guests that came to no check at all (one did not boot, the server did not start) are started once more; a check is never
# repeated.
checks_wanted=0
both() {
    local before again
    [[ -z $parts || " $parts " == *" $1 "* ]] || return 0
    checks_wanted=$((checks_wanted + $2))
    shift 2
    before=$(grep -c "$verdict" "$log")
    for again in no yes; do
        once "$@"
        [ "$(grep -c "$verdict" "$log")" -eq "$before" ] || return 0
        [ $again = yes ] || echo "no check was begun: the guests are started again"
    done
}

once() {
    "$lab" pair --fabric rxe --timeout-s "${2:-150}" --allow-kernel-warnings --a "$serve" --b "$checks
$1
summary" 2>&1 | tee -a "$log" | sed -n 's/^b| //p' | grep -v 'passed, '
}

# wire: the server's cable is pulled out, its port is down. loss: both ports stay up and nothing arrives.
both network 8 '
check "the link is down for 5 s, bound 1 s: dead, then back" visit 7801 --event cut --how wire '"$impatient"'
check "the link is down for 5 s, bound 15 s: the same connection" visit 7802 --event ride --how wire '"$patient"'
check "all is lost for 5 s, bound 1 s: dead, then back" visit 7801 --event cut --how loss '"$impatient"'
check "all is lost for 5 s, bound 15 s: the same connection" visit 7802 --event ride --how loss '"$patient"'
check "the server is started again: the client comes back" visit 7801 --event restart '"$impatient"'
check "tcp: all is lost for 2.5 s, bound 1 s: dead, then back" tcp 7804 --event cut --how loss --away-ms 2500
check "tcp: what the server sends is lost for 2.5 s, bound 1 s: dead, then back" tcp 7804 --event cut --how one-way --away-ms 2500
check "tcp: all is lost for 2.5 s, bound 15 s: the same connection" tcp 7805 --event ride --how loss --away-ms 2500 --heartbeat-ms 15000
' 300

# weather NETEM SECONDS CALLS: over TCP and over rxe at the same time, for so long or, in the long form, so many calls each.
weather='weather() {
    amount="--seconds $2" limit=240
    [ "${GIMMAL_LOSSES:-short}" = short ] || amount="--calls $3 --seconds 3000" limit=3300
    check "$1, over tcp and rxe: each call ends once, as its fate says" timeout $limit '"$live"' weather --netem "$1" $amount '"$impatient"' \
        --address tcp://$GIMMAL_PEER_ADDR:7804 --address rdma://$GIMMAL_PEER_ADDR:7801
}'
# The guests do not have this shell's environment.
both losses 5 "GIMMAL_LOSSES=${GIMMAL_LOSSES:-short}
$weather"'
weather "loss 1%" 60 1000000
weather "loss 10%" 60 100000
weather "loss 30%" 60 20000
weather "delay 2ms 1ms reorder 20% duplicate 5%" 4 100000
check "tcp, packets of 600 bytes: each call ends once, as its fate says" timeout 120 '"$live"' weather --address tcp://$GIMMAL_PEER_ADDR:7804 --mtu 600 --netem "loss 1%" --seconds 2
' $([ "${GIMMAL_LOSSES:-short}" = short ] && echo 1200 || echo 14000)
both power 1 '
reach 7801 '"$impatient"'
check "the host loses power: reported within the bound" visit 7801 --event power-off '"$impatient"

# A long way between the two: what the depth of READs is worth. Then one host's device goes away and comes back.
serve="tc qdisc add dev eth0 root netem delay 5ms; (timeout 410 $pulls serve --address rdma://\$GIMMAL_LOCAL_ADDR:7803 --seconds 400 >/tmp/pulls 2>&1 &)
(while :; do $live host --address gimmal://\$GIMMAL_LOCAL_ADDR:7806 $patient; done >/tmp/ways 2>&1 &)"
both far 2 '
tc qdisc add dev eth0 root netem delay 5ms
check "5 ms each way: 16 READs in flight are 5 x as fast as one" timeout 100 '"$pulls"' depth --address rdma://$GIMMAL_PEER_ADDR:7803
check "gimmal:// by slow RDMA, by TCP without a device, by RDMA when it is back" timeout 240 '"$live"' ways --address gimmal://$GIMMAL_PEER_ADDR:7806 '"$patient"'
' 420

# What is on the wire: packets within one guest never come there.
serve="(while :; do timeout 100 $PWD/target/release/examples/server \$GIMMAL_LOCAL_ADDR; done >/tmp/server 2>&1 &)"
both packets 1 '
tries=0
until timeout 10 '"$PWD"'/target/release/examples/client $GIMMAL_PEER_ADDR >/tmp/client 2>&1; do
    tries=$((tries + 1))
    [ $tries -lt 60 ] || { echo "the server is not there: $(tail -n 1 /tmp/client)"; exit 1; }
    sleep 0.5
done
check "a type of service on the packets of RoCE" timeout 60 '"$PWD"'/target/release/cm_checks packets $GIMMAL_LOCAL_ADDR $GIMMAL_PEER_ADDR
'

# Every check must have said how it went: a guest that never started has failed them all.
passed=$(grep -c '^b| ok ' "$log")
failed=$((checks_wanted - passed))
[ "$failed" -eq 0 ] || tail -n 40 "$log" | sed 's/passed, /passed; /'
printf '%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" -eq 0 ]
