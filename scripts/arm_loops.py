#!/usr/bin/env python3
"""What the compiler made of the inner loops for ARM64: vectors of four lanes, no call, and beside AVX2's form at most
2.2 times as many instructions for each floating-point operation (2 is the ratio of the lanes).

usage: scripts/arm_loops.py ARM_FOLDER AVX2_FOLDER     folders of objects, as build/arm64/release and build/avx2

Of each function below, the innermost loop with the most multiply-adds is counted, or where there are none, with the
most operations: all its instructions, against the lanes of its multiply-adds (2 operations each), multiplications,
additions and subtractions."""

import re
import subprocess
import sys

MOST = 2.2
LOOPS = [("matmul_cpu", "void gated::tuned_matmul::tile<", "product"),
         ("matmul_cpu", "unpacked_tile<.*true>", "product with a few rows"),
         ("attention_cpu", "product_block<4", "attention: scores"),
         ("attention_cpu", "accumulate<", "attention: sums over keys"),
         ("attention_cpu", "accumulate_block<4.*QueriesOfKey", "attention: the same, masked"),
         ("attention_cpu", "accumulate_block<4.*KeysOfQuery", "attention: the same, masked, over queries"),
         ("attention_cpu", "gather_block<4", "attention backward: sums over queries"),
         ("gated_delta_cpu", "::pass<true>", "delta rule"),
         ("gated_delta_cpu", "::backward_group", "delta rule backward"),
         ("gated_delta_chunk_cpu", "product_block<", "chunked delta rule: product"),
         ("gated_delta_chunk_cpu", "solve_block<", "chunked delta rule: solve"),
         ("matmul_bf16_cpu", r"product<\(gated::MmaArithmetic\)0", "tensor cores of A100"),
         ("matmul_bf16_cpu", r"product<\(gated::MmaArithmetic\)1", "tensor cores of H100")]
JUMP = re.compile(r"(?:j\w+|b(?:\.\w+)?|cbn?z\s+\w+,|tbn?z\s+\w+, #\w+,)\s+([0-9a-f]+) <")
VECTOR = re.compile(r"(fml[as]|fmul|fadd|fsub)\s+v\d+\.4s|v(fn?m(?:add|sub)\w+|mul|add|sub)ps .*ymm")
SCALAR = re.compile(r"fn?m(add|sub)\s+s\d")


def functions(objdump, path):
    """(name, [(address, instruction), ...]) of each function of an object."""
    listing = subprocess.run([objdump, "-dC", "--no-show-raw-insn", path], check=True, capture_output=True, text=True)
    for part in re.split(r"\n(?=[0-9a-f]+ <)", listing.stdout):
        head, *lines = part.split("\n")
        code = [re.match(r"\s*([0-9a-f]+):\s+(.*)", line) for line in lines]
        yield head, [(int(c[1], 16), c[2]) for c in code if c]


def innermost(code):
    """The loops of a function that hold no other: what stands between the target of a jump back and the jump."""
    at = {address: i for i, (address, _) in enumerate(code)}
    jumps = [(JUMP.match(instruction), i) for i, (_, instruction) in enumerate(code)]
    back = [(at[int(j[1], 16)], i) for j, i in jumps if j and at.get(int(j[1], 16), i + 1) <= i]
    for begin, end in back:
        if not any((b, e) != (begin, end) and begin <= b and e <= end for b, e in back):
            yield [instruction for _, instruction in code[begin:end + 1]]


def operations(loop, lanes):
    """(multiply-adds, all operations), counted in lanes."""
    found = [f[1] or f[2] for f in map(VECTOR.match, loop) if f]
    fused = lanes * sum(name != "fmul" and "m" in name and name != "mul" for name in found)
    return fused, lanes * len(found) + fused


def hottest(objects, function, lanes):
    loops = [loop for name, code in objects if re.search(function, name) for loop in innermost(code)]

    def heat(loop):
        fused, done = operations(loop, lanes)
        return fused, 0 if fused else done, -len(loop)
    return max(loops, key=heat, default=[])


def main(arm, avx2):
    made, wrong = {}, 0
    for source, function, what in LOOPS:
        for tool, folder in (("aarch64-linux-gnu-objdump", arm), ("objdump", avx2)):
            if (tool, source) not in made:
                made[tool, source] = list(functions(tool, f"{folder}/kernels/cpu/{source}.o"))
        ours = hottest(made["aarch64-linux-gnu-objdump", source], function, 4)
        theirs = hottest(made["objdump", source], function, 8)
        done, done_there = operations(ours, 4)[1], operations(theirs, 8)[1]
        if not done or not done_there:
            print(f"{what}: no loop of vectors in {function} of {source}", file=sys.stderr)
            wrong += 1
            continue
        ratio = len(ours) / done / (len(theirs) / done_there)
        calls = sum(bool(re.match(r"bl\s", i) or SCALAR.match(i)) for i in ours)
        print(f"{what}: {len(ours) / done:.3f} instructions an operation, AVX2 {len(theirs) / done_there:.3f}, "
              f"ratio {ratio:.2f}" + (f", {calls} calls or numbers alone" if calls else ""))
        wrong += ratio > MOST or calls > 0
    print(f"{len(LOOPS) - wrong} assertions of {len(LOOPS)}: vectors, and at most {MOST} of AVX2's instructions")
    return wrong > 0


sys.exit(main(*sys.argv[1:3]))
