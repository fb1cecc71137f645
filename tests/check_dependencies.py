#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Enforces the layers of docs/ARCHITECTURE.md from the #include lines, keeps foreign headers in the
folders that own them, and compiles every public header alone as C11 and C++17.

usage: check_dependencies.py ROOT [--cc CC] [--cxx CXX]
"""
import argparse
import pathlib
import re
import shutil
import subprocess
import sys

# Lowest first; a folder includes itself and what stands before it. Folders of one line are
# strangers to each other.
LAYERS = [
    ["core"],
    ["backend"],
    ["comm"],
    ["ops"],
    ["data", "config", "mesh"],
    ["schedule", "params"],
    ["optim"],
    ["monitor", "pipeline", "tensor_parallel"],
    ["zero"],
    ["nn"],
    ["trainer"],
]
LEVEL = {folder: level for level, folders in enumerate(LAYERS) for folder in folders}

# The folder that a public header speaks for.
PUBLIC = {
    "status.h": "core", "tensor.h": "core", "context.h": "core",
    "comm.h": "comm", "ops.h": "ops", "config.h": "config", "data.h": "data",
    "monitor.h": "monitor", "optim.h": "optim", "optimizer.h": "optim",
    "step.h": "optim",
    "mesh.h": "mesh", "params.h": "params", "schedule.h": "schedule", "pipeline.h": "pipeline",
    "tensor_parallel.h": "tensor_parallel", "zero.h": "zero", "block.h": "nn", "model.h": "nn", "trainer.h": "trainer", "geektrain.h": "trainer",
}

# Foreign header (a regular expression) -> where it may appear.
OWNERS = [
    (r"mpi\.h", ["lib/comm/mpi.c"]),
    (r"(cblas|openblas_config|lapacke?)\.h", ["lib/backend/cpu/"]),
    (r"(dnnl|oneapi/dnnl/.*)\.h(pp)?", ["lib/backend/cpu/"]),
    (r"(omp|immintrin|x86intrin)\.h", ["lib/backend/cpu/", "lib/core/convert.h"]),
    (r"json-c/.*", ["lib/config/"]),
    (r"hdf5.*\.h", ["lib/checkpoint/"]),
    (r"(cuda|cuda_.*|cublas.*)\.h", ["lib/backend/cuda/", "lib/comm/nccl.c"]),
    (r"nccl\.h", ["lib/comm/nccl.c"]),
]

# Files are opened in one place, which keeps them off descriptors 0 to 2.
OPENS = re.compile(r"(?<![\w.>])(f?open|openat|creat|mko?stemp|tmpfile|memfd_create|dup|opendir)\s*\(")

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def includes(path):
    for number, line in enumerate(path.read_text().splitlines(), 1):
        found = INCLUDE.match(line)
        if found:
            yield number, found.group(1), found.group(2)


def target_folder(root, quote, name):
    """The lib folder that an include leads to, or None for a foreign header."""
    if name.startswith("geektrain/"):
        return PUBLIC.get(name[len("geektrain/"):], "unknown")
    if quote == '"' and (root / "lib" / name).exists():
        return name.split("/")[0]
    return None


def check_layer(root, path, number, quote, name):
    """Yields what is wrong with one include of a file in lib/."""
    folder = path.relative_to(root / "lib").parts[0]
    where = f"{path.relative_to(root)}:{number}"
    if folder not in LEVEL:
        yield f"{where}: lib/{folder} stands in no layer of {pathlib.Path(__file__).name}"
        return
    target = target_folder(root, quote, name)
    if target is None:
        if quote == '"' and name != "gti_build_config.h":
            yield f'{where}: "{name}" does not exist under lib/'
        return
    if target not in LEVEL:
        yield f"{where}: {name} speaks for no folder known to {pathlib.Path(__file__).name}"
    elif target != folder and LEVEL[target] >= LEVEL[folder]:
        yield f"{where}: lib/{folder} includes {name} of {target}, which is not below it"


def check_owner(root, path, number, name):
    relative = str(path.relative_to(root))
    for pattern, owners in OWNERS:
        if re.fullmatch(pattern, name) and not any(relative.startswith(o) for o in owners):
            yield f"{relative}:{number}: {name} belongs only into {', '.join(owners)}"


def check_opens(root, path):
    relative = path.relative_to(root)
    if str(relative) == "lib/core/file.c":
        return
    for number, line in enumerate(path.read_text().splitlines(), 1):
        found = OPENS.search(line)
        if found and "gti_descriptor(" not in line and not line.lstrip().startswith(("*", "/*")):
            yield f"{relative}:{number}: {found.group(1)}() may give descriptor 1; use lib/core/file.h"


def check_sources(root):
    for path in sorted((root / "lib").rglob("*.[ch]")):
        yield from check_opens(root, path)
        for number, quote, name in includes(path):
            yield from check_layer(root, path, number, quote, name)
            yield from check_owner(root, path, number, name)
    for path in sorted((root / "examples").rglob("*.[ch]")):
        for number, quote, name in includes(path):
            if quote == '"' and (root / "lib" / name).exists():
                yield f"{path.relative_to(root)}:{number}: an example uses internals: {name}"


def initializers(header):
    """One function that initializes a variable by each *_INIT macro of the header."""
    lines = [f"#include <geektrain/{header.name}>", "void use_all(void);", "void use_all(void)", "{"]
    for macro in sorted(set(re.findall(r"^#define (GT_\w+)_INIT\b(?!\()", header.read_text(), re.M))):
        kind = macro.lower()
        lines.append(f"    {kind} {kind}_value = {macro}_INIT; (void){kind}_value.struct_size;")
    return "\n".join([*lines, "}", ""])


def check_headers(root, compilers):
    for header in sorted((root / "include" / "geektrain").glob("*.h")):
        for compiler, language, standard in compilers:
            command = [*compiler, "-x", language, f"-std={standard}", "-Wall", "-Wextra",
                       "-Wpedantic", "-Werror", "-fsyntax-only", f"-I{root / 'include'}"]
            for what, source in (("alone", str(header)), ("with its initializers", "-")):
                result = subprocess.run([*command, source], input=initializers(header),
                                        capture_output=True, text=True, check=False)
                if result.returncode != 0:
                    yield f"{header.name} does not compile {what} as {standard}:\n{result.stderr}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=pathlib.Path)
    parser.add_argument("--cc", default="cc")
    parser.add_argument("--cxx", default="c++")
    options = parser.parse_args()
    root = options.root.resolve()

    compilers = [(options.cc.split(), "c", "c11")]
    if shutil.which(options.cxx.split()[0]):
        compilers.append((options.cxx.split(), "c++", "c++17"))
    else:
        print(f"no {options.cxx}: headers are not checked as C++")
    problems = [*check_sources(root), *check_headers(root, compilers)]
    for problem in problems:
        print(problem)
    print(f"{len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
