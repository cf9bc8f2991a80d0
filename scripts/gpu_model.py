#!/usr/bin/env python3
"""How long each kernel of a training step would take on an H200, computed from its machine code: no GPU is needed, and
none has been asked. `make gpu-model` builds what this reads.

What is known of a launch, and from where:

  launches     how many, grid, block, shared memory: the trainer itself, at true size, over the rehearsal's stand-in of
               CUDA's runtime
  accesses     how often each line of PTX runs, sectors, turns of banks: six blocks of each launch, run on the CPU
               (ptx/count.h)
  slots        instructions, loops and pipes: ptxas' machine code for sm_90 (scripts/sass.py). How often a block of
               instructions runs is known from its accesses and its lines: machine code and PTX name the same ones, with
               the lines that called them
  occupancy    registers and shared memory: cuobjdump, CUDA's rules

Each resource gives a time that the launch cannot be shorter than:

  issue        slots of the four schedulers of a multiprocessor
  tensor, wgmma, fma, integer, mufu, fp64   cycles of a pipe
  L1           turns of shared memory and of L1
  latency      the slowest warp of a block alone, instruction by instruction, times the waves of blocks
  L2, memory   bytes of all sectors, those of TMA's boxes at a rate of their own; bytes of each array once
               where it is read and once where it is written
  launch       the gap between two kernels

The busiest multiprocessor counts: blocks are whole. The prediction is (sum of t^p)^(1/p) over these times: what is near
the longest adds to it. p comes from kernels of others whose speed is published; those that were held out say how far
the sum can be trusted (--calibrate, docs/gpu_model.md). The binding term is the longest.

usage: scripts/gpu_model.py [--json=FILE] [--only=TEXT] FOLDER TRAIN
       scripts/gpu_model.py --calibrate FOLDER
       scripts/gpu_model.py [--measured=PROFILE.json] --table FILE.json
  FOLDER       of *.cubin, one for each unit of kernels
  TRAIN        the rehearsal's trainer
  --json       everything, to a file
  --only       the models with this in their names
  --calibrate  FOLDER has kernels of others as cubins; prints predicted and published
  --table      the tables of such a file, as results/gpu_model.md has them
  --measured   with a column of what scripts/gpu_profile.py has measured
"""
import glob
import json
import math
import os
import re
import subprocess
import tempfile
from collections import Counter, defaultdict
from typing import NamedTuple

import gpu_calibration
import sass
from common import ROOT, ended, parser_of, read, refuse, write_whole

# What the hardware is, and who says so. None of it is changed by a commit that changes a kernel.
CONSTANTS = {
    "multiprocessors": (132, "H100 SXM: NVIDIA H100 Tensor Core GPU Architecture (whitepaper), table 3"),
    "clock": (1.755e9, "cycles a second under load. 1.83e9 is what 989 TFLOPS of bf16 mean (132 * 4096 a clock), and "
              "llm.c's llmc/mfu.h; the PCIe card was seen at 1.755e9 and below: chipsandcheese.com, Nvidia's H100: "
              "Funny L2, and Tons of Bandwidth"),
    "peak": (989.4e12, "bf16, dense: NVIDIA H100 datasheet"),
    "memory": (4.8e12 * 0.9, "bytes a second of an H200 by its datasheet, 3.35e12 of an H100, where accesses of 16 "
               "bytes come near it (yencal.github.io, GPU memory throughput optimization, H100): 0.9 of it is taken"),
    "l2": (5.5e12, "bytes a second: 5.5 to 6e12 read on an H100 PCIe (chipsandcheese.com, as above); 3.6e12 copied on "
           "an SXM (a public study of micro-benchmarks, CUDA Performance Study - NVIDIA H100 SXM5)"),
    "boxes": (132 * 64 * 1.755e9, "bytes a second of what TMA copies: 64 a clock for each multiprocessor, the width of "
              "its way to L2. It was chosen for the twelve products by wgmma in GPT-2's step that an H200 has measured "
              "(60a8034, results/gpu_profile.json): 5.5e12 makes their sum 63 % too long, 10e12 20 %, this 6 %. Those "
              "of the hybrid were held out"),
    "latency of memory": (sass.GLOBAL, "cycles: 570.5 by pointer chasing (CUDA Performance Study - NVIDIA H100 SXM5)"),
    "latency of shared memory": (sass.SHARED, "cycles: 28.6 (the same study); 29 in arXiv 2402.13499"),
    # (The two figures of arXiv 2402.13499 are from memory: nobody has looked them up again.)
    "latency of mma": (sass.LATENCY["tensor"], "cycles of m16n8k16 into floats: 33 on A100 and on H100, arXiv "
                       "2402.13499, section on tensor cores"),
    "rate of mma": (6.4 / 8, "mma.sync reaches 63 % of what wgmma does on an H100 (arXiv 2402.13499): 2576 of 4096 "
                    "operations a clock, so 6.4 cycles of a quarter for m16n8k16 instead of A100's 8"),
    "launch": (1.5e-6, "seconds from one kernel's end to the next one's begin in one stream or graph: about 1.3 to 2 "
               "in NVIDIA's blog on CUDA graphs (Getting Started with CUDA Graphs)"),
    "p": (2.3, "how near terms add up: the one constant that is fitted, to the two kernels of gpu_calibration.py that "
          "are marked so"),
}
C = {name: value for name, (value, _) in CONSTANTS.items()}
TERMS = ["issue", "tensor", "wgmma", "fma", "integer", "mufu", "fp64", "L1", "latency", "L2", "memory", "launch"]


def combined(terms):
    """Seconds, of the times that each resource alone would take."""
    longest = max(terms.values())
    return longest * sum((t / longest) ** C["p"] for t in terms.values()) ** (1 / C["p"])


def times_of(blocks, warps, at_once, pipes, turns, alone, l2_bytes, box_bytes, memory_bytes):
    """The terms of a launch, in seconds. A block's: slots and cycles of pipes of all its warps, turns; a warp's: cycles
    alone."""
    second = 1 / C["clock"]
    rounds = math.ceil(blocks / C["multiprocessors"])  # blocks that the busiest multiprocessor runs
    terms = {pipe: rounds * cycles / 4 * second for pipe, cycles in pipes.items() if pipe in TERMS}
    if "tensor" in terms:
        terms["tensor"] *= C["rate of mma"]
    terms["L1"] = rounds * turns * second
    terms["latency"] = math.ceil(rounds / max(at_once, 1)) * alone * second
    terms["L2"] = l2_bytes / C["l2"] + box_bytes / C["boxes"]
    terms["memory"], terms["launch"] = memory_bytes / C["memory"], C["launch"]
    return terms


# ---- how often each block of instructions runs

def executions(function, counted, ran={}):
    """For each block of a function how often a warp runs it. `counted` has how often it runs accesses, by kind and line
    of the source; `ran` how often it runs lines, after a 2, or a 3 where that is a mean over blocks of PTX. What is
    known of a block, the first that there is:

    0   accesses whose line stands in one loop. Accesses of one kind on one line run equally often
    1   accesses whose line stands in several loops, as where ptxas has unrolled one: those in the innermost have what
        is left when the others have run once
    2   lines of its instructions that stand in one block of PTX, or in several that run equally often
    3   the other lines
    4   accesses whose lines do not meet, as ptxas names any of those around a wgmma: they share what is left
        the block before it

    The middle one counts where these disagree. ptxas adds functions behind a kernel's own code: they run as often as
    they are called, and those for what a division or a root seldom needs, denormals or infinities, never.
    """
    sites, found = defaultdict(list), defaultdict(list)
    for n, block in enumerate(function.blocks):
        for i in block.instructions:
            if i.guard != "PT" and (kind := sass.kind_of(i.opcode, 1)):  # (@!PT never runs)
                sites[kind, i.line if (kind, i.line) in counted else None].append(n)
            if i.line in ran:
                found[n].append(ran[i.line])
    left = defaultdict(float)
    for (kind, line), times in counted.items():
        left[kind] += times if (kind, line) not in sites else 0
    for (kind, line), where in sites.items():
        if line is None:
            for n in where:
                found[n].append((4, left[kind] / len(where)))
            continue
        loops = {function.blocks[n].loops for n in where}
        inside = [n for n in where if len(function.blocks[n].loops) == max(map(len, loops))]
        outside = len(where) - len(inside)
        each = min(1, counted[kind, line] / outside) if outside else 0
        for n in where:
            times = (counted[kind, line] - each * outside) / len(inside) if n in inside else each
            found[n].append((int(len(loops) > 1), times))
    times = []
    for n in range(len(function.blocks)):
        best = sorted(t for rank, t in found[n] if rank == min(found[n])[0]) or times[-1:] or [1]
        times.append(best[len(best) // 2])
    for first, end, callers, seldom in function.called:
        for n in callers if seldom else ():
            times[n] = 0
        for n in range(first, end):
            times[n] = sum(times[caller] for caller in callers)
    return times


def cycles_alone(function, times):
    """Of a warp that runs each block so often. What a loop runs in most of its rounds goes round as one piece, the rest
    by itself; the rounds are those of its block with most slots."""
    alone, in_bodies, members = 0.0, set(), defaultdict(list)
    for n, block in enumerate(function.blocks):
        for loop in block.loops[-1:]:
            members[loop].append(n)
    for blocks in members.values():
        rounds = max((times[n] * len(function.blocks[n].instructions), times[n]) for n in blocks)[1]
        body = [n for n in blocks if times[n] > rounds / 2]
        in_bodies.update(body)
        alone += rounds * sass.cycles_alone([i for n in body for i in function.blocks[n].instructions])
    for n, block in enumerate(function.blocks):
        if n not in in_bodies and times[n] > 0:
            alone += times[n] * sass.Warp().run(block.instructions)
    return alone


def work_of(function, counted, ran={}, warps=1, who={}):
    """Of an average one of a block's warps slots and pipes' cycles; of the slowest cycles alone; and the innermost loop
    with the most slots. `who` has the warps that run a line: the first, and one more than the last."""
    times = executions(function, counted, ran)
    pipes, slots, runners = defaultdict(float), defaultdict(float), []
    for n, block in enumerate(function.blocks):
        for i in block.instructions:
            pipe, cycles = i.pipe
            pipes["issue"] += times[n]
            pipes[pipe] += times[n] * cycles
        for loop in block.loops[-1:]:
            slots[loop] += times[n] * len(block.instructions)
        known = Counter(who[i.line] for i in block.instructions if i.line in who)
        runners.append(known.most_common(1)[0][0] if known else (0, warps))
    alone = max(cycles_alone(function, [t * warps / (last - first) if first <= warp < last else 0
                                        for t, (first, last) in zip(times, runners)])
                for warp in {first for first, _ in runners})
    loop = {}
    if slots:  # a round of the outermost loop around what takes most, with the rounds of the loops inside
        main = max(slots, key=slots.get)
        outermost = next(block.loops[0] for block in function.blocks if block.loops[-1:] == (main,))
        inside = [(times[n], block) for n, block in enumerate(function.blocks) if outermost in block.loops]
        rounds = (max((t for t, block in inside if block.loops == (outermost,)), default=0) or
                  max(t for t, _ in inside) or 1)
        ran = [(t / rounds, i) for t, block in inside for i in block.instructions]
        loop = {"slots": sum(t for t, _ in ran), "mma": sum(t for t, i in ran if i.pipe[0] in ("tensor", "wgmma")),
                "share": sum(t for t, _ in ran) * rounds / pipes["issue"]}
    return pipes, alone, loop


# ---- what was counted

def annotated(path):
    """For each line of a kernel's C++ the kind of access, the line of its source, of wgmma the columns, and its basic
    block. And for each line of the source the basic blocks that it stands in. A basic block is known by the line of the
    C++ where it begins (0: the first)."""
    lines, source, begun, blocks = {}, "", 0, defaultdict(set)
    for number, text in enumerate(read(path).splitlines(), 1):
        code, _, comment = text.partition("// ")
        if "passed(t, " in code:
            begun = number
        if not comment:
            continue
        if code.strip():
            opcode = re.sub(r"^@!?%\w+\s+", "", comment).split(" ")[0]
            columns = re.search(r"m64n(\d+)k16", opcode)
            lines[number] = (sass.kind_of(opcode, 2), source, int(columns[1]) if columns else 0, begun)
            blocks[source].add(begun)
        else:
            source = comment
    return lines, blocks


def union(ranges):
    """Groups of ranges that overlap, each as (bytes that it spans, bytes that were moved)."""
    groups = []
    for first, last, moved in sorted(ranges):
        if groups and first < groups[-1][1]:
            groups[-1][1] = max(groups[-1][1], last)
            groups[-1][2] += moved
        else:
            groups.append([first, last, moved])
    return [(last - first, moved) for first, last, moved in groups]


# What is modelled: flags, and the runs whose launches are added up, each so many times: more flags, and whether blocks
# run. (Two steps less one are a step without what a run begins and ends with.)
MODELS = {
    "GPT-2 124M, bf16, B 32, T 1024": ("--preset=gpt2-124m --batch=32", [
        (1, "--steps=2", True), (-1, "--steps=1", False)]),
    "8 layers of P2's 2B hybrid, bf16, B 4, T 4096": ("--preset=p2-2b-hybrid --layers=8 --batch=4", [
        (1, "--steps=2", True), (-1, "--steps=1", False)]),
    "a layer of P1's 15B-A2B, bf16, B 4, T 4096": ("--preset=p1-15a2b --layers=1 --batch=4", [
        (1, "--steps=2", True), (-1, "--steps=1", False)]),
    "2 layers of width 2048 with GatedNorm and G1, bf16, B 4, T 4096": (
        "--hidden=2048 --heads=16 --kv-heads=8 --head-dim=128 --ffn-hidden=6144 --layers=2 --batch=4 --context=4096 "
        "--norm=gated --attn=g1", [(1, "--steps=2", True), (-1, "--steps=1", False)]),
}
OF_ALL = "--device=cuda --precision=bf16 --warmup=1 --sample-tokens=0 --val-batches=1 --data=self"


def launches_of(train, flags, runs):
    """The launches of a step, each with what it does."""
    times, described = defaultdict(int), {}
    for weight, more, with_blocks in runs:
        with tempfile.TemporaryDirectory(prefix="gpu_model_") as folder:
            counts = os.path.join(folder, "counts")
            command = [train, *f"{OF_ALL} {flags} {more}".split()]
            environment = {"PTX_COUNT": counts, "PTX_MEMORY": "60000", "PTX_COUNT_BLOCKS": "" if with_blocks else "0"}
            ended = subprocess.run(command, env=os.environ | environment, cwd=ROOT, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True)
            if ended.returncode:
                refuse(f"{' '.join(command)}: " + " | ".join(ended.stdout.strip().splitlines()[-6:]))
            for launch in map(json.loads, read(counts).splitlines()):
                times[launch["call"]] += weight * launch["times"]
                if with_blocks:
                    described[launch["call"]] = launch
    # (Below 0 is the product that matmul_peak repeats for a fifth of a second: more often where no blocks run.)
    times = {call: n for call, n in times.items() if n > 0}
    unknown = times.keys() - described.keys()
    if unknown:
        refuse(f"{len(unknown)} launches were seen in no run whose blocks ran")
    return [described[call] | {"times": n} for call, n in times.items()]


def plain(names):
    text = subprocess.run(["c++filt", "-p"], input="\n".join(names), capture_output=True, text=True).stdout
    def short(name):
        name = (re.sub(r"gated(_nvcc)?::", "", name).replace("(Layout)0", "nt").replace("(Layout)1", "nn")
                .replace("(Layout)2", "tn"))
        return re.sub(r"\(\w+\)(\d)", r"\1", name).replace(" ", "")
    return dict(zip(names, map(short, text.splitlines())))


class Line(NamedTuple):
    """What the blocks that ran did in a line of a kernel's C++ (ptx/count.cpp)."""
    number: int
    space: str  # whose memory: global or shared; or warp: runs are a warp's, first and last are warps
    write: int
    runs: int
    bytes: int
    sectors: int
    turns: int
    first: int  # address
    last: int  # one more


def runs_of_warp(launch, lines, blocks_of, warps):
    """What executions() and work_of() want to know of an average one of a block's warps: how often it runs accesses, by
    kind and line of the source, and how often lines; and who runs a line. lines, blocks_of: annotated()."""
    counted, ran, who = defaultdict(float), {}, {}
    of_block = {0: (1, (0, warps))}  # a basic block's runs, and its first warp and one more than the last
    for line in launch["lines"]:
        runs = line.runs / launch["sampled"] / warps
        kind, source, _, _ = lines.get(line.number, (None, "", 0, 0))
        if line.space == "warp":
            of_block[line.number] = (runs, (line.first, line.last))
        if (line.space == "warp" or kind not in ("ldmatrix", "async", "barrier", "mma", "wgmma", "shuffle") or
                (kind == "async" and line.space == "global")):
            # (ptxas names any of the lines around a wgmma: those of a kernel share what was counted)
            counted[kind, "" if kind == "wgmma" else source] += runs
    for kind, source, _, block in lines.values():
        if kind and kind != "wgmma":  # (what never ran was not counted)
            counted[kind, source] += of_block.get(block, (0,))[0] if kind == "division" else 0
    for source, blocks in blocks_of.items():
        runs = [of_block.get(block, (0,))[0] for block in blocks]
        ran[source] = (2 if len(set(runs)) == 1 else 3, sum(runs) / len(runs))
        if begun := [of_block[block][1] for block in blocks if block in of_block]:
            who[source] = (min(first for first, _ in begun), max(last for _, last in begun))
    return counted, ran, who


def predict(launch, function, resources):
    blocks = math.prod(launch["grid"])
    threads = math.prod(launch["block"])
    warps = -(-threads // 32)
    launch = launch | {"lines": [Line(*line) for line in launch["lines"]]}
    lines, blocks_of = annotated(launch["file"])
    turns, ranges, sectors, boxes = 0, ([], []), 0, 0
    for line in launch["lines"]:
        kind, _, columns, _ = lines.get(line.number, (None, "", 0, 0))
        turns += line.turns / launch["sampled"]
        if kind == "wgmma":  # a quarter of 64 x 16 of A and so many columns x 16 of B, in bf16
            turns += (64 + columns) * 16 * 2 / 128 / 4 * line.runs / launch["sampled"]
        if line.space == "global":
            moved = line.sectors * 32 / launch["sampled"] * blocks
            sectors += moved
            boxes += moved if kind == "box" else 0
            ranges[line.write].append((line.first, line.last, moved))
    shared = resources.shared + launch["dynamic"]
    at_once = sass.blocks_at_once(resources.registers, threads, shared)
    counted, ran, who = runs_of_warp(launch, lines, blocks_of, warps)
    pipes, alone, loop = work_of(function, counted, ran, warps, who)
    memory = sum(min(span, moved) for read_or_written in ranges for span, moved in union(read_or_written))
    terms = times_of(blocks, warps, at_once, {p: c * warps for p, c in pipes.items()}, turns, alone, sectors - boxes,
                     boxes, memory)
    in_shared = [line for line in launch["lines"] if line.space == "shared"]
    least = sum(max(line.bytes / 128, line.runs if line.bytes else 0) for line in in_shared)
    return {"launches": launch["times"], "grid": launch["grid"], "threads": threads, "registers": resources.registers,
            "shared": shared, "spilled": resources.stack, "blocks at once": at_once, "warps at once": at_once * warps,
            "waves": blocks / (C["multiprocessors"] * max(at_once, 1)), "loop": loop,
            "slots a warp": pipes["issue"], "L2 bytes": sectors, "of boxes": boxes, "memory bytes": memory,
            "turns of banks over the least": sum(line.turns for line in in_shared) / least if least else None,
            "terms": terms, "bound by": max(terms, key=terms.get), "seconds": combined(terms)}


def model(folder, launches):
    wanted, code, resources = {launch["kernel"] for launch in launches}, {}, {}
    for cubin in sorted(glob.glob(os.path.join(folder, "*.cubin"))):
        here = sass.resources(cubin)
        if wanted & here.keys():
            resources |= here
            code |= {f.name: f for f in sass.disassembled(cubin) if f.name in wanted}
    if missing := wanted - code.keys():
        refuse(f"{min(missing)}: in none of {folder}/*.cubin: they are of another build")
    rows = [{"kernel": launch["kernel"]} | predict(launch, code[launch["kernel"]], resources[launch["kernel"]])
            for launch in launches]
    names = plain([row["kernel"] for row in rows])
    for row in rows:
        row["kernel"] = names[row["kernel"]]
    return sorted(rows, key=lambda row: -row["seconds"] * row["launches"])


# ---- kernels of others

def turns_in_order(instructions):
    """Turns of L1 of accesses whose addresses stand side by side: 128 bytes a turn."""
    turns = 0
    for i in instructions:
        if i.opcode.startswith(("LDS", "STS", "LDG", "STG", "LDGSTS", "RED")):
            bytes_of_lane = (16 if ".128" in i.opcode or ".4" in i.opcode else
                             8 if ".64" in i.opcode or ".2" in i.opcode else 4)
            turns += bytes_of_lane // 4 * (2 if i.opcode.startswith("LDGSTS") else 1)
    return turns


def calibrate(folder):
    """Each of gpu_calibration's kernels: what it is, published and predicted seconds. Only its main loop is counted."""
    rows = []
    for (cubin, text, what, source, operations, published, blocks, threads, shared, opcode, of_one, turns,
         fitted) in gpu_calibration.ROWS:
        path = os.path.join(folder, cubin)
        function = next(f for f in sass.disassembled(path) if text in f.name)
        resources = sass.resources(path)[function.name]
        bodies = [[i for b in function.blocks if n in b.loops for i in b.instructions]
                  for n in range(len(function.loops))]
        # the innermost
        body = max(bodies, key=lambda body: (sum(i.opcode.startswith(opcode) for i in body), -len(body)))
        warps = -(-threads // 32)
        ones = sum(i.opcode.startswith(opcode) for i in body)
        rounds = operations / of_one / (blocks * warps) / ones
        pipes = defaultdict(float)
        for i in body:
            pipes["issue"] += rounds * warps
            pipes[i.pipe[0]] += rounds * warps * i.pipe[1]
        turns_of_round = turns_in_order(body) if turns is None else turns
        terms = times_of(blocks, warps, sass.blocks_at_once(resources.registers, threads, resources.shared + shared),
                         pipes, rounds * warps * turns_of_round, rounds * sass.cycles_alone(body), 0, 0, 0)
        rows.append({"kernel": what, "source": source, "fitted": fitted, "slots": len(body), "of them": ones,
                     "terms": terms, "published": operations / published, "predicted": combined(terms)})
    return rows


def calibration_table(rows):
    lines = ["| kernel | | main loop, slots/products | bound by | published, µs | predicted, µs | off by |",
             "|---|---|--:|---|--:|--:|--:|"]
    for row in rows:
        terms = sorted(row["terms"].items(), key=lambda term: -term[1])[:3]
        off = row["predicted"] / row["published"] - 1
        lines.append(f"| {row['kernel']} | {'fitted' if row['fitted'] else 'held out'} | "
                     f"{row['slots']}/{row['of them']} | {', '.join(f'{name} {t * 1e6:.0f}' for name, t in terms)} | "
                     f"{row['published'] * 1e6:.0f} | {row['predicted'] * 1e6:.0f} | {100 * off:+.0f} % |")
    return "\n".join(lines)


HEAD = ("| kernel | launches | grid × threads | waves | warps at once | registers | main loop, slots/mma | bound by | "
        "each, µs | all, ms |")


def measured_beside(rows, profile):
    """For each row the seconds that its launches took together. A profile knows launches by kernel, grid and threads:
    where several rows have the same, the shortest launches belong to the row whose are computed as the shortest."""
    left = {(row["kernel"], *row["grid"], row["threads"]): list(row["us"]) for row in profile}
    found = {}
    for row in sorted(rows, key=lambda row: row["seconds"]):
        each = left.get((row["kernel"], *row["grid"], row["threads"]), [])
        found[id(row)] = 1e-6 * sum(each[:row["launches"]]) if len(each) >= row["launches"] else None
        del each[:row["launches"]]
    return [found[id(row)] for row in rows]


def table(rows, profile=None, least=0.005):
    """Kernels that take less than `least` of the whole are one line."""
    def seconds(row):
        return row["seconds"] * row["launches"]
    total = sum(map(seconds, rows))
    small = [row for row in rows if seconds(row) < least * total]
    measured = dict(zip(map(id, rows), measured_beside(rows, profile))) if profile else {}
    def of_measured(*rows):
        known = [measured[id(row)] for row in rows if measured.get(id(row)) is not None]
        each = f" {1e6 * known[0] / rows[0]['launches']:.0f} |" if len(rows) == 1 and known else " |"
        return each + (f" {1e3 * sum(known):.2f} |" if known else " |") if profile else ""
    lines = [HEAD + (" measured, µs | all, ms |" if profile else ""),
             "|---|--:|---|--:|--:|--:|---|---|--:|--:|" + ("--:|--:|" if profile else "")]
    for row in rows:
        if row in small:
            continue
        loop = row["loop"]
        slots = f"{loop['slots']:.0f}" + (f"/{loop['mma']:.0f}" if loop["mma"] else "") if loop else ""
        terms = sorted(row["terms"].items(), key=lambda term: -term[1])[:2]
        bound = ", ".join(f"{name} {t * 1e6:.0f}" for name, t in terms)
        lines.append(f"| {row['kernel'].split('(')[0]} | {row['launches']} | "
                     f"{'·'.join(map(str, row['grid']))} × {row['threads']} | {row['waves']:.2f} | "
                     f"{row['warps at once']} | {row['registers']} | {slots} | "
                     f"{bound} | {row['seconds'] * 1e6:.0f} | {seconds(row) * 1e3:.2f} |" + of_measured(row))
    lines.append(f"| {len(small)} others | {sum(row['launches'] for row in small)} | | | | | | | | "
                 f"{sum(map(seconds, small)) * 1e3:.2f} |" + of_measured(*small))
    longest = sum(row["terms"][row["bound by"]] * row["launches"] for row in rows)
    lines.append(f"| all, *computed* | {sum(row['launches'] for row in rows)} | | | | | | "
                 f"the longest terms alone: {longest * 1e3:.0f} ms | | {total * 1e3:.2f} |" + of_measured(*rows))
    return "\n".join(lines)


def errors(rows, profile):
    """How far the kernels that take at least a 200th of what was measured are off, those by wgmma and the others."""
    measured = [(row["kernel"], row["seconds"] * row["launches"] / each, each)
                for row, each in zip(rows, measured_beside(rows, profile)) if each]
    total, lines = sum(each for _, _, each in measured), []
    for kind in ("wgmma", ""):
        off = [(100 * (ratio - 1), each) for name, ratio, each in measured
               if ("wgmma" in name) == bool(kind) and each >= 0.005 * total]
        if not off:
            continue
        near = sum(abs(percent) < 30 for percent, _ in off)
        sum_of = sum(percent * each for percent, each in off) / sum(each for _, each in off)
        lines.append(f"Of {len(off)} kernels {'by wgmma' if kind else 'without it'} {near} are off by less than 30 %, "
                     f"all from {min(off)[0]:+.0f} to {max(off)[0]:+.0f} %, and their sum by {sum_of:+.0f} %.")
    return "\n".join(lines)


PAGE = """# Kernels of a step, computed

`make gpu-model` writes this page, from machine code and without a GPU: [what it knows, and how far it can be
trusted](../docs/gpu_model.md). "Each" is one launch; `slots/mma` are those of a round of the main loop. With experts
all tokens are number 0, so that the same eight have every token: as many rows as if they were spread, in fewer tiles
that are not full."""


def page(models, profiles={}):
    return "\n\n".join([PAGE] + [f"## {name}\n\n{table(rows, profiles.get(name))}" +
                                 (f"\n\n{errors(rows, profiles[name])}" if name in profiles else "")
                                 for name, rows in models.items()])


def main():
    parser = parser_of(__doc__)
    parser.add_argument("--json")
    parser.add_argument("--only", default="")
    parser.add_argument("--calibrate", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--measured")
    parser.add_argument("folder")
    parser.add_argument("train", nargs="?")
    arguments = parser.parse_args()
    if arguments.table:
        profiles = json.loads(read(arguments.measured))["models"] if arguments.measured else {}
        print(page(json.loads(read(arguments.folder))["models"], profiles))
        return
    for name in ("nvdisasm", "cuobjdump"):
        if not sass.tool(name):
            refuse(f"no {name}: CUDA's toolkit has it, and pip install triton brings one")
    if arguments.calibrate:
        print(calibration_table(calibrate(arguments.folder)))
        return
    if not arguments.train:
        refuse("expected FOLDER TRAIN")
    result = {}
    for name, (flags, runs) in MODELS.items():
        if arguments.only not in name:
            continue
        rows = model(arguments.folder, launches_of(arguments.train, flags, runs))
        print(table(rows), flush=True)
        result[name] = rows
    if arguments.json:
        write_whole(arguments.json, json.dumps({"device": "computed, no GPU", "constants": CONSTANTS, "models": result},
                                               indent=1) + "\n")


if __name__ == "__main__":
    ended(main)
