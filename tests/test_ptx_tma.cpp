// Copies of boxes on the machine that runs PTX, and the barriers that count their bytes: where each element of a box
// lands, 0 outside of the matrix; and what a wrong count, a missing wait, a missing fence or a stage that is given back
// too early does. Expectations are the PTX ISA's (9.0, 5.5, 9.7.9.27, 9.7.13.15); where an element lies is written down
// here once more.
#include "tests/ptx_kernels.h"

namespace {

using namespace ptx_test;
using ptx::Fault;

constexpr unsigned threads = 64, box_lines = 24, box_words = box_lines * 64;

// What the kernels below begin with, and how they wait for boxes and put out so many bytes of them a thread.
const std::string opening = R"(ld.param.u64 %rd2, [out];
ld.param.u32 %r5, [x];
ld.param.u32 %r6, [y];
cvta.to.global.u64 %rd2, %rd2;
mov.b64 %rd3, map;
cvta.param.u64 %rd4, %rd3;
mov.u32 %r1, %tid.x;
mov.u32 %r10, buffer;
mov.u32 %r11, barriers;
and.b32 %r2, %r1, 31;
setp.ne.s32 %p1, %r1, 0;
setp.ne.s32 %p2, %r2, 0;
mov.u32 %r20, 0;
)";
const std::string full = R"(FULL:
mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r11], %r20;
@!%p3 bra FULL;
)";
std::string put_out(unsigned bytes) {
  return each(0, bytes, 16, [](unsigned i) {
    return with("ld.shared.v4.u32 {%r30, %r31, %r32, %r33}, [%r12+#];\n", i) +
           with("st.global.v4.u32 [%rd6+#], {%r30, %r31, %r32, %r33};\n", i);
  });
}

// Thread 0 makes two barriers and asks for a box; all wait for it and put it out, 48 bytes a thread. Then the same with
// the box below, over the first, once each warp has arrived at the second barrier.
const std::string body = ".shared .align 1024 .b8 buffer[3072];\n.shared .align 8 .b8 barriers[16];\n" + opening + R"(
mad.lo.s32 %r12, %r1, 48, %r10;
mad.wide.u32 %rd6, %r1, 48, %rd2;
mov.u32 %r21, 1;
@%p1 bra MADE;
mbarrier.init.shared::cta.b64 [%r11], 1;
mbarrier.init.shared::cta.b64 [%r11+8], 2;
fence.proxy.async.shared::cta;
MADE:
bar.sync 0;
// registers
AGAIN:
@%p1 bra ASKED;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r11], 3072;
cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r10], [%rd4, {%r5, %r6}], [%r11];
ASKED:
)" + full + put_out(48) + R"(bar.warp.sync -1;
@%p2 bra GIVEN;
mbarrier.arrive.shared::cta.b64 _, [%r11+8];
GIVEN:
setp.eq.s32 %p4, %r20, 1;
@%p4 ret;
@%p1 bra MINE;
EMPTY:
mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r11+8], 0;
@!%p3 bra EMPTY;
MINE:
mov.u32 %r20, 1;
mov.u32 %r21, 0;
add.s32 %r6, %r6, 24;
add.s64 %rd6, %rd6, 3072;
bra AGAIN;
)";

const std::string parameters =
    "\t.param .align 64 .b8 map[128],\n\t.param .u64 out,\n\t.param .u32 x,\n\t.param .u32 y";

const std::string inc = "setmaxnreg.inc.sync.aligned.u32 ", dec = "setmaxnreg.dec.sync.aligned.u32 ";
const std::string write = "mov.u32 %r34, 0;\nst.shared.u32 [%r12], %r34;\n";

// A kernel with one thing changed, and what is said of it; "" where nothing is wrong.
struct Change {
  std::string what, by, why;
  bool races = false;
  unsigned block = threads;
  std::string kernel() const { return with("changed#", this - changes); }
  static const Change changes[];
};
const Change Change::changes[] = {
    {"_, [%r11], 3072", "_, [%r11], 3088", "nobody can go on"},
    {"_, [%r11], 3072", "_, [%r11], 3056", "more bytes to a barrier than were announced"},
    {"arrive.expect_tx.shared::cta.b64 _, [%r11], 3072", "arrive.shared::cta.b64 _, [%r11]", "copies are under way"},
    {full, "ret;\n", "copies are under way"},
    // A try may be in vain: whoever does not try again reads too early.
    {"@!%p3 bra FULL;\n", "", "of which all have come in this phase"},
    {"[%r11], %r20;", "[%r11], %r21;", "of which all have come in this phase"},
    {"fence.proxy.async.shared::cta;\n", "", "do not see the barrier that thread 0 made: no fence.proxy.async"},
    {"mbarrier.init.shared::cta.b64 [%r11+8], 2;\n", "", "no barrier was made at this address"},
    {"[%r10], [%rd4", "[%r10+128], [%rd4", "off a boundary of 1024 bytes"},
    {"cvta.param.u64 %rd4, %rd3;", "mov.u64 %rd4, %rd2;", "no parameter of the kernel"},
    {"mov.b64 %rd3, map;", "mov.b64 %rd3, map; add.s64 %rd3, %rd3, 64;", "no parameter of the kernel"},
    {"cvta.param.u64 %rd4, %rd3;", "cvta.param.u64 %rd4, %rd3; add.s64 %rd4, %rd4, 16;", "on a boundary of 64 bytes"},
    // Registers that warps hand over.
    {"// registers\n", dec + "24;\n" + inc + "240;\n", ""},
    {"// registers\n", dec + "28;\n", "a multiple of 8 from 24 to 256"},
    {"// registers\n", dec + "16;\n", "a multiple of 8 from 24 to 256"},
    {"// registers\n", inc + "24;\n", "the warp has 255 registers"},
    {"// registers\n", inc + "136;\nret;\n", "in all, and there are 65536", false, 512},
    {"// registers\n", "setp.gt.u32 %p5, %r1, 31;\n@%p5 bra SECOND;\n" + dec + "40;\nSECOND:\n",
     "not the same number of registers"},
    // What PTX_RACES=1 sees.
    {full, "", "a race", true},
    {"@!%p3 bra FULL;\n", "", "a race", true},
    {"EMPTY:\nmbarrier.try_wait.parity.shared::cta.b64 %p3, [%r11+8], 0;\n@!%p3 bra EMPTY;\n", "", "a race", true},
    {"ld.shared.v4.u32 {%r30, %r31, %r32, %r33}, [%r12+32]",
     "@%p2 bra EARLY; mbarrier.arrive.shared::cta.b64 _, [%r11+8]; EARLY: "
     "ld.shared.v4.u32 {%r30, %r31, %r32, %r33}, [%r12+32]",
     "a race", true},
    {"bar.sync 0;\n", "", "a race", true},
    {"// registers\n", write + "bar.sync 0;\n", "no fence.proxy.async", true},
    {"// registers\n", write + "fence.proxy.async.shared::cta;\nbar.sync 0;\n", "", true}};

// Two blocks of a cluster, 64 threads each. Thread 0 of each asks for the box of its number, into both blocks, and each
// block puts out both boxes, 96 bytes a thread; then the same with the two boxes below. In between the threads of a
// block exchange their numbers, which stand behind the boxes.
const std::string multicast =
    "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster ";
const std::string cluster_body = R"(.shared .align 1024 .b8 buffer[6144];
.shared .align 8 .b8 barriers[16];
.shared .align 4 .b8 numbers[256];
)" + opening + R"(
mov.u32 %r3, %cluster_ctarank;
mad.lo.s32 %r12, %r1, 96, %r10;
mad.lo.s32 %r13, %r3, 3072, %r10;
mad.lo.s32 %r6, %r3, 24, %r6;
mad.wide.u32 %rd5, %r3, 12544, %rd2;
mad.wide.u32 %rd6, %r1, 96, %rd5;
@%p1 bra MADE;
mbarrier.init.shared::cta.b64 [%r11], 1;
mbarrier.init.shared::cta.b64 [%r11+8], 4;
fence.proxy.async.shared::cta;
fence.mbarrier_init.release.cluster;
MADE:
barrier.cluster.arrive.release; // first
barrier.cluster.wait.acquire;
AGAIN:
@%p1 bra ASKED;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r11], 6144;
mov.u16 %rs1, 3;
)" + multicast + R"([%r13], [%rd4, {%r5, %r6}], [%r11], %rs1;
ASKED:
)" + full + put_out(96) + R"(bar.warp.sync -1;
@%p2 bra GIVEN;
mapa.shared::cluster.u32 %r40, %r11, 0;
mbarrier.arrive.shared::cluster.b64 _, [%r40+8];
mapa.shared::cluster.u32 %r40, %r11, 1;
mbarrier.arrive.shared::cluster.b64 _, [%r40+8];
GIVEN:
mov.u32 %r41, numbers;
mad.lo.s32 %r42, %r1, 4, %r41;
mad.lo.s32 %r43, %r3, 100, %r1;
st.shared.u32 [%r42], %r43;
bar.sync 0;
xor.b32 %r44, %r1, 33;
mad.lo.s32 %r42, %r44, 4, %r41;
ld.shared.u32 %r43, [%r42];
mad.wide.u32 %rd7, %r1, 4, %rd5;
st.global.u32 [%rd7+12288], %r43;
bar.sync 1;
setp.eq.s32 %p4, %r20, 1;
@%p4 bra END;
@%p1 bra MINE;
EMPTY:
mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r11+8], 0;
@!%p3 bra EMPTY;
MINE:
mov.u32 %r20, 1;
add.s32 %r6, %r6, 48;
add.s64 %rd6, %rd6, 6144;
bra AGAIN;
END:
barrier.cluster.arrive.release;
barrier.cluster.wait.acquire;
)";
const std::string first = "barrier.cluster.arrive.release; // first\nbarrier.cluster.wait.acquire;\n";
const std::string to_other = "mapa.shared::cluster.u32 %r40, %r11, 1;\n";
const Change cluster_changes[] = {
    {"fence.mbarrier_init.release.cluster;\n", "", "another block does not see the barrier"},
    {"fence.proxy.async.shared::cta;\n", "", "no fence.proxy.async"},
    {first, "", "no barrier was made at this address"},
    {"GIVEN:\n", "GIVEN:\nsetp.eq.s32 %p4, %r20, 1;\n@%p4 ret;\n", "block 0 of the cluster has ended"},
    {to_other, "mapa.shared::cluster.u32 %r40, %r11, 0;\n", "nobody can go on"},
    {to_other, "mapa.shared::cluster.u32 %r40, %r11, 2;\n", "the cluster has no such block"},
    {to_other, "mov.u32 %r40, %r11;\n", "nobody can go on"},
    {"[%r11+8], 4;", "[%r11+8], 5;", "nobody can go on"},
    {"_, [%r11], 6144", "_, [%r11], 3072", "more bytes to a barrier than were announced"},
    {"mov.u16 %rs1, 3;", "mov.u16 %rs1, 7;", "a copy into blocks 7 of a cluster of 2"},
    {"mov.u16 %rs1, 3;", "mov.u16 %rs1, 1;", "nobody can go on"},
    {first, first + "barrier.cluster.wait.acquire;\n", "where it has not arrived"},
    {first, "barrier.cluster.arrive.release;\n" + first, "for which it has not waited yet"},
    {first, "setp.eq.u32 %p5, %r3, 1;\n@%p5 bra SECOND;\n" + first + "SECOND:\n", "nobody can go on"},
    // What PTX_RACES=1 sees.
    {"EMPTY:\nmbarrier.try_wait.parity.shared::cta.b64 %p3, [%r11+8], 0;\n@!%p3 bra EMPTY;\n", "", "a race", true},
    {"bar.sync 0;\n", "", "a race", true},
    {"bar.sync 1;\n", "", "a race", true}};

const bool made = [] {
  entry("boxes", parameters, body);
  for (const Change& c : Change::changes) {
    if (!contains(body, c.what)) throw std::logic_error(c.what);
    entry(c.kernel(), parameters, replaced(body, c.what, c.by));
  }
  const auto all = [](std::string text, std::initializer_list<std::pair<const char*, const char*>> changes) {
    for (const auto& [what, by] : changes) text = replaced(text, what, by);
    return text;
  };
  entry("read_by_both", parameters,
        all(body, {{"%r12, %r1, 48", "%r12, %r2, 48"},
                   {"[%r11+8], 2;", "[%r11+8], 1;"},
                   {"@%p2 bra GIVEN", "@%p1 bra GIVEN"}}));
  entry("cluster", parameters, cluster_body);
  for (const Change& c : cluster_changes) {
    if (!contains(cluster_body, c.what)) throw std::logic_error(c.what);
    entry(with("cluster#", &c - cluster_changes), parameters, replaced(cluster_body, c.what, c.by));
  }
  return true;
}();

constexpr unsigned length = 100, lines = 40, pitch = 104;

struct Run : Ended {
  std::vector<uint16_t> out;
};
struct alignas(64) Given {
  unsigned char map[128];
  Word out;
  uint32_t x, y;
};

// In one block; or in the two of a cluster.
Run run(const std::string& name, const Device<uint16_t>& in, uint32_t x, uint32_t y, unsigned block = threads,
        unsigned blocks = 1) {
  const Device<uint16_t> out(blocks == 1 ? 2 * box_words : blocks * (4 * box_words + 2 * threads));
  Given given{{}, out.address(), x, y};
  ptx::write_tensor_map(given.map, {in.address(), length, lines, 2 * pitch, box_lines});
  const Ended ended = ptx_test::run(name, {blocks, 1, 1}, {block, 1, 1}, &given, 0, blocks);
  return {ended, {out.host(), out.host() + out.n}};
}

std::vector<uint16_t> numbers() {
  std::vector<uint16_t> all(lines * pitch);
  for (size_t i = 0; i < all.size(); i++) all[i] = uint16_t(1 + i);
  return all;
}

// The two boxes as they lie in shared memory: line after line, and in a line chunk c at c xor the line's number.
std::vector<uint16_t> expected(uint32_t x, uint32_t y, unsigned boxes = 2) {
  std::vector<uint16_t> all(boxes * box_words);
  for (unsigned l = 0; l < boxes * box_lines; l++)
    for (unsigned e = 0; e < 64; e++) {
      const unsigned in_box = l % box_lines, place = (e / 8 ^ in_box % 8) * 8 + e % 8;
      all[l * 64 + place] = x + e < length && y + l < lines ? uint16_t(1 + (y + l) * pitch + x + e) : uint16_t(0);
    }
  return all;
}

}  // namespace

TEST_CASE("tma: a box lands as wgmma wants it, and is 0 outside of the matrix") {
  const Device<uint16_t> in(numbers());
  for (const char* races : {"0", "1"})
    for (const char* order : {"forward", "reverse", "5"}) {
      const Environment set("PTX_RACES", races), in_order("PTX_ORDER", order);
      for (uint32_t x : {0u, 8u, 64u, 100u, 300u})
        for (uint32_t y : {0u, 3u, 30u, 40u, 70u}) {
          INFO("x " << x << ", y " << y << ", order " << order << ", races " << races);
          const Run r = run("boxes", in, x, y);
          CHECK(r.text == "");
          REQUIRE(r.fault == Fault::none);
          REQUIRE(r.out == expected(x, y));
        }
    }
}

TEST_CASE("tma: a box comes into both blocks of a cluster") {
  const Device<uint16_t> in(numbers());
  for (const char* races : {"0", "1"})
    for (const char* order : {"forward", "reverse", "5"}) {
      const Environment set("PTX_RACES", races), in_order("PTX_ORDER", order);
      INFO("order " << order << ", races " << races);
      std::vector<uint16_t> both;
      for (unsigned rank = 0; rank < 2; rank++) {
        const std::vector<uint16_t> boxes = expected(8, 3, 4);
        both.insert(both.end(), boxes.begin(), boxes.end());
        for (unsigned i = 0; i < threads; i++) both.push_back(uint16_t(100 * rank + (i ^ 33))), both.push_back(0);
      }
      const Run r = run("cluster", in, 8, 3, threads, 2);
      CHECK(r.text == "");
      REQUIRE(r.fault == Fault::none);
      REQUIRE(r.out == both);
    }
}

TEST_CASE("tma: what blocks of a cluster do wrong to each other") {
  const Device<uint16_t> in(numbers());
  for (const Change& c : cluster_changes) {
    const Environment set("PTX_RACES", c.races ? "1" : "0");
    const Run r = run(with("cluster#", &c - cluster_changes), in, 0, 0, threads, 2);
    INFO(c.what << " => " << c.by << ": " << r.text);
    CHECK(r.fault == Fault::launch_failure);
    CHECK(contains(r.text, c.why));
  }
}

TEST_CASE("tma: what is not waited for is not there, and what is refused") {
  const Device<uint16_t> in(numbers());
  for (const Change& c : Change::changes) {
    const Environment set("PTX_RACES", c.races ? "1" : "0");
    const Run r = run(c.kernel(), in, 0, 0, c.block);
    INFO(c.what << " => " << c.by << ": " << r.text);
    CHECK(r.fault == (c.why.empty() ? Fault::none : Fault::launch_failure));
    CHECK(contains(r.text, c.why));
  }
  {
    const Environment set("PTX_GPU", "89");
    const Run r = run("boxes", in, 0, 0);
    CHECK(r.fault != Fault::none);
    CHECK(contains(r.text, "compute capability 9.0"));
  }
  const Environment set("PTX_RACES", "1");
  for (const char* order : {"forward", "reverse"}) {  // (the warp that has read last is not always the one that races)
    const Environment in_order("PTX_ORDER", order);
    const Run r = run("read_by_both", in, 0, 0);
    INFO(order << ": " << r.text);
    CHECK(contains(r.text, "a race"));
  }
  const Device<uint16_t> small(lines * pitch / 2);
  const Run r = run("boxes", small, 0, 0);
  CHECK(r.fault == Fault::illegal_address);
  CHECK(contains(r.text, "past the end of the live allocation"));
}
