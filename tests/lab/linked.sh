# shellcheck shell=bash disable=SC2154
# The same cases with the other backend, rdma-core linked (cargo feature rdma-sys), beside the counts of the runs before,
# which opened the libraries at run time. Both must be the same. Sourced by tests/lab.sh.

# linked NAME PROGRAM ARGS...: the counts of NAME, and those of the linked program.
linked() {
    local name=$1 program=$2 before after
    shift 2
    before=$(tail -n 1 "/tmp/opened.$name")
    after=$(timeout 600 "target/linked/$program" "$@" 2>/dev/null | tee /tmp/linked | tail -n 1)
    printf 'opened %s | linked %s\n' "$before" "$after"
    [ -n "$after" ] && [ "$before" = "$after" ] && [[ $after == *" 0 failed"* ]] && return
    grep FAILED /tmp/linked
    return 1
}

if [ -x target/linked/cm_checks ]; then
    for fabric in rxe siw; do
        host=$rxe && [ $fabric = siw ] && host=$siw
        check "the CM's edges with each backend, $fabric" linked cm_checks.$fabric cm_checks all "$host"
        check "conformance with each backend, $fabric" \
            linked conformance.$fabric conformance --provider verbs --address "rdma://$host:0"
    done
    check "datagrams with each backend" linked datagram_checks datagram_checks "$rxe" "$GIMMAL_RXE_ADDR6" "$siw"
else
    skipped=$((skipped + 1))
    printf 'SKIP    both backends: target/linked has nothing; the lab tier makes it\n'
fi
