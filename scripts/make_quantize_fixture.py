#!/usr/bin/env python3
"""Makes tests/fixtures/quantize.json: what ml_dtypes and numpy say of kernels/quantize.cu; tests/test_quantize.cpp
compares.

usage: pip install ml_dtypes && scripts/make_quantize_fixture.py [FOLDER]     seconds

"roundings"   numbers rounded to a format of ml_dtypes, and read back: all 65536 of bfloat16, and a million random ones
"operations"  the four operations over random numbers, by numpy's float32 arithmetic and ml_dtypes's formats. Random
              numbers differ in size by up to 2^16, and every fifth row and every 37th block of 16 columns is zero, so
              that scales round, to 0 too.

Of each result its hash is stored, FNV-1a over the bits of its floats, every NaN being one NaN. Inputs are not stored:
both sides make them.
"""
import json

import ml_dtypes
import numpy as np

from common import write_fixture

LARGEST = {"e4m3": np.float32(448), "e2m1": np.float32(6)}
TYPES = {"e4m3": ml_dtypes.float8_e4m3fn, "e2m1": ml_dtypes.float4_e2m1fn}


def hash_of(x):
    bits = np.where(np.isnan(x), np.uint32(0x7FC00000), np.ascontiguousarray(x, np.float32).view(np.uint32))
    h = 0xCBF29CE484222325
    for word in bits.ravel().tolist():
        h = (h ^ word) * 0x100000001B3 & 2**64 - 1
    return f"{h:016x}"


def random_numbers(n, lowest, exponents):
    """Signs and mantissas of 24 bits are random, exponents too, from `lowest` upwards. (SplitMix64 of the index.)"""
    with np.errstate(over="ignore"):
        z = np.arange(1, n + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
        z = z ^ z >> np.uint64(31)
    exponent = np.uint64(127 + lowest) + (z >> np.uint64(24) & np.uint64(0xFF)) % np.uint64(exponents)
    bits = (z >> np.uint64(63)) << np.uint64(31) | exponent << np.uint64(23) | z & np.uint64(0x7FFFFF)
    return bits.astype(np.uint32).view(np.float32)


def rounded(x, format):
    """To the nearest of the format, saturating. (ml_dtypes overflows to NaN, and its E2M1 has none.)"""
    held = np.where(np.isnan(x), np.float32(0), np.clip(x, -LARGEST[format], LARGEST[format]))
    return np.where(np.isnan(x), x, held.astype(TYPES[format]).astype(np.float32))


def divided(x, scale):
    return np.divide(x, scale, out=x * np.float32(0), where=scale > 0)


def fp8(x):
    scale = np.abs(x).max() / LARGEST["e4m3"]
    return rounded(divided(x, scale), "e4m3") * scale


def nvfp4(x, amax):
    y = np.zeros_like(x)
    if amax == 0:
        return y
    shared = LARGEST["e4m3"] * LARGEST["e2m1"] / amax
    for first in range(0, x.shape[1], 16):
        block = x[:, first : first + 16]
        scale = rounded(np.abs(block).max(axis=1, keepdims=True) * shared / LARGEST["e2m1"], "e4m3")
        y[:, first : first + 16] = rounded(divided(block * shared, scale), "e2m1") * scale / shared
    return y


def rows(x, format):
    return np.concatenate([fp8(row) if format == "fp8" else nvfp4(row, np.abs(row).max())
                           for row in np.split(x, len(x))])


def weight(w, format):
    if format == "nvfp4":
        return nvfp4(w, np.abs(w).max())
    y = np.zeros_like(w)
    for r in range(0, w.shape[0], 128):
        for c in range(0, w.shape[1], 128):
            y[r : r + 128, c : c + 128] = fp8(w[r : r + 128, c : c + 128])
    return y


bfloat16 = (np.arange(65536, dtype=np.uint32) << np.uint32(16)).view(np.float32)
numbers = {"bfloat16": bfloat16, "random": random_numbers(1000000, -12, 22)}
matrix = random_numbers(150 * 300, -16, 16).reshape(150, 300).copy()
matrix[::5] = 0
for block in range(0, 150 * 19, 37):
    matrix[block // 19, block % 19 * 16 : block % 19 * 16 + 16] = 0
fixture = {
    "ml_dtypes": ml_dtypes.__version__,
    "roundings": {f: {name: hash_of(rounded(x, f)) for name, x in numbers.items()} for f in TYPES},
    "operations": {f: {"rows": hash_of(rows(matrix, f)), "weight": hash_of(weight(matrix, f))}
                   for f in ("fp8", "nvfp4")},
}
write_fixture("quantize.json", json.dumps(fixture, indent=1))
