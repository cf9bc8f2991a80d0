#!/usr/bin/env python3
"""Plants faults in what nvcc has made, one at a time, and counts how many the rehearsal's tests see.

usage: scripts/plant_ptx_faults.py [--jobs=2] [--only=3,17-20] [--check] [--tree=DIR]     (after make rehearsal)

A fault is one change of one instruction of one kernel's PTX. The kernel alone is translated and compiled anew, and one test runs
with it, in the class [bitwise]. Its tests without a fault have to pass first. A fault that its test does not see has survived.
Other faults are planted in the stand-in for the GPU (ptx/), to show that the tests hold it to what a GPU does.
A race is seen where the test runs with PTX_RACES=1: on a CPU one order of threads may give the right bits.

--check   only finds every fault's place
--only    these faults alone
--tree    the checkout whose rehearsal is used (default: this one)
"""
import argparse
import collections
import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time

from common import ROOT, chosen, end_of

# A heading names a change: «what is there => what takes its place». In PTX the first is a regular expression. A row below is a test,
# which of the instructions that match is changed, what the test's environment holds besides, and a kernel, as a regular expression.
# A heading with a path changes that file of the stand-in instead; a kernel in its row is translated with it, and - means that the
# program is linked anew.
FAULTS = r"""
[a barrier taken away «bar\.sync\s+\d+; => »]
  test_matmul 1 PTX_RACES=1 ^matmul_kernel<.Layout.0, 64, 64, 4, 4, false>
  test_grouped_matmul 1 PTX_RACES=1 ^grouped_matmul_kernel<.Layout.1, 64, 64, 4, 4, false>
  test_matmul_bf16 1 PTX_RACES=1 ^matmul_bf16_kernel<.Layout.0, true, float>
  test_attention 2 PTX_RACES=1 ^attention_forward_kernel<true, 64>
  test_attention 3 PTX_RACES=1 ^attention_backward_dkdv_kernel<false, 64>
  test_cached_attention 2 - ^cached_attention_kernel
  test_gated_delta 1 PTX_ORDER=reverse ^gated_delta_backward_kernel
  test_gated_delta_chunk 5 PTX_RACES=1 ^gated_delta_chunk_forward_kernel
  test_gated_delta_chunk 3 PTX_RACES=1 ^gated_delta_chunk_backward_kernel
  test_gated_norm 1 PTX_ORDER=7 ^gated_norm_forward_kernel<float>
  test_linear_cross_entropy 1 PTX_RACES=1 ^cross_entropy_kernel<float>
  test_rmsnorm 1 PTX_RACES=1 ^rows_and_columns_kernel<.First.0, 1ul, RmsnormBackwardRows<float>
[a warp's barrier taken away «bar\.warp\.sync\s+-1; => »]
  test_dispatch 1 PTX_RACES=1 ^dispatch_rank_kernel
  test_attention_bf16 2 PTX_RACES=1 ^attention_bf16_forward_kernel<64, true>
  test_attention_bf16 1 PTX_RACES=1 ^attention_bf16_dkdv_kernel<64, true>
  test_router 1 PTX_RACES=1 ^router_forward_kernel
[a wait for copies taken away «cp\.async\.wait_group \d+; => »]
  test_attention_bf16 1 - ^attention_bf16_forward_kernel<64, true>
  test_gated_delta_bf16 1 - ^gated_delta_bf16_make_kernel
  test_linear_cross_entropy 1 - ^cross_entropy_kernel<bf16>
[a wait that leaves one group more «cp\.async\.wait_group 0; => cp.async.wait_group 1;»]
  test_attention_bf16 2 - ^attention_bf16_forward_kernel<64, true>
  test_cached_attention_bf16 1 - ^cached_attention_bf16_kernel<64, true>
[a wait that leaves one group more «cp\.async\.wait_group 1; => cp.async.wait_group 2;»]
  test_matmul_bf16 1 - ^matmul_bf16_kernel<.Layout.0, true, bf16>
  test_grouped_matmul_bf16 1 - ^grouped_matmul_bf16_kernel<.Layout.1, true, bf16>
[a commit taken away «cp\.async\.commit_group; => »]
  test_matmul_bf16 2 - ^matmul_bf16_kernel<.Layout.1, true, float>
  test_gated_delta_bf16 1 - ^gated_delta_bf16_state_kernel<64>
[a store taken away «st\.global\.\S+\s[^;]+; => »]
  test_adamw 2 - ^adamw_update_kernel
  test_dispatch 1 - ^dispatch_count_kernel
  test_router 1 - ^router_backward_kernel<float>
  test_quantize 1 - ^quantize_fp8_rows_kernel
[a store of shared memory taken away «st\.shared\.\S+\s[^;]+; => »]
  test_linear_cross_entropy 1 - ^cross_entropy_kernel<float>
  test_attention_bf16 3 - ^attention_bf16_dq_kernel<64, true>
[a store one element on «(st\.global\.f32\s+\[%rd\d+)\] => \1+4]»]
  test_rope 1 - ^rope_kernel<float>
  test_bias 1 - ^column_slices_kernel<1ul, OneSum<AddRows<float>
  test_short_conv 1 - ^short_conv_forward_kernel<float>
  test_sinks 1 - ^column_slices_kernel<1ul, OneSum<SinkFold>
[a load one element on «(ld\.global\S*\.f32\s+%f\d+, \[%rd\d+)\] => \1+4]»]
  test_rmsnorm 1 - ^rmsnorm_forward_kernel<float>
  test_layernorm 1 - ^layernorm_forward_kernel<float>
  test_gradient 1 - ^gradient_squares_kernel
[a shuffle from another lane «(shfl\.sync\.bfly\.b32\s+\S+ %r\d+), %r\d+, => \1, 5,»]
  test_rmsnorm 2 - ^rmsnorm_forward_kernel<float>
  test_layernorm 1 - ^layernorm_forward_kernel<float>
  test_gradient 1 - ^gradient_squares_kernel
  test_gated_delta 5 - ^gated_delta_forward_kernel<4>
  test_attention_bf16 1 - ^attention_bf16_forward_kernel<64, true>
  test_l2norm 1 - ^l2norm_backward_kernel<float>
[a shuffle without lane 31 «(shfl\.sync\.bfly\.b32 [^;]*), %r\d+; => \1, 0x7fffffff;»]
  test_quantize 1 - ^quantize_nvfp4_kernel
  test_polynorm 1 - ^polynorm_forward_kernel<float>
[a bound one further «setp\.ge\.(\w+) => setp.gt.\1»]
  test_residual 1 - ^residual_forward_kernel<float>
  test_residual 4 - ^residual_forward_kernel<float>
  test_dyt 2 - ^dyt_forward_kernel<float>
  test_embedding 5 - ^embedding_forward_kernel<float>
  test_matmul 5 - ^matmul_kernel<.Layout.0, 64, 64, 4, 4, false>
[a product rounded before it is added «fma\.rn\.f32\s+(\S+), (\S+), (\S+), (\S+); => {.reg .f32 %product; mul.rn.f32 %product, \2, \3; add.rn.f32 \1, %product, \4;}»]
  test_adamw 1 - ^adamw_update_kernel
  test_matmul 9 - ^matmul_kernel<.Layout.2, 64, 64, 4, 4, false>
  test_short_conv 2 - ^short_conv_dp_kernel<float>
  test_gated_delta_chunk 80 - ^gated_delta_chunk_backward_kernel
[two numbers cut off, not rounded, to bf16 «cvt\.rn\.bf16x2\.f32 (\S+), (\S+), (\S+); => {.reg .b32 %upper, %lower; mov.b32 %upper, \2; and.b32 %upper, %upper, 0xffff0000; mov.b32 %lower, \3; shr.u32 %lower, %lower, 16; or.b32 \1, %upper, %lower;}»]
  test_attention_bf16 4 - ^attention_bf16_forward_kernel<64, true>
  test_gated_delta_bf16 1 - ^gated_delta_bf16_gradient_kernel
[ties rounded up to bf16 «, 32767; => , 32768;»]
  test_round 1 - ^round_to_bf16_kernel
[a matrix not transposed «(ldmatrix\S*)\.trans => \1»]
  test_attention_bf16 1 - ^attention_bf16_dq_kernel<64, true>
  test_gated_delta_bf16 1 PTX_GPU=86 ^gated_delta_bf16_dstate_kernel<64, 1>
  test_matmul_bf16 1 - ^matmul_bf16_kernel<.Layout.2, true, float>
[two registers of a tensor core's A exchanged «(mma\.sync\S+ \{[^}]*\}, \{)(%r\d+), (%r\d+) => \1\3, \2»]
  test_cached_attention_bf16 1 - ^cached_attention_bf16_kernel<64, true>
[a condition turned around «@(%p\d+) bra => @!\1 bra»]
  test_moe 2 - ^combine_forward_kernel<float>
  test_embedding 3 - ^embedding_backward_kernel<float>
  test_glu 2 - ^glu_forward_kernel<float>
  test_gated_norm 3 - ^gated_norm_backward_kernel<bf16>
[a vote without lane 31 «(vote\.sync\.ballot\.b32\s+%r\d+, %p\d+), %r\d+ => \1, 0x7fffffff»]
  test_dispatch 1 - ^dispatch_rank_kernel
[a multiplier of dropout's generator «3528531795 => 3528531797»]
  test_residual 1 - ^residual_forward_kernel<float>
  test_residual 1 - ^residual_backward_kernel<bf16>
[the lanes of a transposed matrix ptx/machine.cpp «rows[t + 1][g] => rows[t][g + 1]»]
  test_attention_bf16 1 - -
[the row of a matrix from the next lane ptx/machine.cpp «Fiber& from = *lanes[8 * m + r] => Fiber& from = *lanes[8 * m + (r ^ 1)]»]
  test_matmul_bf16 1 - -
[shfl.bfly from one lane further ptx/machine.cpp «j = int(i ^ by), => j = int(i ^ by ^ 1),»]
  test_rmsnorm 1 - -
[shfl.idx from the lane before ptx/machine.cpp «first | (by & ~segment) => first | ((by - 1) & ~segment)»]
  test_head_experts 1 - -
[a vote told one lane on ptx/machine.cpp «->mine) votes |= 1u << i => ->mine) votes |= 2u << i»]
  test_dispatch 1 - -
[rows of a tensor core's result exchanged ptx/machine.cpp «m.c[2] = C[t][g + 8], m.c[3] = C[t + 1][g + 8] => m.c[3] = C[t][g + 8], m.c[2] = C[t + 1][g + 8]»]
  test_mma 1 - -
[a copy that leaves its last bytes ptx/machine.cpp «memcpy(bytes, storage_of(copy.from), copy.bytes) => memcpy(bytes, storage_of(copy.from), copy.bytes / 2)»]
  test_matmul_bf16 1 - -
[a wait for one group fewer ptx/machine.cpp «copies[arrived].group + pending < f.groups => copies[arrived].group + pending + 1 < f.groups»]
  test_linear_cross_entropy 1 - -
[bf16 by rounding ties up ptx/thread.h «0x7fff + (u >> 16 & 1) => 0x8000»]
  test_attention_bf16 1 - ^attention_bf16_forward_kernel<64, true>
[the smaller of two numbers ptx/thread.h «return a > b || => return a < b ||»]
  test_quantize 1 - ^row_amax_kernel
[fma rounded twice ptx/translate.py «__builtin_fma{'f' if kind == 'f32' else ''}({a}, {b}, {c}) => {a} * {b} + {c}»]
  test_matmul 1 - ^matmul_kernel<.Layout.0, 64, 64, 4, 4, false>
[mul.hi of the lower half ptx/thread.h «(unsigned __int128)(a) * b >> 64 => (unsigned __int128)(a) * b»]
  test_grouped_matmul 1 - ^grouped_matmul_kernel<.Layout.2, 64, 64, 4, 4, false>
[a store of the vector's first number ptx/translate.py «v[{i}] = {k.seen(source, kind)} => v[{i}] = {k.seen(sources[0], kind)}»]
  test_adamw 1 - ^adamw_update_kernel
[an opt-in of shared memory forgotten ptx/runtime.cpp «    f.most_dynamic = value; => »]
  test_attention_bf16 1 - -
  test_gated_delta_bf16 1 PTX_GPU=86 -
  test_linear_cross_entropy 1 - -
"""


class Fault(collections.namedtuple("Fault", "number change file old new test nth environment kernel")):
    pass


def find_faults():
    faults, heading = [], None
    for line in FAULTS.strip().splitlines():
        if line.startswith("["):
            heading = re.fullmatch(r"\[(.*?)(?: (ptx/\S+))? «(.*) => (.*)»\]", line).groups()
        else:
            test, nth, environment, kernel = line.split(maxsplit=3)
            environment = dict(part.split("=") for part in environment.split(",") if part != "-")
            faults.append(Fault(len(faults) + 1, *heading, test, int(nth), environment, kernel))
    return faults


def read(name):
    with open(name, encoding="utf-8") as file:
        return file.read()


def write(name, text):
    with open(name, "w", encoding="utf-8") as file:
        file.write(text)


class Kernels:
    """The PTX of all kernels: what stands before the first one, and each by its plain name."""

    def __init__(self, ptx):
        self.outside = "\n".join(re.findall(r"^\s*\.file\s.*|^\.(?:extern )?\.?shared .*", ptx, re.MULTILINE)) + "\n"
        self.texts = {}
        for found in re.finditer(r"^\.(?:visible |weak )?\.?entry\s+([\w$]+)\(.*?^\}\n", ptx, re.MULTILINE | re.DOTALL):
            self.texts[found[1]] = found[0]
        plain = subprocess.run(["c++filt"], input="\n".join(self.texts), capture_output=True, text=True, check=True).stdout
        plain = re.sub(r"gated_nvcc::|\(anonymous namespace\)::|^void ", "", plain, flags=re.MULTILINE)
        self.names = dict(zip(plain.splitlines(), self.texts))

    def find(self, pattern):
        """The first kernel with such a name: its plain name and its text."""
        for plain, mangled in self.names.items():
            if re.search(pattern, plain):
                return plain, self.texts[mangled]
        raise LookupError(f"no kernel is called {pattern}")


def changed(fault, text, where):
    """The text with the fault, the line that it changes and that line as it is now."""
    places = list(re.finditer(re.escape(fault.old) if fault.file else fault.old, text))
    if len(places) < fault.nth:
        raise LookupError(f"{where} holds {fault.old} {len(places)} times, expected {fault.nth} at least")
    place = places[fault.nth - 1]
    new = fault.new if fault.file else place.expand(fault.new)
    begin, end = text.rfind("\n", 0, place.start()) + 1, text.find("\n", place.end())
    after = text[begin:place.start()] + new + text[place.end():end]
    return text[:place.start()] + new + text[place.end():], f"{shown(text[begin:end])} => {shown(after) or 'nothing'}"


def shown(text):
    return " ".join(text.split())


class Rehearsal:
    """What make rehearsal has left in a tree, and its tests with and without faults."""

    def __init__(self, tree):
        self.tree = tree
        self.folder = os.path.join(tree, "build/rehearsal")
        self.kernels = Kernels(read(os.path.join(tree, "build/cuda/kernels.ptx")))
        self.seconds = {}
        self.lock = threading.Lock()

    def place(self, fault):
        """The kernel's name and PTX, the text of the stand-in's file, one of them with the fault, and the change."""
        name, ptx = self.kernels.find(fault.kernel) if fault.kernel != "-" else ("", "")
        if not fault.file:
            ptx, change = changed(fault, ptx, name)
            return name, ptx, "", change
        text, change = changed(fault, read(os.path.join(self.tree, fault.file)), fault.file)
        return name, ptx, text, change

    def plant(self, fault, folder):
        """Leaves kernels and, where the machine is changed, a program in the folder. Returns the kernel, the change, the program."""
        kernels, program = os.path.join(folder, "kernels"), os.path.join(self.folder, fault.test)
        name, ptx, text, change = self.place(fault)
        os.makedirs(kernels)
        if fault.file:
            shutil.copytree(os.path.join(self.tree, "ptx"), os.path.join(folder, "ptx"))
            write(os.path.join(folder, fault.file), text)
        for file in os.listdir(os.path.join(self.folder, "kernels")):
            os.symlink(os.path.join(self.folder, "kernels", file), os.path.join(kernels, file))
        if ptx:
            write(os.path.join(folder, "faulty.ptx"), self.kernels.outside + ptx)
            translator = os.path.join(folder if fault.file else self.tree, "ptx/translate.py")
            subprocess.run([sys.executable, translator, kernels, os.path.join(folder, "faulty.ptx")], check=True)
            mine, index = read(os.path.join(kernels, "faulty.index")), os.path.join(kernels, "kernels.index")
            unchanged = [line for line in read(index).splitlines() if line.split()[0] != mine.split()[0]]
            os.remove(index)
            write(index, mine + "\n".join(unchanged) + "\n")
        else:
            program = self.link(fault, folder)
        return name, change, program

    def link(self, fault, folder):
        """The test with one object of the stand-in compiled anew, by the commands that make would run."""
        target, part = f"build/rehearsal/{fault.test}", fault.file[:-len(".cpp")]
        made = subprocess.run(["make", "-n", "-W", fault.file, target], cwd=self.tree, capture_output=True, text=True, check=True)
        for output in (f"build/rehearsal/{part}.o", target):
            [command] = [line for line in made.stdout.splitlines() if f"-o {output} " in line]
            for old, new in ((f" {fault.file}", f" {folder}/{fault.file}"), (f" build/rehearsal/{part}.o", f" {folder}/{part}.o"),
                             (f"-o {target}", f"-o {folder}/{fault.test}")):
                command = command.replace(old, new)
            subprocess.run(command, shell=True, cwd=self.tree, check=True)
        return os.path.join(folder, fault.test)

    def run(self, test, environment, limit, program, kernels, log):
        environment = dict(os.environ, OMP_NUM_THREADS="1", GATED_NEEDS_GPU="1", GATED_GUARD="off", PTX_KERNELS=kernels, **environment)
        return end_of([program, "[bitwise]", "--abort"], self.tree, environment, log, limit)

    def measure(self, fault, folder):
        """How long the fault's test takes without it."""
        key = fault.test, str(fault.environment)
        with self.lock:
            if key not in self.seconds:
                begin, log = time.monotonic(), os.path.join(folder, "without.log")
                failure = self.run(fault.test, fault.environment, 600, os.path.join(self.folder, fault.test),
                                   os.path.join(self.folder, "kernels"), log)
                if failure:
                    sys.exit(f"{key} fails without a fault ({failure}):\n{read(log)[-3000:]}")
                self.seconds[key] = time.monotonic() - begin
            return self.seconds[key]

    def find(self, fault, folder):
        """The kernel, the change, and how the test has seen it; None where it has not."""
        folder = os.path.join(folder, str(fault.number))
        name, change, program = self.plant(fault, folder)
        limit, log = 60 + 10 * self.measure(fault, folder), os.path.join(folder, "log")
        failure = self.run(fault.test, fault.environment, limit, program, os.path.join(folder, "kernels"), log)
        return name, change, failure and how_seen(failure, read(log))


def how_seen(failure, log):
    if named := re.search(r"^ptx: .*\n  at .*\n  (.*)", log, re.MULTILINE) or re.search(r"^ptx: (.*)", log, re.MULTILINE):
        return "a race" if named[1].startswith("a race") else f"by name: {named[1][:100]}"
    if thrown := re.search(r"unexpected exception with messages?:\n(?:.*\n)*?  (launch.*(?:\n  .*)*)", log):
        return f"refused: {shown(thrown[1])[:100]}"
    if "FAILED:" in log:
        return "wrong bits"
    return failure


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--jobs", type=int, default=os.cpu_count())
    options.add_argument("--only", default="")
    options.add_argument("--check", action="store_true")
    options.add_argument("--tree", default=ROOT)
    options = options.parse_args()
    rehearsal, wanted = Rehearsal(options.tree), chosen(find_faults(), options.only)
    if options.check:
        for fault in wanted:
            print(f"{fault.number:3}  {fault.test}, {fault.change}: {rehearsal.place(fault)[3]}")
        return
    folder = tempfile.mkdtemp(prefix="planted.")
    lived = 0
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for fault, (name, change, seen) in zip(wanted, pool.map(lambda f: rehearsal.find(f, folder), wanted)):
            lived += seen is None
            print(f"{fault.number:3}  {seen or 'LIVED'}\n     {fault.test}, {fault.change}, {name}\n     {change}", flush=True)
    shutil.rmtree(folder)
    print(f"{len(wanted) - lived} seen, {lived} lived")
    sys.exit(1 if lived else 0)


if __name__ == "__main__":
    main()
