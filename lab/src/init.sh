#!/bin/sh
# The first program of the guest: enough of a system to read the rest of the boot from the host.

mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev

# Once /proc has moved to the new root, it is there.
off() {
    echo o > /proc/sysrq-trigger || echo o > /new/proc/sysrq-trigger
    sleep 60
}

# load GROUP: inserts the modules of a list, in its order, each once.
load() {
    while read -r module; do
        [ -d "/sys/module/$module" ] || insmod "/modules/$module.ko" || return 1
    done < "/modules/$1.list"
}

# share TAG FOLDER OPTIONS: mounts a folder of the host.
share() {
    mount -t 9p -o "trans=virtio,version=9p2000.L,msize=512000,$3" "$1" "$2"
}

load base && share ctl /ctl cache=none || { echo "gimmal-lab: no control share"; off; }
. /ctl/boot.sh
off
