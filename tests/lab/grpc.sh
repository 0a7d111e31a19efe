# shellcheck shell=bash disable=SC2154
# tonic's generated clients and servers over the devices, and grpc-go's cases through two edges. The programs of grpc-go are made by
# tests/interop/run.sh.

for fabric in rxe siw; do
    count "tonic's stubs over $fabric" cases tonic-stubs "::$fabric"
done

interop=$bin/interop
. tests/interop/edges.sh
if [ -x "$interop/interop_client" ]; then
    served 21000 "$interop/interop_server" -port 21000
    for fabric in rxe siw; do
        host=$rxe && [ $fabric = siw ] && host=$siw
        edges "rdma://$host:7640" 21000 || break
        count "grpc-go's client and server through edges over $fabric" by_go 21200
        ended; ended
    done
else
    skipped=$((skipped + 1))
    echo "SKIP    grpc-go over rxe and siw: its programs were not made"
fi
stopped
