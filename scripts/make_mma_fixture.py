#!/usr/bin/env python3
"""Makes the D of tests/fixtures/mma.json anew: what one bf16 instruction of a tensor core gives, by MMA-Sim's model
(arXiv 2511.10909).

usage: pip install torch mmasim==2.1.1 && scripts/make_mma_fixture.py [FOLDER]      CPU only, seconds

Tiles of A (16,16), B (16,8) and C (16,8) are those that the file has. Those of kind "zeros" are a third zeros of both
signs, beside large and tiny numbers. What stands there as "measured" no program can make anew: outputs of real GPUs,
the first 64 of each in the folder model_validation of github.com/north-numerical-computing/MATLAB-tensor-core (arXiv
2512.07004, BSD 2-Clause), as rows of A and columns of B beside one c and one d.
"""
import json
import os

import torch
from mmasim.nv_ptx import MMA

from common import ROOT, read, write_fixture


def tensor(text, shape, digits):
    numbers = [int(text[i:i + digits], 16) for i in range(0, len(text), digits)]
    bits = torch.tensor(numbers, dtype=torch.int64).reshape(shape)
    return (bits << 16 if digits == 4 else bits).to(torch.uint32).view(torch.float32)


def multiplied(tile, generation):
    A, B, C = tensor(tile["A"], (16, 16), 4), tensor(tile["B"], (16, 8), 4), tensor(tile["C"], (16, 8), 8)
    D = MMA(generation, "m16n8k16.f32.bf16.bf16.f32")(A.bfloat16(), B.bfloat16(), C)
    return "".join(f"{x:08x}" for x in D.view(torch.int32).to(torch.int64).flatten().bitwise_and(0xffffffff).tolist())


fixture = json.loads(read(os.path.join(ROOT, "tests/fixtures/mma.json")))
for generation in ("Ampere", "Hopper"):
    for tile in fixture[generation.lower()]:
        tile["D"] = multiplied(tile, generation)
write_fixture("mma.json", json.dumps(fixture, indent=0))
