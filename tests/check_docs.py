#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that every relative link of the Markdown files leads to a file and a heading that exist.

usage: check_docs.py [--list] ROOT
"""
import argparse
import pathlib
import re
import sys

LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
CODE_FENCE = re.compile(r"^\s*(```|~~~)")


def text_lines(path):
    """The lines outside code blocks, with inline code removed."""
    inside = False
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if CODE_FENCE.match(line):
            inside = not inside
        elif not inside:
            yield number, re.sub(r"`[^`]*`", "", line)


def headings(path):
    """Anchors as the usual renderers make them."""
    anchors = set()
    inside = False
    for line in path.read_text().splitlines():
        if CODE_FENCE.match(line):
            inside = not inside
        elif not inside and re.match(r"#{1,6} ", line):
            title = line.lstrip("#").strip().lower()
            anchors.add(re.sub(r"[^\w\- ]", "", title).replace(" ", "-"))
    return anchors


def title(path):
    for line in path.read_text().splitlines():
        if line.startswith("# "):
            return line[2:].strip()
    return "(no title)"


def check_link(root, path, number, target):
    if re.match(r"[a-z]+:", target):
        return
    where = f"{path.relative_to(root)}:{number}"
    name, _, anchor = target.partition("#")
    file = (path.parent / name).resolve() if name else path
    if not file.exists():
        yield f"{where}: {target} does not exist"
    elif anchor and file.suffix == ".md" and anchor not in headings(file):
        yield f"{where}: {target}: no such heading"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="also list the guides")
    parser.add_argument("root", type=pathlib.Path)
    options = parser.parse_args()
    root = options.root.resolve()
    files = sorted([*root.glob("*.md"), *(root / "docs").rglob("*.md")])
    if options.list:
        for path in files:
            print(f"{str(path.relative_to(root)):28} {title(path)}")
    problems = []
    for path in files:
        for number, line in text_lines(path):
            for target in LINK.findall(line):
                problems += check_link(root, path, number, target)
    for problem in problems:
        print(problem)
    print(f"{len(files)} files, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
