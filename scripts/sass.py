"""The machine code of a GPU's kernels as nvdisasm prints it: basic blocks, loops, what each instruction asks of the
GPU.

A warp scheduler issues one instruction a cycle, whatever it is: a slot. The pipes behind it take some instructions more
slowly: how many cycles a quarter of a multiprocessor is busy with one stands in PIPES, from the table of throughputs in
NVIDIA's programming guide ("Arithmetic Instructions", compute capability 9.0: results per clock of a multiprocessor;
32 lanes * 4 quarters / that).
"""
import os
import re
import subprocess
import sys
from typing import NamedTuple

from common import cuda_tool

# Pipe, cycles of a quarter, and the opcodes that go there; the first that fits. The rest goes to the integers' pipe.
PIPES = [
    ("tensor", 8, r"HMMA\.16816|IMMA|QMMA"),  # mma.sync as on A100: 2048 products and sums a clock of a multiprocessor
    ("tensor", 4, r"HMMA\.1688"),
    ("wgmma", 0, r"HGMMA|IGMMA|QGMMA"),  # by its shape: Instruction.pipe
    ("mufu", 8, r"MUFU|I2F|F2I|FRND|F2F\b|I2I|POPC|FLO|BREV"),  # 16 a clock
    ("fp64", 2, r"D(FMA|ADD|MUL|SETP)"),
    ("fma", 1, r"F(FMA|MUL|ADD)|HFMA2|HADD2|HMUL2"),  # 128 a clock
    ("fma", 2, r"IMAD|IDP"),  # 64 a clock, on half of the same pipe
    ("memory", 0, r"LD|ST|ATOM|RED|SHFL|UTMA|MATCH|CCTL|LDSM|SYNCS"),  # by the turns that its addresses need
    ("uniform", 2, r"U[A-Z]|R2UR|S2UR|VOTEU"),
    ("control", 1, r"BRA|EXIT|RET|CALL|BSSY|BSYNC|BAR|WARPSYNC|NOP|DEPBAR|MEMBAR|YIELD|JMP|BREAK|ERRBAR|ACQBULK|ELECT"),
    ("integer", 2, r""),  # 64 a clock: comparisons, logic, shifts, selections, sums of integers, pairs to bf16
]

# What can be counted where the kernel's PTX runs, by the opcode of either.
ANCHORS = [
    ("mma", r"HMMA|IMMA|QMMA", r"mma\."),
    ("wgmma", r"HGMMA", r"wgmma\.mma_async"),
    ("ldmatrix", r"LDSM", r"ldmatrix"),
    ("shuffle", r"SHFL", r"shfl"),
    ("barrier", r"BAR\.", r"bar\."),
    ("async", r"LDGSTS", r"cp\.async\.c[ag]"),
    ("box", r"UTMALDG", r"cp\.async\.bulk\.tensor"),
    ("read", r"LDG", r"ld\.(volatile\.)?global"),
    ("write", r"STG", r"st\.global"),
    ("read shared", r"LDS\b", r"ld\.(volatile\.)?shared"),
    ("write shared", r"STS", r"st\.shared"),
    ("atomic", r"ATOM|RED", r"(atom|red)\."),
    ("division", r"CALL.*_(div|rem)_u64", r"(div|rem)\.u64"),
]


def kind_of(opcode, column):
    """What an instruction is called among ANCHORS; column 1 for machine code, 2 for PTX."""
    return next((anchor[0] for anchor in ANCHORS if re.match(anchor[column], opcode)), None)


class Instruction(NamedTuple):
    address: int
    opcode: str
    guard: str  # the predicate that it waits for, as "P0"; "" where it always runs
    text: str
    line: str  # of the source, as "core/math.cuh:31 in kernels/rope.cu:40", its callers behind it; "" where nobody says

    @property
    def pipe(self):
        if wide := re.match(r"HGMMA\.64x(\d+)x16", self.opcode):  # 4096 products and sums a clock of a multiprocessor
            return "wgmma", int(wide[1]) / 2
        return next((name, cycles) for name, cycles, which in PIPES if re.match(which, self.opcode))


class Block(NamedTuple):
    instructions: list
    loops: tuple  # the loops around it, outermost first: numbers into Function.loops


class Called(NamedTuple):
    """A function that ptxas has added behind the kernel's own code."""
    first: int  # block
    end: int  # the block behind its last
    callers: list  # blocks
    seldom: bool  # whether it is for what a division or a root seldom needs: denormals, infinities


class Function(NamedTuple):
    name: str
    blocks: list
    loops: list  # (first, last) address of each
    called: list


INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]+)\*/\s+(?:@!?(U?P\w+)\s+)?([A-Z][\w.]*)\s*(.*?);")
SOURCE = re.compile(r'^\s*//## File "(?:[^"]*/\./)?([^"]*)", line (\d+)( inlined at)?')


def functions(text):
    """Those of nvdisasm -c -gi. A loop is what stands between a jump back and where it goes."""
    for section in re.split(r"^//-+ \.text\.", text, flags=re.MULTILINE)[1:]:
        name = section.split(" ", 1)[0]
        instructions, labels, line, inlined, at_next = [], {}, "", None, []
        for row in section.splitlines():
            if (source := SOURCE.match(row)):
                place = f"{source[1]}:{source[2]}"
                line, inlined = f"{line} in {place}" if inlined else place, source[3]
            elif (label := re.match(r"^(\.L_x_\d+|\$[\w$]+):", row)):
                at_next.append(label[1])
            elif (found := INSTRUCTION.match(row)):
                address = int(found[1], 16)
                labels.update((l, address) for l in at_next)
                at_next = []
                opcode = " ".join(found.group(3, 4)) if found[3].startswith("CALL") else found[3]
                instructions.append(Instruction(address, opcode, found[2] or "", found[4], line))
        while instructions and instructions[-1].opcode == "NOP":
            instructions.pop()
        yield cut(name, instructions, labels)


def cut(name, instructions, labels):
    def target(i, opcodes):
        found = re.search(r"`\((.+?)\)", i.text)
        return labels.get(found[1]) if found and i.opcode.startswith(opcodes) else None
    loops = {}
    for i in instructions:
        t = target(i, ("BRA", "JMP"))
        if t is not None and t < i.address:
            loops[t] = max(loops.get(t, 0), i.address)  # two jumps back to one place are one loop
    loops = sorted(loops.items(), key=lambda loop: (loop[0], -loop[1]))
    begins = set(labels.values()) | {first for first, _ in loops}
    begins |= {b.address for a, b in zip(instructions, instructions[1:])
               if a.opcode.startswith(("BRA", "EXIT", "RET", "JMP"))}
    blocks, callers = [], {}
    for i in instructions:
        if not blocks or i.address in begins:
            inside = tuple(n for n, (first, last) in enumerate(loops) if first <= i.address <= last)
            blocks.append(Block([], inside))
        blocks[-1].instructions.append(i)
        callers.setdefault(target(i, "CALL"), []).append(len(blocks) - 1)
    number = {block.instructions[0].address: n for n, block in enumerate(blocks)}
    own = sorted((number[at], label) for label, at in labels.items() if at in callers)
    called = [Called(first, end, callers[blocks[first].instructions[0].address], "slowpath" in label)
              for (first, label), (end, _) in zip(own, own[1:] + [(len(blocks), "")])]
    return Function(name, blocks, loops, called)


def tool(name):
    """nvdisasm or cuobjdump: CUDA's, or those that the triton of some python brings; None where neither is."""
    if path := cuda_tool(name):
        return path
    code = "import importlib.util as u; print(u.find_spec('triton').submodule_search_locations[0])"
    for python in dict.fromkeys([sys.executable, "python3", "/usr/bin/python3"]):
        folder = subprocess.run([python, "-c", code], capture_output=True, text=True).stdout.strip()
        if folder and os.access(path := os.path.join(folder, "backends/nvidia/bin", name), os.X_OK):
            return path
    return None


def disassembled(cubin):
    return list(functions(subprocess.run([tool("nvdisasm"), "-c", "-gi", cubin], capture_output=True, text=True,
                                         check=True).stdout))


class Resources(NamedTuple):
    registers: int
    shared: int  # static, with the system's 1024 bytes
    stack: int


def resources(cubin):
    """By the name of each function, from cuobjdump -res-usage."""
    text = subprocess.run([tool("cuobjdump"), "-res-usage", cubin], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"Function (\S+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+)", text)
    return {name: Resources(int(r), int(shared), int(stack)) for name, r, stack, shared in found}


def blocks_at_once(registers, threads, shared):
    """Of a multiprocessor of compute capability 9.0, by CUDA's rules: registers are given to a warp by 256, of 16384 a
    quarter; shared memory by 128 bytes, of 228 KiB; 64 warps, 32 blocks. `shared` has the system's 1 KiB."""
    warps = -(-threads // 32)
    of_a_warp = -(-registers * 32 // 256) * 256
    by_registers = 4 * (16384 // of_a_warp) // warps if registers else 64
    by_shared = 228 * 1024 // (-(-shared // 128) * 128) if shared else 32
    return min(by_registers, by_shared, 64 // warps, 32)


# ---- how long one warp takes alone

# Cycles until a result can be used. Sources: gpu_model.py, CONSTANTS.
LATENCY = {"tensor": 33, "mufu": 23, "fp64": 8, "fma": 4, "integer": 5, "uniform": 8, "control": 1}
SHARED, GLOBAL = 29, 570
OF_MEMORY = [(r"LDG|LD\b|LD\.|ATOM", GLOBAL), (r"LDS|LDSM|SHFL|ATOMS|MATCH", SHARED), (r"LDC|S2R|CS2R", 20)]
REGISTER = re.compile(r"\b(U?[RP])(\d+)(\.64)?\b")


def width(opcode):
    """How many registers an instruction writes."""
    if opcode.startswith(("HMMA", "IMMA")) or ".128" in opcode or re.match(r"LDSM.*\.4", opcode):
        return 4
    return 2 if ".64" in opcode or ".WIDE" in opcode or re.match(r"LDSM.*\.2|D(FMA|ADD|MUL)", opcode) else 1


def names(found, many):
    """Of the register that REGISTER found and of those after it: `many` in all. Predicates stand alone."""
    return [f"{found[1]}{int(found[2]) + k}" for k in range(many if found[1][-1] == "R" else 1)]


def operands(i):
    """What an instruction writes and reads, as names of registers."""
    parts = i.text.split(", ")
    writes_nothing = re.match(r"ST|RED|BRA|EXIT|BAR|DEPBAR|LDGDEPBAR|LDGSTS|NOP|BSSY|BSYNC|WARPSYNC|CALL|RET", i.opcode)
    first = REGISTER.match(parts[0]) if not writes_nothing else None
    writes = []
    if first:
        writes = names(first, width(i.opcode))
        if re.match(r"I?SETP|FSETP|PLOP3|U?ISETP", i.opcode) and len(parts) > 1:
            writes += [m[1] + m[2] for m in REGISTER.finditer(parts[1])]
    reads = [i.guard] if i.guard else []
    for part in parts[1 if first else 0:]:
        for found in REGISTER.finditer(part):
            wide = 2 if found[3] or ".64" in part else 4 if i.opcode.startswith("HMMA") and found[1] == "R" else 1
            reads += names(found, wide)
    return writes, reads


class Warp:
    """One warp that nobody disturbs: instructions in order, one a cycle at most, each when what it reads is there.
    Products by wgmma are asked for, and go on beside the warp until it waits for their group."""

    def __init__(self):
        self.now, self.ready, self.pipe_free, self.copies = 0, {}, {}, 0
        self.groups = {"SB0": [], "gsb0": []}  # when those of cp.async, and of wgmma, are done

    def run(self, instructions):
        for i in instructions:
            writes, reads = operands(i)
            pipe, busy = i.pipe
            if pipe == "wgmma":
                self.now += 1
                self.pipe_free[pipe] = max([self.now, self.pipe_free.get(pipe, 0)] +
                                           [self.ready.get(r, 0) for r in reads]) + busy
                if "gsb0" in i.text:  # the last of a group
                    self.groups["gsb0"].append(self.pipe_free[pipe])
                continue
            start = max([self.now + 1, self.pipe_free.get(pipe, 0)] + [self.ready.get(r, 0) for r in reads])
            if (left := re.match(r"(SB0|gsb0), 0x([0-9a-f]+)", i.text)) and "DEPBAR" in i.opcode:
                groups = self.groups[left[1]]
                start = max([start] + groups[:len(groups) - int(left[2], 16)])
            if i.opcode.startswith("LDGSTS"):
                self.copies = start + GLOBAL
            if i.opcode.startswith("LDGDEPBAR"):
                self.groups["SB0"].append(self.copies)
            latency = next((n for which, n in OF_MEMORY if re.match(which, i.opcode)), LATENCY.get(pipe, 5))
            for w in writes:
                self.ready[w] = start + latency
            self.now, self.pipe_free[pipe] = start, start + busy
        return self.now


def cycles_alone(instructions, times=4):
    """Of one round of a loop's body, once it has settled."""
    warp = Warp()
    ends = [warp.run(instructions) for _ in range(times)]
    return (ends[-1] - ends[0]) / (times - 1)
