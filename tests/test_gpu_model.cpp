// scripts/gpu_model.py on machine code written here: the parser, the loops, the sums, with answers known beforehand.
#include "tests/script.h"

using namespace gated;

namespace {

// Of one kernel: four instructions before a loop, six in it, four behind it; then two functions of ptxas' own.
const char* const listing = R"(
//--------------------- .text.k --------------------------
	.section	.text.k,"ax",@progbits
.text.k:
	//## File "/src/./kernels/a.cu", line 3
        /*0000*/                   LDC R1, c[0x0][0x28] ;
	//## File "/src/./kernels/a.cu", line 5
        /*0010*/                   LDG.E R2, desc[UR4][R6.64] ;
        /*0020*/              @!P0 BRA `(.L_x_0) ;
        /*0030*/                   CALL.REL.NOINC `($__internal_1_$__cuda_sm20_div_u64) ;
.L_x_1:
	//## File "/src/./kernels/a.cu", line 5
        /*0040*/                   LDG.E R8, desc[UR4][R4.64] ;
        /*0050*/                   FFMA R9, R8, R8, R9 ;
	//## File "/src/./core/b.cuh", line 2 inlined at "/src/./kernels/a.cu", line 6
	//## File "/src/./kernels/a.cu", line 6
        /*0060*/                   MUFU.EX2 R10, R9 ;
        /*0070*/                   HMMA.16816.F32.BF16 R12, R16, R20, R12 ;
        /*0080*/                   ISETP.GE.AND P0, PT, R8, R1, PT ;
        /*0090*/              @!P0 BRA `(.L_x_1) ;
.L_x_0:
	//## File "/src/./kernels/a.cu", line 8
        /*00a0*/                   STG.E desc[UR4][R4.64], R9 ;
        /*00b0*/               @P1 EXIT ;
        /*00c0*/                   CALL.REL.NOINC `($__internal_0_$__cuda_sm3x_div_rn_noftz_f32_slowpath) ;
        /*00d0*/                   EXIT ;
$__internal_0_$__cuda_sm3x_div_rn_noftz_f32_slowpath:
        /*00e0*/                   RET.REL.NODEC R2 `(k) ;
$__internal_1_$__cuda_sm20_div_u64:
        /*00f0*/                   RET.REL.NODEC R2 `(k) ;
.L_x_2:
        /*0100*/                   BRA `(.L_x_2);
        /*0110*/                   NOP;
)";

}  // namespace

TEST_CASE("gpu_model: machine code, its loops and their trips", "[scripts]") {
  const Folder f;
  f.write("a.sass", listing);
  REQUIRE(f.python(R"(
import gpu_model, sass
[k] = sass.functions(open("a.sass").read())
print(k.name, [(hex(a), hex(b)) for a, b in k.loops])
print([(len(b.instructions), b.loops) for b in k.blocks], [tuple(called) for called in k.called])
body = [i for b in k.blocks if b.loops == (0,) for i in b.instructions]
print([i.opcode for i in body], body[0].line, body[-1].line, body[-1].guard, [body[0].guard])
print([i.pipe for i in body])
# alone: 570 for the read, 4 for the FFMA; MUFU, HMMA and ISETP a cycle apart, 5 for the predicate, 1 to begin again
print(sass.cycles_alone(body))
# line 5 is read before the loop, too; what calls a slow path is taken not to run
counted = {("read", "kernels/a.cu:5"): 11, ("write", "kernels/a.cu:8"): 3}
print(gpu_model.executions(k, counted))
print(gpu_model.executions(k, {("read", "kernels/a.cu:5"): 0, ("write", "kernels/a.cu:8"): 0}))
# where no access is known, lines tell, and callers of a function
inlined = "core/b.cuh:2 in kernels/a.cu:6"
ran = {"kernels/a.cu:3": (3, 1), "kernels/a.cu:5": (2, 4), inlined: (2, 7), "kernels/a.cu:8": (3, 9)}
print(gpu_model.executions(k, {}, ran))
# accesses whose lines do not meet share what is left
print(gpu_model.executions(k, {("read", "elsewhere:1"): 12}))
print(sass.Instruction(0, "HGMMA.64x256x16.F32.BF16", "", "", "").pipe, sass.kind_of("HGMMA.64x256x16.F32.BF16", 1))
pipes, alone, loop = gpu_model.work_of(k, counted)
# alone: of two warps the second runs the loop, twice as often as the average
print([round(gpu_model.work_of(k, counted, {}, 2, {inlined: (1, 2)})[1] - gpu_model.cycles_alone(k, times))
       for times in ([1, 0, 20, 3, 0, 0, 0, 0], [1, 0, 10, 3, 0, 0, 0, 0])])
print({p: pipes[p] for p in ("issue", "tensor", "mufu", "fma", "memory")}, loop["slots"], loop["mma"])
)") == "k [('0x40', '0x90')]\n"
       "[(3, ()), (1, ()), (6, (0,)), (2, ()), (2, ()), (1, ()), (1, ()), (1, ())] "
       "[(5, 6, [4], True), (6, 8, [1], False)]\n"
       "['LDG.E', 'FFMA', 'MUFU.EX2', 'HMMA.16816.F32.BF16', 'ISETP.GE.AND', 'BRA'] kernels/a.cu:5 "
       "core/b.cuh:2 in kernels/a.cu:6 P0 ['']\n"
       "[('memory', 0), ('fma', 1), ('mufu', 8), ('tensor', 8), ('integer', 2), ('control', 1)]\n"
       "582.0\n"
       "[1, 0.0, 10.0, 3.0, 0, 0, 0.0, 0.0]\n"
       "[0.0, 0.0, 0.0, 0.0, 0, 0, 0.0, 0.0]\n"
       "[4, 4, 7, 9, 0, 0, 4, 4]\n"
       "[6.0, 0.0, 6.0, 0.0, 0, 0, 0.0, 0.0]\n"
       "('wgmma', 128.0) wgmma\n"
       "[0, 5820]\n"
       "{'issue': 69.0, 'tensor': 80.0, 'mufu': 80.0, 'fma': 10.0, 'memory': 0.0} 6.0 1.0\n");
}

TEST_CASE("gpu_model: products by wgmma go on beside the warp until it waits for their group", "[scripts]") {
  const Folder f;
  // Two groups of 128 cycles, one behind the other. Waits for the first and for both, after no work and after 200.
  REQUIRE(f.python(R"(
import sass
def code(*opcodes):
    return [sass.Instruction(0, opcode.split(" ")[0], "", opcode.partition(" ")[2], "") for opcode in opcodes]
ask = code("HGMMA.64x256x16.F32.BF16 R24, gdesc[UR4], R24, gsb0") * 2
wait = {n: code(f"WARPGROUP.DEPBAR.LE gsb0, 0x{n}") for n in (0, 1)}
work = code("FADD R1, R2, R3") * 200
print([sass.Warp().run(ask + between + wait[n]) for between in ([], work) for n in (1, 0)])
)") == "[129.0, 257.0, 203, 257.0]\n");
}

TEST_CASE("gpu_model: what a warp runs, from what was counted of basic blocks and accesses", "[scripts]") {
  const Folder f;
  // Two blocks of four warps. The basic block at 5 is run by each warp once, that at 9 by the last two, once in all.
  REQUIRE(f.python(R"(
import gpu_model as m
lines = [m.Line(5, "warp", 0, 8, 0, 0, 0, 0, 4), m.Line(9, "warp", 0, 4, 0, 0, 0, 2, 4),
         m.Line(7, "global", 0, 16, 0, 0, 0, 0, 0)]
counted, ran, who = m.runs_of_warp({"sampled": 2, "lines": lines},
                                   {7: ("read", "a.cu:1", 0, 5), 10: ("division", "b.cu:2", 0, 9)},
                                   {"a.cu:1": {5}, "b.cu:2": {5, 9}, "c.cu:3": {9, 11}}, 4)
print(counted["read", "a.cu:1"], counted["division", "b.cu:2"])
print(ran)
print(who)
)") == "2.0 0.5\n"
       "{'a.cu:1': (2, 1.0), 'b.cu:2': (3, 0.75), 'c.cu:3': (3, 0.25)}\n"
       "{'a.cu:1': (0, 4), 'b.cu:2': (0, 4), 'c.cu:3': (2, 4)}\n");
}

TEST_CASE("gpu_model: occupancy as CUDA's rules have it", "[scripts]") {
  const Folder f;
  // registers, threads, shared memory: by warps; by registers of quarters; by shared memory; by blocks; none
  REQUIRE(f.python(R"(
import sass
print([sass.blocks_at_once(*launch) for launch in
       [(32, 256, 0), (64, 256, 1024), (65, 256, 1024), (128, 256, 1024), (168, 128, 0), (255, 256, 0),
        (32, 256, 100 * 1024), (32, 256, 229 * 1024), (16, 32, 0), (40, 1024, 0), (255, 512, 1024)]])
)") == "[8, 4, 3, 2, 3, 1, 2, 0, 32, 1, 0]\n");
}

TEST_CASE("gpu_model: the sum over what binds a launch", "[scripts]") {
  const Folder f;
  REQUIRE(f.python(R"(
import gpu_model as m
m.C.update(multiprocessors=100, clock=1e9, memory=1e12, l2=2e12, boxes=5e12, launch=1e-6, p=2)
m.C["rate of mma"] = 0.5
# 250 blocks: the busiest multiprocessor has three; two at once are two rounds of 700 cycles alone
terms = m.times_of(250, 8, 2, {"issue": 4000, "tensor": 1600, "memory": 9}, 500, 700, 4e6, 5e6, 3e6)
print({k: round(v * 1e9) for k, v in terms.items()})
print(round(m.combined({"a": 3e-6, "b": 4e-6}) * 1e9))
print(m.union([(0, 100, 50), (60, 200, 70), (300, 400, 9)]))
)") == "{'issue': 3000, 'tensor': 600, 'memory': 3000, 'L1': 1500, 'latency': 1400, 'L2': 3000, 'launch': 1000}\n"
       "5000\n"
       "[(200, 120), (100, 9)]\n");
}

TEST_CASE("gpu_model: launches of a step are those of two steps less those of one", "[scripts]") {
  const Folder f;
  // (The second call is matmul_peak's product, the third is made before the first step.)
  f.program("train", R"(case "$*" in *--steps=2*) a=16 b=3;; *) a=8 b=20;; esac
for call in 1:$a 2:$b 3:1; do echo "{\"call\": ${call%:*}, \"times\": ${call#*:}, \"lines\": []}"; done >"$PTX_COUNT"
)");
  REQUIRE(f.python(R"(
import os, gpu_model as m
print(m.launches_of(os.path.abspath("train"), "", [(1, "--steps=2", True), (-1, "--steps=1", False)]))
)") == "[{'call': 1, 'times': 8, 'lines': []}]\n");
}

TEST_CASE("gpu_profile: what Nsight Compute prints, and beside which row it goes", "[scripts]") {
  const Folder f;
  f.program("nvidia-smi", "echo 'A GPU, 1.2'; echo 'another, 1.2'");
  // Each launch: kernel, grid, bytes, nanoseconds.
  f.program("ncu", R"~(while [ "$1" != --log-file ]; do shift; done; exec >"$2"; echo '==PROF== Connected'
echo '"ID","Kernel Name","Block Size","Grid Size","dram__bytes.sum","gpu__time_duration.sum"'
echo '"","","","","byte","ns"'
echo '"0","_Z1kv","(64, 2, 1)","(9, 1, 1)","1,000,000","7,000"'
echo '"1","_Z1kv","(64, 2, 1)","(9, 1, 1)","2000000","3000"'
echo '"2","_Z1kv","(64, 2, 1)","(9, 1, 1)","2000000","4000"'
echo '"3","_Z1kv","(64, 1, 1)","(9, 1, 1)","2000000","5000"')~");
  f.done("PATH=$PWD:$PATH {repo}/scripts/gpu_profile.py --ncu=$PWD/ncu --only=GPT-2 profile.json /bin/true");
  REQUIRE(f.read("profile.json").starts_with(R"({"device": "A GPU", "driver": "1.2", "models": )"));
  REQUIRE(
      contains(f.read("profile.json"),
               R"({"kernel": "k", "grid": [9, 1, 1], "threads": 128, "us": [3.0, 4.0, 7.0], "MB": [2.0, 2.0, 1.0]})"));
  // The two launches that are computed as shorter are the two shortest; what a profile lacks has no time.
  REQUIRE(f.python(R"(
import json, gpu_model as m
profile = next(iter(json.load(open("profile.json"))["models"].values()))
rows = [{"kernel": "k", "grid": [9, 1, 1], "threads": 128, "launches": n, "seconds": s} for n, s in ((1, 9), (2, 2))]
print([round(1e6 * t) for t in m.measured_beside(rows, profile)],
      m.measured_beside([rows[0] | {"launches": 4}], profile))
)") == "[7, 7] [None]\n");
  const auto refused = [&](const std::string& why) {
    require_refused_at_once(
        f.run("PATH=$PWD:$PATH {repo}/scripts/gpu_profile.py --ncu=$PWD/ncu --only=GPT-2 none.json /bin/true"), why);
  };
  f.program("ncu", "echo ERR_NVGPUCTRPERM");
  refused("no kernel was profiled: ERR_NVGPUCTRPERM");
  f.program("nvidia-smi", "echo 'the driver is asleep'; exit 9");
  refused("no GPU answers here: nvidia-smi: the driver is asleep");
}

TEST_CASE("gpu_model: pages have what the results say", "[scripts]") {
  const Folder f;
  const std::string page = f.done("{repo}/scripts/gpu_model.py --table {repo}/results/gpu_model.json");
  REQUIRE(count(page, "| all, *computed* |") == 4);
  REQUIRE(contents("results/gpu_model.md") == page);
  const std::string beside = f.done(
      "{repo}/scripts/gpu_model.py --measured={repo}/results/gpu_profile.json --table "
      "{repo}/results/gpu_model.60a8034.json");
  size_t errors = 0;
  for (const std::string& line : lines_of(beside))
    if (line.starts_with("Of ")) errors += contains(contents("docs/gpu_model.md"), line);
  REQUIRE(errors == 4);
}

// What the kernels of the sort write decides where others read; one of them overwrites what it has read. A product by
// wgmma is made at its wait, and counted at its instruction: of 4096 x 4096 numbers (training/matmul_peak.cu) each
// block that is counted makes four tiles of 128 x 256.
TEST_CASE("gpu_model: launches of a step with experts, and the products of one by wgmma, are counted", "[scripts]") {
  const Folder f;
  const fs::path train = fs::read_symlink("/proc/self/exe").parent_path().parent_path() / "rehearsal/train";
  NEEDS("test -x " + train.string(), "rehearsal", "a step with experts");
  const std::string flags =
      "--device=cuda --precision=bf16 --data=self --steps=1 --val-batches=1 --sample-tokens=0 --layers=1 --hidden=32 "
      "--heads=1 --kv-heads=1 --head-dim=32 --experts=8 --experts-per-token=2 --context=128 --batch=16";
  f.done("at=$PWD; cd {repo}; PTX_COUNT=$at/counts PTX_MEMORY=60000 " + train.string() + " " + flags);
  REQUIRE(contains(f.read("counts"), "dispatch_gather"));
  REQUIRE(f.python(R"(
import json, gpu_model as m
for launch in map(json.loads, open("counts")):
    if "matmul_wgmma" in launch["kernel"] and launch["grid"] == [132, 1, 1]:
        lines = m.annotated(launch["file"])[0]
        print(sum(runs * 16 * lines[number][2] * 16 / launch["sampled"] for number, _, _, runs, *_ in launch["lines"]
                  if lines.get(number, ("",))[0] == "wgmma") / (128 * 256 * 4096))
)") == "4.0\n");
}
