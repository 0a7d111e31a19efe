# shellcheck shell=bash disable=SC2154
# Limits of the whole machine, which only a guest may set. Sourced by tests/lab.sh.

count "60 clients beyond vm.max_map_count" cases shortage guest_
for fabric in rxe siw; do
    count "rpc shortage over $fabric" cases shortage "$fabric::"
done
