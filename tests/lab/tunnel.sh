# shellcheck shell=bash disable=SC2154
# Programs of third parties through a tunnel over the devices. tests/interop/run.sh unpacks them.

. tests/interop/edges.sh
. tests/interop/setup.sh
parties=$bin/interop
. tests/interop/tunnels.sh
if [ -e "$parties/redis/ready" ] && [ -e "$parties/iperf3/ready" ]; then
    asks=2000 value=8
    servers redis iperf3
    fabric=rxe carried "rdma://$rxe:7650" "${running[@]}"
    fabric=siw carried "rdma://$siw:7651" "${running[@]}"
else
    skipped=$((skipped + 1))
    echo "SKIP    programs through a tunnel over rxe and siw: they were not unpacked"
fi
stopped
