# What memory for loans lies on: the system's huge pages, and those that the kernel finds. The guest's own settings are changed.
# Sourced by tests/lab.sh.

# loans_on WORDS ARGS...: the loans of a run of the bench lie on WORDS.
loans_on() {
    local words=$1 output
    shift
    output=$(timeout 60 "$bin/gimmal-bench" bw --loopback -s 4m --touch header -n 3 --pairs 1 --warmup 1 --json "$@") || return 1
    grep -o 'loans  *[^"\\]*' <<<"$output"
    [[ $output == *"$words"* ]]
}
setting=/sys/kernel/mm/transparent_hugepage
shm_setting=$(sed 's/.*\[\(.*\)\].*/\1/' $setting/shmem_enabled)
echo 40 >/proc/sys/vm/nr_hugepages
if [ "$(cat /proc/sys/vm/nr_hugepages)" -ge 20 ]; then
    check "loans on huge pages, shm" loans_on 'bytes on huge pages of 2048 KiB'
    check "loans on huge pages, rxe" loans_on 'bytes on huge pages of 2048 KiB' --provider verbs --address "rdma://$rxe:0"
    # A cgroup that may have none of them: normal pages, and the reason.
    cgroup=/sys/fs/cgroup/hugetlb-none
    mount -t cgroup2 cgroup2 /sys/fs/cgroup 2>/dev/null
    echo +hugetlb >/sys/fs/cgroup/cgroup.subtree_control 2>/dev/null
    mkdir -p $cgroup
    if echo 0 >$cgroup/hugetlb.2MB.max; then
        in_cgroup() { (echo $BASHPID >$cgroup/cgroup.procs && loans_on "$@"); }
        check "r122 loans where a cgroup has no huge pages, rxe" in_cgroup 'bytes on ' \
            --provider verbs --address "rdma://$rxe:0"
        check "r122 loans where a cgroup has no huge pages, siw" in_cgroup 'bytes on ' \
            --provider verbs --address "rdma://$siw:0"
    else
        skipped=$((skipped + 2))
        for fabric in rxe siw; do
            echo "SKIP    loans where a cgroup has no huge pages, $fabric: the guest has no hugetlb cgroup"
        done
    fi
else
    skipped=$((skipped + 4))
    for case in shm rxe 'in a cgroup, rxe' 'in a cgroup, siw'; do
        echo "SKIP    loans on huge pages, $case: the guest found too few in a row"
    done
fi
echo 0 >/proc/sys/vm/nr_hugepages
echo advise >$setting/shmem_enabled
check "loans on pages that the kernel finds, shm" loans_on 'pages of 2048 KiB as far as'
echo "$shm_setting" >$setting/shmem_enabled
