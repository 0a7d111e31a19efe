# shellcheck shell=bash disable=SC2154
# Byte streams: their bytes and ends, windows, ten thousand of one connection, a thousand that end in random ways, and HTTP and
# gRPC on them. The test programs of plugins/io go over the devices that are named. Sourced by tests/lab.sh.

for fabric in rxe siw; do
    other=GIMMAL_SIW_ADDR && [ $fabric = siw ] && other=GIMMAL_RXE_ADDR
    for program in streams many others; do
        count "byte streams, $program, over $fabric" counted timeout 200 env -u $other "$bin/lab-io-$program"
    done
done
