#!/usr/bin/env bash
# Rules of the house that no compiler checks. Prints what breaks them; one line a rule.
set -uo pipefail
cd "$(dirname "$0")/.."
passed=0 failed=0

# rule NAME: reads offenders from stdin.
rule() {
    local offenders
    offenders=$(cat)
    if [ -z "$offenders" ]; then
        passed=$((passed + 1)) && printf 'ok      %s\n' "$1"
    else
        failed=$((failed + 1)) && printf 'FAILED  %s\n%s\n' "$1" "$offenders"
    fi
}

sources() { git ls-files "$@"; }

grep -lE '(^|[^_a-z"`])unsafe( |\{)' $(sources '*.rs') | grep -v '^transport/src/\(mem\|sync\|shm\|verbs\|floor\)/' |
    while read -r file; do grep -HnE '(^|[^_a-z"`])unsafe( \{|\{| fn| impl)' "$file" | grep -v '//'; done | rule 'unsafe only in transport/src/{mem,sync,shm,verbs,floor}'
for crate in engine rpc rpc/macros gimmal bench examples lab; do
    for root in $(ls "$crate"/src/lib.rs "$crate"/src/main.rs 2>/dev/null); do
        grep -qF '#![forbid(unsafe_code)]' "$root" || echo "$root"
    done
done | rule 'forbid(unsafe_code) in every crate above transport'
grep -ln 'rdma_sys' $(sources '*.rs') | grep -v '^transport/src/verbs/sys.rs$' | rule 'rdma_sys is named in verbs/sys.rs only'
grep -nE 'transport::(verbs|shm|sim)\b|crate::(verbs|shm|sim)\b' $(sources 'engine/src/*.rs' 'rpc/src/*.rs') | rule 'engine and rpc name no provider'
for provider in verbs shm sim; do
    others=$(printf '%s\n' verbs shm sim | grep -v "$provider" | paste -sd'|')
    grep -nE "crate::($others)::" $(sources "transport/src/$provider/*.rs")
done | rule 'providers do not import each other'
wc -l $(sources '*.rs') | awk '$2 != "total" && $1 > 600 { print $2 ": " $1 " lines" }' | rule 'no file over 600 lines'
grep -nE '(^|[^a-z_])(todo!|unimplemented!|dbg!)\(' $(sources '*.rs') | rule 'nothing left to do in the code'
grep -nE 'SAFETY: *(ffi|todo|\?)' $(sources '*.rs') | rule 'SAFETY comments argue'
grep -ohE 'SYNC POINT: [a-z -]+' $(sources '*.rs') | sort | uniq -c | awk '$1 < 2' | rule 'every SYNC POINT has its other end'
grep -noE '\bpub [a-z_]+:' engine/src/config.rs transport/src/config.rs | sed 's/.*pub //; s/://' | sort -u |
    while read -r field; do grep -q "\`[a-z_.]*$field\`" tuning.md || echo "$field"; done | rule 'every config field is in tuning.md'

printf '%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" -eq 0 ]
