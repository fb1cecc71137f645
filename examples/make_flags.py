#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Puts the flags of the world and the names of their countries into one file for two_tower.

    apt-get install famfamfam-flag-png iso-codes
    python3 examples/make_flags.py runs/data/flags.bin

The file: four little-endian int32 (0x47544647, pairs, bytes per picture, bytes per name), then every
picture (11 rows of 16 pixels of red, green, blue), then every name (UTF-8, cut or padded with zeros).
"""
import argparse
import json
import os
import random
import struct
import sys
import zlib

WIDTH, HEIGHT, LETTERS, MAGIC = 16, 11, 32, 0x47544647


def unfilter(kind, line, above, step):
    """Undoes one of PNG's five filters on a row of bytes, given the row above."""
    for i in range(len(line)):
        left = line[i - step] if i >= step else 0
        up = above[i]
        corner = above[i - step] if i >= step else 0
        nearest = min((left, up, corner), key=lambda v: abs(left + up - corner - v))
        line[i] = (line[i] + (0, left, up, (left + up) // 2, nearest)[kind]) & 255
    return line


def read_png(path):
    """Width, height, and rows of (red, green, blue) on white; 8-bit RGB or RGBA, not interlaced."""
    with open(path, "rb") as file:
        png = file.read()
    at, data, header = 8, b"", None
    while at < len(png):
        size, kind = struct.unpack(">I4s", png[at : at + 8])
        body = png[at + 8 : at + 8 + size]
        header = body if kind == b"IHDR" else header
        data += body if kind == b"IDAT" else b""
        at += size + 12
    width, height, depth, color, _, _, interlaced = struct.unpack(">IIBBBBB", header)
    if depth != 8 or color not in (2, 6) or interlaced:
        raise ValueError(f"{path}: not a plain 8-bit RGB or RGBA picture")
    step = 3 if color == 2 else 4
    raw, rows, line = zlib.decompress(data), [], bytes(width * step)
    for y in range(height):
        start = y * (width * step + 1)
        line = unfilter(raw[start], bytearray(raw[start + 1 : start + 1 + width * step]), line, step)
        pixels = [line[i : i + step] for i in range(0, len(line), step)]
        alphas = [p[3] if step == 4 else 255 for p in pixels]
        rows.append([[(c * a + 255 * (255 - a)) // 255 for c in p[:3]] for p, a in zip(pixels, alphas)])
    return width, height, rows


def picture(path):
    """16 x 11 pixels as bytes; the few flags of another shape are centred on white, or cut."""
    width, height, rows = read_png(path)
    left, top = (WIDTH - width) // 2, max(0, (height - HEIGHT) // 2)
    white, out = [255, 255, 255], []
    for y in range(HEIGHT):
        line = [white] * left + rows[y + top]
        out += (line + [white] * WIDTH)[:WIDTH]
    return bytes(sum(out, []))


def real_pairs(flags, codes):
    with open(codes, encoding="utf-8") as file:
        countries = json.load(file)["3166-1"]
    for country in sorted(countries, key=lambda c: c["alpha_2"]):
        path = os.path.join(flags, country["alpha_2"].lower() + ".png")
        if os.path.exists(path):
            yield picture(path), country.get("common_name", country["name"])


def made_up_pairs(count):
    """Three stripes each, with a made-up name: for tests on machines without the packages."""
    draw = random.Random(1)
    for _ in range(count):
        colors = [bytes(draw.randrange(256) for _ in range(3)) for _ in range(3)]
        rows = [colors[3 * y // HEIGHT] * WIDTH for y in range(HEIGHT)]
        yield b"".join(rows), "".join(draw.choice("abcdefghij") for _ in range(draw.randrange(4, 20)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("output")
    parser.add_argument("--flags", default="/usr/share/flags/countries/16x11")
    parser.add_argument("--codes", default="/usr/share/iso-codes/json/iso_3166-1.json")
    parser.add_argument("--made-up", type=int, metavar="PAIRS", help="no real flags, but stripes")
    options = parser.parse_args()
    if options.made_up:
        pairs = list(made_up_pairs(options.made_up))
    else:
        for path, package in ((options.flags, "famfamfam-flag-png"), (options.codes, "iso-codes")):
            if not os.path.exists(path):
                sys.exit(f"make_flags: {path} is missing; apt-get install {package}")
        pairs = list(real_pairs(options.flags, options.codes))
    os.makedirs(os.path.dirname(options.output) or ".", exist_ok=True)
    with open(options.output, "wb") as file:
        file.write(struct.pack("<4i", MAGIC, len(pairs), WIDTH * HEIGHT * 3, LETTERS))
        file.write(b"".join(image for image, _ in pairs))
        file.write(b"".join(name.encode()[:LETTERS].ljust(LETTERS, b"\0") for _, name in pairs))
    print(f"{options.output}: {len(pairs)} pictures with names")


if __name__ == "__main__":
    main()
