#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains two_tower on one rank, on three threads and on three processes: the same losses, which fall.

usage: test_two_tower.py TWO_TOWER MAKE_FLAGS [MPIRUN]

On the flags of the world where their packages are installed, on made-up pictures otherwise.
"""
import os
import subprocess
import sys
import tempfile

PROGRAM, MAKE_FLAGS, *MPIRUN = sys.argv[1:]
FLAGS, LIMIT = "/usr/share/flags/countries/16x11", 60


def run(*command):
    result = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    if result.returncode != 0:
        sys.exit(f"{command}: status {result.returncode}\n{result.stdout}{result.stderr}")
    return [line for line in result.stdout.splitlines() if line.startswith(("step", "the right"))]


def main():
    with tempfile.TemporaryDirectory() as folder:
        data = os.path.join(folder, "data", "flags.bin")
        run(sys.executable, MAKE_FLAGS, data, *([] if os.path.isdir(FLAGS) else ["--made-up", "200"]))
        runs = {"one rank": run(PROGRAM, data, "1"), "threads": run(PROGRAM, data)}
        if MPIRUN:
            runs["processes"] = run(*MPIRUN, "--oversubscribe", "--allow-run-as-root", "-n", "3",
                                    PROGRAM, data)
        with open(data, "r+b") as file:
            file.truncate(1000)
        short = subprocess.run([PROGRAM, data], capture_output=True, text=True, timeout=LIMIT, check=False)
        if short.returncode != 1 or "make_flags.py" not in short.stderr:
            sys.exit(f"a file cut short: status {short.returncode}\n{short.stderr}")
    want = runs["one rank"]
    print("\n".join(want))
    for name, lines in runs.items():
        if lines != want:
            sys.exit(f"{name} prints\n" + "\n".join(lines))
    losses = [float(line.split()[-1]) for line in want if line.startswith("step")]
    found = float(want[-1].split()[-5])
    if len(losses) < 3 or not losses[-1] < 0.1 * losses[0] or not found > 80:
        sys.exit("it does not learn")


main()
