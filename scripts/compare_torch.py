#!/usr/bin/env python3
"""Trains with PyTorch and with ./train, and prints the tokens/s of both for several shapes of a step.

usage: pip install torch && make && scripts/compare_torch.py            (--python names a Python that has torch)

Both programs: the same architecture, precision, tokens a step and threads; forward, backward, clipping and AdamW.
PyTorch's side is scripts/torch_train.py. Each side's best figure counts:
  on a CPU   fp32. PyTorch is eager, with two ways for idle threads to wait. Needs 5 GiB of memory
  on a GPU   --device=cuda: GPT-2 124M in bf16, with 50257 tokens on both sides. PyTorch is eager or compiled;
             ours has its own products, launched or as a CUDA graph, or cuBLASLt's
The programs of a shape run in turns (scripts/side_by_side.py).
"""
import os
import random
import string
import tempfile

from common import ROOT, read_bench, refuse, write_bench
from side_by_side import WAITING, Program, environment, in_turns, options_of, our_program, parser_with, table

# device -> model, sequences, tokens of a sequence, steps of a run
SHAPES = {"cpu": [("gpt2-124m", 4, 64, 6), ("gpt2-124m", 4, 256, 4), ("gpt2-124m", 1, 1024, 4), ("tiny", 16, 128, 60)],
          "cuda": [("gpt2-124m", 32, 1024, 30)]}
PRECISION = {"cpu": "fp32", "cuda": "bf16"}
# device -> name -> flags of ./train
OURS = {"cpu": {"": []}, "cuda": {"": [], "graph": ["--graph"], "cuBLASLt": ["--matmul=cublas"]}}
# device -> name -> flags of scripts/torch_train.py, environment
THEIRS = {"cpu": {name: ([], variables) for name, variables in WAITING.items()},
          "cuda": {"eager": ([], {}), "compiled": (["--compile"], {})}}


def main():
    parser = parser_with(__doc__, 3, "torch")
    parser.add_argument("--device", choices=SHAPES, default="cpu", help="[cpu]")
    parser.add_argument("--rows", metavar="FILE", help="what make bench has written, to which a row for "
                        "each shape is added")
    options = options_of(parser)
    device = options.device
    bench = read_bench(options.rows) if options.rows else {"rows": []}
    rows = []
    with tempfile.TemporaryDirectory(prefix="compare_torch_") as folder:
        text = os.path.join(folder, "text.txt")
        with open(text, "w") as file:
            file.write("".join(random.Random(0).choices(string.ascii_letters, k=1 << 20)))
        for model, batch, context, steps in SHAPES[device]:
            print(f"\n{model}, B {batch}, T {context}")
            common = [f"--batch={batch}", f"--context={context}", f"--steps={steps}",
                      f"--precision={PRECISION[device]}"]
            flags = [f"--preset={model}", f"--data={text}", "--val-fraction=0"] + common
            if model == "gpt2-124m":
                flags.append("--vocab=50257")
            ours = [our_program(flags + more, batch * context, options.threads, device, name)
                    for name, more in OURS[device].items()]
            peer = [options.python, os.path.join(ROOT, "scripts/torch_train.py"), model, f"--device={device}"] + common
            theirs = [Program(f"PyTorch, {name}", peer + more, environment(options.threads) | variables,
                              r"^step \d+ .* ([\d.]+) ms") for name, (more, variables) in THEIRS[device].items()]
            in_turns(ours + theirs, folder, options.rounds, steps)
            sizes = [program.printed(r"(\d+) parameters") for program in ours + theirs]
            if len(set(sizes)) > 1:
                refuse(f"the models differ: {sizes} parameters")
            rows.append((model, batch, context, theirs[0].printed(r"PyTorch (\S+),"),
                         table(ours + theirs, batch * context, len(ours))))
    print("\n| model | B | T | over PyTorch, fastest steps | medians |\n|---|---|---|---|---|")
    for model, batch, context, version, (fastest, median) in rows:
        op = f"training {model} B {batch} T {context} {PRECISION[device]}"
        bench["rows"] = [row for row in bench["rows"] if row["op"] != op or "peer" not in row]
        bench["rows"].append({"op": op, "peer": f"PyTorch {version}", "ratio_to_peer": fastest})
        print(f"| {model} | {batch} | {context} | {fastest:.2f}x | {median:.2f}x |")
    print(f"PyTorch {version}, {options.threads} threads, {options.rounds} rounds")
    if options.rows:
        write_bench(options.rows, bench)


main()
