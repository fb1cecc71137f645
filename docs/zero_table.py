#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the memory tables of docs/zero.md: GiB of model state per rank.

usage: zero_table.py [PARAMETERS RANKS]    for one model, e.g. zero_table.py 8.03e9 16
"""
import sys

MODELS = {"1.3B": 1.3e9, "2.7B": 2.7e9, "6.7B": 6.7e9, "13B": 13e9, "30B": 30e9, "66B": 66e9,
          "175B": 175e9}
RANKS = [8, 64, 256, 1024]
# bytes per parameter: the parameter, its gradient, its optimizer state (AdamW)
DTYPES = {"f32": (4, 4, 8), "bf16, gradients accumulated in f32": (2, 4, 12),
          "bf16, gradients accumulated in bf16": (2, 2, 12)}


def per_rank(stage, ranks, sizes):
    """Bytes per parameter on one rank; gt_zero_formula() without padding."""
    return sum(size / (ranks if stage >= shards else 1) for size, shards in zip(sizes, (3, 2, 1)))


def gib(value):
    value /= 2**30
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 1000 else f"{value:.0f}"


def main():
    for dtype, sizes in DTYPES.items():
        print(f"\n{dtype}\n")
        if len(sys.argv) == 3:
            count, ranks = float(sys.argv[1]), int(sys.argv[2])
            print(", ".join(f"stage {s}: {gib(count * per_rank(s, ranks, sizes))}" for s in range(4)))
            continue
        for name, count in MODELS.items():
            cells = [gib(count * per_rank(0, 1, sizes))]
            cells += [gib(count * per_rank(s, p, sizes)) for s in (1, 2, 3) for p in RANKS]
            print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
