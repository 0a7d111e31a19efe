#!/usr/bin/env bash
# The harness runs and says what it must; its times are printed and not judged, its instructions are.
set -uo pipefail
cd "$(dirname "$0")/.."
. tests/check.sh
. tests/programs.sh
programs || exit 1
for layer in engine rpc; do
    for mode in inline handoff; do
        check "lat $layer $mode" timeout 60 target/release/gimmal-bench lat --provider shm --layer $layer --mode $mode --loopback -s 64 -n 20000
    done
    check "rate $layer" timeout 60 target/release/gimmal-bench rate --provider shm --layer $layer --loopback -s 64 -n 50000 -O 32
done

check 'rate of a pipeline' timeout 60 target/release/gimmal-bench rate --provider shm --layer pipeline --loopback -s 64 -n 50000 -O 32
check 'handed off beside inline and the bare exchange' timeout 60 target/release/gimmal-bench lat --loopback --mode handoff -n 20000
check 'rate beside sockets and UCX' timeout 200 target/release/gimmal-bench rate --loopback -n 70000 --pairs 7 --against tcp,uds,ucx
check 'latency beside libfabric' timeout 60 target/release/gimmal-bench lat --loopback -n 14000 --pairs 7 --against libfabric
check 'bandwidth of loans' timeout 60 target/release/gimmal-bench bw --loopback -s 1m -n 700 --pairs 7
check 'loans touched at their header' timeout 60 target/release/gimmal-bench bw --loopback -s 1m --touch header -n 7000 --pairs 7
check 'open loop with stalls' timeout 60 target/release/gimmal-bench load --loopback -O 1 -n 50000 --rates 1k,10k -D 3 --stall 100
check 'connections' timeout 60 target/release/gimmal-bench conn --loopback -n 100
check 'a soak whose server is killed every second' timeout 60 target/release/gimmal-bench soak --loopback -D 4s --restart 1s -s 64,4k,64k
check 'many connections' timeout 100 target/release/gimmal-bench scale --loopback -n 5000 --connections 1,100,500
refuses 'a bit turned over' 'not what was sent' target/release/gimmal-bench lat --loopback -n 3000 --corrupt 2000 --verify

# Instructions of a 64 B echo, both ends' turns on one thread: exact where times are not, so these are judged.
# A line of tests/instructions.txt: the layer (engine; loan, 1 MiB touched at its first word; raw, pipeline, bytes, flat or typed calls), the
# window, the most that a round may take.
instructions() {
    local program=(pair_rpc "$1")
    [ "$1" != engine ] || program=(pair 64)
    [ "$1" != loan ] || program=(pair_loan 1048576)
    valgrind --tool=callgrind --callgrind-out-file=/dev/null "target/release/examples/${program[0]}" "${program[1]}" "$2" "$3" 2>&1 |
        sed -n 's/.*Collected : //p'
}
within_budget() {
    local few many each
    few=$(instructions "$1" "$2" 1000) many=$(instructions "$1" "$2" 6000)
    each=$(((many - few) / 5000))
    echo "$1, window $2: $each instructions a round, budget $3"
    [ "$each" -gt 0 ] && [ "$each" -le "$3" ]
}
while read -r layer window budget; do
    check "instructions of a round, $layer, window $window" within_budget "$layer" "$window" "$budget"
done < <(grep -v '^#' tests/instructions.txt)

# Ratios of one state of the host, and only where both are clearly apart; instructions within 2 %. What is worse is
# measured again: it may have been a neighbour.
regress() { timeout 300 target/release/gimmal-bench suite regress --baseline bench/baseline.json --tolerance 40 2>&1; }
nothing_worse() {
    local output
    output=$(regress) && printf '%s\n' "$output" && return 0
    printf '%s\n' "$output"
    grep -q '^ *WORSE ' <<<"$output" && regress
}
check "nothing got worse than the baseline" nothing_worse
check "rates of tonic's stubs in six cells, beside tonic's own transport" \
    timeout 300 cargo test -q --release "${program_set[@]}" --test rates -- --ignored --exact --nocapture rates_of_a_few_cells_are_not_below_tonics
check "criterion benches run" timeout 300 cargo bench -q "${program_set[@]}" --bench pieces -- --test
summary
