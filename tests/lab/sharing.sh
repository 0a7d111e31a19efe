# shellcheck shell=bash disable=SC2154
# Connections that share their receives. Sourced by tests/lab.sh.

# Of the suite, what comes in, how it ends, and what a lent ring holds; both fabrics at once.
receiving=publish_,flush_,poll_,event_loop_,credit_,close_,compose_finds
sharing_suite() {
    timeout 300 "$bin/examples/conformance" --provider verbs --address "rdma://$1:0" --shared "$2" --only "$3" 2>&1
}
sharing_suite "$siw" both $receiving >/tmp/sharing_siw 2>&1 &
suite=$!
count "conformance with shared receives on verbs/rxe" sharing_suite "$rxe" both $receiving
wait $suite
count "conformance with shared receives on verbs/siw" cat /tmp/sharing_siw
count "shared receives at the listener alone, rxe" sharing_suite "$rxe" listener credit_,connect_terms,connect_hello
count "shared receives at the client alone, siw" sharing_suite "$siw" client credit_,connect_terms,connect_hello

for fabric in rxe siw; do
    host=$rxe && [ $fabric = siw ] && host=$siw
    check "r51 250 connections share receives, one is greedy, all at once, $fabric" sh -c "ulimit -l unlimited
        timeout 200 '$bin/sharing' --address 'rdma://$host:0' --connections 250"
    check "credit keeps RNR away from shared receives, $fabric" timeout 200 "$bin/credit" \
        --address "rdma://$host:0" --shared --count 5000
done
