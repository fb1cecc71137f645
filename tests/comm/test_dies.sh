#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# usage: test_dies.sh mpirun PROGRAM. However one rank of three ends, the job ends within seconds, not
# with 0, and the others say why where the launcher lets them.
mpirun=$1
program=$2
failures=0
for how in kill exit error late; do
    begin=$(date +%s)
    output=$(timeout 30 "$mpirun" --oversubscribe --allow-run-as-root -n 3 "$program" $how 2>&1)
    code=$?
    took=$(($(date +%s) - begin))
    case $how in
    error) want='rank 2: rank 1: cannot read shard 7' ;;
    late) want='waited 1 s in all_reduce sum f32\[1000000\] (#4) for rank 1' ;;
    *) want='' ;;
    esac
    if [ $code -eq 0 ] || [ $code -eq 124 ] || [ $took -gt 15 ] ||
        ! printf '%s\n' "$output" | grep -q "$want"; then
        printf '%s: code %d after %d s, wanted "%s" in:\n%s\n' $how $code $took "$want" "$output"
        failures=$((failures + 1))
    fi
done
exit $failures
