#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# compare_losses.sh RANKS MPIRUN PROGRAM [ARGUMENT...]: the losses that PROGRAM prints ("loss X") fall,
# and are the same on one rank and on RANKS to 5e-4 relative. MANY: more arguments for the latter run.
set -eu
ranks=$1 mpirun=$2
shift 2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
losses()
{
    awk '{ for (i = 1; i < NF; i++) if ($i == "loss") print $(i + 1) }' "$1"
}
"$@" >"$scratch/one"
"$mpirun" --oversubscribe --allow-run-as-root -n "$ranks" "$@" ${MANY:-} >"$scratch/many"
cat "$scratch/one" "$scratch/many"
losses "$scratch/one" >"$scratch/a"
losses "$scratch/many" >"$scratch/b"
paste "$scratch/a" "$scratch/b" | awk '
    NF != 2 { print "the runs print " NF " losses in line " NR; bad = 1; exit }
    { d = $1 - $2; if (d < 0) d = -d; if (!(d <= 5e-4 * $1)) { print "differ: " $1 " " $2; bad = 1 } }
    NR == 1 { first = $1 }
    { last = $1 }
    END { if (NR < 2 || !(last < 0.6 * first)) { print "no progress: " first " to " last; bad = 1 }
          exit bad }'
