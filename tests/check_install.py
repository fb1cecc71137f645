#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Installs into a scratch folder, compiles the C program of README.md through pkg-config, as C and as
C++, against nothing but what was installed, and runs it.

usage: check_install.py ROOT BUILD
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile


def run(command, **options):
    result = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    if result.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{result.stdout}{result.stderr}")
    return result.stdout


def readme_program(root):
    found = re.search(r"^```c\n(.*?)^```$", (root / "README.md").read_text(), re.M | re.S)
    if not found:
        sys.exit("README.md holds no C program")
    source = found.group(1)
    wanted = re.search(r"printf\(.*?/\* (.*?) \*/", source).group(1)
    return source, wanted


def main():
    root, build = (pathlib.Path(a).resolve() for a in sys.argv[1:3])
    if not shutil.which("pkg-config"):
        return 77
    source, wanted = readme_program(root)
    with tempfile.TemporaryDirectory() as scratch_name:
        scratch = pathlib.Path(scratch_name)
        run(["meson", "install", "-C", build, "--no-rebuild", "--quiet", "--destdir",
             scratch / "installed"])
        library = next((scratch / "installed").rglob("libgeektrain.so")).parent
        environment = {**os.environ, "PKG_CONFIG_PATH": str(library / "pkgconfig"),
                       "PKG_CONFIG_SYSROOT_DIR": str(scratch / "installed"),
                       "LD_LIBRARY_PATH": str(library)}
        flags = run(["pkg-config", "--cflags", "--libs", "geektrain"], env=environment).split()
        for compiler, suffix in (("cc", "c"), ("c++", "cpp")):
            if not shutil.which(compiler):
                continue
            file = scratch / f"program.{suffix}"
            file.write_text(source)
            run([compiler, "-Wall", "-Wextra", "-Werror", file, "-o", scratch / suffix, *flags])
            printed = run([scratch / suffix], env=environment).strip()
            if printed != wanted:
                sys.exit(f"the program of README.md, as {suffix}, printed {printed!r}, "
                         f"its comment says {wanted!r}")
    print("installed, compiled and run as C and C++")
    return 0


if __name__ == "__main__":
    sys.exit(main())
