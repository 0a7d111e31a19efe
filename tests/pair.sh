#!/usr/bin/env bash
# Two guests on one wire, called by the lab tier on the host: connections while the network, the server's process and
# its host go away and come back. The client tells the server's host what to do to itself.
set -uo pipefail
cd "$(dirname "$0")/.."
lab=${GIMMAL_LAB_TOOL:-target/release/gimmal-lab}
live=${GIMMAL_LIVE:-$PWD/target/release/live}
pulls=${GIMMAL_PULLS:-$PWD/target/release/pulls}
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# Impatient: dead after 1 s, by the heartbeat (the device tries for 2 s). Patient: 15 s, and the device tries again for 17 s (4.096 us * 2^19 * 8).
impatient="--ack-timeout 16"
patient="--heartbeat-ms 15000 --ack-timeout 19"
verdict='^b| \(ok \|FAILED\) '
serve="(while :; do $live host --address rdma://\$GIMMAL_LOCAL_ADDR:7801 $impatient; done >/tmp/host 2>&1 &)
($live host --address rdma://\$GIMMAL_LOCAL_ADDR:7802 $patient >/tmp/patient 2>&1 &)"
checks=". tests/check.sh
visit() { timeout 60 $live visit --address rdma://\$GIMMAL_PEER_ADDR:\"\$@\"; }
reach() { visit \"\$@\" --event reach >/tmp/reach 2>&1 || { echo \"the server is not there: \$(tail -n 1 /tmp/reach)\"; exit 1; }; }"

# both SCRIPT: the server in guest a, the script in guest b. What guest a comes to is of no interest. Guests that came to
# no check at all (one did not boot, the server did not start) are started once more; a check is never repeated.
both() {
    local before again
    before=$(grep -c "$verdict" "$log")
    for again in no yes; do
        once "$1"
        [ "$(grep -c "$verdict" "$log")" -eq "$before" ] || return 0
        [ $again = yes ] || echo "no check was begun: the guests are started again"
    done
}

once() {
    "$lab" pair --fabric rxe --timeout-s 150 --allow-kernel-warnings --a "$serve" --b "$checks
$1
summary" 2>&1 | tee -a "$log" | sed -n 's/^b| //p' | grep -v 'passed, '
}

# wire: the server's cable is pulled out, its port is down. loss: both ports stay up and nothing arrives.
both '
check "the link is down for 5 s, bound 1 s: dead, then back" visit 7801 --event cut --how wire '"$impatient"'
check "the link is down for 5 s, bound 15 s: the same connection" visit 7802 --event ride --how wire '"$patient"'
check "all is lost for 5 s, bound 1 s: dead, then back" visit 7801 --event cut --how loss '"$impatient"'
check "all is lost for 5 s, bound 15 s: the same connection" visit 7802 --event ride --how loss '"$patient"'
check "the server is started again: the client comes back" visit 7801 --event restart '"$impatient"
both '
reach 7801 '"$impatient"'
check "the host loses power: reported within the bound" visit 7801 --event power-off '"$impatient"

# A long way between the two: what the depth of READs is worth.
serve="tc qdisc add dev eth0 root netem delay 5ms; (timeout 120 $pulls serve --address rdma://\$GIMMAL_LOCAL_ADDR:7803 --seconds 110 >/tmp/pulls 2>&1 &)"
both '
tc qdisc add dev eth0 root netem delay 5ms
check "5 ms each way: 16 READs in flight are 5 x as fast as one" timeout 100 '"$pulls"' depth --address rdma://$GIMMAL_PEER_ADDR:7803
'

# Every check must have said how it went: a guest that never started has failed them all.
passed=$(grep -c '^b| ok ' "$log")
failed=$((7 - passed))
[ "$failed" -eq 0 ] || tail -n 40 "$log" | sed 's/passed, /passed; /'
printf '%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" -eq 0 ]
