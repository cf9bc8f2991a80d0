#!/usr/bin/env python3
"""The whole program on a GPU beside the CPU: what each run prints, logs and writes must be the same; and what a GPU is
not given must be refused in one line.

usage: scripts/gpu_program.py TRAIN CASE [MMA]     (a stage of gpu_check.py, which knows the cases: CASES and REFUSALS)

A case runs its commands one after another, in a folder of its own for each device. Speeds, times and what names the
device are left out of what they print, times out of log.jsonl; every other file is compared byte for byte.
tests/test_scripts.cpp
"""
import difflib
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile

from common import ROOT

SMALL = "--layers=2 --hidden=64 --heads=2 --kv-heads=1 --head-dim=32 --context=64 --batch=2 --val-batches=1"
RUN = SMALL + " --data=text.txt --out=run --steps=6 --val-every=2 --measure-every=4 --save-every=3 --sample-tokens=20"
GPT2 = (RUN + " --norm=layernorm --position=learned --ffn=gelu --ffn-bias=on --attn-bias=all --qk-norm=off --tied=off "
        "--dropout=0.1 --micro-batches=2 --recompute=full {graph}")
RANKS = "mpirun " + RUN + " --precision=bf16 --mma={mma} --micro-batches=4 --experts=4 --norm=gated --attn=g1"
EVALUATE = "--evaluate --from=run --val-batches=2"
GENERATE = "--generate --from=run --tokens=20"

NEWEST_GONE = "rm run/step_00000006.safetensors"

# Cases: commands of the trainer, some of several ranks, and files to remove. {graph}: on the GPU alone, launches as
# CUDA graphs.
CASES = {
    "a run, resumed, evaluated, continued": [
        RUN + " --norm=gated --attn=g1",
        NEWEST_GONE,
        RUN + " --norm=gated --attn=g1 --resume",
        EVALUATE + " --data=text.txt --choices=choices.bin",
        EVALUATE + " --data=text.txt --quantize=fp8-w8a8 --smoothquant=0.5",
        EVALUATE + " --data=text.txt --context=96 --yarn=2",
        GENERATE + " --prompt=The --samples=3 --top-p=0.9",
        GENERATE + " --prompt-tokens=84,104 --temperature=0",
        SMALL + " --from=run --data=text.txt --out=more --steps=2 --sample-tokens=70"],
    "GPT-2 with dropout, as CUDA graphs": [
        GPT2, NEWEST_GONE, GPT2 + " --resume",
        EVALUATE + " --data=text.txt --quantize=nvfp4-w4a4",
        GENERATE + " --prompt=The --samples=2 --top-k=5"],
    "a hybrid with experts in bf16, as CUDA graphs": [
        RUN + " --precision=bf16 --mma={mma} --mixer=hybrid --attention-every=2 --experts=4 --shared-experts=1 "
        "--micro-batches=2 --norm=gated --attn=g1 {graph}",
        EVALUATE + " --data=text.txt --choices=choices.bin",
        GENERATE + " --prompt=The --samples=2"],
    "two ranks, a GPU each": [
        RANKS + " {graph}", NEWEST_GONE, RANKS + " --resume --transport=mpi",
        "mpirun " + EVALUATE + " --precision=bf16 --mma={mma} --data=text.txt"],
    "a search in what was read": [
        SMALL + " --data=recall --out=run --steps=2 --sample-tokens=0 --layers=1 --ffn-hidden=32 --context=32",
        "--evaluate --from=run --probe=retrieval --context=64 --val-batches=1"]}

# Refusals: the environment, the command, and what the line says. An environment is for the
# stand-in for a GPU (ptx/).
REFUSALS = {
    "other tensor cores": ({}, RUN + " --precision=bf16 --mma={other_mma}", r"--mma={other_mma}: .*{mma}"),
    "a rank that does not fit": (
        {"PTX_GPU": "86"}, RUN + " --hidden=512 --norm=gated --norm-rank=512", "this GPU gives a block no more"),
    "cuBLAS without an algorithm": ({"PTX_GPU": "90"}, RUN + " --matmul=cublas", "cuBLASLt"),
    "a model that memory does not hold": ({"PTX_MEMORY": "2"}, RUN, "memory"),
    "an evaluation that memory does not hold": (
        {"PTX_MEMORY": "2"}, EVALUATE + " --data=text.txt --batch=1 --context=1024", "memory"),
    "a generation that memory does not hold": ({"PTX_MEMORY": "1"}, GENERATE + " --prompt=The --samples=32", "memory")}

# What names the device, times, what is free on the disk, and what else of the host's memory a program takes there.
OWN = re.compile(r"^flags .*?(?=^data )|^disk .*?\n(?! )| +[\d.]+k?( tok)?/s +\d+%( peak)?| +\d+:\d\d$|"
                 r"^[\d.]+ tokens/s\n|,\s+\d+ [KMGT]iB\s+\([^)]*\)(, (cpu, \d+ threads|cuda))?| in \d+:\d\d|"
                 r", \d+:\d\d left", re.MULTILINE | re.DOTALL)


def choices(questions):
    """A file of --choices (dataloader/choices.h)."""
    rows = []
    for number, (context, right, endings) in enumerate(questions):
        row = [number, right, len(endings), len(context), *context]
        for ending in endings:
            row += [len(ending), *ending]
        rows.append([65535, 2 * len(row) + 4, *row])
    head = [20240522, 1, len(rows), max(row[1] for row in rows)] + [0] * 252
    return struct.pack("<256i", *head) + b"".join(struct.pack(f"<{len(row)}H", *row) for row in rows)


def prepare(folder):
    os.makedirs(folder)
    with open(os.path.join(ROOT, "README.md"), "rb") as file:
        text = file.read(40000)
    questions = [(b"The norm of the", 0, [b" gate", b" token is", b"x"]), (b"One kernel", 1, [b" runs", b"zz"])]
    for name, content in ("text.txt", text), ("choices.bin", choices(questions)):
        with open(os.path.join(folder, name), "wb") as file:
            file.write(content)


NOT_RUN = 77  # how a case ends that cannot be run here

# Two ranks, as root too, on one core and on as many GPUs as there are; of the stand-in there are two.
MPIRUN = ["mpirun", "--oversubscribe", "-n", "2"]
OF_RANKS = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMPI_MCA_btl_vader_single_copy_mechanism": "none", "PTX_DEVICES": "2"}


def run(train, flags, folder, environment):
    """What it prints on both outputs, and how it ends."""
    words = [train, *flags.removeprefix("mpirun ").split()]
    if flags.startswith("mpirun "):
        words, environment = MPIRUN + words, environment | OF_RANKS
    done = subprocess.run(words, cwd=folder, env=os.environ | environment, stdin=subprocess.DEVNULL,
                          capture_output=True)
    return done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"), done.returncode


def written(folder):
    """Each file below the folder, a log without its times and without what ran."""
    files = {}
    for where, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(where, name)
            with open(path, "rb") as file:
                content = file.read()
            if name == "log.jsonl":
                content = [{key: value for key, value in json.loads(line).items()
                            if key not in ("seconds", "run") and not key.endswith("_by_rank")}
                           for line in content.splitlines()]
            files[os.path.relpath(path, folder)] = content
    return files


def compare(train, case, mma):
    """The differences between the two devices."""
    with tempfile.TemporaryDirectory(prefix="gpu_program_") as folder:
        for device in "cpu", "cuda":
            prepare(os.path.join(folder, device))
        for command in CASES[case]:
            said = []
            for device in "cpu", "cuda":
                there = os.path.join(folder, device)
                if command.startswith("rm "):
                    os.remove(os.path.join(there, command[len("rm "):]))
                    continue
                flags = command.format(mma=mma, graph="--graph" if device == "cuda" else "")
                output, errors, code = run(train, flags + f" --device={device}", there, {})
                if code:
                    yield f"{flags} --device={device}: exit {code}: {errors}"
                    return
                said.append(OWN.sub("", output + errors).splitlines())
            if said and said[0] != said[1]:
                yield "\n".join([command, *difflib.unified_diff(*said, "cpu", "cuda", lineterm="")])
        cpu, cuda = (written(os.path.join(folder, device)) for device in ("cpu", "cuda"))
        for name in sorted(cpu.keys() | cuda.keys()):
            if cpu.get(name) != cuda.get(name):
                yield f"{name} differs" if name in cpu and name in cuda else f"{name} is written on one device alone"


def refused(train, name, mma):
    """What is wrong with how it is refused."""
    environment, command, expected = REFUSALS[name]
    fill = {"mma": mma, "other_mma": "ampere" if mma == "hopper" else "hopper"}
    with tempfile.TemporaryDirectory(prefix="gpu_program_") as folder:
        prepare(there := os.path.join(folder, "cuda"))
        if "--from" in command:
            run(train, RUN + " --device=cpu", there, {})
        output, errors, code = run(train, command.format(**fill) + " --device=cuda", there, environment)
    lines = [line for line in errors.splitlines() if not line.startswith("ptx: ")]
    if code != 1 or len(lines) != 1 or not re.search("^error: .*" + expected.format(**fill), lines[0]):
        yield f"exit {code}, expected 1 and one line with {expected.format(**fill)}:\n{output}\n{errors}"


def main(train, case, mma="hopper"):
    train = os.path.abspath(train)
    if any(command.startswith("mpirun ") for command in CASES.get(case, ())) and not shutil.which("mpirun"):
        print("no mpirun is here")
        return NOT_RUN
    wrong = list(compare(train, case, mma) if case in CASES else refused(train, case, mma))
    print("\n".join(wrong) or ("the same on both devices" if case in CASES else "refused in one line"))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
