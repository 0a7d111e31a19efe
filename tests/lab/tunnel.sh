# shellcheck shell=bash disable=SC2154
# Programs of third parties through a tunnel over the devices, two of them; with GIMMAL_PROGRAMS=all, all. tests/interop/run.sh unpacks
# them, with `all` those too.

. tests/interop/edges.sh
. tests/interop/setup.sh
# sshd wants to know itself by an absolute path.
parties=$PWD/$bin/interop
. tests/interop/tunnels.sh
if [ -e "$parties/redis/ready" ] && [ -e "$parties/iperf3/ready" ]; then
    asks=2000 value=8 questions=100 moves=3
    names=(redis iperf3)
    [ "${GIMMAL_PROGRAMS:-}" != all ] || names+=(memcached nginx postgres ssh nettest) value=64
    servers "${names[@]}"
    fabric=rxe carried "rdma://$rxe:7650" "${running[@]}"
    fabric=siw carried "rdma://$siw:7651" "${running[@]}"
    # Beside the guest's own TCP: no number is judged.
    if tunnelled tcp tcp://127.0.0.1:21290 && tunnelled rxe "rdma://$rxe:7652" && tunnelled siw "rdma://$siw:7653"; then
        check "what a tunnel costs beside the guest's TCP" compared "${GIMMAL_ROUNDS:-1}" direct tcp rxe siw
    fi
else
    skipped=$((skipped + 1))
    echo "SKIP    programs through a tunnel over rxe and siw: they were not unpacked"
fi
stopped
