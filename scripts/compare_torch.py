#!/usr/bin/env python3
"""Trains with eager PyTorch and with ./train on this CPU, and prints the tokens/s of both for four shapes of a step.

usage: pip install torch && make && scripts/compare_torch.py            (--python names a Python that has torch)

Both programs: fp32, the same architecture, tokens a step and threads; forward, backward, clipping and AdamW.
PyTorch's side is scripts/torch_train.py, with two ways for idle threads to wait; its better figure counts.
The programs of a shape run in turns (scripts/side_by_side.py). Needs 5 GiB of memory.
"""
import argparse
import os
import random
import string
import sys
import tempfile

from common import ROOT, refuse
from side_by_side import WAITING, Program, environment, in_turns, our_program, table, threads_option

# model, sequences, tokens of a sequence, steps of a run
SHAPES = [("gpt2-124m", 4, 64, 6), ("gpt2-124m", 4, 256, 4), ("gpt2-124m", 1, 1024, 4), ("tiny", 16, 128, 60)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="a Python that has torch [this one]")
    parser.add_argument("--rounds", type=int, default=3, help="how often each program runs [3]")
    parser.add_argument("--shapes", type=int, nargs="*", default=range(len(SHAPES)), metavar="I",
                        help="which of the shapes: " + ", ".join(f"{i}: {m} B {b} T {t}"
                                                                 for i, (m, b, t, _) in enumerate(SHAPES)) + " [all]")
    threads_option(parser)
    options = parser.parse_args()
    if options.rounds < 1 or options.threads < 1:
        refuse(f"--rounds={options.rounds} --threads={options.threads}: expected at least 1 each")
    if not all(0 <= i < len(SHAPES) for i in options.shapes):
        refuse(f"--shapes: expected numbers from 0 to {len(SHAPES) - 1}")

    rows = []
    with tempfile.TemporaryDirectory(prefix="compare_torch_") as folder:
        text = os.path.join(folder, "text.txt")
        with open(text, "w") as file:
            file.write("".join(random.Random(0).choices(string.ascii_letters, k=1 << 20)))
        for model, batch, context, steps in (SHAPES[i] for i in options.shapes):
            print(f"\n{model}, B {batch}, T {context}")
            vocabulary = ["--vocab=50257"] if model == "gpt2-124m" else []
            ours = our_program([f"--preset={model}", f"--data={text}", "--val-fraction=0", f"--context={context}",
                                f"--batch={batch}", f"--steps={steps}"] + vocabulary, batch * context, options.threads)
            peer = [options.python, os.path.join(ROOT, "scripts/torch_train.py"), model, f"--batch={batch}",
                    f"--context={context}", f"--steps={steps}"]
            theirs = [Program(f"PyTorch, {waiting}", peer, environment(options.threads) | variables,
                              r"^step \d+ .* ([\d.]+) ms") for waiting, variables in WAITING.items()]
            in_turns([ours] + theirs, folder, options.rounds, steps)
            sizes = [program.printed(r"(\d+) parameters") for program in [ours] + theirs]
            if len(set(sizes)) > 1:
                refuse(f"the models differ: {sizes} parameters")
            rows.append((model, batch, context, theirs[0].printed(r"PyTorch (\S+),"),
                         table([ours] + theirs, batch * context)))
    print("\n| model | B | T | over PyTorch, fastest steps | medians |\n|---|---|---|---|---|")
    for model, batch, context, version, (fastest, median) in rows:
        print(f"| {model} | {batch} | {context} | {fastest:.2f}x | {median:.2f}x |")
    print(f"PyTorch {version}, {options.threads} threads, {options.rounds} rounds")


if __name__ == "__main__":
    main()
