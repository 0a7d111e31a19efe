# shellcheck shell=bash disable=SC2154
# Slow receivers, full rings, held frames, over real devices. Sourced by tests/lab.sh.

for fabric in rxe siw; do
    count "engine limits over $fabric" sh -c "timeout 300 '$bin/lab-limits' --ignored --nocapture '$fabric::' 2>&1 |
        sed 's/ passed; / passed, /; s/ failed; .*/ failed/'"
done

# A large transfer beside small messages, and four large ones beside each other: times are printed, fairness is judged.
for fabric in rxe siw; do
    # Over rxe, whose posts move the bytes, READs must be short beside echoes.
    host=$rxe short=--short
    [ $fabric = siw ] && host=$siw short=
    "$bin/pulls" serve --address "rdma://$host:7830" --seconds 600 >/dev/null 2>&1 &
    server=$!
    check "r61 64 B beside 64 MiB over $fabric" timeout 180 "$bin/pulls" beside --address "rdma://$host:7830" $short
    check "four transfers at once over $fabric" timeout 180 "$bin/pulls" fair --address "rdma://$host:7830"
    kill $server 2>/dev/null
    wait $server 2>/dev/null
done
