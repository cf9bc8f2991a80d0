#!/usr/bin/env python3
"""A kernel as nvcc has made it: its name in the source, then each line of the source with the PTX that was made of it.

usage: ptx/show.py KERNEL NAME.ptx...     (make ptx KERNEL=rmsnorm_forward_kernel)

KERNEL is a part of its name. Where several have it, the first is shown and the others are named. What an instruction
does: ptx/translate.py. A line of a function that was inlined has behind it where it was called. scripts/book.py shows
the inner loop alone, beside what ptxas makes of it.
tests/test_scripts.cpp
"""
import linecache
import os
import re
import subprocess
import sys
import tempfile

from translate import ENTRY, PASSED, kernels_of, plain


def kernels_in(sources):
    """Every kernel: the text of its file, its name there and in the source."""
    for source in sources:
        with open(source) as file:
            text = file.read()
        names = [entry[1] for entry in ENTRY.finditer(text)]
        in_source = plain("\n".join(names)).replace("gated_nvcc::", "").splitlines()
        yield from ((text, *both) for both in zip(names, in_source))


def listing(text, name):
    """A kernel's PTX, line by line, each with the place in the source that it was made of: "FILE:LINE in CALLER:LINE".
    A new place comes first with None."""
    for kernel in kernels_of(text, [name]):
        place = ""
        for code, said in kernel.lines:
            if code == "AT":
                if (here := " in ".join(said.split(" in ")[:2])) != place:
                    yield (place := here), None
            elif code == "DECLARE":
                kind, names = said
                yield place, f"    .reg .{kind} {names[0]}{f' to {names[-1]}' if names[1:] else ''}"
            elif said:
                yield place, f"    {' '.join(said.split())};".replace(kernel.name + "_", "").replace("$", "")
            elif (code, said) != PASSED:
                yield place, code.strip(" ;")


def source_line(place):
    """The line that "FILE:LINE in CALLER:LINE" begins with."""
    file, line = place.split(" in ")[0].rsplit(":", 1)
    return linecache.getline(file, int(line)).strip()


FUSED = re.compile(r"\b(fma|mma)\.|FFMA|MMA")


def inner_loop(lines, places=None):
    """Of a listing's loops that hold no other one, the one that multiplies and adds most, for these places of the
    source if they are given; all of it where there is no loop."""
    lines = [both for both in lines if both[1] and not both[1].startswith("    .reg")]
    labels = {line[:-1]: at for at, (_, line) in enumerate(lines) if line.endswith(":")}
    loops = [(labels[found[1]], at) for at, (_, line) in enumerate(lines)
             if (found := re.search(r"\b(?:bra|BRA)\b.*?(\.?L_\w+)", line)) and labels.get(found[1], at) < at]
    innermost = [loop for loop in loops if not any(o != loop and loop[0] <= o[0] and o[1] <= loop[1] for o in loops)]
    fused = [sum(bool(FUSED.search(line)) for place, line in lines[begin:end] if places is None or place in places)
             for begin, end in innermost]
    begin, end = innermost[fused.index(max(fused))] if innermost else (0, len(lines))
    return lines[begin:end + 1]


def machine_code(text, name, ptxas, nvdisasm):
    """A listing of what ptxas makes of a kernel, for the GPU that its PTX names."""
    alone = ENTRY.sub(lambda found: found[0] if found[1] == name else "", text)
    gpu = re.search(r"^\.target (\w+)", text, re.MULTILINE)[1]
    with tempfile.TemporaryDirectory() as folder:
        made_of, made = os.path.join(folder, "k.ptx"), os.path.join(folder, "k.cubin")
        with open(made_of, "w") as file:
            file.write(alone)
        subprocess.run([ptxas, "-lineinfo", "-arch", gpu, "-o", made, made_of], check=True)
        said = subprocess.run([nvdisasm, "-c", "-gi", made], capture_output=True, text=True, check=True).stdout
    path = r'"(?:[^"]*/\./)?([^"]+)", line (\d+)'
    place = caller = ""
    for line in said.splitlines():
        if found := re.search(rf"//## File {path}(?: inlined at {path})?", line):
            here = f"{found[1]}:{found[2]}"
            if here != caller:  # (behind a function that was inlined stands where it was called)
                place = here + (f" in {found[3]}:{found[4]}" if found[3] else "")
            caller = f"{found[3]}:{found[4]}"
        elif found := re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+([^;]+);", line):
            yield place, "    " + " ".join(found[1].split())
        elif found := re.match(r"(\.L_x_\w+:)", line):
            yield place, found[1]


def main(wanted, sources):
    found = [kernel for kernel in kernels_in(sources) if wanted in kernel[2]] if wanted else []
    if not found:
        sys.exit(f"no kernel's name holds '{wanted}': expected a part of one, as KERNEL=rmsnorm_forward_kernel")
    text, name, in_source = found[0]
    print(in_source)
    for place, line in listing(text, name):
        print(line if line is not None else f"\n{place}    {source_line(place)}".rstrip())
    for _, _, other in found[1:]:
        print("also:", other)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: ptx/show.py KERNEL NAME.ptx...")
    main(sys.argv[1], sys.argv[2:])
