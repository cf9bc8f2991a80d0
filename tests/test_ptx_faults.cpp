// What the machine that runs PTX (ptx/machine.h) reports and refuses: accesses outside of what is there, threads that
// wait for one another, forms that are not known, races; and the orders in which threads run.
#include <signal.h>

#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "tests/child.h"
#include "tests/ptx_kernels.h"

namespace {

using namespace ptx_test;
using ptx::Fault;

// A kernel of several cases, each at a line of the source of its own: the third parameter says which one runs.
struct Cases {
  std::string name, head, body;
  unsigned many = 0;
  unsigned add(const std::string& code) {
    body += with("setp.ne.s32 %p1, %r5, #;\n@%p1 bra $L__#;\n.loc 1 # 3\n#\nret;\n$L__#:\n", many, many, 100 + many,
                 code, many);
    return many++;
  }
  void end() {
    entry(name, two_pointers + ",\n\t.param .u32 which", head + begin + "ld.param.u32 %r5, [which];\n" + body);
  }
};
Cases faults{"faults", "", ""}, meetings{"meetings", "", ""}, races{"races", "", ""};
std::map<std::string, unsigned> number_of;  // of a case, by what it does
// tests/fixtures/ptx_faults.json: "accesses" of one thread, with what they are out of, "!" where they are misaligned,
// "-" where nothing is wrong; "unknown": no form that is known.
const auto fixture = nlohmann::json::parse(std::ifstream("tests/fixtures/ptx_faults.json"));

// Threads that meet, or do not: a block of so many ends well, and one of 40 in a fault that says this.
struct Meeting {
  std::string what;
  unsigned fine;
  std::vector<std::string> said;
  Fault fault = Fault::launch_failure;
};
std::vector<Meeting> all_meetings;
void meeting(const Meeting& m, const std::string& code) {
  all_meetings.push_back(m);
  number_of[m.what] = meetings.add(code);
}
// What thread x does, what comes between, and what thread y does then.
void race(const std::string& what, int x, const std::string& first, const std::string& between, int y,
          const std::string& then) {
  const auto role = [](int thread, const std::string& access) {
    return with("setp.eq.s32 %p2, %r1, #;\n@%p2 #;\n", thread, access);
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
  for (const auto& access : fixture["accesses"])
    number_of[access[1]] = faults.add("setp.ne.s32 %p2, %r1, 3;\n@%p2 bra DONE;\n" + std::string(access[1]) + ";");
  faults.body += "DONE:\n";
  faults.end();

  meetings.head = ".shared .align 16 .b8 buffer[512];\nmov.u32 %r11, buffer;\n";
  const std::string halves = "mov.u32 %r12, %laneid;\nsetp.lt.u32 %p2, %r12, 16;\n@%p2 bra LOW_;\n";
  const std::string warps = "setp.lt.u32 %p2, %r1, 32;\n@%p2 bra LOW_;\n";
  const auto branches = [&](const std::string& what, const std::string& who, const std::string& high,
                            const std::string& low, std::vector<std::string> said) {
    const std::string code = with("##;\nbra END_;\nLOW_:\n.loc 1 77 1\n#;\nEND_:\n", who, high, low);
    if (!said.empty()) said.push_back("threads wait for one another");
    meeting({what, said.empty() ? 64u : 0u, said}, replaced(code, "_", words(meetings.many)));
  };
  branches("barriers of two numbers", warps, "bar.sync 1", "bar.sync 0",
           {"threads 0 to 31 wait at here/kernels.cu:77: bar.sync 0",
            "threads 32 to 39 wait at here/kernels.cu:100: bar.sync 1"});
  branches("a barrier at two places of a warp", halves, "bar.sync 0", "bar.sync 0",
           {"threads 0 to 15, 32 to 39 wait at here/kernels.cu:77", "threads 16 to 31 wait at here/kernels.cu:101"});
  branches("a barrier at two places, by warps", warps, "bar.sync 0", "bar.sync 0", {});
  const std::string shuffle = "shfl.sync.idx.b32 %r10, %r1, 0, 31, -1";
  branches("a barrier, and lanes that wait for it", halves, "bar.sync 0", shuffle,
           {"threads 0 to 15 wait for lanes ffffffff at here/kernels.cu:77: shfl", "threads 16 to 31 wait at"});
  branches("a barrier that a warp has left", warps, "bar.sync 0", "ret", {});
  branches("two masks that overlap", halves, "vote.sync.ballot.b32 %r10, %p2, 0xffff0001",
           "vote.sync.ballot.b32 %r10, %p2, 0x1ffff",
           {"threads 0 to 15 wait for lanes 0001ffff", "threads 16 to 31 wait for lanes ffff0001"});
  branches(
      "shuffles at two places", halves, shuffle, shuffle,
      {"threads 0 to 15 wait for lanes ffffffff at here/kernels.cu:77", "threads 16 to 31 wait for lanes ffffffff"});
  branches("bar.warp.sync at two places", halves, "bar.warp.sync -1", "bar.warp.sync -1", {});
  const std::string mma =
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f1, %f2, %f3, %f4}, {%r1, %r2, %r3, %r4}, {%r1, %r2}, "
      "{%f1, %f2, %f3, %f4};";
  const std::string ldmatrix = "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r10}, [%r11];";
  const std::string without = "setp.eq.s32 %p2, %r1, 5;\n@%p2 ret;\n";
  const std::string all = "all 32 lanes of a warp must execute this: lanes ",
                    beyond = all + "8 to 31 are beyond the block's 40 threads", returned = all + "5 have returned";
  meeting({"mma", 32, {beyond}}, mma);
  meeting({"mma without lane 5", 0, {returned}}, without + mma);
  meeting({"ldmatrix", 64, {beyond}}, ldmatrix);
  meeting({"ldmatrix without lane 5", 0, {returned}}, without + ldmatrix);
  meeting({"ldmatrix of no row", 0, {"thread (1,0,0)", "16 bytes at 24"}, Fault::misaligned_address},
          "mad.lo.s32 %r11, %r1, 8, %r11;\n" + ldmatrix);
  meetings.end();

  races.head = ".shared .align 16 .b8 buffer[64];\n";
  const std::string write = "st.shared.u32 [buffer], %r1", read = "ld.shared.u32 %r10, [buffer]",
                    block = "bar.sync 0;\n", none = "", warp = "bar.warp.sync -1;\n",
                    half = "st.shared.u16 [buffer+2], %rs1", copy = "cp.async.cg.shared.global [buffer], [%rd1], 16";
  for (int y : {1, 32}) {
    const std::string by = y == 1 ? " in a warp" : " across warps";
    race("race: write, write" + by, 0, write, none, y, write);
    race("race: write, read" + by, 0, write, none, y, read);
    race("race: read, write" + by, 0, read, none, y, write);
    race("race: half and whole" + by, 0, half, none, y, read);
    race("race: vector and whole" + by, 0, "ld.shared.v2.u32 {%r10, %r11}, [buffer+8]", none, y,
         "st.shared.u32 [buffer+12], %r1");
    race("fine: barrier" + by, 0, write, block, y, write);
    race("fine: barrier, read" + by, 0, write, block, y, read);
    race("fine: barrier, write" + by, 0, read, block, y, write);
    race("fine: halves" + by, 0, half, none, y, "ld.shared.u16 %rs1, [buffer]");
    race("fine: both read" + by, 0, read, none, y, read);
    const std::string inside = y == 1 ? "fine: " : "race: ";
    race(inside + "bar.warp.sync" + by, 0, write, warp, y, read);
    race(inside + "bar.warp.sync, write" + by, 0, read, warp, y, write);
  }
  race("fine: one thread", 0, write, none, 0, read);
  race("race: two read, one of them writes", 33, read,
       replaced(read, "ld", "setp.eq.s32 %p2, %r1, 0;\n@%p2 ld") + ";\n", 0, write);
  race("fine: eight lanes", 32, write, "setp.lt.u32 %p2, %r1, 32;\n@%p2 ret;\nbar.warp.sync 0xff;\n", 33, read);
  race("single bytes", 0, "st.shared.u8 [buffer], %rs1", none, 1, "st.shared.u8 [buffer+1], %rs1");
  race("race: a copy that has arrived, for its thread alone", 0, copy, "cp.async.wait_all;\n", 32, read);
  race("race: a copy whose source another thread writes", 0, copy, block, 1,
       "st.global.u32 [%rd1], %r1;\ncp.async.wait_all");
  race("fine: a copy and a barrier", 0, copy, "cp.async.wait_all;\n" + block, 32, read);
  races.end();

  // Threads and blocks in the order in which they run: the first word counts them.
  entry("order", two_pointers,
        begin +
            R"(ld.global.u32 %r10, [%rd2];
add.s32 %r10, %r10, 1;
st.global.u32 [%rd2], %r10;
mad.wide.u32 %rd10, %r10, 4, %rd2;
st.global.u32 [%rd10], %r4;
)");
  return true;
}();

// Runs a case, which is given this address twice.
Ended run(const Cases& cases, const std::string& what, Word address, unsigned blocks, unsigned threads) {
  const struct {
    Word in, out;
    uint32_t which;
  } parameters{address, address, number_of.at(what)};
  return ptx_test::run(cases.name, {blocks}, {threads}, &parameters, 64);
}
// Its fault has to name the kernel, the line of the source and `parts`.
void require_fault(const Cases& cases, const std::string& what, Word address, Fault expected,
                   std::vector<std::string> parts) {
  const auto [fault, text] = run(cases, what, address, 2, 40);
  INFO(what << ": " << text);
  CHECK(fault == expected);
  parts.push_back("ptx: " + cases.name + ": block (0,0,0) of (2,1,1)");
  parts.push_back("here/kernels.cu:" + words(100 + number_of.at(what)));
  CHECK(says(text, parts));
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
    const auto at = [&](Word address, Fault fault, const std::string& part) {
      require_fault(faults, what, address, fault, {"thread (3,0,0) of (40,1,1)", what, part});
    };
    const std::string nothing = what[3] == 'g' ? "no device memory" : "neither device memory";
    at(p + 100, illegal, "0 bytes past the end of the live allocation before it, of 100 bytes");
    at(p - 4, illegal, "past the end of the live allocation before it, of 64 bytes");
    at(p + 60000, illegal, "59900 bytes past the end");
    at(after.address() - 4, illegal, "past the end");
    at(Word(gone), illegal, "past the end");
    at(0, illegal, nothing);
    at(Word(host), illegal, nothing);
    at(p + 2, misaligned, "2 bytes into a live allocation of 100 bytes, not on a boundary");
  }
  for (float x : std::vector(a.host(), a.host() + a.n)) CHECK(x != x);  // nothing was written
  require_fault(faults, "ld.global.u16 %rs1, [%rd1]", p + 100, illegal, {"2 bytes at"});
  require_fault(faults, "ld.global.v2.f32 {%f1, %f2}, [%rd1]", p + 96, illegal, {"8 bytes at"});
  require_fault(faults, "ld.global.v2.f32 {%f1, %f2}, [%rd1]", p + 4, misaligned, {"8 bytes at"});
  require_fault(faults, "ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd1]", p + 96, illegal, {"16 bytes at"});
  require_fault(faults, "ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd1]", p + 8, misaligned, {"16 bytes at"});
  require_fault(faults, "st.global.u64 [%rd1], %rd1", p + 96, illegal, {"8 bytes at"});
  require_fault(faults, "cp.async.cg.shared.global [second], [%rd1], 16", p + 96, illegal, {"16 bytes at"});
  require_fault(faults, "cp.async.cg.shared.global [second], [%rd1], 16", p + 8, misaligned, {"16 bytes at"});
  require_fault(faults, "SPIN: ld.volatile.global.u32 %r10, [%rd1]; setp.ne.s32 %p3, %r10, 0; @%p3 bra SPIN", p,
                Fault::launch_failure, {"reads volatile memory without end"});
  require_fault(faults, "shfl.sync.idx.b32 %r10, %r1, 0, 31, 1", p, Fault::launch_failure, {"not in the mask"});
  require_fault(faults, "bar.warp.sync 4", p, Fault::launch_failure, {"not in the mask"});
  require_fault(faults, "cp.async.cg.shared.global [second], [%rd1], 16, %r23", p, Fault::launch_failure,
                {"more than its 16"});
}

TEST_CASE("An access outside of a shared variable, local memory or the parameters is reported") {
  const std::map<char, std::string> says = {
      {'s', "not all inside one variable"}, {'l', "nor the thread's own"}, {'p', "parameters: "}};
  const Device<float> a(25);
  for (const auto& access : fixture["accesses"]) {
    const std::string kind = access[0], what = access[1];
    INFO(what);
    if (kind.ends_with('-'))
      CHECK(run(faults, what, a.address(), 1, 40).fault == Fault::none);
    else if (kind != "global")
      require_fault(faults, what, a.address(), kind.ends_with('!') ? Fault::misaligned_address : Fault::illegal_address,
                    {"thread (3,0,0)", says.at(kind[0])});
  }
}

TEST_CASE("Threads that miss a barrier or their warp are named") {
  for (const Meeting& m : all_meetings) {
    INFO(m.what);
    if (m.fine) CHECK(run(meetings, m.what, 0, 1, m.fine).fault == Fault::none);
    if (!m.said.empty()) require_fault(meetings, m.what, 0, m.fault, m.said);
  }
}

TEST_CASE("What is not known is refused by its kernel, its line and its name, before anything runs") {
  const Folder folder;
  const auto translated = [&](const std::string& text) {
    folder.write("refused.ptx", head + text);
    const gated::Said said = folder.run("{repo}/ptx/translate.py . refused.ptx");
    CHECK((said.exit_code == 0) == std::filesystem::remove(folder / "refused.index"));
    return replaced(said.text, "translate: refused.ptx: ", "");
  };
  const auto unknown = fixture["unknown"].get<std::vector<std::string>>();
  std::string all, expected;
  for (size_t i = 0; i < unknown.size(); i++) {
    all += entry_text("refused" + words(i), two_pointers, ".loc 1 7 1\n" + unknown[i] + ";\n");
    expected += with("refused#: here/kernels.cu:7: this is not known: #\n", i, unknown[i]);
  }
  CHECK(translated(all) == expected);
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
      if (!what.starts_with("race") && !what.starts_with("fine")) continue;
      const auto [fault, text] = run(races, what, a.address(), 1, 40);
      INFO(what << ", order " << order << ": " << text);
      CHECK(fault == (what[0] == 'r' ? Fault::launch_failure : Fault::none));
      CHECK(contains(text, "with no barrier between") == (what[0] == 'r'));
    }
  }
  require_fault(races, "single bytes", 0, Fault::launch_failure, {"knows no accesses to single bytes"});
}

TEST_CASE("PTX_ORDER: blocks and threads run in it") {
  const auto run = [](const char* order) {
    const Environment set("PTX_ORDER", order);
    const Device<uint32_t> out(1 + 3 * 70);
    out[0] = 0;
    require_run("order", {3}, {70}, out, out);
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
    ptx::run(kernel("order"), {}, {}, 1, 0, nullptr);
  };
  CHECK_THROWS_WITH(refused("PTX_ORDER", "backward"),
                    Catch::Contains("PTX_ORDER=backward: expected forward, reverse or a number from 1"));
  CHECK_THROWS_WITH(refused("PTX_GPU", "75"), Catch::Contains("PTX_GPU=75: expected 80, 86, 89 or 90"));
}

TEST_CASE("A host that follows a device pointer ends with a line that says so") {
  const Device<float> a(25);
  const auto [status, text] = gated::in_child([&] {
    signal(SIGSEGV, SIG_DFL);  // (in the place of Catch's)
    ptx::allocate(1);
    _exit(static_cast<volatile float*>(a.p)[2] == 0);
  });
  CHECK(status < 0);  // a signal
  CHECK(contains(text, "ptx: the host follows a device pointer: "));
  CHECK(contains(text, "8 bytes into a live allocation of 100 bytes"));
}
