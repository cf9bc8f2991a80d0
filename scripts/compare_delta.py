#!/usr/bin/env python3
"""Times the gated delta rule of this project beside the chunked PyTorch function of transformers, on this CPU.

usage: pip install torch transformers && make build/release/bench && scripts/compare_delta.py
(--python names a Python that has them)

Both: fp32, 4 sequences of 2048 tokens, 16 key heads and 32 value heads of 128, forward and backward for all inputs.
transformers repeats the keys for every value head before its function is called, so it gets 32 heads here; its norm of
q and k is left out. The two run in turns, --rounds times, and each keeps its best. Needs 10 GiB of memory.
"""
import os
import re
import time
from argparse import SUPPRESS

from common import ROOT, refuse
from side_by_side import environment, options_of, output_of, parser_with

B, T, KEY_HEADS, VALUE_HEADS, D = 4, 2048, 16, 32, 128
BENCH = os.path.join(ROOT, "build/release/bench")
ROW = re.compile(rf"^{B} {T} {KEY_HEADS} {VALUE_HEADS} {D} {D}( in chunks)? .* (\d+) \+ (\d+) ms$", re.MULTILINE)


def time_torch():
    """Prints milliseconds of forward and backward."""
    import torch
    from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule
    torch.manual_seed(0)
    q, k, v = (torch.randn(B, T, VALUE_HEADS, D) for _ in range(3))
    q, k = (torch.nn.functional.normalize(x, dim=-1) for x in (q, k))
    g, beta = -torch.rand(B, T, VALUE_HEADS) / 10, torch.rand(B, T, VALUE_HEADS)
    inputs = [x.requires_grad_() for x in (q, k, v, g, beta)]
    for _ in range(2):
        start = time.perf_counter()
        o, _ = torch_chunk_gated_delta_rule(*inputs)
        middle = time.perf_counter()
        torch.autograd.grad(o.sum(), inputs)
        print(f"{1e3 * (middle - start):.0f} + {1e3 * (time.perf_counter() - middle):.0f} ms", flush=True)


def main():
    parser = parser_with(__doc__, 2, "torch and transformers")
    parser.add_argument("--time-torch", action="store_true", help=SUPPRESS)
    options = options_of(parser)
    if options.time_torch:
        return time_torch()
    if not os.access(BENCH, os.X_OK):
        refuse(f"{BENCH}: not found: run make build/release/bench first")
    times, variables = {}, environment(options.threads)
    for _ in range(options.rounds):
        rows = [(f"gated.cu,{chunks or ' token by token'}", *map(int, ms))
                for chunks, *ms in ROW.findall(output_of([BENCH, "gated-delta"], variables))]
        peer = output_of([options.python, os.path.abspath(__file__), "--time-torch"], variables)
        rows += [("transformers, in chunks", *map(int, ms)) for ms in re.findall(r"(\d+) \+ (\d+) ms", peer)]
        for name, forward, backward in rows:
            times.setdefault(name, []).append((forward, backward))
            print(f"{name:28} {forward:6} + {backward:6} ms", flush=True)
    best = {name: [min(ms) for ms in zip(*all_times)] for name, all_times in times.items()}
    theirs = sum(best["transformers, in chunks"])
    for name, (forward, backward) in best.items():
        print(f"best: {name:28} {forward:6} + {backward:6} ms, "
              f"{theirs / (forward + backward):5.2f}x transformers' speed")


if __name__ == "__main__":
    main()
