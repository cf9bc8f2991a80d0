#!/usr/bin/env python3
"""A kernel as nvcc has made it: its name in the source, then each line of the source with the PTX that was made of it.

usage: ptx/show.py KERNEL NAME.ptx...     (make ptx KERNEL=rmsnorm_forward_kernel)

KERNEL is a part of its name. Where several have it, the first is shown and the others are named. What an instruction
does: ptx/translate.py. A line of a function that was inlined has behind it where it was called.
tests/test_scripts.cpp
"""
import linecache
import sys

from translate import ENTRY, kernels_of, plain


def show(kernel):
    for code, text in kernel.lines:
        if code == "AT":
            file, line = text.split(" in ")[0].rsplit(":", 1)
            print(f"\n{text}    {linecache.getline(file, int(line)).strip()}".rstrip())
        elif code == "DECLARE":
            kind, names = text
            print(f"    .reg .{kind} {names[0]}{f' to {names[-1]}' if names[1:] else ''}")
        elif text:
            print(f"    {' '.join(text.split())};".replace(kernel.name + "_", "").replace("$", ""))
        else:
            print(code.strip(" ;"))


def main(wanted, sources):
    found = []  # a kernel's text, its name there and in the source
    for source in sources:
        with open(source) as file:
            text = file.read()
        names = [entry[1] for entry in ENTRY.finditer(text)]
        in_source = plain("\n".join(names)).replace("gated_nvcc::", "").splitlines()
        found += [(text, *both) for both in zip(names, in_source) if wanted and wanted in both[1]]
    if not found:
        sys.exit(f"no kernel's name holds '{wanted}': expected a part of one, as KERNEL=rmsnorm_forward_kernel")
    text, name, in_source = found[0]
    print(in_source)
    for kernel in kernels_of(text, [name]):
        show(kernel)
    for _, _, other in found[1:]:
        print("also:", other)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: ptx/show.py KERNEL NAME.ptx...")
    main(sys.argv[1], sys.argv[2:])
