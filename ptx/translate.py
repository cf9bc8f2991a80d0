#!/usr/bin/env python3
"""PTX into C++: a kernel becomes a function, a register a variable, an instruction a line that says which one it was.

    ld.global.f32 %f1, [%rd4+8];    f1 = *global<float, 1>(t, rd4 + 8, false, 57);  // ld.global.f32 %f1, [%rd4+8];
    fma.rn.f32 %f3, %f1, %f2, %f3;  f3 = __builtin_fmaf(f1, f2, f3);                // fma.rn.f32 %f3, %f1, %f2, %f3;
    @%p1 bra $L__BB0_4;             if (p1) goto L__BB0_4;                          // @%p1 bra $L__BB0_4;

What an instruction does is written down once, in INSTRUCTIONS: the forms that nvcc makes of this project, from the PTX
ISA 9.0. Any other is refused here, by its kernel, the line of the source and its name. Memory and what threads do
together: ptx/thread.h.

A kernel's file is named by a hash of its text and of the compiler, so that what has not changed keeps what was compiled
of it. FOLDER/NAME.index says which kernel of NAME.ptx is in which file.

usage: ptx/translate.py FOLDER NAME.ptx...
       ptx/translate.py --compiler             prints what kernels will be compiled with
tests/test_ptx.cpp
"""
import hashlib
import os
import re
import subprocess
import sys
from collections import Counter

# ---- types

C = {"u8": "uint8_t", "u16": "uint16_t", "u32": "uint32_t", "u64": "uint64_t", "s8": "int8_t", "s16": "int16_t",
     "s32": "int32_t", "s64": "int64_t", "b8": "uint8_t", "b16": "uint16_t", "b32": "uint32_t", "b64": "uint64_t",
     "f32": "float", "pred": "bool"}
SPECIAL = {"%laneid": "t.lane", "%warpid": "warp_of_block(t)", "%cluster_ctarank": "t.rank",
           "WARP_SZ": "32u",
           **{f"%{name}.{side}": f"t.{name}.{side}" for name in ("tid", "ntid", "ctaid", "nctaid") for side in "xyz"}}


def bits(kind):
    return 1 if kind == "pred" else int(kind[1:])


def unsigned(kind):
    return f"uint{bits(kind)}_t"


def number(operand):
    if not operand.isdigit():
        raise Unknown
    return operand


class Unknown(Exception):
    pass


# ---- what instructions do
#
# A handler is given the kernel, the parts of the opcode and the operands, and returns C++. `read` gives an operand as a
# C++ value of a type, `write` an assignment to one.

def of_one_type(sources, text, **of_kind):
    """d = op of so many sources, written as `text`, or as what stands there for their type."""
    def handler(k, parts, operands):
        kind, (d, *values) = parts[-1], operands
        if len(values) != sources:
            raise Unknown
        return k.write(d, of_kind.get(kind, text).format(*(k.read(value, kind) for value in values)), kind)
    return handler


def wrapping(operator):
    """Integers without a carry out; of floats, rounded to nearest."""
    def handler(k, parts, operands):
        d, a, b = operands
        kind = parts[-1] if parts[-1] == "f32" else "b" + parts[-1][1:]
        a, b = k.read(a, kind), k.read(b, kind)
        text = f"{a} {operator} {b}" if bits(kind) > 16 else f"{C[kind]}(uint32_t({a}) {operator} {b})"
        return k.write(d, text, kind)
    return handler


def mul(k, parts, operands):
    kind, (d, a, b) = parts[-1], operands
    if parts[1] == "wide":
        wide = kind[0] + str(2 * bits(kind))
        return k.write(d, f"{C[wide]}({k.read(a, kind)}) * {C[wide]}({k.read(b, kind)})", wide)
    return (of_one_type(2, "mul_hi({}, {})") if parts[1] == "hi" else wrapping("*"))(k, parts, operands)


def mad(k, parts, operands):
    kind, (d, a, b, c) = parts[-1], operands
    if parts[1] == "lo":
        u = "b" + kind[1:]
        return k.write(d, f"{C[kind]}({k.read(a, u)} * {k.read(b, u)} + {k.read(c, u)})", kind)
    wide = kind[0] + "64"
    product = f"{C[wide]}({k.read(a, kind)}) * {C[wide]}({k.read(b, kind)})"
    return k.write(d, f"{C[wide]}(uint64_t({product}) + {k.read(c, 'b64')})", wide)


def sign(text, float_text):
    """What changes the sign alone: of a float, a bit."""
    def handler(k, parts, operands):
        if parts[-1] != "f32":
            return of_one_type(1, text)(k, parts, operands)
        d, a = operands
        return k.write(d, f"as<float>({float_text.format(k.read(a, 'b32'))})", "f32")
    return handler


def shift(direction):
    def handler(k, parts, operands):
        kind, (d, a, b) = parts[-1], operands
        return k.write(d, f"{direction}<{C[kind]}>({k.read(a, kind)}, {k.read(b, 'u32')})", kind)
    return handler


COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
           "lo": "<", "ls": "<=", "hi": ">", "hs": ">="}
# Of floats ne is true of numbers alone, where C++'s != is true of a NaN; those with a u are true of a NaN (9.3.1.2).
FLOAT_COMPARE = {"ne": "{0} < {1} || {0} > {1}", "nan": "{0} != {0} || {1} != {1}", "num": "{0} == {0} && {1} == {1}",
                 "equ": "!({0} < {1} || {0} > {1})", "neu": "{0} != {1}", "ltu": "!({0} >= {1})", "leu": "!({0} > {1})",
                 "gtu": "!({0} <= {1})", "geu": "!({0} < {1})"}


def setp(k, parts, operands):
    _, how, kind = parts
    p, a, b = operands
    known = FLOAT_COMPARE if kind == "f32" else {}
    text = known.get(how) or f"{{0}} {COMPARE[how]} {{1}}"
    return k.write(p, text.format(k.read(a, kind), k.read(b, kind)), "pred")


def selp(k, parts, operands):
    kind, (d, a, b, p) = parts[-1], operands
    return k.write(d, f"{k.read(p, 'pred')} ? {k.copied(a, d, kind)} : {k.copied(b, d, kind)}", kind)


def mov(k, parts, operands):
    kind, (d, a) = parts[-1], operands
    if d.startswith("{"):  # unpack
        pieces = k.vector(d, 2, 4)
        size = bits(kind) // len(pieces)
        source = k.read(a, kind)
        return " ".join(k.write(piece, f"uint{size}_t({source} >> {size * i})", f"b{size}")
                        for i, piece in enumerate(pieces))
    if a.startswith("{"):  # pack
        pieces = k.vector(a, 2, 4)
        size = bits(kind) // len(pieces)
        return k.write(d, " | ".join(f"{C[kind]}({k.read(piece, f'b{size}')}) << {size * i}"
                                     for i, piece in enumerate(pieces)), kind)
    return k.write(d, k.copied(a, d, kind), kind)


def cvt(k, parts, operands):
    to, of, (d, *sources) = parts[-2], parts[-1], operands
    values = [k.read(source, of) for source in sources]
    if to == "bf16x2":
        upper, lower = values
        return k.write(d, f"to_bf16({upper}) << 16 | to_bf16({lower})", "b32")
    value, = values
    if to == "bf16":
        return k.write(d, f"uint16_t(to_bf16({value}))", "b16")
    return k.write(d, f"to_integer<{C[to]}>({value})" if of == "f32" else f"{C[to]}({value})", to)


WINDOWS = {"shared": "shared_window", "param": "parameter_window"}


def cvta(k, parts, operands):
    d, a = operands
    address = k.read(a, "u64")
    if parts[1] == "to":
        return k.write(d, address + (" - shared_window" if parts[2] == "shared" else ""), "u64")
    return k.write(d, address + (f" + {WINDOWS[parts[1]]}" if parts[1] in WINDOWS else ""), "u64")


def place(k, space, kind, n, address, store):
    """A checked pointer to n values."""
    what = f"<{C[kind]}, {n}>(t, {k.address(address, space)}"
    if space == "param":
        return f"parameter{what}, {k.parameter_bytes}, {{line}})"
    if space in ("global", "shared", "generic"):
        return f"{space}{what}, {str(store).lower()}, {{line}})"
    return f"{space}{what}, {{line}})"


def memory(parts):
    """Of ld and st: the space, the type, how many values."""
    spaces = [part for part in parts[1:-1] if part in ("global", "shared", "local", "param")]
    return (spaces or ["generic"])[0], parts[-1], 2 if "v2" in parts else 4 if "v4" in parts else 1


def ld(k, parts, operands):
    space, kind, n = memory(parts)
    targets = k.vector(operands[0], n)
    text = f"const auto* const v = {place(k, space, kind, n, operands[1], False)};"
    loads = " ".join(k.write(target, f"v[{i}]", kind) for i, target in enumerate(targets))
    return ("count_volatile_load(t, {line}); " if "volatile" in parts else "") + f"{{{{ {text} {loads} }}}}"


def st(k, parts, operands):
    space, kind, n = memory(parts)
    sources = k.vector(operands[1], n)
    text = f"auto* const v = {place(k, space, kind, n, operands[0], True)};"
    stores = " ".join(f"v[{i}] = {k.seen(source, kind)};" for i, source in enumerate(sources))
    return f"{{{{ {text} {stores} }}}}"


def bra(k, parts, operands):
    return f"goto {k.label(operands[0])};"


def bar(k, parts, operands):
    operand, = operands
    if parts[1] == "warp":
        return f"t.machine->meet(t, WarpOp::sync, {k.read(operand, 'b32')}, nullptr, {{line}});"
    if int(number(operand)) > 15:
        raise Unknown
    return f"t.machine->barrier(t, {operand}, {{line}});"


def shfl(k, parts, operands):
    mode = {"up": "up", "down": "down", "bfly": "butterfly", "idx": "index"}[parts[2]]
    d, _, p = operands[0].partition("|")
    a, b, c, mask = (k.read(operand, "b32") for operand in operands[1:])
    text = f"const auto s = shuffle(t, Shuffle::{mode}, {a}, {b}, {c}, {mask}, {{line}});"
    return f"{{{{ {text} {k.write(d, 's.result', 'b32')} {k.write(p, 's.inside', 'pred') if p else ''} }}}}"


def vote(k, parts, operands):
    d, a, mask = operands
    return k.write(d, f"ballot(t, {k.read(a, 'pred')}, {k.read(mask, 'b32')}, {{line}})", "b32")


def ldmatrix(k, parts, operands):
    targets, row = k.vector(operands[0], int(parts[4][1:])), k.address(operands[1], "shared")
    text = f"const auto m = ldmatrix(t, {str('trans' in parts).lower()}, {len(targets)}, {row}, {{line}});"
    return f"{{{{ {text} {' '.join(k.write(d, f'm.result[{i}]', 'b32') for i, d in enumerate(targets))} }}}}"


def mma(k, parts, operands):
    d, a, b, c = (k.vector(operand, n) for operand, n in zip(operands, (4, 4, 2, 4), strict=True))
    lists = ", ".join("{{" + ", ".join(k.read(x, kind) for x in xs) + "}}"
                      for xs, kind in ((a, "b32"), (b, "b32"), (c, "f32")))
    results = " ".join(k.write(x, f"m.c[{i}]", "f32") for i, x in enumerate(d))
    return f"{{{{ Mma m{{{{{lists}}}}}; mma(t, m, {{line}}); {results} }}}}"


def wgmma(k, parts, operands):
    if parts[1] == "fence":
        return "t.machine->fence_products(t);"
    if parts[1] == "commit_group":
        return "t.machine->commit_products(t);"
    if parts[1] == "wait_group":
        arrive = " ".join(f"{name} = arrived(t, {name});" for name in sorted(x[1:] for x in k.sums))
        return f"t.machine->wait_products(t, {number(operands[0])}, {{line}}); {arrive}"
    in_registers = operands[1].startswith("{")
    sums, a, b, add, *signs, a_along, b_along = operands[:-1] + ["0"] * in_registers + operands[-1:]
    columns = int(re.search(r"n(\d+)k16", parts[4])[1])
    sums = k.vector(sums, columns // 2)
    if signs != ["1", "1"] or not {a_along, b_along} <= {"0", "1"}:
        raise Unknown
    registers = ", ".join(k.read(x, "b32") for x in k.vector(a, 4)) if in_registers else ""
    given = (f"{'0' if in_registers else k.read(a, 'b64')}, {k.read(b, 'b64')}, {k.read(add, 'pred')}, {a_along}, "
             f"{b_along}, {columns}, {str(in_registers).lower()}, {{{{{registers}}}}}, "
             f"{{{{{', '.join(k.read(x, 'f32') for x in sums)}}}}}")
    results = " ".join(k.write(x, f"m.sums[{i}]", "f32") for i, x in enumerate(sums))
    return f"{{{{ Wgmma m{{{{{given}}}}}; t.machine->multiply_async(t, m, {{line}}); {results} }}}}"


def fence(k, parts, operands):
    return f"t.machine->{'fence_proxy' if parts[1] == 'proxy' else 'fence_mbarrier_init'}(t);"


def cluster_barrier(k, parts, operands):
    return f"t.machine->{'arrive_at' if parts[2] == 'arrive' else 'wait_for'}_cluster(t, {{line}});"


def mapa(k, parts, operands):
    d, address, rank = operands
    return k.write(d, f"mapa(t, {k.read(address, 'u32')}, {k.read(rank, 'u32')}, {{line}})", "u32")


def mbarrier(k, parts, operands):
    if parts[1] == "try_wait":
        p, place, parity = operands
        text = f"t.machine->try_mbarrier(t, {k.address(place, 'shared')}, {k.read(parity, 'u32')}, {{line}})"
        return k.write(p, text, "pred")
    if parts[1] == "init":
        place, arrivals = operands
        return f"t.machine->make_mbarrier(t, {k.address(place, 'shared')}, {k.read(arrivals, 'u32')}, {{line}});"
    state, place, *announced = operands
    if state != "_" or len(announced) != ("expect_tx" in parts):
        raise Unknown
    count = k.read(announced[0], "u32") if announced else "0"
    return f"t.machine->arrive_at_mbarrier(t, {k.address(place, 'shared')}, {count}, {{line}});"


def copy_box(k, operands, ranks="0"):
    to, box, count = operands
    found = re.fullmatch(r"\[(%\w+),\s*(\{.*\})\s*\]", box)
    x, y = (k.read(part, "s32") for part in k.vector(found[2], 2))
    return (f"t.machine->copy_box(t, {k.address(to, 'shared')}, {k.read(found[1], 'u64')}, {x}, {y}, "
            f"{k.address(count, 'shared')}, {ranks}, {{line}});")


def setmaxnreg(k, parts, operands):
    return f"set_registers(t, {number(operands[0])}, {str(parts[1] == 'inc').lower()}, {{line}});"


def cp(k, parts, operands):
    if parts[-1] == "multicast::cluster":
        return copy_box(k, operands[:3], k.read(operands[3], "u16"))
    if parts[2] == "bulk":
        return copy_box(k, operands)
    if parts[2] == "commit_group":
        return "t.machine->commit_copies(t);"
    if parts[2] == "wait_group":
        return f"t.machine->wait_copies(t, {number(operands[0])});"
    if parts[2] == "wait_all":
        return "t.machine->commit_copies(t); t.machine->wait_copies(t, 0);"
    to, source, whole, *size = operands
    if whole != "16" or len(size) > 1:
        raise Unknown
    return (f"t.machine->copy_async(t, {k.address(to, 'shared')}, {k.address(source, 'global')}, "
            f"{k.read(size[0], 'u32') if size else '16'}, {{line}});")


def leave(k, parts, operands):
    return "return;"


def bfi(k, parts, operands):
    kind, (d, a, b, *places) = parts[-1], operands
    values = [k.read(a, kind), k.read(b, kind), *(k.read(place, "u32") for place in places)]
    return k.write(d, f"bfi<{C[kind]}>({', '.join(values)})", kind)


def copysign(k, parts, operands):
    d, a, b = operands
    return k.write(d, f"copysign_f32({k.seen(a, 'f32')}, {k.seen(b, 'f32')})", "f32")


# The forms that are known of each, and what they do. (add.f32 without .rn may become part of an fma: 9.7.3.3)
SIZE = "(16|32|64)"
INTEGER, BITS = f"[us]{SIZE}", f"b{SIZE}"
VALUES = "((v[24].)?(f32|[bsu](8|16|32))|(v2.)?[bsu]64)"  # 16 bytes at most
INSTRUCTIONS = {
    "add": (f"rn.f32|{INTEGER}", wrapping("+")),
    "sub": (f"rn.f32|{INTEGER}", wrapping("-")),
    "mul": (f"rn.f32|lo.{INTEGER}|hi.[us](32|64)|wide.[us](16|32)", mul),
    "mad": ("lo.[us](32|64)|wide.[us]32", mad),
    "fma": ("rn.f32", of_one_type(3, "__builtin_fmaf({}, {}, {})")),
    "div": (f"rn.f32|{INTEGER}", of_one_type(2, "div({}, {})", f32="{} / {}")),
    "rem": (INTEGER, of_one_type(2, "rem({}, {})")),
    "max": (f"f32|{INTEGER}", of_one_type(2, "{0} > {1} ? {0} : {1}", f32="max_f32({}, {})")),
    "min": (f"f32|{INTEGER}", of_one_type(2, "{0} < {1} ? {0} : {1}", f32="min_f32({}, {})")),
    "rcp": ("rn.f32", of_one_type(1, "1 / {}")),
    "sqrt": ("rn.f32", of_one_type(1, "__builtin_sqrtf({})")),
    "neg": (f"f32|s{SIZE}", sign("0 - uint64_t({})", "{} ^ 0x80000000u")),
    "abs": (f"f32|s{SIZE}", sign("{0} < 0 ? 0 - uint64_t({0}) : uint64_t({0})", "{} & 0x7fffffffu")),
    "copysign": ("f32", copysign),
    "not": (f"pred|{BITS}", of_one_type(1, "~{}", pred="!{}")),
    "and": (f"pred|{BITS}", of_one_type(2, "{} & {}")),
    "or": (f"pred|{BITS}", of_one_type(2, "{} | {}")),
    "xor": (f"pred|{BITS}", of_one_type(2, "{} ^ {}")),
    "shl": (BITS, shift("shl")),
    "shr": (f"[bsu]{SIZE}", shift("shr")),
    "popc": ("b32", of_one_type(1, "__builtin_popcount({})")),
    "brev": ("b32", of_one_type(1, "brev({})")),
    "bfi": ("b(32|64)", bfi),
    "bfind": ("shiftamt.u32", of_one_type(1, "bfind_shiftamt({})")),
    "prmt": ("b32", of_one_type(3, "prmt({}, {}, {})")),
    "setp": (f"(eq|ne).[bsu]{SIZE}|(lt|le|gt|ge).{INTEGER}|(lo|ls|hi|hs).u{SIZE}|((eq|ne|lt|le|gt|ge)u?|num|nan).f32",
             setp),
    "selp": (f"f32|[bsu]{SIZE}", selp),
    "mov": (f"pred|f32|[bsu]{SIZE}", mov),
    "cvt": ("rn.bf16(x2)?.f32|[us](8|16|32|64).[us](8|16|32|64)|rn.f32.[us](8|16|32|64)|rzi.[us](8|16|32|64).f32", cvt),
    "cvta": ("(to.)?(global|shared|local).u64|param.u64", cvta),
    "ld": (f"(volatile.)?((global|shared|local|param).)?{VALUES}", ld),
    "st": (f"(volatile.)?((global|shared|local).)?{VALUES}", st),
    "bra": ("|uni", bra),
    "ret": ("|uni", leave),
    "exit": ("", leave),
    "bar": ("sync|warp.sync", bar),
    "shfl": ("sync.(up|down|bfly|idx).b32", shfl),
    "vote": ("sync.ballot.b32", vote),
    "ldmatrix": ("sync.aligned.m8n8.x[124](.trans)?.shared.b16", ldmatrix),
    "mma": ("sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", mma),
    "wgmma": ("(fence|commit_group|wait_group).sync.aligned|"
              "mma_async.sync.aligned.m64n(32|64|128|192|256)k16.f32.bf16.bf16", wgmma),
    "fence": ("proxy.async.shared::cta|mbarrier_init.release.cluster", fence),
    "barrier": ("cluster.(arrive.release|wait.acquire)", cluster_barrier),
    "mapa": ("shared::cluster.u32", mapa),
    "cp": ("async.(cg.shared.global|commit_group|wait_group|wait_all|"
           "bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes(.multicast::cluster)?)", cp),
    "mbarrier": ("(init|arrive(.expect_tx)?|try_wait.parity).shared::cta.b64|arrive.shared::cluster.b64",
                 mbarrier),
    "setmaxnreg": ("(inc|dec).sync.aligned.u32", setmaxnreg),
}
ARITHMETIC = ("add", "sub", "mul", "fma", "div", "rcp", "sqrt", "max", "min")


# ---- kernels

# How a kernel is compiled, on its first launch.
CXX = os.environ.get("CXX", "g++")
COMMAND = (CXX + " -std=c++20 {} -march=native -ffp-contract=off -fno-math-errno -fno-trapping-math "
           "-fno-strict-aliasing -fPIC -shared -w")
LONG = 3000  # lines: with -O1 a kernel of ten thousand takes 12 s to compile, with -Og 3 s


def align(offset, to):
    return (offset + to - 1) // to * to


def variable_of(text):
    """`.align 16 .b8 name[64]`: (name, bytes, alignment). An array without a length has 0 bytes."""
    found = re.fullmatch(r"(?:\.align\s+(\d+)\s+)?\.([a-z]\d+)\s+([\w$]+)((?:\[\d*\])*)", text.strip())
    if not found:
        raise Unknown(f"a variable: {text.strip()}")
    size = bits(found[2]) // 8
    alignment = int(found[1] or size)
    for count in re.findall(r"\[(\d*)\]", found[4]):
        size *= int(count or 0)
    return found[3], size, alignment


def apart(offset, alignment):
    """The next boundary of that alignment that is none of its double: nobody may count on more."""
    return align(offset - alignment, 2 * alignment) + alignment


def compiler():
    """The compiler's version, and what -march=native asks of it here: what was compiled elsewhere is not this."""
    said = subprocess.run([*CXX.split(), "-march=native", "-E", "-###", "-x", "c++", os.devnull],
                          capture_output=True, text=True, check=True).stderr
    return re.findall(r"^.*version .*|-m\S+|-target-\S+ \S+", said, re.MULTILINE)


PASSED = "  passed(t, LINE);", None  # where a basic block begins
# A label, a line that says where the source is, a brace, or a statement up to its semicolon.
TOKEN = re.compile(r"\s*(?:([$\w]+):(?!:)|(\.loc\s[^\n]*)|([{}])|([^;{}\s](?:[^;])*);)")


def ranges(numbers):
    """Of a set of numbers: where each run of neighbours begins, and how many they are."""
    found = []
    for at in sorted(numbers):
        if found and sum(found[-1]) == at:
            found[-1] = found[-1][0], found[-1][1] + 1
        else:
            found.append((at, 1))
    return found


def base_and_offset(place):
    """Of [base] or [base+offset]."""
    base, offset = re.fullmatch(r"\[\s*([^+\]\s]+)(?:\+(-?\d+))?\s*\]", place).groups()
    return base, int(offset or 0)


class Kernel:
    def __init__(self, name, parameters, most_threads, shared, files):
        self.name, self.most_threads, self.files = name, most_threads, files
        self.registers, self.lines, self.computed, self.is_arithmetic = {}, [], set(), False
        self.places = {}        # of the source, each with its callers, by .loc's numbers
        self.unknown = []       # what is refused, and where
        self.symbols = {}       # variables: their space and address
        self.parameters = []    # offset and bytes
        self.parameter_bytes = 0
        self.loaded = set()     # of these bytes, those that instructions name: of a struct, no padding
        for text in parameters:
            parameter, size, alignment = variable_of(text)
            at = align(self.parameter_bytes, alignment)
            self.symbols[parameter] = "param", at
            self.parameters.append((at, size))
            self.parameter_bytes = at + size
        self.shared_at, self.static_shared, self.variables, self.dynamic = 0, 0, [], None
        self.dynamic_alignment = 16
        self.local_bytes, self.local_alignment = 0, 1
        for variable in shared:
            self.share(*variable)

    # Shared variables stand 16 bytes and more apart, so that what runs past the end of one is not in the next. What a
    # block has of shared memory is counted as a GPU lays it out, one behind the other.
    def share(self, name, size, alignment):
        if size == 0:
            self.dynamic, self.dynamic_alignment = name, alignment
            return
        at = apart(self.shared_at, alignment)
        self.symbols[name] = "shared", at
        self.variables.append((at, size))
        self.static_shared = align(self.static_shared, alignment) + size
        self.shared_at = at + size + 16

    def find_loaded(self, statements):
        """Which bytes of parameters are loaded: by name, or by a register that holds an address in one, made of the
        parameter's by adding numbers. Whoever computes otherwise with an address may load all of its parameter."""
        parsed = []
        for statement in statements:
            if found := re.fullmatch(r"(?:@!?%\w+\s+)?([a-z][\w.:]*)\s+(.*)", statement.strip(), re.DOTALL):
                parsed.append((found[1], [part.strip() for part in re.split(r",(?![^{\[]*[}\]])", found[2])]))
        written = Counter(register for _, (d, *_) in parsed for register in re.findall(r"%\w+", d))
        held = {name: (at, 0) for name, (space, at) in self.symbols.items() if space == "param"}
        made = set()
        for opcode, (d, *sources) in parsed:
            if written[d] == 1 and sources and sources[0] in held:
                at, offset = held[sources[0]]
                if opcode in ("mov.b64", "mov.u64"):
                    held[d] = at, offset
                elif opcode == "add.s64" and re.fullmatch(r"-?\d+", sources[1]):
                    held[d] = at, offset + int(sources[1])
                made |= held.keys() & {d}
        for opcode, (d, *sources) in parsed:
            if opcode.startswith("ld.param."):
                base, offset = base_and_offset(sources[0])
                if base in held:
                    at = sum(held[base]) + offset
                    size = bits(opcode.split(".")[-1]) // 8 * (d.count(",") + 1)
                    self.loaded.update(range(at, at + size))
            elif d not in made:
                for name in held.keys() & set(re.findall(r"[%$\w]+", ",".join([d, *sources]))):
                    at, _ = held[name]
                    self.loaded.update(range(at, at + dict(self.parameters)[at]))

    def vector(self, operand, *lengths):
        """What stands in braces; how many of them there may be."""
        parts = [part.strip() for part in operand.strip("{} ").split(",")]
        if len(parts) not in lengths:
            raise Unknown
        return parts

    def label(self, name):
        return name.replace("$", "")

    def read(self, operand, kind):
        """The operand as a C++ value of this type."""
        if operand in self.registers:
            held, name = self.registers[operand], operand[1:]
            if held == kind or (held not in ("f32", "pred") and C[kind] == unsigned(held)):
                return name
            if (held == "pred") != (kind == "pred"):
                raise Unknown
            if "f32" in (held, kind):
                if bits(held) != bits(kind):
                    raise Unknown
                return f"as<{C[kind]}>({self.seen(operand, held)})"
            return f"{C[kind]}({name})"
        if operand in SPECIAL:
            return f"{C[kind]}({SPECIAL[operand]})" if kind not in ("u32", "b32") else SPECIAL[operand]
        if found := re.fullmatch(r"0f([0-9a-fA-F]{8})", operand):
            if bits(kind) != 32:
                raise Unknown
            return f"as<float>(0x{found[1]}u)" if kind == "f32" else f"{C[kind]}(0x{found[1]}u)"
        if re.fullmatch(r"-?\d+|0x[0-9a-fA-F]+U?", operand):
            if kind == "f32":
                raise Unknown
            value = int(operand.rstrip("U"), 0) % (1 << 64)
            if kind == "pred":
                return "true" if value else "false"
            literal = f"{value % (1 << bits(kind))}{'u' if bits(kind) <= 32 else 'ull'}"
            return literal if kind in ("b32", "u32") else f"{C[kind]}({literal})"
        if operand in self.symbols or operand == self.dynamic:
            return f"{C[kind]}({self.symbol(operand)})"
        raise Unknown

    # An operation on floats gives one NaN (9.7.3), whatever its operands held; a CPU keeps their bits. That matters
    # where the bits are seen: in memory and in integers. A register whose every NaN is of an operation gets it there;
    # one that may hold another NaN as well, which is kept as it is, gets it when it is written.
    def seen(self, operand, kind):
        text = self.read(operand, kind)
        return f"number({text})" if operand in self.computed and self.registers[operand] == kind == "f32" else text

    def copied(self, operand, to, kind):
        return self.read(operand, kind) if to in self.computed else self.seen(operand, kind)

    def find_computed(self, statements):
        made, others, copies, self.sums = set(), set(), [], set()
        for statement in statements:
            found = re.match(r"(?:@!?%\w+\s+)?([a-z][\w.]*)\s+(%\w+|\{[^}]*\}|%\w+\|%\w+)(.*)", statement, re.DOTALL)
            if not found:
                continue
            opcode, to, rest = found.groups()
            if opcode in ("mov.f32", "selp.f32"):
                sources = rest.split(",")[1:]
                copies.append((to, {source.strip() for source in sources[:2]}))
            elif opcode.split(".")[0] in ARITHMETIC and opcode.endswith(".f32") or opcode.startswith("cvt.rn.f32."):
                made.add(to)
            else:
                others |= set(re.findall(r"%\w+", to))
            if opcode.startswith("wgmma.mma_async"):
                self.sums |= set(re.findall(r"%\w+", to))
        # (where sums that are under way may be: also in copies)
        while more := {to for to, sources in copies if sources & self.sums} - self.sums:
            self.sums |= more
        self.computed = (made | {to for to, _ in copies}) - others
        plain = re.compile(r"0f(?!7[fF][89a-fA-F]|[fF]{2}[89a-fA-F])[0-9a-fA-F]{8}")
        while kept := {to for to, sources in copies if to in self.computed and
                       not all(source in self.computed or plain.fullmatch(source) for source in sources)}:
            self.computed -= kept

    def symbol(self, name):
        if name == self.dynamic:
            self.symbols[name] = "shared", self.dynamic_at()
        space, at = self.symbols[name]
        return f"t.local_begin + {at}" if space == "local" else str(at)

    def dynamic_at(self):
        return apart(self.shared_at, self.dynamic_alignment)

    def address(self, operand, space):
        base, number = base_and_offset(operand)
        held = self.registers.get(base)
        if held is None and base not in self.symbols and base != self.dynamic:
            raise Unknown
        text = base[1:] if held else self.symbol(base)
        if held == "b32":  # addresses of shared memory have 32 bits, and so have their sums
            return f"uint32_t({text} + {number}u)" if number >= 0 else f"uint32_t({text} - {-number}u)"
        return text if number == 0 else f"{text} {'+' if number > 0 else '-'} {abs(number)}"

    def write(self, operand, value, kind):
        """An assignment of a C++ value of this type."""
        if operand == "_":
            return f"(void)({value});"
        held, name = self.registers[operand], operand[1:]
        if (held == "pred") != (kind == "pred"):
            raise Unknown
        if kind == "f32" and self.is_arithmetic and not (held == kind and operand in self.computed):
            value = f"number({value})"
        if held == kind or "f32" not in (held, kind):
            if bits(held) < bits(kind):
                raise Unknown
            return f"{name} = {value};"
        if bits(held) != bits(kind):
            raise Unknown
        return f"{name} = as<{C[held]}>({C[kind]}({value}));"

    def instruction(self, text):
        found = re.fullmatch(r"(?:@(!?)(%\w+)\s+)?([a-z][\w.:]*)\s*(.*)", text, re.DOTALL)
        if not found:
            raise Unknown(text)
        negated, guard, opcode, rest = found.groups()
        operands = [part.strip() for part in re.findall(r"(?:\{[^}]*\}|\[[^\]]*\]|[^,{\[])+", rest) if part.strip()]
        parts = opcode.split(".")
        forms, handler = INSTRUCTIONS.get(parts[0], (None, None))
        self.is_arithmetic = parts[0] in ARITHMETIC
        try:
            if not handler or not re.fullmatch(forms.replace(".", r"\."), ".".join(parts[1:])):
                raise Unknown
            code = handler(self, parts, operands)
            condition = guard and f"if ({negated}{self.read(guard, 'pred')}) "
        except (Unknown, ValueError, KeyError, IndexError, AttributeError):
            raise Unknown(" ".join(text.split()))
        # (a statement of several assignments must stand or fall as a whole)
        code = code.replace("{line}", "LINE").replace("{{", "{").replace("}}", "}")
        if guard:
            code = f"{condition}{{ {code} }}"
        self.lines.append((f"  {code}", text))
        if guard and parts[0] == "bra":
            self.lines.append(PASSED)

    def statement(self, text):
        if found := re.fullmatch(r"\.reg\s+\.(\w+)\s+(.*)", text):
            kind = found[1] if found[1] in ("pred", "f32") else "b" + found[1][1:]
            for part in found[2].split(","):
                many = re.fullmatch(r"\s*(%\w+)(?:<(\d+)>)?\s*", part)
                if not many or kind not in C:
                    raise Unknown(text)
                names = [many[1]] if not many[2] else [f"{many[1]}{i}" for i in range(int(many[2]))]
                for name in names:
                    if self.registers.setdefault(name, kind) != kind:
                        raise Unknown(text)
                self.lines.append(("DECLARE", (kind, names)))
        elif text.startswith(".shared"):
            self.share(*variable_of(text[len(".shared"):]))
        elif text.startswith(".local"):
            name, size, alignment = variable_of(text[len(".local"):])
            if alignment > 16 or self.local_bytes:
                raise Unknown(text)
            self.symbols[name] = "local", 0
            self.local_bytes, self.local_alignment = size, alignment
        elif found := re.fullmatch(r"\.loc\s+(\d+) (\d+) (\d+)(.*)", text):
            at = re.search(r"inlined_at (\d+ \d+ \d+)", found[4])
            where = f"{self.files.get(found[1], '?')}:{found[2]}"
            if at:  # (what calls itself stands in the machine code's lines once)
                callers = self.places.get(at[1], "?").split(" in ")
                begin = callers.index(where) + 1 if where in callers else 0
                where = " in ".join([where, *callers[begin:]])
            self.places[" ".join(found.groups()[:3])] = where
            if found[2] != "0" and (not self.lines or self.lines[-1] != ("AT", where)):
                self.lines.append(("AT", where))
        elif text.startswith(".pragma"):
            pass
        elif text.startswith("."):
            raise Unknown(text)
        else:
            self.instruction(text)

    def body(self, text):
        text = re.sub(r"//[^\n]*", "", text)
        tokens = TOKEN.findall(text)
        if rest := TOKEN.sub("", text).strip():
            self.unknown.append(f"{self.name}: this is not known: {rest}")
        statements = [statement for *_, statement in tokens]
        self.find_computed(statements)
        for label, loc, brace, statement in tokens:
            if label:
                self.lines += [(f"{self.label(label)}:;", None), PASSED]
            elif brace:
                self.lines.append((f"  {brace}", None))
            else:
                try:
                    self.statement((loc or statement).strip())
                except Unknown as unknown:
                    where = [text for code, text in self.lines if code == "AT"][-1:] or ["unknown source"]
                    self.unknown.append(f"{self.name}: {where[0]}: this is not known: {' '.join(str(unknown).split())}")
        if not self.unknown:
            self.find_loaded(statements)

    def cpp(self):
        used = set(re.findall(r"\b\w+\b", "\n".join(code for code, _ in self.lines if code not in ("AT", "DECLARE"))))
        out = [f"// {COMMAND.format('-O1' if len(self.lines) < LONG else '-Og')}", f"// {self.name}",
               '#include "thread.h"', "using namespace ptx;"]
        loaded = ranges(self.loaded & set(range(self.parameter_bytes)))
        for name, values in (("parameters", self.parameters), ("loaded", loaded), ("variables", self.variables)):
            flat = ", ".join(f"{at}, {size}" for at, size in values) or "0"
            out.append(f"static constexpr uint32_t {name}[] = {{{flat}}};")
        out.append("static void code(Thread& t) {")
        if self.local_bytes:
            begin, size = self.local_alignment, self.local_bytes
            out.append(f"  alignas({2 * begin}) unsigned char local_memory[{begin + size}];")
            out.append("  __builtin_memset(local_memory, 0xff, sizeof local_memory);")
            out.append(f"  t.local_begin = reinterpret_cast<uint64_t>(local_memory) + {begin}, t.local_bytes = {size};")
        for code, text in self.lines:
            if code == "AT":
                out.append(f"  // {text}")
            elif code == "DECLARE":
                kind, names = text
                names = [name[1:] for name in names if name[1:] in used]
                if names:
                    out.append(f"  {C[kind]} {', '.join(names)};")
            else:
                line = code.replace("LINE", str(len(out) + 1))
                out.append(line if text is None else f"{line}  // {' '.join(text.split())};")
        out += ["}",
                f'extern "C" const Description description = {{code, parameters, {len(self.parameters)}, '
                f"loaded, {len(loaded)}, {self.parameter_bytes}, {self.static_shared}, variables, "
                f"{len(self.variables)}, {self.dynamic_at()}, {self.local_bytes}, {self.most_threads}}};", ""]
        return "\n".join(out)


SECTION = re.compile(r"^\s*\.section\s+\.debug\w+\s*\{.*?\}", re.MULTILINE | re.DOTALL)
# Directives of a kernel and of a file: those that change no result, and those that are read below.
ENTRY = re.compile(r"^\.(?:visible |weak )?\.?entry\s+([\w$]+)\(?(.*?)\)?\n(\.[^{]*)?\{\n(.*?)\n\}\n",
                   re.MULTILINE | re.DOTALL)
KERNEL_DIRECTIVES = {".maxntid", ".minnctapersm", ".maxnreg"}
FILE_DIRECTIVES = {".version", ".target", ".address_size", ".file", ".loc", ".shared", ".extern .shared"}


def plain(names):
    """Names as the source has them, of a text of mangled ones."""
    return subprocess.run(["c++filt"], input=names, capture_output=True, text=True, check=True).stdout


def kernels_of(text, wanted=None):
    """The kernels of a file, or those of these names alone."""
    files = {number: re.sub(r".*/\./", "", name)
             for number, name in re.findall(r'^\s*\.file\s+(\d+) "([^"]+)"', text, re.MULTILINE)}
    shared = [variable_of(found) for found in re.findall(r"^\.(?:extern )?\.?shared ([^;]+);", text, re.MULTILINE)]
    outside = SECTION.sub("", ENTRY.sub("", text))
    for directive in re.findall(r"^\s*((?:\.(?:visible|weak|extern) )?\.\w+).*", outside, re.MULTILINE):
        if directive not in FILE_DIRECTIVES:
            raise Unknown(directive)
    for found in ENTRY.finditer(text):
        if wanted and found[1] not in wanted:
            continue
        name, parameters, directives, body = found.groups()
        parameters = [part.strip()[len(".param"):] for part in parameters.strip("() \n").split(",\n") if part.strip()]
        most = re.search(r"\.maxntid\s+(\d+)(?:, (\d+))?(?:, (\d+))?", directives or "")
        most_threads = 1024
        if most:
            most_threads = int(most[1]) * int(most[2] or 1) * int(most[3] or 1)
        body = body.split("\n\t// @")[0]
        mentioned = set(re.findall(r"[\w$]+", body))
        kernel = Kernel(name, parameters, most_threads, [v for v in shared if v[0] in mentioned], files)
        for directive in re.findall(r"\.\w+", directives or ""):
            if directive not in KERNEL_DIRECTIVES:
                kernel.unknown.append(f"{name}: this is not known: {directive}")
        kernel.body(body)
        yield kernel


def write(name, text):
    """Whole or not at all, for others may read it now."""
    temporary = f"{name}.{os.getpid()}"
    with open(temporary, "w") as file:
        file.write(text)
    os.replace(temporary, name)


def main(folder, sources):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "thread.h")) as file:
        header = file.read()
    write(os.path.join(folder, "thread.h"), header)
    made_with = header + " ".join(compiler())
    for source in sources:
        with open(source) as file:
            text = file.read()
        index = []
        try:
            kernels = list(kernels_of(text))
        except Unknown as unknown:
            sys.exit(f"translate: {source}: this is not known: {unknown}")
        if unknown := [f"translate: {source}: {what}" for kernel in kernels for what in kernel.unknown]:
            sys.exit(plain("\n".join(unknown)))
        for kernel in kernels:
            cpp = kernel.cpp()
            digest = hashlib.sha256((made_with + cpp).encode()).hexdigest()[:20]
            name = os.path.join(folder, digest + ".cpp")
            if not os.path.exists(name):
                write(name, cpp)
            index.append(f"{kernel.name} {digest}\n")
        if len(index) != (there := len(re.findall(r"\.entry\s", text))):
            sys.exit(f"translate: {source}: {len(index)} of {there} kernels were read")
        write(os.path.join(folder, re.sub(r"\.ptx$", "", os.path.basename(source)) + ".index"), "".join(index))


if __name__ == "__main__":
    if sys.argv[1:] == ["--compiler"]:
        sys.exit(print(CXX, *compiler()))
    if len(sys.argv) < 3:
        sys.exit("usage: ptx/translate.py FOLDER NAME.ptx...")
    main(sys.argv[1], sys.argv[2:])
