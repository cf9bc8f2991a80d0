#!/usr/bin/env python3
"""PTX into C++: a kernel becomes a function, a register a variable, an instruction a line that says which one it was.

    ld.global.f32 %f1, [%rd4+8];     f1 = *global<float, 1>(t, rd4 + 8, false, 57);     // ld.global.f32 %f1, [%rd4+8];
    fma.rn.f32 %f3, %f1, %f2, %f3;   f3 = __builtin_fmaf(f1, f2, f3);                   // fma.rn.f32 %f3, %f1, %f2, %f3;
    @%p1 bra $L__BB0_4;              if (p1) goto L__BB0_4;                             // @%p1 bra $L__BB0_4;

What an instruction does is written down once, in INSTRUCTIONS: the forms that nvcc makes of this project, from the PTX ISA 9.0. Any
other is refused by its name when the kernel is launched. Memory and what threads do together: ptx/thread.h.

A kernel's file is named by a hash of its text, so that what has not changed keeps what was compiled of it. FOLDER/NAME.index says
which kernel of NAME.ptx is in which file.

usage: ptx/translate.py FOLDER NAME.ptx...
tests/test_ptx.cpp
"""
import hashlib
import os
import re
import sys

# ---- types

C = {"u8": "uint8_t", "u16": "uint16_t", "u32": "uint32_t", "u64": "uint64_t", "s8": "int8_t", "s16": "int16_t",
     "s32": "int32_t", "s64": "int64_t", "b8": "uint8_t", "b16": "uint16_t", "b32": "uint32_t", "b64": "uint64_t",
     "f32": "float", "f64": "double", "pred": "bool"}
FLOATS = ("f32", "f64")
SPECIAL = {"%laneid": "t.lane", "%warpid": "t.warp", "WARP_SZ": "32u",
           **{f"%{name}.{side}": f"t.{name}.{side}" for name in ("tid", "ntid", "ctaid", "nctaid") for side in "xyz"}}


def bits(kind):
    return 1 if kind == "pred" else int(kind[1:])


def unsigned(kind):
    return f"uint{bits(kind)}_t"


class Unknown(Exception):
    pass


# ---- what instructions do
#
# A handler is given the kernel, the parts of the opcode and the operands, and returns C++. `read` gives an operand as a C++ value
# of a type, `write` an assignment to one.

def binary(text):
    """d = a op b, of one type."""
    def handler(k, parts, operands):
        kind = parts[-1]
        d, a, b = operands
        return k.write(d, text.format(k.read(a, kind), k.read(b, kind)), kind)
    return handler


def wrapping(operator):
    """Integers without a carry out; of floats, rounded to nearest."""
    def handler(k, parts, operands):
        kind, d = parts[-1], operands[0]
        if kind in FLOATS:
            k.only(parts, ["rn"])
            return k.write(d, f"{k.read(operands[1], kind)} {operator} {k.read(operands[2], kind)}", kind)
        k.only(parts, [])
        u = "b" + kind[1:]
        a, b = k.read(operands[1], u), k.read(operands[2], u)
        return k.write(d, f"{a} {operator} {b}" if bits(u) > 16 else f"{C[u]}(uint32_t({a}) {operator} {b})", u)
    return handler


def mul(k, parts, operands):
    kind, (d, a, b) = parts[-1], operands
    if kind in FLOATS:
        return wrapping("*")(k, parts, operands)
    if parts[1] == "lo":
        return wrapping("*")(k, [parts[0], kind], operands)
    if parts[1] == "wide" and kind in ("u16", "s16", "u32", "s32"):
        wide = kind[0] + str(2 * bits(kind))
        return k.write(d, f"{C[wide]}({k.read(a, kind)}) * {C[wide]}({k.read(b, kind)})", wide)
    if parts[1] == "hi" and bits(kind) >= 32:
        return k.write(d, f"mul_hi({k.read(a, kind)}, {k.read(b, kind)})", kind)
    raise Unknown


def mad(k, parts, operands):
    kind, (d, a, b, c) = parts[-1], operands
    if parts[1] == "lo" and bits(kind) >= 32:
        u = "b" + kind[1:]
        return k.write(d, f"{C[kind]}({k.read(a, u)} * {k.read(b, u)} + {k.read(c, u)})", kind)
    if parts[1] == "wide" and kind in ("u32", "s32"):
        wide = kind[0] + "64"
        product = f"{C[wide]}({k.read(a, kind)}) * {C[wide]}({k.read(b, kind)})"
        return k.write(d, f"{C[wide]}(uint64_t({product}) + {k.read(c, 'b64')})", wide)
    raise Unknown


def fma(k, parts, operands):
    k.only(parts, ["rn"])
    kind = parts[-1]
    a, b, c = (k.read(operand, kind) for operand in operands[1:])
    return k.write(operands[0], f"__builtin_fma{'f' if kind == 'f32' else ''}({a}, {b}, {c})", kind)


def divide(k, parts, operands):
    kind, (d, a, b) = parts[-1], operands
    if kind in FLOATS:
        return wrapping("/")(k, parts, operands)
    k.only(parts, [])
    return k.write(d, f"div({k.read(a, kind)}, {k.read(b, kind)})", kind)


def largest(which):
    def handler(k, parts, operands):
        kind, (d, a, b) = parts[-1], operands
        k.only(parts, [])
        if kind == "f32":
            return k.write(d, f"{which}_f32({k.read(a, kind)}, {k.read(b, kind)})", kind)
        if kind in FLOATS:
            raise Unknown
        x, y = k.read(a, kind), k.read(b, kind)
        return k.write(d, f"{x} {'>' if which == 'max' else '<'} {y} ? {x} : {y}", kind)
    return handler


def rounded(text):
    """Of one operand, to nearest: 1/x and the square root."""
    def handler(k, parts, operands):
        k.only(parts, ["rn"])
        kind = parts[-1]
        suffix = "f" if kind == "f32" else ""
        return k.write(operands[0], text.format(x=k.read(operands[1], kind), f=suffix, C=C[kind]), kind)
    return handler


def unary(text, float_text=None):
    def handler(k, parts, operands):
        kind, (d, a) = parts[-1], operands
        k.only(parts, [])
        if kind in FLOATS:
            if not float_text:
                raise Unknown
            u = "b" + kind[1:]
            sign = "0x80000000u" if kind == "f32" else "0x8000000000000000ull"
            return k.write(d, f"as<{C[kind]}>({float_text.format(k.read(a, u), sign)})", kind)
        if kind == "pred":
            return k.write(d, f"!{k.read(a, kind)}", kind)
        return k.write(d, text.format(k.read(a, kind)), kind)
    return handler


def shift(direction):
    def handler(k, parts, operands):
        kind, (d, a, b) = parts[-1], operands
        return k.write(d, f"{direction}<{C[kind]}>({k.read(a, kind)}, {k.read(b, 'u32')})", kind)
    return handler


COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
UNSIGNED_COMPARE = {"lo": "<", "ls": "<=", "hi": ">", "hs": ">="}


def setp(k, parts, operands):
    kind, (p, a, b) = parts[-1], operands
    if len(parts) != 3:
        raise Unknown
    x, y, how = k.read(a, kind), k.read(b, kind), parts[1]
    if kind in FLOATS:
        if how == "nan":
            text = f"{x} != {x} || {y} != {y}"
        elif how == "num":
            text = f"{x} == {x} && {y} == {y}"
        elif how == "ne":  # of numbers alone, as all of these: != is true of a NaN
            text = f"{x} < {y} || {x} > {y}"
        elif how in COMPARE:
            text = f"{x} {COMPARE[how]} {y}"
        elif how == "equ":
            text = f"!({x} < {y} || {x} > {y})"
        elif how == "neu":
            text = f"{x} != {y}"
        elif how[-1] == "u" and how[:-1] in COMPARE:
            opposite = {"lt": ">=", "le": ">", "gt": "<=", "ge": "<"}[how[:-1]]
            text = f"!({x} {opposite} {y})"
        else:
            raise Unknown
    else:
        text = f"{x} {(COMPARE | UNSIGNED_COMPARE)[how]} {y}" if how in COMPARE | UNSIGNED_COMPARE else None
        if not text:
            raise Unknown
    return k.write(p, text, "pred")


def selp(k, parts, operands):
    kind, (d, a, b, p) = parts[-1], operands
    return k.write(d, f"{k.read(p, 'pred')} ? {k.read(a, kind)} : {k.read(b, kind)}", kind)


def mov(k, parts, operands):
    kind, (d, a) = parts[-1], operands
    k.only(parts, [])
    if d.startswith("{"):  # unpack
        pieces = k.vector(d)
        size = bits(kind) // len(pieces)
        source = k.read(a, kind)
        return " ".join(k.write(piece, f"uint{size}_t({source} >> {size * i})", f"b{size}")
                        for i, piece in enumerate(pieces))
    if a.startswith("{"):  # pack
        pieces = k.vector(a)
        size = bits(kind) // len(pieces)
        return k.write(d, " | ".join(f"{C[kind]}({k.read(piece, f'b{size}')}) << {size * i}"
                                     for i, piece in enumerate(pieces)), kind)
    return k.write(d, k.read(a, kind), kind)


def cvt(k, parts, operands):
    to, of, how, d = parts[-2], parts[-1], parts[1:-2], operands[0]
    if to == "bf16x2" and of == "f32" and how == ["rn"]:
        upper, lower = (f"to_bf16({k.read(operand, 'f32')})" for operand in operands[1:])
        return k.write(d, f"{upper} << 16 | {lower}", "b32")
    if to == "bf16" and of == "f32" and how == ["rn"]:
        return k.write(d, f"uint16_t(to_bf16({k.read(operands[1], 'f32')}))", "b16")
    if to not in C or of not in C:
        raise Unknown
    a = k.read(operands[1], of)
    if to not in FLOATS and of not in FLOATS and not how:
        return k.write(d, f"{C[to]}({a})", to)
    if to in FLOATS and of not in FLOATS and how == ["rn"]:
        return k.write(d, f"{C[to]}({a})", to)
    if to not in FLOATS and of == "f32" and how == ["rzi"]:
        return k.write(d, f"to_integer<{C[to]}>({a})", to)
    if (to, of, how) in (("f64", "f32", []), ("f32", "f64", ["rn"])):
        return k.write(d, f"{C[to]}({a})", to)
    raise Unknown


def cvta(k, parts, operands):
    d, a = operands
    address = k.read(a, "u64")
    if parts[1] == "to":
        return k.write(d, address + (" - shared_window" if parts[2] == "shared" else ""), "u64")
    return k.write(d, address + (" + shared_window" if parts[1] == "shared" else ""), "u64")


def place(k, space, kind, n, address, store):
    """A checked pointer to n values."""
    what = f"<{C[kind]}, {n}>(t, {k.address(address, space)}"
    if space == "param":
        return f"parameter{what}, {k.parameter_bytes}, {{line}})"
    if space in ("global", "shared", "generic"):
        return f"{space}{what}, {str(store).lower()}, {{line}})"
    return f"{space}{what}, {{line}})"


def memory(k, parts, store):
    """Of ld and st: the space, the type, how many values; volatile or not."""
    rest = parts[1:-1]
    volatile = "volatile" in rest
    rest = [part for part in rest if part != "volatile"]
    n = {"v2": 2, "v4": 4}[rest.pop()] if rest and rest[-1] in ("v2", "v4") else 1
    space = rest.pop(0) if rest and rest[0] in ("global", "shared", "local", "param") else "generic"
    if [part for part in rest if part != "nc"] or parts[-1] not in C or (store and space == "param"):
        raise Unknown
    return space, parts[-1], n, volatile


def ld(k, parts, operands):
    space, kind, n, volatile = memory(k, parts, False)
    targets = k.vector(operands[0]) if n > 1 else [operands[0]]
    text = f"const auto* const v = {place(k, space, kind, n, operands[1], False)};"
    loads = " ".join(k.write(target, f"v[{i}]", kind) for i, target in enumerate(targets))
    return ("count_volatile_load(t, {line}); " if volatile else "") + f"{{{{ {text} {loads} }}}}"


def st(k, parts, operands):
    space, kind, n, _ = memory(k, parts, True)
    sources = k.vector(operands[1]) if n > 1 else [operands[1]]
    text = f"auto* const v = {place(k, space, kind, n, operands[0], True)};"
    stores = " ".join(f"v[{i}] = {k.seen(source, kind)};" for i, source in enumerate(sources))
    return f"{{{{ {text} {stores} }}}}"


def bra(k, parts, operands):
    k.only(parts + [""], ["uni"])
    return f"goto {k.label(operands[0])};"


def bar(k, parts, operands):
    if parts[1:] == ["sync"] and len(operands) == 1 and operands[0].isdigit():
        return f"t.machine->barrier(t, {operands[0]}, {{line}});"
    if parts[1:] == ["warp", "sync"]:
        return f"t.machine->meet(t, WarpOp::sync, {k.read(operands[0], 'b32')}, nullptr, {{line}});"
    raise Unknown


def shfl(k, parts, operands):
    modes = {"up": "up", "down": "down", "bfly": "butterfly", "idx": "index"}
    if parts[1] != "sync" or parts[2] not in modes or parts[3] != "b32":
        raise Unknown
    d, _, p = operands[0].partition("|")
    a, b, c, mask = (k.read(operand, "b32") for operand in operands[1:])
    text = f"const auto s = shuffle(t, Shuffle::{modes[parts[2]]}, {a}, {b}, {c}, {mask}, {{line}});"
    return f"{{{{ {text} {k.write(d, 's.result', 'b32')} {k.write(p, 's.inside', 'pred') if p else ''} }}}}"


def vote(k, parts, operands):
    if parts[1:] != ["sync", "ballot", "b32"]:
        raise Unknown
    d, a, mask = operands
    return k.write(d, f"ballot(t, {k.read(a, 'pred')}, {k.read(mask, 'b32')}, {{line}})", "b32")


def ldmatrix(k, parts, operands):
    k.only(parts, ["sync", "aligned", "m8n8", "x1", "x2", "x4", "trans", "shared"])
    targets = k.vector(operands[0])
    if f"x{len(targets)}" not in parts or "shared" not in parts:
        raise Unknown
    row = f"uint32_t({k.address(operands[1], 'shared')})"
    text = f"const auto m = ldmatrix(t, {str('trans' in parts).lower()}, {len(targets)}, {row}, {{line}});"
    return f"{{{{ {text} {' '.join(k.write(d, f'm.result[{i}]', 'b32') for i, d in enumerate(targets))} }}}}"


def mma(k, parts, operands):
    if ".".join(parts) != "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32":
        raise Unknown
    d, a, b, c = map(k.vector, operands)
    lists = ", ".join("{{" + ", ".join(k.read(x, kind) for x in xs) + "}}"
                      for xs, kind in ((a, "b32"), (b, "b32"), (c, "f32")))
    results = " ".join(k.write(x, f"m.c[{i}]", "f32") for i, x in enumerate(d))
    return f"{{{{ Mma m{{{{{lists}}}}}; mma(t, m, {{line}}); {results} }}}}"


def cp(k, parts, operands):
    rest = ".".join(parts[1:])
    if rest == "async.commit_group":
        return "t.machine->commit_copies(t);"
    if rest == "async.wait_group":
        return f"t.machine->wait_copies(t, {operands[0]});"
    if rest == "async.wait_all":
        return "t.machine->commit_copies(t); t.machine->wait_copies(t, 0);"
    if rest == "async.cg.shared.global" and operands[2] == "16":
        size = k.read(operands[3], "u32") if len(operands) > 3 else "16"
        return (f"t.machine->copy_async(t, uint32_t({k.address(operands[0], 'shared')}), "
                f"{k.address(operands[1], 'global')}, {size}, {{line}});")
    raise Unknown


def leave(k, parts, operands):
    return "return;"


def copysign(k, parts, operands):
    return binary("copysign_f32({}, {})")(k, parts, operands) if parts[1] == "f32" else k.refuse()


def integers(function, kinds):
    """A function of thread.h; the type of each operand."""
    def handler(k, parts, operands):
        values = ", ".join(k.read(operand, kind) for operand, kind in zip(operands[1:], kinds, strict=True))
        return k.write(operands[0], f"{function}({values})", "b32")
    return handler


def logic(operator):
    def handler(k, parts, operands):
        kind, (d, a, b) = parts[-1], operands
        k.only(parts, [])
        if kind == "pred":
            return k.write(d, f"bool({k.read(a, kind)} {operator} {k.read(b, kind)})", kind)
        return k.write(d, f"{k.read(a, kind)} {operator} {k.read(b, kind)}", kind)
    return handler


INSTRUCTIONS = {
    "add": wrapping("+"), "sub": wrapping("-"), "mul": mul, "mad": mad, "fma": fma, "div": divide,
    "rem": binary("rem({}, {})"), "max": largest("max"), "min": largest("min"),
    "rcp": rounded("{C}(1) / {x}"), "sqrt": rounded("__builtin_sqrt{f}({x})"),
    "neg": unary("0 - uint64_t({})", "{} ^ {}"), "abs": unary("{0} < 0 ? 0 - uint64_t({0}) : uint64_t({0})", "{} & ~{}"),
    "not": unary("~{}"), "and": logic("&"), "or": logic("|"), "xor": logic("^"), "shl": shift("shl"), "shr": shift("shr"),
    "copysign": copysign, "popc": integers("__builtin_popcount", ["b32"]), "brev": integers("brev", ["b32"]),
    "bfi": integers("bfi", ["b32", "b32", "u32", "u32"]), "bfind": integers("bfind_shiftamt", ["b32"]),
    "prmt": integers("prmt", ["b32", "b32", "b32"]),
    "setp": setp, "selp": selp, "mov": mov, "cvt": cvt, "cvta": cvta, "ld": ld, "st": st, "bra": bra, "ret": leave,
    "exit": leave, "bar": bar, "shfl": shfl, "vote": vote, "ldmatrix": ldmatrix, "mma": mma, "cp": cp}
ARITHMETIC = ("add", "sub", "mul", "fma", "div", "rcp", "sqrt", "max", "min", "cvt")
# Of these the table knows one form alone.
ONE_FORM = {"popc": "popc.b32", "brev": "brev.b32", "bfi": "bfi.b32", "bfind": "bfind.shiftamt.u32", "prmt": "prmt.b32"}


# ---- kernels

# How a kernel is compiled, on its first launch.
COMMAND = ("g++ -std=c++20 {} -march=native -ffp-contract=off -fno-math-errno -fno-trapping-math -fno-strict-aliasing -fPIC "
           "-shared -w")
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


# A label, a line that says where the source is, a brace, or a statement up to its semicolon.
TOKEN = re.compile(r"\s*(?:([$\w]+):(?!:)|(\.loc\s[^\n]*)|([{}])|([^;{}\s](?:[^;])*);)")


class Kernel:
    def __init__(self, name, parameters, most_threads, shared, files):
        self.name, self.most_threads, self.files = name, most_threads, files
        self.registers, self.lines, self.computed = {}, [], set()
        self.symbols = {}       # variables: their space and address
        self.parameters = []    # offset and bytes
        self.parameter_bytes = 0
        for text in parameters:
            parameter, size, alignment = variable_of(text)
            at = align(self.parameter_bytes, alignment)
            self.symbols[parameter] = "param", at
            self.parameters.append((at, size))
            self.parameter_bytes = at + size
        self.shared_at, self.static_shared, self.variables, self.dynamic = 0, 0, [], None
        self.local_bytes = 0
        for variable in shared:
            self.share(*variable)

    # Shared variables stand one granule and more apart, so that what runs past the end of one is not in the next. What a block
    # has of shared memory is counted as a GPU lays it out, one behind the other.
    def share(self, name, size, alignment):
        if size == 0:
            self.dynamic = name
            return
        at = align(self.shared_at, max(alignment, 16))
        self.symbols[name] = "shared", at
        self.variables.append((at, size))
        self.static_shared = align(self.static_shared, alignment) + size
        self.shared_at = align(at + size, 16) + 16

    def only(self, parts, known):
        if any(part not in known for part in parts[1:-1]):
            raise Unknown

    def refuse(self):
        raise Unknown

    def vector(self, operand):
        return [part.strip() for part in operand.strip("{} ").split(",")]

    def label(self, name):
        return name.replace("$", "")

    def read(self, operand, kind):
        """The operand as a C++ value of this type."""
        if operand in self.registers:
            held, name = self.registers[operand], operand[1:]
            if held == kind or (held not in FLOATS and C.get(kind) == unsigned(held) and held != "pred"):
                return name
            if (held == "pred") != (kind == "pred"):
                raise Unknown
            if held in FLOATS or kind in FLOATS:
                if bits(held) != bits(kind):
                    raise Unknown
                return f"as<{C[kind]}>({self.seen(operand, held)})"
            return f"{C[kind]}({name})"
        if operand in SPECIAL:
            return f"{C[kind]}({SPECIAL[operand]})" if kind not in ("u32", "b32") else SPECIAL[operand]
        if found := re.fullmatch(r"0([fd])([0-9a-fA-F]+)", operand):
            literal, own = f"0x{found[2]}{'u' if found[1] == 'f' else 'ull'}", "f32" if found[1] == "f" else "f64"
            if bits(kind) != bits(own):
                raise Unknown
            return f"as<{C[own]}>({literal})" if kind in FLOATS else f"{C[kind]}({literal})"
        if re.fullmatch(r"-?\d+|0x[0-9a-fA-F]+U?", operand):
            value = int(operand.rstrip("U"), 0) % (1 << 64)
            if kind == "pred":
                return "true" if value else "false"
            literal = f"{value % (1 << bits(kind))}{'u' if bits(kind) <= 32 else 'ull'}"
            return literal if kind[0] in "ub" and bits(kind) >= 32 else f"{C[kind]}({literal})"
        if operand in self.symbols or operand == self.dynamic:
            return f"{C[kind]}({self.symbol(operand)})"
        raise Unknown

    # An operation on floats gives one NaN (9.7.3), whatever its operands held; a CPU keeps their bits. That matters where the bits
    # are seen: in memory and in integers.
    def seen(self, operand, kind):
        text = self.read(operand, kind)
        return f"number({text})" if operand in self.computed and self.registers[operand] in FLOATS else text

    # Registers that hold what such an operation has made, perhaps by way of others.
    def find_computed(self, statements):
        copies = []
        for statement in statements:
            found = re.match(r"(?:@!?%\w+\s+)?(\w+)\.([\w.]*)\s+(%\w+),(.*)", statement, re.DOTALL)
            if found and found[1] in ("mov", "selp"):
                copies.append((found[3], re.findall(r"%\w+", found[4])))
            elif found and found[1] in ARITHMETIC and re.search(r"f32|f64", found[2]):
                self.computed.add(found[3])
        while new := {to for to, sources in copies if to not in self.computed and not self.computed.isdisjoint(sources)}:
            self.computed |= new

    def symbol(self, name):
        if name == self.dynamic:
            self.symbols[name] = "shared", align(self.shared_at, 128)
        space, at = self.symbols[name]
        return f"t.local_begin + {at}" if space == "local" else str(at)

    def address(self, operand, space):
        base, offset = re.fullmatch(r"\[\s*([^+\]\s]+)(?:\+(-?\d+))?\s*\]", operand).groups()
        held = self.registers.get(base)
        if held is None and base not in self.symbols and base != self.dynamic:
            raise Unknown
        text = base[1:] if held else self.symbol(base)
        number = int(offset or 0)
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
        if held == kind or (held not in FLOATS and kind not in FLOATS):
            if bits(held) < bits(kind) and held != "pred":
                raise Unknown
            return f"{name} = {value};"
        if bits(held) != bits(kind):
            raise Unknown
        if held in FLOATS:
            return f"{name} = as<{C[held]}>({C[kind]}({value}));"
        return f"{name} = as<{unsigned(held)}>({value});"

    def instruction(self, text):
        found = re.fullmatch(r"(?:@(!?)(%\w+)\s+)?([a-z][\w.:]*)\s*(.*)", text, re.DOTALL)
        if not found:
            raise Unknown(text)
        negated, guard, opcode, rest = found.groups()
        operands = [part.strip() for part in re.findall(r"(?:\{[^}]*\}|\[[^\]]*\]|[^,{\[])+", rest) if part.strip()]
        parts = opcode.split(".")
        handler = INSTRUCTIONS.get(parts[0])
        try:
            if not handler or ONE_FORM.get(parts[0], opcode) != opcode:
                raise Unknown
            code = handler(self, parts, operands)
        except (Unknown, ValueError, KeyError, IndexError, AttributeError):
            code = f't.machine->refuse(t, "this instruction is not known: {opcode}", {{line}});'
        # (a statement of several assignments must stand or fall as a whole)
        code = code.replace("{line}", "LINE").replace("{{", "{").replace("}}", "}")
        if guard:
            code = f"if ({negated}{self.read(guard, 'pred')}) {{ {code} }}"
        self.lines.append((f"  {code}", text))

    def statement(self, text):
        if found := re.fullmatch(r"\.reg\s+\.(\w+)\s+(.*)", text):
            kind = found[1] if found[1] in ("pred", *FLOATS) else "b" + found[1][1:]
            for part in found[2].split(","):
                many = re.fullmatch(r"\s*(%\w+)(?:<(\d+)>)?\s*", part)
                names = [many[1]] if not many[2] else [f"{many[1]}{i}" for i in range(int(many[2]))]
                for name in names:
                    self.registers[name] = kind
                self.lines.append(("DECLARE", (kind if kind in ("pred", *FLOATS) else kind, names)))
        elif text.startswith(".shared"):
            self.share(*variable_of(text[len(".shared"):]))
        elif text.startswith(".local"):
            name, size, alignment = variable_of(text[len(".local"):])
            if alignment > 16 or self.local_bytes:
                raise Unknown(text)
            self.symbols[name] = "local", 0
            self.local_bytes = size
        elif found := re.fullmatch(r"\.loc\s+(\d+) (\d+) \d+(.*)", text):
            at = re.search(r"inlined_at (\d+) (\d+)", found[3])
            where = f"{self.files.get(found[1], '?')}:{found[2]}"
            if at:
                where += f" in {self.files.get(at[1], '?')}:{at[2]}"
            if found[2] != "0" and (not self.lines or self.lines[-1] != ("AT", where)):
                self.lines.append(("AT", where))
        elif text.startswith(".pragma"):
            pass
        elif text.startswith("."):
            raise Unknown(text)
        else:
            self.instruction(text)

    def body(self, text):
        tokens = TOKEN.findall(re.sub(r"//[^\n]*", "", text))
        self.find_computed([statement for *_, statement in tokens])
        for label, loc, brace, statement in tokens:
            if label:
                self.lines.append((f"{self.label(label)}:;", None))
            elif brace:
                self.lines.append((f"  {brace}", None))
            else:
                self.statement((loc or statement).strip())

    def cpp(self):
        used = set(re.findall(r"\b\w+\b", "\n".join(code for code, _ in self.lines if code not in ("AT", "DECLARE"))))
        out = [f"// {COMMAND.format('-O1' if len(self.lines) < LONG else '-Og')}", f"// {self.name}", '#include "thread.h"', "using namespace ptx;"]
        for name, values in (("parameters", self.parameters), ("variables", self.variables)):
            flat = ", ".join(f"{at}, {size}" for at, size in values) or "0"
            out.append(f"static constexpr uint32_t {name}[] = {{{flat}}};")
        out.append("static void code(Thread& t) {")
        if self.local_bytes:
            out.append(f"  alignas(16) unsigned char local_memory[{self.local_bytes}];")
            out.append("  __builtin_memset(local_memory, 0xff, sizeof local_memory);")
            out.append("  t.local_begin = reinterpret_cast<uint64_t>(local_memory), t.local_bytes = sizeof local_memory;")
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
                f'extern "C" const Description description = {{code, parameters, {len(self.parameters)}, {self.parameter_bytes}, '
                f"{self.static_shared}, variables, {len(self.variables)}, {align(self.shared_at, 128)}, {self.local_bytes}, "
                f"{self.most_threads}}};", ""]
        return "\n".join(out)


def kernels_of(text):
    files = {number: re.sub(r".*/\./", "", name) for number, name in re.findall(r'^\s*\.file\s+(\d+) "([^"]+)"', text, re.MULTILINE)}
    shared = [variable_of(found) for found in re.findall(r"^\.(?:extern )?\.?shared ([^;]+);", text, re.MULTILINE)]
    for found in re.finditer(r"^\.(?:visible |weak )?\.?entry\s+([\w$]+)\(?(.*?)\)?\n(\.[^{]*)?\{\n(.*?)\n\}\n", text,
                             re.MULTILINE | re.DOTALL):
        name, parameters, directives, body = found.groups()
        parameters = [part.strip()[len(".param"):] for part in parameters.strip("() \n").split(",\n") if part.strip()]
        most = re.search(r"\.maxntid\s+(\d+)(?:, (\d+))?(?:, (\d+))?", directives or "")
        most_threads = 1024
        if most:
            most_threads = int(most[1]) * int(most[2] or 1) * int(most[3] or 1)
        body = body.split("\n\t// @")[0]
        mentioned = set(re.findall(r"[\w$]+", body))
        kernel = Kernel(name, parameters, most_threads, [v for v in shared if v[0] in mentioned], files)
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
    for source in sources:
        with open(source) as file:
            text = file.read()
        index = []
        for kernel in kernels_of(text):
            cpp = kernel.cpp()
            digest = hashlib.sha256((header + cpp).encode()).hexdigest()[:20]
            name = os.path.join(folder, digest + ".cpp")
            if not os.path.exists(name):
                write(name, cpp)
            index.append(f"{kernel.name} {digest}\n")
        if len(index) != (there := len(re.findall(r"\.entry\s", text))):
            sys.exit(f"translate: {source}: {len(index)} of {there} kernels were read")
        write(os.path.join(folder, re.sub(r"\.ptx$", "", os.path.basename(source)) + ".index"), "".join(index))


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: ptx/translate.py FOLDER NAME.ptx...")
    main(sys.argv[1], sys.argv[2:])
