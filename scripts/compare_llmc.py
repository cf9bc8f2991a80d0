#!/usr/bin/env python3
"""Trains GPT-2 124M with llm.c's CPU program and with ./train, and prints the tokens/s of both.

usage: git clone https://github.com/karpathy/llm.c && make && scripts/compare_llmc.py llm.c

Both programs: fp32, CPU, B = 4 sequences of T = 64 tokens (what train_gpt2.c has built in), forward, backward and AdamW
on the same token shard, the same number of OpenMP threads, the same architecture (--preset=gpt2-124m, with positions
for the T tokens of a sequence alone).

llm.c is built by its own Makefile (target train_gpt2; the command line is printed) in a temporary copy: the checkout
stays as it is. Weights and tokens are random, since neither program's speed depends on them. llm.c gets every chance:
each compiler found (cc, clang) and two ways for idle threads to wait, the OpenMP library's default and short spinning
(what ./train asks for by itself), and its best figure counts.

All programs run in turns, --rounds times. A program's figure is its fastest step, the first of each run left out:
other load on the machine only ever adds time. Needs 2 GiB of memory free and 0.6 GB in $TMPDIR.
"""
import array
import os
import random
import shutil
import signal
import subprocess
import tempfile

from common import refuse
from side_by_side import WAITING, Program, environment, in_turns, options_of, our_program, parser_with, table

B, T = 4, 64
LAYERS, CHANNELS, HEADS, CONTEXT = 12, 768, 12, 1024
VOCAB, PADDED_VOCAB = 50257, 50304
SHARD = "dev/data/tinyshakespeare/tiny_shakespeare_%s.bin"  # where train_gpt2.c looks for tokens


# ---- what train_gpt2.c reads: 256 int32 of header, then the payload

def write_with_header(path, header, payloads):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        for payload in (array.array("i", header + [0] * (256 - len(header))), *payloads):
            payload.tofile(file)


def write_shard(path, count):
    draw = random.Random(count)
    write_with_header(path, [20240520, 1, count], [array.array("H", (draw.randrange(VOCAB) for _ in range(count)))])


def checkpoint_payloads():
    """Matrices of N(0, 0.02), biases of 0, norm weights of 1: no step meets a NaN or a denormal."""
    draw = random.Random(0)
    block = array.array("f", (draw.gauss(0, 0.02) for _ in range((1 << 20) + 7)))  # repeated; only its scale matters

    def normal(count):
        return (block * (count // len(block) + 1))[:count]

    def constant(count, value):
        return array.array("f", [value]) * count

    def linear(outputs, inputs):
        return [normal(LAYERS * outputs * inputs), constant(LAYERS * outputs, 0)]

    norm, C = [constant(LAYERS * CHANNELS, 1), constant(LAYERS * CHANNELS, 0)], CHANNELS
    return [normal(PADDED_VOCAB * C), normal(CONTEXT * C), *norm, *linear(3 * C, C), *linear(C, C), *norm,
            *linear(4 * C, C), *linear(C, 4 * C), constant(C, 1), constant(C, 0)]


def write_inputs(folder):
    write_shard(os.path.join(folder, SHARD % "train"), 64 * B * T + 1)
    write_shard(os.path.join(folder, SHARD % "val"), 8 * B * T + 1)
    write_with_header(os.path.join(folder, "gpt2_124M.bin"),
                      [20240326, 3, CONTEXT, VOCAB, LAYERS, HEADS, CHANNELS, PADDED_VOCAB], checkpoint_payloads())


# ---- the programs

def build_llmc(checkout, folder):
    """Copies the CPU trainer's sources to `folder` and builds them with each compiler: {compiler: program}."""
    for name in ("train_gpt2.c", "Makefile", "llmc"):
        source = os.path.join(checkout, name)
        if not os.path.exists(source):
            refuse(f"{source}: not found, expected a checkout of llm.c: git clone https://github.com/karpathy/llm.c")
        copy = shutil.copytree if os.path.isdir(source) else shutil.copy
        copy(source, os.path.join(folder, name))
    environment = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    programs = {}
    for compiler in filter(shutil.which, ("cc", "clang")):
        made = subprocess.run(["make", "-B", "CC=" + compiler, "train_gpt2"], cwd=folder, env=environment, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if made.returncode != 0:
            print(f"llm.c does not build with {compiler}, left out; make's last words:\n{made.stdout[-600:]}")
            continue
        command = [line for line in made.stdout.splitlines() if "train_gpt2.c" in line]
        version = subprocess.run([compiler, "--version"], text=True, capture_output=True).stdout.split("\n")[0]
        print(f"llm.c     {command[0] if command else compiler}\n          {version}")
        programs[compiler] = os.path.join(folder, "train_gpt2_" + compiler)
        os.rename(os.path.join(folder, "train_gpt2"), programs[compiler])
    if not programs:
        refuse(f"{checkout}: `make train_gpt2` fails with every compiler found: install gcc or clang, and make")
    return programs


def all_programs(checkout, folder, options):
    llmc = build_llmc(checkout, folder)
    yield our_program(["--data=" + os.path.join(folder, SHARD % "train"), "--val-fraction=0", f"--vocab={VOCAB}",
                       "--preset=gpt2-124m", f"--context={T}", f"--batch={B}", f"--steps={options.steps}"],
                      B * T, options.threads)
    for compiler, program in llmc.items():
        for waiting, variables in WAITING.items():
            yield Program(f"llm.c, {compiler}, {waiting}", [program], environment(options.threads) | variables,
                          r"^step \d+: .*took ([\d.]+) ms")


def main():
    parser = parser_with(__doc__, 3)
    parser.add_argument("checkout", metavar="LLMC_FOLDER", help="a checkout of github.com/karpathy/llm.c")
    parser.add_argument("--steps", type=int, default=6, help="steps of each run, 2 to 10 [6]")
    options = options_of(parser, steps=2)
    if options.steps > 10:  # at its 11th step train_gpt2.c validates again, and from the 21st it samples
        refuse(f"--steps={options.steps}: expected 2 to 10")
    if not os.path.isdir(options.checkout):
        refuse(f"{options.checkout}: no such folder: git clone https://github.com/karpathy/llm.c, then name its folder")

    signal.signal(signal.SIGTERM, lambda *_: refuse("stopped"))  # leaves no program and no folder behind
    with tempfile.TemporaryDirectory(prefix="compare_llmc_") as folder:
        programs = list(all_programs(options.checkout, folder, options))
        write_inputs(folder)
        in_turns(programs, folder, options.rounds, options.steps)

    ours, theirs = programs[0], min(programs[1:], key=lambda p: min(p.steps))
    print(f"\nparameters: gated.cu {ours.printed(r'([0-9]+) parameters')}, "
          f"llm.c {theirs.printed(r'num_parameters: ([0-9]+)')}; "
          f"B {B}, T {T}, {options.threads} threads, {len(ours.steps)} steps each")
    table(programs, B * T)


main()
