#!/usr/bin/env python3
"""What ptxas made of the kernels: registers, spills and static shared memory, by kernel and architecture.

usage: ptxas_report.py [--check] [--may-spill KERNEL]... REPORT.ptxas...

Prints a table in Markdown. With --check prints nothing but the kernels that spill registers to memory, or use a stack,
without being allowed to, and fails if there are any. KERNEL is a function's name without namespace and template arguments.
"""

import argparse
import collections
import pathlib
import re
import subprocess
import sys

ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(sm_\w+)'")
FUNCTION = re.compile(r"Function properties for (\w+)")
FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers(?:.*?, (\d+) bytes smem)?")

Use = collections.namedtuple("Use", "registers stack spilled shared")


def parse(text):
    """{(mangled name, architecture): Use} of one compilation. What an entry calls and does not inline counts as its own."""
    uses, entry, frame = {}, None, [0, 0]
    for line in text.splitlines():
        if match := ENTRY.search(line):
            entry, frame = match.groups(), [0, 0]
        elif match := FRAME.search(line):
            stack, stores, loads = map(int, match.groups())
            frame = [frame[0] + stack, frame[1] + stores + loads]
        elif (match := USED.search(line)) and entry:
            uses[entry] = Use(int(match[1]), *frame, int(match[2] or 0))
    return uses


def readable(names):
    """Mangled names -> name and template arguments, without namespaces and parameters."""
    out = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout.splitlines()
    short = {}
    for name, full in zip(names, out):
        full = re.sub(r"\((?:int|bool|long)\)", "", full)
        full = re.sub(r"\(anonymous namespace\)::|_GLOBAL__N__\w+::|spillway::(cuda|gpu)::", "", full)
        full = re.sub(r"^void ", "", full)
        depth = 0
        for i, c in enumerate(full):  # parameters begin at the first parenthesis outside of template arguments
            depth += (c == "<") - (c == ">")
            if c == "(" and depth == 0:
                full = full[:i]
                break
        short[name] = full.replace("__nv_bfloat16", "bf16").replace("__half", "f16")
    return short


def table(uses):
    names = readable(sorted({name for name, _ in uses}))
    archs = sorted({arch for _, arch in uses})
    yield "| kernel | " + " | ".join(f"{arch}: registers | spilled, B | shared, B" for arch in archs) + " |"
    yield "|---" * (1 + 3 * len(archs)) + "|"
    for name in sorted(names, key=names.get):
        row = [f"`{names[name]}`"]
        for arch in archs:
            use = uses.get((name, arch))
            row += [str(use.registers), str(use.spilled), str(use.shared)] if use else ["", "", ""]
        yield "| " + " | ".join(row) + " |"


def forbidden(uses, allowed):
    names = readable(sorted({name for name, _ in uses}))
    for (name, arch), use in sorted(uses.items()):
        if (use.spilled or use.stack) and names[name].split("<")[0] not in allowed:
            yield f"{names[name]} for {arch}: {use.spilled} bytes spilled, {use.stack} bytes of stack, {use.registers} registers"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--may-spill", action="append", default=[])
    parser.add_argument("reports", nargs="+")
    arguments = parser.parse_args()
    uses = {}
    for report in arguments.reports:
        found = parse(pathlib.Path(report).read_text(encoding="utf-8"))
        if not found:
            sys.exit(f"{report}: names no kernel; is it what nvcc -Xptxas=-v says?")
        uses |= found
    if not arguments.check:
        print("\n".join(table(uses)))
        return 0
    spilling = list(forbidden(uses, arguments.may_spill))
    print("\n".join(spilling) or f"no spills in {len(uses)} compilations of kernels")
    return 1 if spilling else 0


if __name__ == "__main__":
    sys.exit(main())
