# shellcheck shell=bash disable=SC2154
# What everything else is built on: conformance, the main job, credit, refusals. Sourced by tests/lab.sh.

count "conformance on verbs/rxe" opened conformance.rxe timeout 600 "$bin/examples/conformance" --provider verbs --address "rdma://$rxe:0" --passed 130
count "conformance on verbs/siw" opened conformance.siw timeout 600 "$bin/examples/conformance" --provider verbs --address "rdma://$siw:0" --passed 126

for fabric in rxe siw; do
    host=$rxe && [ $fabric = siw ] && host=$siw
    check "demo over $fabric" timeout 300 "$bin/files" demo --provider verbs --fabric $fabric --bytes-max 8000000
    check "a server killed among 100 calls, $fabric" timeout 240 "$bin/fates" --address "rdma://$host:7600" --bound-ms 30000
    check "one-sided operations of another process, $fabric" one_sided "rdma://$host:7620" 500
    refuses "no server on $fabric" "no server is listening" "$bin/files" fetch --address "rdma://$host:7999"
done

check "credit keeps RNR away" timeout 280 "$bin/credit" --address "rdma://$rxe:0" --count 20000
check "without credit there is RNR" timeout 280 "$bin/credit" --address "rdma://$rxe:0" --no-credit

# A foreign client: rping against our port is rejected, and our server lives on.
sleep 600 | "$bin/files" serve "$PWD/transport/src" --address "rdma://$rxe:7700" >/dev/null 2>&1 &
sleep 600 | "$bin/files" serve "$PWD/transport/src" --address "rdma://$siw:7701" >/dev/null 2>&1 &
listens 7700 && listens 7701
refuses "a plain rping at our port" "rejected\|refused\|error" rping -c -a "$rxe" -p 7700 -C 1
check "our server lives on" timeout 180 "$bin/files" fetch --address "rdma://$rxe:7700" --bytes-max 100000

refuses "no such host" "resolve" "$bin/files" fetch --address "rdma://no.such.host.invalid:1"
refuses "memlock too small" "locked memory\|memlock" setpriv --bounding-set -ipc_lock --inh-caps -ipc_lock \
    sh -c "ulimit -l 64; exec $bin/files fetch --address rdma://$siw:7701"
kill $(jobs -p) 2>/dev/null
wait
