#!/usr/bin/env python3
"""Memory that ./train announces beside the memory that it takes at its peak, as a table of docs/performance.md.

A run of two steps on the CPU each, with its validation and fingerprint; the peak is the kernel's (VmHWM).
usage: scripts/memory_table.py ['FLAGS' ...]       without flags: five models
"""
import os
import re
import subprocess
import sys
import tempfile

from common import ROOT, TRAIN, refuse, require_train

MODELS = [
    "",
    "--norm=gated --attn=g1 --batch=32",
    "--hidden=1024",
    "--hidden=1024 --experts=8",
    "--preset=gpt2-124m --context=64 --batch=4",
]


def measure(flags):
    command = [TRAIN, "--device=cpu", "--steps=2", "--warmup=1", "--val-batches=2",
               "--sample-tokens=20"] + flags.split()
    with tempfile.TemporaryFile("w+") as out:
        child = subprocess.Popen(command, stdout=out, cwd=ROOT)
        _, status, usage = os.wait4(child.pid, 0)
        if status:
            refuse(f"{' '.join(command)} failed")
        out.seek(0)
        announced = re.search(r"(\d+)\s+MiB", out.read())
    return float(announced[1]), usage.ru_maxrss / 1024


def main():
    require_train()
    print("| flags | announced, MiB | at the peak, MiB | beside |")
    print("|---|---|---|---|")
    for flags in sys.argv[1:] or MODELS:
        announced, peak = measure(flags)
        print(f"| {f'`{flags}`' if flags else 'none'} | {announced:.0f} | {peak:.0f} | "
              f"{100 * (peak / announced - 1):+.1f} % |")


if __name__ == "__main__":
    main()
