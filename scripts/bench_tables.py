#!/usr/bin/env python3
"""The tables of docs/performance.md that `make bench` measures: writes them anew, each with machine and date.

usage: OPENBLAS_CORETYPE=... make bench && cp build/bench_cpu.json results/ && scripts/bench_tables.py [--check]
A table stands between <!-- bench PART --> and <!-- end -->. --check changes nothing, and fails where one would change.
"""
import os
import re

from common import ROOT, parser_of, read, read_bench, refuse, write_whole

PAGE = os.path.join(ROOT, "docs", "performance.md")
FILE = os.path.join(ROOT, "results", "bench_cpu.json")

# Of each part: how the names of its rows begin, its heading, and the cells after the name.
PARTS = {
    "training": ("training ", "| step | tokens/s | ms a step | beside plain |",
                 lambda row: [f"{row['tokens_per_s']:.0f}", f"{row['milliseconds']:.1f}",
                              f"{100 * row['cost']:+.1f} %"]),
    "matmul": ("matmul ", "| M×N×K | GFLOP/s | beside {peer} | of FMA peak |",
               lambda row: [f"{row['gflops']:.1f}", f"{row['ratio_to_peer']:.2f} ×",
                            f"{100 * row['share_of_peak']:.0f} %"]),
    "attention": ("attention ", "| B T H KVH D | forward GFLOP/s | backward GFLOP/s |",
                  lambda row: [f"{row['forward_gflops']:.1f}", f"{row['backward_gflops']:.1f}"]),
    "operations": ("", "| operation | GB/s | of copying |",
                   lambda row: [f"{row['gb_per_s']:.1f}", f"{100 * row['share_of_copy']:.0f} %"]),
}


def name_of(rest):
    """What is left of a row's name: flags, or words; nothing is the default model."""
    return f"`{' '.join(rest.split())}`" if "--" in rest else rest.strip() or "default model"


def table(bench, part):
    begin, heading, cells = PARTS[part]
    # Rows of operations have no common name: what has a rate in bytes and is not of bf16 is one.
    rows = [row for row in bench["rows"]
            if (row["op"].startswith(begin) if begin else "gb_per_s" in row and not row["op"].startswith("bf16 "))]
    if not rows:
        refuse(f"{FILE}: no row of {part}")
    peer = next((row["peer"] for row in rows if "peer" in row), "")
    machine = (f"{bench['cpu']}, {bench['threads']} threads, {bench['date']}: {bench['fma_peak_gflops']:.0f} GFLOP/s "
               f"of fused multiply-adds, a copy of memory at {bench['copy_gb_per_s']:.0f} GB/s.")
    return "\n".join([machine, "", heading.format(peer=peer), "|---" * (heading.count("|") - 1) + "|"] +
                     ["| " + " | ".join([name_of(row["op"][len(begin):]), *cells(row)]) + " |" for row in rows])


def main():
    parser = parser_of(__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    bench = read_bench(FILE)
    page = read(PAGE)
    fresh, count = re.subn(r"(<!-- bench (\w+) -->\n).*?(\n<!-- end -->)",
                           lambda m: m[1] + table(bench, m[2]) + m[3], page, flags=re.S)
    if count != len(PARTS):
        refuse(f"{PAGE}: {count} tables of the benchmark, expected {len(PARTS)}")
    if not check:
        write_whole(PAGE, fresh)
    elif fresh != page:
        refuse(f"{PAGE} is not what {FILE} holds: run scripts/bench_tables.py")


main()
