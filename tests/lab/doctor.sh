# `gimmal doctor` and `gimmal devices` on real devices: each fault alone is the one thing that is named, and the command
# that is printed fixes it. Sourced by tests/lab.sh; leaves both devices as they were.

# Exactly one WRONG line, about "$1"; the report goes to $doctor_report.
doctor_report=$(mktemp)
names_only() {
    local step=$1 status
    shift
    "$bin/gimmal" doctor "$@" >"$doctor_report" 2>&1
    status=$?
    cat "$doctor_report"
    [ "$status" -eq 1 ] && [ "$(grep -c '^WRONG' "$doctor_report")" = 1 ] && grep -q "^WRONG  *$step" "$doctor_report"
}

# GIDs follow addresses a moment later.
is_well() { "$bin/gimmal" doctor >"$doctor_report" 2>&1; }
finds_nothing() {
    within 60 is_well
    local status=$?
    cat "$doctor_report"
    return $status
}
address_is_gone() { ! grep -q "RoCE v2 ::ffff:$rxe " <<<"$("$bin/gimmal" devices)"; }

fixes() {
    local command
    command=$(sed -n 's/^ *fix: //p' "$doctor_report" | head -n 1)
    printf '%s\n' "$command"
    sh -c "$command" || return 1
    finds_nothing
}

fault() {
    check "doctor names only: $1" names_only "$@"
}

# The devices of the guest, as they were.
give_back() {
    ip link set v0 up
    ip link set v1 up
    ip address replace "$rxe/24" dev v0
    ip -6 address replace "$GIMMAL_RXE_ADDR6/64" dev v0 nodad
    grep -q rxe0 <<<"$(rdma link show)" || rdma link add rxe0 type rxe netdev v0
    grep -q siw0 <<<"$(rdma link show)" || rdma link add siw0 type siw netdev w0
}

lists_both() {
    local text json
    text=$("$bin/gimmal" devices) && json=$("$bin/gimmal" devices --json) || return 1
    printf '%s\n' "$text"
    grep -q "RoCE v2 ::ffff:$rxe v0" <<<"$text" && grep -q '"transport": "iWARP"' <<<"$json"
}

sleep 600 | "$bin/files" serve "$PWD/transport/src" --address "rdma://$rxe:7710" >/dev/null 2>&1 &
check "devices: rxe0 with its GIDs, siw0" lists_both
listens 7710
check "doctor: nothing is wrong, the peer answers" "$bin/gimmal" doctor "rdma://$rxe:7710"
fault peer "rdma://$rxe:7999"
fault route --timeout-ms 2000 rdma://10.99.9.9:1
# Its input ends, and so does it.
kill $(jobs -p) 2>/dev/null
wait

memlock_of_64() {
    setpriv --bounding-set -ipc_lock --inh-caps -ipc_lock sh -c "ulimit -l 64; exec $bin/gimmal doctor rdma://$rxe:7999" \
        >"$doctor_report" 2>&1 && return 1
    cat "$doctor_report"
    [ "$(grep -c '^WRONG' "$doctor_report")" = 1 ] && grep -q '^WRONG  *locked memory' "$doctor_report" &&
        grep -q '^not checked  *peer  *needs locked memory' "$doctor_report"
}
check "doctor names only: locked memory" memlock_of_64

no_library() {
    bash tests/hide.sh libraries "$bin/gimmal" doctor "rdma://$rxe:7999" >"$doctor_report" 2>&1 && return 1
    cat "$doctor_report"
    [ "$(grep -c '^WRONG' "$doctor_report")" = 1 ] && grep -q '^WRONG  *libraries .*librdmacm' "$doctor_report"
}
check "doctor names only: libraries" no_library

rm /dev/infiniband/rdma_cm
fault "device files"
check "and its command fixes it" fixes

# A device without its file is listed with the reason, and spoils nothing for the other.
lists_the_unusable() {
    mv /dev/infiniband/uverbs1 /root/ || return 1
    "$bin/gimmal" devices >"$doctor_report" && "$bin/gimmal" doctor >>"$doctor_report"
    local status=$?
    mv /root/uverbs1 /dev/infiniband/
    cat "$doctor_report"
    [ $status = 0 ] && grep -q '(uverbs1) cannot be used: its file is missing' "$doctor_report" &&
        grep -q '^unused  *devices' "$doctor_report" && grep -q '^fine  *devices' "$doctor_report"
}
check "devices, doctor: one unusable device among two" lists_the_unusable
serves_beside_it() {
    mv /dev/infiniband/uverbs1 /root/ || return 1
    timeout 180 "$bin/files" demo --provider verbs --fabric rxe --bytes-max 200000
    local status=$?
    mv /root/uverbs1 /dev/infiniband/
    return $status
}
check "serving over rxe while siw's file is missing" serves_beside_it

# One device alone from here on, so that nothing else does its work.
rdma link delete siw0
rdma link delete rxe0
fault devices "rdma://$rxe:7999"
check "and its command fixes it" fixes
ip link set v0 down
fault link "rdma://$rxe:7999"
check "and its command fixes it" fixes
ip link set v1 down
fault link
check "and its command fixes it" fixes
ip address flush dev v0 scope global
within 60 address_is_gone
fault address "rdma://$rxe:7999"
check "and its command fixes it" fixes
ip address del 10.77.0.1/24 dev v0
give_back
check "doctor: nothing is wrong any more" finds_nothing
rm -f "$doctor_report"
