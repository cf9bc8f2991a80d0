// What the machine that runs PTX (ptx/machine.h) reports and refuses: accesses outside of what is there, threads that
// wait for one another, forms that are not known, races; and the orders in which threads run.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <sstream>

#include "tests/ptx_kernels.h"

namespace {

using namespace ptx_test;
using ptx::Fault;

// A kernel of several cases, each at a line of the source of its own: the third parameter says which one runs.
struct Cases {
  std::string name, head, body;
  unsigned many = 0;
  unsigned add(const std::string& code) {
    const std::string label = "$L__" + words(many);
    body += "setp.ne.s32 %p1, %r5, " + words(many) + ";\n@%p1 bra " + label + ";\n.loc 1 " + words(100 + many) +
            " 3\n" + code + "\nret;\n" + label + ":\n";
    return many++;
  }
  void end() {
    entry(name, two_pointers + ",\n\t.param .u32 which", head + begin + "ld.param.u32 %r5, [which];\n" + body);
  }
};
struct CaseParameters {
  Word in, out;
  uint32_t which;
};
// Runs a case; its fault has to name the kernel, the line of the source and `parts`.
void require_fault(const std::string& name, const CaseParameters& parameters, ptx::Extent block, Fault expected,
                   std::vector<std::string> parts, size_t dynamic = 64) {
  Fault fault = Fault::none;
  const ptx::Kernel& k = kernel(name);
  const std::string text = said([&] { fault = ptx::run(k, {2, 1, 1}, block, dynamic, &parameters); });
  INFO("case " << parameters.which << ": " << text);
  CHECK(fault == expected);
  parts.push_back("ptx: " + name + ": block (0,0,0) of (2,1,1)");
  parts.push_back("here/kernels.cu:" + words(100 + parameters.which));
  for (const std::string& part : parts) {
    INFO("without: " << part);
    CHECK(has(text, part));
  }
}

Cases faults{"faults", "", ""}, meetings{"meetings", "", ""}, races{"races", "", ""};
std::map<std::string, unsigned> number_of;  // of a case, by what it does
std::map<std::string, std::string> kind_of;
std::vector<std::string> refused;

// One thread's accesses: what they are out of, "!" where they are misaligned, "-" where nothing is wrong.
const char* const accesses = R"(
global   | ld.global.f32 %f1, [%rd1]
global   | st.global.f32 [%rd1], %f1
global   | ld.f32 %f1, [%rd1]
global   | st.u32 [%rd1], %r1
global   | ld.global.u16 %rs1, [%rd1]
global   | ld.global.v2.f32 {%f1, %f2}, [%rd1]
global   | ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd1]
global   | st.global.u64 [%rd1], %rd1
global   | cp.async.cg.shared.global [second], [%rd1], 16
global   | cp.async.cg.shared.global [second], [%rd1], 16, %r23
global   | SPIN: ld.volatile.global.u32 %r10, [%rd1]; setp.ne.s32 %p3, %r10, 0; @%p3 bra SPIN
global   | shfl.sync.idx.b32 %r10, %r1, 0, 31, 1
global   | bar.warp.sync 4
shared   | ld.shared.u32 %r10, [first+36]
shared   | st.shared.u32 [first+36], %r1
shared   | ld.shared.u32 %r10, [%r22+-4]
shared   | ld.shared.u32 %r10, [%r21+-4]
shared   | ld.shared.u32 %r10, [%r22+64]
shared   | ld.shared.v4.u32 {%r10, %r11, %r12, %r13}, [first+32]
shared!  | ld.shared.u64 %rd10, [first+4]
shared!  | ld.shared.u64 %rd10, [second]
shared   | ld.u32 %r10, [%rd22+36]
shared   | ld.shared.u32 %r10, [%r20+64]
shared-  | ld.shared.u32 %r10, [%r20+60]
shared   | ld.shared.u32 %r10, [%r20+-4]
shared!  | cp.async.cg.shared.global [second+4], [%rd23], 16
shared   | cp.async.cg.shared.global [first+32], [%rd23], 16
shared   | cp.async.cg.shared.global [%rd24], [%rd23], 16
local    | st.u32 [%rd22+-20], %r1
local    | ld.local.u32 %r10, [depot+64]
local-   | ld.local.u32 %r10, [depot+60]
local    | st.local.u32 [%rd20+-4], %r1
local    | st.u32 [%rd21+64], %r1
local!   | ld.local.u32 %r10, [depot+2]
local!   | ld.local.v4.u32 {%r10, %r11, %r12, %r13}, [depot+52]
local!   | ld.local.v4.u32 {%r10, %r11, %r12, %r13}, [depot]
local-   | ld.local.v2.u32 {%r10, %r11}, [depot]
local    | ld.local.v2.u32 {%r10, %r11}, [depot+64]
param-   | ld.param.u32 %r10, [which]
param    | ld.param.u32 %r10, [which+4]
param    | ld.param.u64 %rd10, [which]
param    | ld.param.u32 %r10, [in+-4]
param!   | ld.param.u32 %r10, [in+2]
)";

// No form that is known.
const char* const unknown = R"(
add.f32 %f1, %f1, %f1
add.ftz.f32 %f1, %f1, %f1
add.rn.ftz.f32 %f1, %f1, %f1
add.rz.f32 %f1, %f1, %f1
add.rn.sat.f32 %f1, %f1, %f1
add.sat.s32 %r1, %r1, %r1
add.cc.u32 %r1, %r1, %r1
addc.u32 %r1, %r1, %r1
add.f16 %rs1, %rs1, %rs1
add.rn.bf16 %rs1, %rs1, %rs1
add.f16x2 %r1, %r1, %r1
add.rn.f64 %rd1, %rd1, %rd1
sub.f32 %f1, %f1, %f1
mul.f32 %f1, %f1, %f1
mul.rz.f32 %f1, %f1, %f1
mul.hi.u16 %rs1, %rs1, %rs1
mul24.lo.u32 %r1, %r1, %r1
mad.lo.cc.u32 %r1, %r1, %r1, %r1
mad.hi.u32 %r1, %r1, %r1, %r1
mad.rn.f32 %f1, %f1, %f1, %f1
fma.rz.f32 %f1, %f1, %f1, %f1
fma.rn.relu.bf16 %rs1, %rs1, %rs1, %rs1
div.full.f32 %f1, %f1, %f1
div.approx.f32 %f1, %f1, %f1
rcp.approx.ftz.f32 %f1, %f1
sqrt.approx.f32 %f1, %f1
rsqrt.approx.f32 %f1, %f1
ex2.approx.f32 %f1, %f1
lg2.approx.f32 %f1, %f1
sin.approx.f32 %f1, %f1
tanh.approx.f32 %f1, %f1
max.NaN.f32 %f1, %f1, %f1
max.xorsign.abs.f32 %f1, %f1, %f1
min.ftz.f32 %f1, %f1, %f1
max.f32 %f1, %f1, %f1, %f1
max.relu.s32 %r1, %r1, %r1
abs.ftz.f32 %f1, %f1
neg.ftz.f32 %f1, %f1
neg.f16 %rs1, %rs1
copysign.f64 %rd1, %rd1, %rd1
and.f32 %f1, %f1, %f1
lop3.b32 %r1, %r1, %r1, %r1, 5
shf.l.wrap.b32 %r1, %r1, %r1, %r1
shl.u32 %r1, %r1, 1
popc.b64 %r1, %rd1
clz.b32 %r1, %r1
brev.b64 %rd1, %rd1
bfind.u32 %r1, %r1
bfind.shiftamt.s32 %r1, %r1
bfe.u32 %r1, %r1, 1, 1
bfi.b64 %rd1, %rd1, %rd1, 1, 1
prmt.b32.f4e %r1, %r1, %r1, %r1
dp4a.u32.u32 %r1, %r1, %r1, %r1
setp.lt.and.s32 %p1, %r1, %r1, %p2
setp.lt.ftz.f32 %p1, %f1, %f1
setp.lt.s32 %p1|%p2, %r1, %r1
setp.lo.s32 %p1, %r1, %r1
setp.lt.b32 %p1, %r1, %r1
setp.equ.s32 %p1, %r1, %r1
setp.eq.f16 %p1, %rs1, %rs1
set.lt.u32.s32 %r1, %r1, %r1
slct.f32.s32 %f1, %f1, %f1, %r1
mov.b128 %rd1, %rd1
mov.u32 %r1, %clock
mov.u32 %r1, %lanemask_lt
mov.u32 %r1, nowhere
cvt.rn.ftz.f32.s32 %f1, %r1
cvt.sat.u8.s32 %r1, %r1
cvt.rni.s32.f32 %r1, %f1
cvt.rzi.ftz.s32.f32 %r1, %f1
cvt.rzi.f32.f32 %f1, %f1
cvt.rz.f32.s32 %f1, %r1
cvt.rz.bf16x2.f32 %r1, %f1, %f1
cvt.rn.relu.bf16x2.f32 %r1, %f1, %f1
cvt.rn.f16.f32 %rs1, %f1
cvt.f32.bf16 %f1, %rs1
cvt.rna.tf32.f32 %r1, %f1
cvt.f64.f32 %rd1, %f1
cvta.const.u64 %rd1, %rd1
cvta.param.u64 %rd1, %rd1
cvta.global.u32 %r1, %r1
ld.global.nc.f32 %f1, [%rd1]
ld.global.L1::no_allocate.f32 %f1, [%rd1]
ld.global.ca.f32 %f1, [%rd1]
ld.relaxed.gpu.global.u32 %r1, [%rd1]
ld.acquire.gpu.global.u32 %r1, [%rd1]
ld.const.f32 %f1, [%rd1]
ld.shared::cluster.u32 %r1, [%r1]
ld.global.v4.u64 {%rd1, %rd2, %rd3, %rd4}, [%rd1]
ld.global.v2.f32 {%f1, %f2, %f3}, [%rd1]
ldu.global.f32 %f1, [%rd1]
st.global.cs.f32 [%rd1], %f1
st.release.gpu.global.u32 [%rd1], %r1
st.param.u32 [in], %r1
ld.global.f32 %rd5, [%rd1]
prefetch.global.L2 [%rd1]
atom.add.u32 %r1, [%rd1], %r1
atom.global.add.f32 %f1, [%rd1], %f1
red.global.add.f32 [%rd1], %f1
mov.b64 {%r1, %r2, %r3}, %rd1
mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f1, %f2, %f3, %f4}, {%r1, %r2, %r3}, {%r1, %r2}, {%f1, %f2, %f3, %f4}
shfl.sync.up.b32 %r1, %r1, 1, 0
selp.u32 %r1, %r1, %r1, %r1
add.s32 %r1, %r1
@%p300 add.s32 %r1, %r1, %r1
@%r1 add.s32 %r1, %r1, %r1
.reg .b32 t
.reg .b128 %wide
.reg .f32 %r1
.reg .pred %q<3>, t
.branchtargets there
add.s32 %r1, %r1, %f1, %r2
brx.idx %r1, there
call.uni there
trap
brkpt
bar.sync 0, 64
bar.sync 16
bar.sync %r1
bar.arrive 0, 64
bar.red.popc.u32 %r1, 0, %p1
barrier.sync 0
membar.gl
fence.acq_rel.gpu
shfl.up.b32 %r1, %r1, 1, 0
vote.sync.any.pred %p1, %p1, -1
vote.ballot.b32 %r1, %p1
match.any.sync.b32 %r1, %r1, -1
redux.sync.add.s32 %r1, %r1, -1
activemask.b32 %r1
elect.sync %r1|%p1, -1
ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r1}, [%r1]
ldmatrix.sync.aligned.m8n8.x1.b16 {%r1}, [%rd1]
stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r1], {%r1}
mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%f1, %f2, %f3, %f4}, {%r1, %r2}, {%r3}, {%f1, %f2, %f3, %f4}
mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1, %f2, %f3, %f4}, {%r1, %r2, %r3, %r4}, {%r1, %r2}, {%f1, %f2, %f3, %f4}
cp.async.ca.shared.global [%r1], [%rd1], 4
cp.async.cg.shared.global.L2::128B [%r1], [%rd1], 16
cp.async.cg.shared.global [%r1], [%rd1], 8
cp.async.cg.shared.global [%r1], [%rd1], 16, %p1
cp.async.wait_group %r1
cp.async.mbarrier.arrive.shared.b64 [%r1]
)";

void fault_case(const std::string& what) {
  number_of[what] = faults.add("setp.ne.s32 %p2, %r1, 3;\n@%p2 bra DONE;\n" + what + ";");
}
void meeting(const std::string& what, const std::string& code) {
  number_of[what] = meetings.add(code);
}
// What thread x does, what comes between, and what thread y does then.
void race(const std::string& what, int x, const std::string& first, const std::string& between, int y,
          const std::string& then) {
  const auto role = [](int thread, const std::string& access) {
    return "setp.eq.s32 %p2, %r1, " + words(thread) + ";\n@%p2 " + access + ";\n";
  };
  number_of[what] = races.add(role(x, first) + between + role(y, then));
}

const bool wrong = [] {
  source() += ".extern .shared .align 16 .b8 dynamic[];\n\n";
  faults.head =
      R"(.shared .align 16 .b8 first[36];
.shared .align 4 .b8 second[64];
.local .align 8 .b8 depot[64];
mov.u32 %r20, dynamic;
mov.u32 %r21, first;
mov.u32 %r22, second;
mov.u64 %rd20, depot;
cvta.local.u64 %rd21, %rd20;
mov.u64 %rd22, first;
cvta.shared.u64 %rd22, %rd22;
mov.u32 %r23, 17;
ld.param.u64 %rd23, [in];
mov.u64 %rd24, first;
add.s64 %rd24, %rd24, 4294967296;
)";
  std::istringstream all(accesses);
  for (std::string line; std::getline(all, line);) {
    const size_t bar = line.find(" | ");
    if (bar == std::string::npos) continue;
    const std::string what = line.substr(bar + 3);
    fault_case(what);
    kind_of[what] = line.substr(0, line.find(' '));
  }
  faults.body += "DONE:\n";
  faults.end();

  meetings.head = ".shared .align 16 .b8 buffer[512];\n";
  const std::string halves = "mov.u32 %r12, %laneid;\nsetp.lt.u32 %p2, %r12, 16;\n@%p2 bra LOW_;\n";
  const std::string warps = "setp.lt.u32 %p2, %r1, 32;\n@%p2 bra LOW_;\n";
  const auto branches = [&](const std::string& what, const std::string& who, const std::string& high,
                            const std::string& low) {
    const std::string code = who + high + ";\nbra END_;\nLOW_:\n.loc 1 77 1\n" + low + ";\nEND_:\n";
    meeting(what, replaced(code, "_", words(meetings.many)));
  };
  branches("barriers of two numbers", warps, "bar.sync 1", "bar.sync 0");
  branches("a barrier at two places of a warp", halves, "bar.sync 0", "bar.sync 0");
  branches("a barrier at two places, by warps", warps, "bar.sync 0", "bar.sync 0");
  branches("a barrier, and lanes that wait for it", halves, "bar.sync 0", "shfl.sync.idx.b32 %r10, %r1, 0, 31, -1");
  branches("a barrier that a warp has left", warps, "bar.sync 0", "ret");
  branches("two masks that overlap", halves, "vote.sync.ballot.b32 %r10, %p2, 0xffff0001",
           "vote.sync.ballot.b32 %r10, %p2, 0x1ffff");
  branches("shuffles at two places", halves, "shfl.sync.idx.b32 %r10, %r1, 0, 31, -1",
           "shfl.sync.idx.b32 %r10, %r1, 0, 31, -1");
  branches("bar.warp.sync at two places", halves, "bar.warp.sync -1", "bar.warp.sync -1");
  const std::string mma =
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f1, %f2, %f3, %f4}, {%r1, %r2, %r3, %r4}, {%r1, %r2}, "
      "{%f1, %f2, %f3, %f4};";
  const std::string ldmatrix = "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r10}, [%r11];";
  const std::string without = "setp.eq.s32 %p2, %r1, 5;\n@%p2 ret;\n";
  meeting("mma", mma);
  meeting("mma without lane 5", without + mma);
  meeting("ldmatrix", "mov.u32 %r11, buffer;\n" + ldmatrix);
  meeting("ldmatrix without lane 5", "mov.u32 %r11, buffer;\n" + without + ldmatrix);
  meeting("ldmatrix of no row", "mov.u32 %r11, buffer;\nmad.lo.s32 %r11, %r1, 8, %r11;\n" + ldmatrix);
  meetings.end();

  races.head = ".shared .align 16 .b8 buffer[64];\n";
  const std::string write = "st.shared.u32 [buffer], %r1", read = "ld.shared.u32 %r10, [buffer]",
                    block = "bar.sync 0;\n", none = "";
  for (int y : {1, 32}) {
    const std::string by = y == 1 ? " in a warp" : " across warps";
    race("race: write, write" + by, 0, write, none, y, write);
    race("race: write, read" + by, 0, write, none, y, read);
    race("race: read, write" + by, 0, read, none, y, write);
    race("race: half and whole" + by, 0, "st.shared.u16 [buffer+2], %rs1", none, y, read);
    race("race: vector and whole" + by, 0, "ld.shared.v2.u32 {%r10, %r11}, [buffer+8]", none, y,
         "st.shared.u32 [buffer+12], %r1");
    race("fine: barrier" + by, 0, write, block, y, write);
    race("fine: barrier, read" + by, 0, write, block, y, read);
    race("fine: barrier, write" + by, 0, read, block, y, write);
    race("fine: halves" + by, 0, "st.shared.u16 [buffer+2], %rs1", none, y, "ld.shared.u16 %rs1, [buffer]");
    race("fine: both read" + by, 0, read, none, y, read);
    race((y == 1 ? "fine: bar.warp.sync" : "race: bar.warp.sync") + by, 0, write, "bar.warp.sync -1;\n", y, read);
    race((y == 1 ? "fine: bar.warp.sync, write" : "race: bar.warp.sync, write") + by, 0, read, "bar.warp.sync -1;\n", y,
         write);
  }
  race("fine: one thread", 0, write, none, 0, read);
  race("race: two read, one of them writes", 33, read,
       replaced(read, "ld", "setp.eq.s32 %p2, %r1, 0;\n@%p2 ld") + ";\n", 0, write);
  race("fine: eight lanes", 32, write, "setp.lt.u32 %p2, %r1, 32;\n@%p2 ret;\nbar.warp.sync 0xff;\n", 33, read);
  race("single bytes", 0, "st.shared.u8 [buffer], %rs1", none, 1, "st.shared.u8 [buffer+1], %rs1");
  race("race: a copy that has arrived, for its thread alone", 0, "cp.async.cg.shared.global [buffer], [%rd1], 16",
       "cp.async.wait_all;\n", 32, read);
  race("race: a copy whose source another thread writes", 0, "cp.async.cg.shared.global [buffer], [%rd1], 16",
       "bar.sync 0;\n", 1, "st.global.u32 [%rd1], %r1;\ncp.async.wait_all");
  race("fine: a copy and a barrier", 0, "cp.async.cg.shared.global [buffer], [%rd1], 16",
       "cp.async.wait_all;\nbar.sync 0;\n", 32, read);
  races.end();

  // Threads and blocks in the order in which they run: the first word counts them.
  entry("order", two_pointers,
        begin +
            R"(ld.global.u32 %r10, [%rd2];
add.s32 %r10, %r10, 1;
st.global.u32 [%rd2], %r10;
mul.wide.u32 %rd10, %r10, 4;
add.s64 %rd10, %rd10, %rd2;
st.global.u32 [%rd10], %r4;
)");

  std::istringstream forms(unknown);
  for (std::string text; std::getline(forms, text);) {
    if (!text.empty()) refused.push_back(text);
  }
  return true;
}();

void require_case_fault(const Cases& cases, const std::string& what, Word address, Fault fault,
                        std::vector<std::string> parts) {
  INFO(what);
  require_fault(cases.name, {address, address, number_of.at(what)}, {40, 1, 1}, fault, std::move(parts));
}

}  // namespace

TEST_CASE("An access outside of global memory is reported, and its instruction") {
  constexpr Fault illegal = Fault::illegal_address, misaligned = Fault::misaligned_address;
  const Device<float> before(16), a(25), after(64);
  void* const gone = ptx::allocate(256);
  REQUIRE(ptx::release(gone));
  const Word p = a.address();
  alignas(16) static float host[4];
  for (std::string what :
       {"ld.global.f32 %f1, [%rd1]", "st.global.f32 [%rd1], %f1", "ld.f32 %f1, [%rd1]", "st.u32 [%rd1], %r1"}) {
    const std::string thread = "thread (3,0,0) of (40,1,1)";
    require_case_fault(faults, what, p + 100, illegal,
                       {thread, what, "0 bytes past the end of the live allocation before it, of 100 bytes"});
    require_case_fault(faults, what, p - 4, illegal,
                       {thread, what, "past the end of the live allocation before it, of 64 bytes"});
    require_case_fault(faults, what, p + 60000, illegal, {thread, what, "59900 bytes past the end"});
    require_case_fault(faults, what, after.address() - 4, illegal, {thread, what, "past the end"});
    require_case_fault(faults, what, Word(gone), illegal, {thread, what, "past the end"});
    require_case_fault(faults, what, 0, illegal,
                       {thread, what, what[3] == 'g' ? "no device memory" : "neither device memory"});
    require_case_fault(faults, what, Word(host), illegal,
                       {thread, what, what[3] == 'g' ? "no device memory" : "neither device memory"});
    require_case_fault(faults, what, p + 2, misaligned,
                       {thread, what, "2 bytes into a live allocation of 100 bytes, not on a boundary"});
  }
  for (float x : std::vector(a.host(), a.host() + a.n)) CHECK(x != x);  // nothing was written
  require_case_fault(faults, "ld.global.u16 %rs1, [%rd1]", p + 100, illegal, {"2 bytes at"});
  require_case_fault(faults, "ld.global.v2.f32 {%f1, %f2}, [%rd1]", p + 96, illegal, {"8 bytes at"});
  require_case_fault(faults, "ld.global.v2.f32 {%f1, %f2}, [%rd1]", p + 4, misaligned, {"8 bytes at"});
  require_case_fault(faults, "ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd1]", p + 96, illegal, {"16 bytes at"});
  require_case_fault(faults, "ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd1]", p + 8, misaligned, {"16 bytes at"});
  require_case_fault(faults, "st.global.u64 [%rd1], %rd1", p + 96, illegal, {"8 bytes at"});
  require_case_fault(faults, "cp.async.cg.shared.global [second], [%rd1], 16", p + 96, illegal, {"16 bytes at"});
  require_case_fault(faults, "cp.async.cg.shared.global [second], [%rd1], 16", p + 8, misaligned, {"16 bytes at"});
  require_case_fault(faults, "SPIN: ld.volatile.global.u32 %r10, [%rd1]; setp.ne.s32 %p3, %r10, 0; @%p3 bra SPIN", p,
                     Fault::launch_failure, {"reads volatile memory without end"});
  require_case_fault(faults, "shfl.sync.idx.b32 %r10, %r1, 0, 31, 1", p, Fault::launch_failure, {"not in the mask"});
  require_case_fault(faults, "bar.warp.sync 4", p, Fault::launch_failure, {"not in the mask"});
  require_case_fault(faults, "cp.async.cg.shared.global [second], [%rd1], 16, %r23", p, Fault::launch_failure,
                     {"more than its 16"});
}

TEST_CASE("An access outside of a shared variable, local memory or the parameters is reported") {
  const std::map<char, std::string> says = {
      {'s', "not all inside one variable"}, {'l', "nor the thread's own"}, {'p', "parameters: "}};
  const Device<float> a(25);
  for (const auto& [what, kind] : kind_of) {
    if (kind.starts_with("global")) continue;
    INFO(what);
    const CaseParameters parameters{a.address(), a.address(), number_of.at(what)};
    if (kind.ends_with('-'))
      CHECK(ptx::run(kernel("faults"), {1, 1, 1}, {40, 1, 1}, 64, &parameters) == Fault::none);
    else
      require_fault("faults", parameters, {40, 1, 1},
                    kind.ends_with('!') ? Fault::misaligned_address : Fault::illegal_address,
                    {"thread (3,0,0)", says.at(kind[0])});
  }
}

TEST_CASE("Threads that miss a barrier or their warp are named") {
  const auto stuck = [](const std::string& what, std::vector<std::string> parts) {
    parts.push_back("threads wait for one another");
    require_case_fault(meetings, what, 0, Fault::launch_failure, parts);
  };
  const auto fine = [](const std::string& what, unsigned threads) {
    INFO(what);
    const CaseParameters parameters{0, 0, number_of.at(what)};
    CHECK(ptx::run(kernel("meetings"), {1, 1, 1}, {threads, 1, 1}, 0, &parameters) == Fault::none);
  };
  stuck("barriers of two numbers", {"threads 0 to 31 wait at here/kernels.cu:77: bar.sync 0",
                                    "threads 32 to 39 wait at here/kernels.cu:100: bar.sync 1"});
  stuck("a barrier at two places of a warp",
        {"threads 0 to 15, 32 to 39 wait at here/kernels.cu:77", "threads 16 to 31 wait at here/kernels.cu:101"});
  fine("a barrier at two places, by warps", 64);
  stuck("a barrier, and lanes that wait for it",
        {"threads 0 to 15 wait for lanes ffffffff at here/kernels.cu:77: shfl", "threads 16 to 31 wait at"});
  fine("a barrier that a warp has left", 64);
  stuck("two masks that overlap",
        {"threads 0 to 15 wait for lanes 0001ffff", "threads 16 to 31 wait for lanes ffff0001"});
  stuck("shuffles at two places",
        {"threads 0 to 15 wait for lanes ffffffff at here/kernels.cu:77", "threads 16 to 31 wait for lanes ffffffff"});
  fine("bar.warp.sync at two places", 64);
  fine("mma", 32);
  fine("ldmatrix", 64);
  const std::string all = "all 32 lanes of a warp must execute this: lanes ";
  for (std::string what : {"mma", "ldmatrix"}) {  // in a block of 40
    require_case_fault(meetings, what, 0, Fault::launch_failure, {all + "8 to 31 are beyond the block's 40 threads"});
    require_case_fault(meetings, what + " without lane 5", 0, Fault::launch_failure, {all + "5 have returned"});
  }
  require_case_fault(meetings, "ldmatrix of no row", 0, Fault::misaligned_address,
                     {"thread (1,0,0)", "16 bytes at 24"});
}

TEST_CASE("What is not known is refused by its kernel, its line and its name, before anything runs") {
  kernel("faults");  // the folder is there
  const std::string folder = getenv("PTX_KERNELS"), file = folder + "/refused.ptx";
  const auto translated = [&](const std::string& text) {
    std::ofstream(file) << head + text;
    int code = 0;
    const std::string answer = said([&] { code = system(("ptx/translate.py " + folder + " " + file).c_str()); });
    CHECK((code == 0) == std::filesystem::remove(folder + "/refused.index"));
    return replaced(answer, "translate: " + file + ": ", "");
  };
  std::string all, expected;
  for (size_t i = 0; i < refused.size(); i++) {
    all += entry_text("refused" + words(i), two_pointers, ".loc 1 7 1\n" + refused[i] + ";\n");
    expected += "refused" + words(i) + ": here/kernels.cu:7: this is not known: " + refused[i] + "\n";
  }
  std::istringstream lines(translated(all)), expectations(expected);
  for (std::string line, expectation; std::getline(expectations, expectation);) {
    std::getline(lines, line);
    CHECK(line == expectation);
  }
  CHECK(lines.peek() == EOF);
  const auto with = [](const std::string& directives, const std::string& body) {
    return entry_text("_ZN1a1kEi", "\t.param .u32 x", body, directives);
  };
  CHECK(translated(with(".maxntid 64, 1, 1\n.minnctapersm 2\n.maxnreg 32\n", "")) == "");
  CHECK(translated(with(".reqntid 64\n", "")) == "a::k(int): this is not known: .reqntid\n");
  CHECK(translated(with("", ";\n")) == "a::k(int): this is not known: ;\n");
  CHECK(translated(".const .b32 x = 1;\n" + with("", "")) == "this is not known: .const\n");
  CHECK(translated(".visible .global .b32 x;\n" + with("", "")) == "this is not known: .visible .global\n");
  CHECK_THROWS_WITH(kernel("_Z7missingv"), Catch::Contains("there is no PTX of missing()"));
}

TEST_CASE("Races are found, and nothing else is") {
  const Environment set("PTX_RACES", "1");
  const Device<float> a(4);
  for (const char* order : {"forward", "reverse", "3"}) {
    const Environment in_order("PTX_ORDER", order);
    for (const auto& [what, number] : number_of) {
      if (what.substr(0, 4) != "race" && what.substr(0, 4) != "fine") continue;
      INFO(what << ", order " << order);
      const CaseParameters parameters{a.address(), a.address(), number};
      Fault fault = Fault::none;
      const std::string text = said([&] { fault = ptx::run(kernel("races"), {1, 1, 1}, {40, 1, 1}, 0, &parameters); });
      INFO(text);
      CHECK(fault == (what[0] == 'r' ? Fault::launch_failure : Fault::none));
      CHECK(has(text, "with no barrier between") == (what[0] == 'r'));
    }
  }
  require_case_fault(races, "single bytes", 0, Fault::launch_failure, {"knows no accesses to single bytes"});
}

TEST_CASE("PTX_ORDER: blocks and threads run in it") {
  const auto run = [](const char* order) {
    const Environment set("PTX_ORDER", order);
    const Device<uint32_t> out(1 + 3 * 70);
    out[0] = 0;
    const void* const parameters[] = {out.p, out.p};
    require_run("order", 3, 70, parameters);
    return std::vector(&out[1], &out[0] + out.n);
  };
  std::vector<uint32_t> all(210);
  std::iota(all.begin(), all.end(), 0u);
  CHECK(run("forward") == all);
  const std::vector<uint32_t> one = run("1"), two = run("2");
  CHECK(one != two);
  CHECK(one != all);
  CHECK(one == run("1"));
  CHECK(std::set(one.begin(), one.end()) == std::set(all.begin(), all.end()));
  std::reverse(all.begin(), all.end());
  CHECK(run("reverse") == all);
  CHECK(one != all);
  const auto refused = [](const char* name, const char* value) {
    const Environment set(name, value);
    ptx::run(kernel("order"), {}, {}, 0, nullptr);
  };
  CHECK_THROWS_WITH(refused("PTX_ORDER", "backward"),
                    Catch::Contains("PTX_ORDER=backward: expected forward, reverse or a number from 1"));
  CHECK_THROWS_WITH(refused("PTX_GPU", "75"), Catch::Contains("PTX_GPU=75: expected 80, 86, 89 or 90"));
}

TEST_CASE("A host that follows a device pointer ends with a line that says so") {
  const Device<float> a(25);
  const std::string text = said([&] {
    const pid_t child = fork();
    if (child == 0) {
      signal(SIGSEGV, SIG_DFL);  // (in the place of Catch's)
      ptx::allocate(1);
      _exit(static_cast<volatile float*>(a.p)[2] == 0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    CHECK(WIFSIGNALED(status));
  });
  CHECK(has(text, "ptx: the host follows a device pointer: "));
  CHECK(has(text, "8 bytes into a live allocation of 100 bytes"));
}
