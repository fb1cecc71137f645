#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs train_gpt as a user would: alone and under mpirun, on good and on bad input.

usage: test_train_gpt.py TRAIN_GPT TEXT [MPIRUN]
"""
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

PROGRAM, TEXT = (str(pathlib.Path(p).resolve()) for p in sys.argv[1:3])
MPIRUN = [sys.argv[3], "--oversubscribe", "--allow-run-as-root"] if len(sys.argv) > 3 else None
LIMIT = 120  # seconds; nothing may hang

CONFIG = {
    "train_batch_size": 8, "steps_per_print": 5, "seed": 3,
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-3}},
    "model": {"layers": 2, "width": 32, "heads": 4, "seq": 32, "dropout": 0.1},
    "train": {"steps": 20, "eval_interval": 10, "eval_batches": 2, "sample_tokens": 20},
}
problems = []


def check(what, good, detail=""):
    print(("ok   " if good else "BAD  ") + what)
    if not good:
        problems.append(what)
        print(detail)


def run(arguments, ranks=1):
    command = [PROGRAM, *arguments]
    if ranks > 1:
        command = [*MPIRUN, "-n", str(ranks), *command]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})


def losses(directory):
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return ([line["loss"] for line in lines if "loss" in line],
            [line["validation_loss"] for line in lines if "validation_loss" in line])


def good_runs(folder, config):
    results = {}
    layouts = [("alone", 1, []), ("dp2", 2, []), ("tp2", 2, ["--tp", "2"]),
               ("zero3", 2, ["--zero", "3"]), ("pp2", 2, ["--pp", "2", "--set",
                                                         "train_micro_batch_size_per_gpu=2"])]
    for name, ranks, options in layouts if MPIRUN else layouts[:1]:
        directory = folder / name
        result = run(["--config", config, "--data", TEXT, "--run-dir", str(directory), *options],
                     ranks)
        check(f"{name}: ends well", result.returncode == 0, result.stdout + result.stderr)
        if result.returncode != 0:
            continue
        results[name], validation = losses(directory)
        check(f"{name}: 20 steps, 2 evaluations, a sample",
              len(results[name]) == 20 and len(validation) == 2 and "---- sample" in result.stdout
              and "step 20/20" in result.stdout, result.stdout)
        check(f"{name}: learns", results[name][-1] < results[name][0] - 0.5, str(results[name]))
        worst = max(abs(a / b - 1) for a, b in zip(results["alone"], results[name]))
        check(f"{name}: the losses of one rank ({worst:.1e})", worst < 1e-5, str(results))
    again = run(["--config", str(folder / "alone" / "config.json"), "--run-dir",
                 str(folder / "again")])
    check("the written configuration runs again", again.returncode == 0, again.stderr)
    few = folder / "few"
    few.write_bytes(b"0123456789")
    result = run(["--config", config, "--data", str(few), "--set", "model.seq=4"])
    check("a text shorter than a prompt is enough", result.returncode == 0, result.stderr)
    check("and gives the same losses", losses(folder / "again")[0] == results["alone"])


def token_files(folder, config):
    """The format is recognized and said; a vocabulary that does not fit is a sentence."""
    text = pathlib.Path(TEXT).read_bytes()
    ids = [byte + 200 * (i % 3 == 0) for i, byte in enumerate(text)]
    u16 = struct.pack(f"<{len(ids)}H", *ids)
    header = f"{{'descr': '<u2', 'fortran_order': False, 'shape': ({len(ids)},), }}\n".encode()
    files = {"llmc": struct.pack("<256i", 20240520, 1, len(ids), *[0] * 253) + u16, "u16": u16,
             "npy": b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header + u16}
    seen = []
    for name, content in files.items():
        (folder / f"{name}.bin").write_bytes(content)
        base = ["--config", config, "--data", str(folder / f"{name}.bin"), "--steps", "2"]
        result = run([*base, "--set", "model.vocab=512"])
        check(f"{name}: is recognized", result.returncode == 0
              and f"data    {name}, 0.0" in result.stdout, result.stdout + result.stderr)
        seen.append([line for line in result.stdout.splitlines() if "validation loss" in line])
        small = run(base)
        check(f"{name}: does not fit 256", small.returncode == 1 and "vocabulary" in small.stderr,
              small.stdout + small.stderr)
    check("the same tokens in any format", seen[0] == seen[1] == seen[2] and seen[0], str(seen))


def bad_runs(folder, config):
    def write(name, content):
        (folder / name).write_bytes(content)
        return str(folder / name)

    base = ["--config", config, "--data", TEXT]
    cases = [
        ([], "train_batch_size or train_micro"),
        (["--help", "me"], "--help is not an option"),
        (["--config", "/no/where.json"], "No such file"),
        (["--config", write("x.json", b'{"stpe": 1}')], "stpe is not a known key"),
        ([*base, "--data", "/no/where"], "No such file"),
        ([*base, "--data", write("empty", b"")], "is empty"),
        ([*base, "--data", write("short", b"0123456789")], "too few"),
        ([*base, "--set", "model.vocab=64"], "token "),
        ([*base, "--set", "mesh.dp=7"], "but the world has"),
        ([*base, "--set", "model.heads=5"], "does not divide model.width"),
        ([*base, "--set", "model.layers=0"], "model.layers is"),
        ([*base, "--set", "optimizer.params.lr=NaN"], "optimizer.params.lr is"),
        ([*base, "--set", "train_batch_size=7", "--set", "train_micro_batch_size_per_gpu=2"],
         "train_batch_size 7 is no multiple"),
        ([*base, "--run-dir", "/proc/none"], "/proc/none"),
        ([*base, "--data", write("cut.bin", (20240520).to_bytes(4, "little") + bytes(2000))],
         "version 0"),
        # Sizes that no machine has: one sentence, at once.
        *[([*base, *(x for key in keys.split() for x in ("--set", key))], says)
          for keys, says in [
            ("model.layers=100000000", "names and shapes alone need"),
            ("model.layers=1000000000000000000", "wanted at most"),
            ("model.seq=1000000000", "GB are needed"),
            ("model.type=llama model.seq=2000000000", "GB are needed"),
            ("model.vocab=2147483647", "GB are needed"),
            ("model.vocab=2147483648", "model.vocab is"),
            ("model.width=1000000000", "more than 2^52 elements"),
            ("model.width=33554432 model.heads=1 model.layers=4000", "more than 2^52 parameters"),
            ("model.width=1048576", "GB are needed"),
            ("model.ffn=1000000000000", "GB are needed"),
            ("model.heads=0", "model.heads is"),
            ("model.heads=1000000000", "does not divide model.width"),
            ("model.kv_heads=-1", "model.kv_heads is"),
            ("train_batch_size=1000000000", "GB are needed"),
            ("train_batch_size=1000000000000000000", "at most 2^52 tokens"),
            ("train_batch_size=1000000000 gradient_accumulation_steps=500000000",
             "their product up to"),
            ("train_batch_size=100000000000 gradient_accumulation_steps=10000000000",
             "microbatches per step, wanted at most"),
            ("mesh.tp=1000000000", "does not divide the world"),
            ("mesh.chunks=1000000000 mesh.schedule=gpipe", "has at most 256 chunk"),
            ("train.sample_tokens=1000000000000", "train.sample_tokens is"),
        ]],
    ]
    for ranks in [1, 2] if MPIRUN else [1]:
        for arguments, says in cases:
            result = run(arguments, ranks)
            ours = [line for line in result.stderr.splitlines() if line.startswith("train_gpt: ")]
            check(f"{ranks} ranks: {' '.join(arguments)[-50:]}",
                  result.returncode == 1 and len(ours) == 1 and says in ours[0],
                  f"{result.returncode}\n{result.stdout}{result.stderr}")


def unequal_ranks(folder, config):
    other = folder / "other.txt"
    other.write_bytes(pathlib.Path(TEXT).read_bytes()[::-1])
    for directory, source in [("a", pathlib.Path(TEXT)), ("b", other)]:
        (folder / directory).mkdir()
        (folder / directory / "text").write_bytes(source.read_bytes())
    both = ["--config", config, "--data"]
    for what, first, second, says in [
            ("another seed", [*both, TEXT], [*both, TEXT, "--set", "seed=9"], "configuration"),
            ("another file", [*both, TEXT], [*both, str(other)], "configuration"),
            ("the same name, another content", [*both, "text"], [*both, "text"], "content"),
            ("no configuration", [*both, TEXT], ["--config", "/none", "--data", TEXT], "No such file")]:
        command = [*MPIRUN, "-n", "1", "-wdir", str(folder / "a"), PROGRAM, *first,
                   ":", "-n", "1", "-wdir", str(folder / "b"), PROGRAM, *second]
        result = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False,
                                env={**os.environ, "OMP_NUM_THREADS": "1"})
        check(f"unequal ranks: {what}", result.returncode == 1 and says in result.stderr
              and "rank 1" in result.stderr, f"{result.returncode}\n{result.stderr}")


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "config.json").write_text(json.dumps(CONFIG))
        good_runs(folder, str(folder / "config.json"))
        token_files(folder, str(folder / "config.json"))
        bad_runs(folder, str(folder / "config.json"))
        if MPIRUN:
            unequal_ranks(folder, str(folder / "config.json"))
    print(f"{len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
