#!/usr/bin/env python3
"""How long each kernel of a training step takes on this GPU, by Nsight Compute, beside what scripts/gpu_model.py has
computed: the same models, one step of each.

usage: scripts/gpu_profile.py [--only=TEXT] [--ncu=FILE] [--seconds=N] RESULT.json TRAIN
  --only     the models with this in their names
  --ncu      Nsight Compute's program; without it, the one that scripts/find_cuda.sh finds
  --seconds  a model whose profile takes longer is left out [150]
  RESULT.json  {"device", "driver", "models": {name: [{"kernel", "grid", "threads", "us", "MB"}]}}: for each kernel,
               grid and block the microseconds of its launches, in ascending order, and in the same order the megabytes
               that each moved to and from memory. scripts/gpu_model.py --table --measured sets them beside its own

Kernels run one by one, with the caches as the one before has left them and the clock as the GPU keeps it.
"""
import csv
import json
import os
import subprocess
import tempfile
from collections import defaultdict

from common import ROOT, cuda_tool, ended, parser_of, read, refuse, write_whole
from gpu_model import MODELS, OF_ALL, plain

TIME, MEMORY = "gpu__time_duration.sum", "dram__bytes.sum"


def rows_of(text):
    """What `ncu --csv --page raw` has printed: kernels with their launches."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    launches = defaultdict(list)
    for row in csv.DictReader(lines):
        if row["ID"]:  # (the row below the names has the units)
            def numbers(column):
                return [int(n) for n in row[column].strip("() ").split(",")]
            grid, block = numbers("Grid Size"), numbers("Block Size")
            nanoseconds, moved = (float(row[column].replace(",", "")) for column in (TIME, MEMORY))
            launches[row["Kernel Name"], tuple(grid), block[0] * block[1] * block[2]].append((nanoseconds, moved))
    names = plain([name for name, _, _ in launches])
    rows = [{"kernel": names[name], "grid": list(grid), "threads": threads,
             "us": [round(t * 1e-3, 2) for t, _ in sorted(each)], "MB": [round(m * 1e-6, 2) for _, m in sorted(each)]}
            for (name, grid, threads), each in launches.items()]
    return sorted(rows, key=lambda row: -sum(row["us"]))


def profile(ncu, train, flags, seconds):
    """The rows of a model's first step; or why there are none."""
    with tempfile.TemporaryDirectory(prefix="gpu_profile_") as folder:
        log = os.path.join(folder, "log")
        command = [ncu, "--nvtx", "--nvtx-include", "step/", "--clock-control", "none", "--cache-control", "none",
                   "--metrics", f"{TIME},{MEMORY}", "--csv", "--page", "raw", "--print-units", "base",
                   "--print-kernel-base", "mangled", "--log-file", log, train, *f"{OF_ALL} {flags} --steps=1".split()]
        try:
            ran = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, text=True, errors="replace", timeout=seconds)
        except subprocess.TimeoutExpired:
            return [], f"longer than {seconds:.0f} s"
        said = (read(log) if os.path.exists(log) else "") or ran.stdout
        rows = rows_of(said)
        return rows, "" if rows else " | ".join((said + ran.stdout).strip().splitlines()[-6:])


def main():
    parser = parser_of(__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--ncu")
    parser.add_argument("--seconds", type=float, default=150)
    parser.add_argument("result")
    parser.add_argument("train")
    arguments = parser.parse_args()
    ncu = arguments.ncu or cuda_tool("ncu")
    if not ncu:
        refuse("no ncu in CUDA_HOME, on the path or in /usr/local/cuda*: Nsight Compute brings it")
    answer = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
                            stdout=subprocess.PIPE, text=True).stdout.strip()
    device, _, driver = answer.partition("\n")[0].partition(", ")  # of the first GPU
    if not driver:
        refuse(f"no GPU answers here: nvidia-smi: {answer or 'says nothing'}")
    models, failed = {}, []
    for name, (flags, _) in MODELS.items():
        if arguments.only not in name:
            continue
        rows, trouble = profile(ncu, arguments.train, flags, arguments.seconds)
        if not rows:
            failed.append(f"{name}: no kernel was profiled: {trouble}")
            continue
        print(f"{name}: {sum(len(row['us']) for row in rows)} launches, "
              f"{1e-3 * sum(sum(row['us']) for row in rows):.2f} ms of kernels")
        models[name] = rows
        write_whole(arguments.result, json.dumps({"device": device, "driver": driver, "models": models}) + "\n")
    if failed:
        refuse("; ".join(failed))


ended(main)
