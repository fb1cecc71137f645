#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# same_losses.sh PROGRAM ARGUMENTS...: PROGRAM, run once per argument (which may hold several words),
# prints the same "step N  loss X" lines each time, to the last digit, and they fall.
set -eu
program=$1
shift
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
for arguments in "$@"; do
    # shellcheck disable=SC2086
    "$program" $arguments | grep 'loss' >"$scratch/now"
    if [ ! -e "$scratch/first" ]; then
        mv "$scratch/now" "$scratch/first"
        cat "$scratch/first"
        continue
    fi
    echo "with $arguments"
    diff "$scratch/first" "$scratch/now"
done
awk 'NR == 1 { first = $4 } { last = $4 } END { exit !(NR > 1 && last < 0.1 * first) }' "$scratch/first"
