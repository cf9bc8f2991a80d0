#!/usr/bin/env python3
"""Times PyTorch's bf16 products and causal attention on a GPU in the shapes that `make bench` has measured there.

usage: make bench && pip install torch && scripts/torch_kernels.py [build/bench_gpu.json]
(or gpu-check's bench.json)

Prints a row for each, TFLOP/s here, by PyTorch, and the ratio, and adds PyTorch's to the rows of the file. A product is
`a @ b`, whose result PyTorch rounds to bf16 where ours stays fp32. Attention is scaled_dot_product_attention, forward,
and the backward alone. Both count the multiplications that a causal mask leaves: two products forward, five backward.
"""
import re

from common import parser_of, read_bench, refuse, write_bench

try:
    import torch
    import torch.nn.functional as F
except ImportError as error:
    refuse(f"{error}: pip install torch")

PRODUCT = re.compile(r"bf16 (nt|nn|tn) (\d+)x(\d+)x(\d+)$")
ATTENTION = re.compile(r"bf16 attention (\d+) (\d+) (\d+) (\d+) (\d+) $")  # without window, sinks and gates


def seconds_of(function, turns=5, calls=10):
    """Of a call, the best of several turns. The GPU sleeps until all calls of a turn have arrived: Python is slower
    than it."""
    best = float("inf")
    for turn in range(1 + turns):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(20_000_000)
        begin.record()
        for _ in range(calls):
            function()
        end.record()
        end.synchronize()
        if turn > 0:
            best = min(best, 1e-3 * begin.elapsed_time(end) / calls)
    return best


def random(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def time_product(layout, M, N, K):
    """FLOP/s of C (M,N) = a b, whose contraction lies along the rows of both (nt), of the left (nn) or down both
    (tn)."""
    left = random(K, M).T if layout == "tn" else random(M, K)
    right = random(N, K).T if layout == "nt" else random(K, N)
    return 2 * M * N * K / seconds_of(lambda: left @ right)


def time_attention(B, T, H, KVH, D):
    """FLOP/s forward and backward."""
    q, k, v, dout = (random(B, heads, T, D).requires_grad_(n < 3) for n, heads in enumerate((H, KVH, KVH, H)))

    def forward():
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=H != KVH)

    out = forward()
    product = 2 * B * H * D * T * (T + 1) / 2
    return (2 * product / seconds_of(forward),
            5 * product / seconds_of(lambda: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True)))


def main():
    parser = parser_of(__doc__)
    parser.add_argument("bench", nargs="?", default="build/bench_gpu.json", help="[build/bench_gpu.json]")
    name = parser.parse_args().bench
    bench = read_bench(name)
    if bench.get("device") != "cuda":
        refuse(f"{name}: the benchmark of {bench.get('device')}, expected that of a GPU")
    if not torch.cuda.is_available():
        refuse(f"PyTorch {torch.__version__} sees no GPU")
    print(f"PyTorch {torch.__version__}, {torch.cuda.get_device_name()}")
    print(f"{'':46} {'TFLOP/s':>9} {'PyTorch':>9} {'ratio':>7}")

    def beside(row, what, theirs):
        ours = row.get(what + "gflops")
        if not isinstance(ours, (int, float)):
            refuse(f"{name}: {row['op']} has no {what}gflops")
        row[what + "pytorch_gflops"] = 1e-9 * theirs
        label = (row["op"] + " " + what).rstrip("_")
        print(f"{label:46} {1e-3 * ours:9.1f} {1e-12 * theirs:9.1f} {1e9 * ours / theirs:6.2f}x", flush=True)

    rows = [row for row in bench["rows"] if PRODUCT.match(row["op"]) or ATTENTION.match(row["op"])]
    if not rows:
        refuse(f"{name}: neither a product nor attention in it: did make bench end too early?")
    for row in rows:
        if product := PRODUCT.match(row["op"]):
            beside(row, "", time_product(product[1], *map(int, product.groups()[1:])))
        if shape := ATTENTION.match(row["op"]):
            for what, theirs in zip(("forward_", "backward_"), time_attention(*map(int, shape.groups()))):
                beside(row, what, theirs)
    write_bench(name, bench)


main()
