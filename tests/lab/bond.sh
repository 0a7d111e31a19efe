# shellcheck shell=bash disable=SC2154
# A bond that fails over under connections: what RDMA_CM_EVENT_ADDR_CHANGE tells. Sourced by tests/lab.sh.

# bond KIND: a device on a bond of two ports, of which the active one gives the bond its hardware address.
bond() {
    local port
    ip link add bond9 type bond mode active-backup miimon 100 fail_over_mac active || return
    for port in 0 1; do
        ip link add s$port type veth peer name t$port && ip link set t$port up &&
            ip link set s$port master bond9 || return
    done
    ip link set bond9 up && ip address add 10.77.8.1/24 dev bond9 && rdma link add "$1"8 type "$1" netdev bond9
}
unbond() {
    rdma link delete "$1"8
    ip link delete bond9
    ip link delete s0
    ip link delete s1
}
# GIDs follow addresses a moment later.
has_route() { grep -q "^fine *route" <<<"$(timeout 20 "$bin/gimmal" doctor rdma://10.77.8.1:1)"; }

for fabric in rxe siw; do
    if bond $fabric; then
        within 60 has_route
        count "a bond fails over under connections, $fabric" timeout 240 "$bin/cm_checks" failover 10.77.8.1 bond9
    else
        check "a bond of two ports, $fabric" false
    fi
    unbond $fabric
done
