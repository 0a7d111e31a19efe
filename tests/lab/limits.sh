# shellcheck shell=bash disable=SC2154
# Slow receivers, full rings, held frames, over real devices. Sourced by tests/lab.sh.

for fabric in rxe siw; do
    count "engine limits over $fabric" sh -c "timeout 120 '$bin/lab-limits' --ignored --nocapture '$fabric::' 2>&1 |
        sed 's/ passed; / passed, /; s/ failed; .*/ failed/'"
done
