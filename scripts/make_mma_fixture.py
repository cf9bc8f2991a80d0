#!/usr/bin/env python3
"""Makes tests/fixtures/mma.json: what one bf16 instruction of a tensor core gives, by MMA-Sim's model and as GPUs
computed it.

usage: pip install torch mmasim==2.1.1 && scripts/make_mma_fixture.py VALIDATION      CPU only, seconds

Tiles of A (16,16), B (16,8) and C (16,8) keep the inputs that the file has; those of kind "zeros" are drawn here:
factors and c that are 0 beside large and tiny ones. Their D is MMA-Sim's (arXiv 2511.10909). VALIDATION is the folder
model_validation of github.com/north-numerical-computing/MATLAB-tensor-core, which holds outputs of real GPUs (arXiv
2512.07004, BSD 2-Clause): the first of each GPU are kept, rows of A and columns of B beside one c and one d.
"""
import json
import os
import random
import sys

import torch
from mmasim.nv_ptx import MMA

from common import ROOT

FIXTURE = os.path.join(ROOT, "tests/fixtures/mma.json")
NOTE = ("What one bf16 mma of depth 16 gives on each generation: A (16,16), B (16,8) bf16, C and D (16,8) float32, "
        "row-major, hexadecimal; computed with MMA-Sim 2.1.1, arXiv 2511.10909. And what GPUs gave, a step of 8 "
        "products on compute capability 8 and of 16 on later ones: a row of A, a column of B, c, d; from the data of "
        "arXiv 2512.07004")
GPUS = ("A100", "A2", "L40S", "H100", "H200", "B200")
OF_EACH_GPU = 64
TILES_WITH_ZEROS = 4


def draw_zeros(r, centre):
    """bf16 numbers around 2^centre; a third of them zeros of both signs."""
    if r.random() < 1 / 3:
        return r.choice((0, 0x8000))
    field = min(max(127 + centre + r.randint(-3, 3), 0), 254)
    return r.getrandbits(1) << 15 | field << 7 | r.getrandbits(7)


def tile_with_zeros(r, number):
    # Products that are ordinary, huge and so tiny that a float loses their last bits.
    centre = (0, 40, -75, -75)[number]
    def numbers(n, shift=0):
        return "".join(f"{draw_zeros(r, shift + (centre if r.random() < 0.7 else -centre)):04x}" for _ in range(n))
    c = ["00000000" if r.random() < 0.5 else f"{draw_zeros(r, 2 * centre):04x}{r.getrandbits(16):04x}"
         for _ in range(128)]
    return {"kind": "zeros", "A": numbers(256), "B": numbers(128), "C": "".join(c)}


def tensor(text, shape, digits):
    numbers = [int(text[i:i + digits], 16) for i in range(0, len(text), digits)]
    bits = torch.tensor(numbers, dtype=torch.int64).reshape(shape)
    return (bits << 16 if digits == 4 else bits).to(torch.uint32).view(torch.float32)


def multiplied(tile, generation):
    A, B, C = tensor(tile["A"], (16, 16), 4), tensor(tile["B"], (16, 8), 4), tensor(tile["C"], (16, 8), 8)
    D = MMA(generation, "m16n8k16.f32.bf16.bf16.f32")(A.bfloat16(), B.bfloat16(), C)
    return "".join(f"{x:08x}" for x in D.view(torch.int32).to(torch.int64).flatten().bitwise_and(0xffffffff).tolist())


def measured(folder, gpu):
    def lines(name):
        with open(os.path.join(folder, gpu, "bf16", f"{name}.txt")) as file:
            return [line.split() for line in file][:OF_EACH_GPU]
    def rows(name):  # floats, of which a bf16 is the first half
        return ["".join(number[:4] for number in line) for line in lines(name)]
    def floats(name):
        return [f"{int(line[0], 2):08x}" for line in lines(name)]
    return {"a": rows(f"a_{gpu}_bf16"), "b": rows(f"b_{gpu}_bf16"),
            "c": floats(f"c_{gpu}_fp32"), "d": floats(f"d_{gpu}_fp32")}


def main():
    if len(sys.argv) != 2 or not os.path.isdir(sys.argv[1]):
        sys.exit(__doc__)
    with open(FIXTURE) as file:
        before = json.load(file)
    r = random.Random(1)
    fixture = {"note": NOTE}
    for generation in ("Ampere", "Hopper"):
        tiles = [t for t in before[generation.lower()] if t["kind"] != "zeros"]
        tiles += [tile_with_zeros(r, i) for i in range(TILES_WITH_ZEROS)]
        fixture[generation.lower()] = [{**t, "D": multiplied(t, generation)} for t in tiles]
    fixture["measured"] = {gpu: measured(sys.argv[1], gpu) for gpu in GPUS}
    with open(FIXTURE, "w") as file:
        json.dump(fixture, file, indent=0)
        file.write("\n")


if __name__ == "__main__":
    main()
