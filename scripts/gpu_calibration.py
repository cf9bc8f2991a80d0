"""Kernels of others whose speed on an H100 is published, for scripts/gpu_model.py --calibrate.

None of their code is here. docs/gpu_model.md says how each is compiled; the folder then holds naive.cubin, tiled.cubin,
fwd.cubin and bwd.cubin. A row: cubin, a text in the kernel's name, what, who published it, floating-point operations in
all, published operations a second, grid, threads, dynamic shared memory in bytes, what is counted in the main loop and
how many operations one of it makes of a warp, turns of L1 a round of the loop where the addresses are not in order, and
whether it was fitted (True) or held out (False).
"""
GEMMS = "waynehacking8/blackwell-tensorcore-kernels, results/bench.csv, NVIDIA H100 80GB HBM3"
FLASH = "FlashAttention-3 (arXiv 2407.08608), figures 5 and 6, bars of FlashAttention-2, H100 80GB SXM5, without a mask"


def gemm(n, block, tflops, name, turns, fitted):
    grid = (n // block) ** 2
    return (f"{name}.cubin", f"gemm_{name}", f"gemm_{name}, fp32, {n}", GEMMS, 2 * n**3, tflops * 1e12, grid,
            block * block, 0, "FFMA", 64, turns, fitted)


def flash(direction, head, T, tflops, tile, warps, shared, fitted):
    heads, batch = 2048 // head, 16384 // T
    operations = (4 if direction == "fwd" else 10) * T * T * head * heads * batch
    return (f"{direction}.cubin", f"traitsILi{head}E", f"FlashAttention-2 {direction}, heads of {head}, T {T}", FLASH,
            operations, tflops * 1e12, T // tile * heads * batch, 32 * warps, shared, "HMMA", 4096, None, fitted)


ROWS = [
    # 16 products a round: a row of A takes two lines, as a warp has two rows, one of B one
    gemm(8192, 16, 5.16, "naive", 48, False),
    gemm(4096, 16, 5.38, "naive", 48, False),
    # 32 products a round: eight reads of 16 bytes that all lanes share, 32 of a word, two writes, two reads of a line
    gemm(8192, 32, 9.17, "tiled", 44, True),
    gemm(2048, 32, 9.29, "tiled", 44, False),
    flash("fwd", 128, 16384, 370, 128, 4, 65536, True),
    flash("fwd", 128, 512, 309, 128, 4, 65536, False),
    flash("fwd", 64, 16384, 324, 128, 4, 49152, False),
    flash("fwd", 64, 512, 282, 128, 4, 49152, False),
    flash("bwd", 128, 16384, 322, 128, 8, 147456, False),
    flash("bwd", 128, 512, 214, 128, 8, 147456, False),
    flash("bwd", 64, 16384, 291, 128, 8, 147456, False),
    flash("bwd", 64, 512, 198, 128, 8, 147456, False),
]
