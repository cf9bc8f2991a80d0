// Copies of boxes on the machine that runs PTX, and the barriers that count their bytes: where each element of a box
// lands, 0 outside of the matrix; and what a wrong count, a missing wait, a missing fence or a stage that is given back
// too early does. Expectations are the PTX ISA's (9.0, 5.5, 9.7.9.27, 9.7.13.15); where an element lies is written down
// here once more.
#include "tests/ptx_kernels.h"

namespace {

using namespace ptx_test;
using ptx::Fault;

constexpr unsigned threads = 64, box_lines = 24, box_bytes = box_lines * 128;

// Thread 0 makes two barriers and asks for a box; all wait for it and put it out, 48 bytes a thread. Then the same with
// the box below, over the first, once each warp has arrived at the second barrier.
const std::string body =
    R"(.shared .align 1024 .b8 buffer[3072];
.shared .align 8 .b8 barriers[16];
ld.param.u64 %rd2, [out];
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
mad.lo.s32 %r12, %r1, 48, %r10;
mul.wide.u32 %rd5, %r1, 48;
add.s64 %rd6, %rd2, %rd5;
mov.u32 %r20, 0;
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
FULL:
mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r11], %r20;
@!%p3 bra FULL;
)" +
    [] {
      std::string text;
      for (unsigned at = 0; at < 48; at += 16)
        text += "ld.shared.v4.u32 {%r30, %r31, %r32, %r33}, [%r12+" + words(at) + "];\nst.global.v4.u32 [%rd6+" +
                words(at) + "], {%r30, %r31, %r32, %r33};\n";
      return text;
    }() +
    R"(bar.warp.sync -1;
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

void changed(const std::string& name, const std::string& what, const std::string& by) {
  if (!has(body, what)) throw std::logic_error(name);
  entry(name, parameters, replaced(body, what, by));
}

const bool made = [] {
  entry("boxes", parameters, body);
  const std::string empty = "EMPTY:\nmbarrier.try_wait.parity.shared::cta.b64 %p3, [%r11+8], 0;\n@!%p3 bra EMPTY;\n";
  const std::string full = "FULL:\nmbarrier.try_wait.parity.shared::cta.b64 %p3, [%r11], %r20;\n@!%p3 bra FULL;\n";
  changed("too_many_bytes", "_, [%r11], 3072", "_, [%r11], 3088");
  changed("too_few_bytes", "_, [%r11], 3072", "_, [%r11], 3056");
  changed("no_bytes", "arrive.expect_tx.shared::cta.b64 _, [%r11], 3072", "arrive.shared::cta.b64 _, [%r11]");
  changed("no_full_wait", full, "");
  changed("a_try_for_a_wait", "@!%p3 bra FULL;\n", "");
  changed("other_parity", "[%r11], %r20;", "[%r11], %r21;");
  changed("no_empty_wait", empty, "");
  changed("given_back_early", "ld.shared.v4.u32 {%r30, %r31, %r32, %r33}, [%r12+32]",
          "@%p2 bra EARLY; mbarrier.arrive.shared::cta.b64 _, [%r11+8]; EARLY: ld.shared.v4.u32 {%r30, %r31, %r32, "
          "%r33}, [%r12+32]");
  changed("no_proxy_fence", "fence.proxy.async.shared::cta;\n", "");
  changed("no_init", "mbarrier.init.shared::cta.b64 [%r11+8], 2;\n", "");
  changed("no_block_barrier", "bar.sync 0;\n", "");
  changed("off_boundary", "[%r10], [%rd4", "[%r10+128], [%rd4");
  changed("no_parameter", "cvta.param.u64 %rd4, %rd3;", "mov.u64 %rd4, %rd2;");
  changed("inside_the_map", "cvta.param.u64 %rd4, %rd3;", "cvta.param.u64 %rd4, %rd3; add.s64 %rd4, %rd4, 16;");
  changed("no_map", "mov.b64 %rd3, map;", "mov.b64 %rd3, map; add.s64 %rd3, %rd3, 64;");
  changed("written_by_a_thread", "// registers\n", "mov.u32 %r34, 0;\nst.shared.u32 [%r12], %r34;\nbar.sync 0;\n");
  changed("written_and_fenced", "// registers\n",
          "mov.u32 %r34, 0;\nst.shared.u32 [%r12], %r34;\nfence.proxy.async.shared::cta;\nbar.sync 0;\n");
  changed("ends_early", full, "ret;\n");
  const auto registers = [](const std::string& name, const std::string& what) {
    changed(name, "// registers\n", what);
  };
  const std::string inc = "setmaxnreg.inc.sync.aligned.u32 ", dec = "setmaxnreg.dec.sync.aligned.u32 ";
  registers("registers", dec + "24;\n" + inc + "240;\n");
  registers("registers_of_512", inc + "136;\nret;\n");
  registers("registers_odd", dec + "28;\n");
  registers("registers_of_too_few", dec + "16;\n");
  registers("registers_up", inc + "24;\n");
  registers("registers_of_a_warp", "setp.gt.u32 %p5, %r1, 31;\n@%p5 bra SECOND;\n" + dec + "40;\nSECOND:\n");
  return true;
}();

constexpr unsigned length = 100, lines = 40, pitch = 104;

struct Run {
  Fault fault;
  std::string text;
  std::vector<uint16_t> out;
};
struct alignas(64) Given {
  unsigned char map[128];
  Word out;
  uint32_t x, y;
};

Run run(const std::string& name, const Device<uint16_t>& in, uint32_t x, uint32_t y, unsigned block = threads) {
  const Device<uint16_t> out(2 * box_bytes / 2);
  Given given{{}, out.address(), x, y};
  ptx::write_tensor_map(given.map, {in.address(), length, lines, 2 * pitch, box_lines});
  Run r;
  const ptx::Kernel& k = kernel(name);
  r.text = said([&] { r.fault = ptx::run(k, {}, {block, 1, 1}, 0, &given); });
  r.out.assign(out.host(), out.host() + out.n);
  return r;
}

std::vector<uint16_t> numbers() {
  std::vector<uint16_t> all(lines * pitch);
  for (size_t i = 0; i < all.size(); i++) all[i] = uint16_t(1 + i);
  return all;
}

// The two boxes as they lie in shared memory: line after line, and in a line chunk c at c xor the line's number.
std::vector<uint16_t> expected(uint32_t x, uint32_t y) {
  std::vector<uint16_t> all(2 * box_bytes / 2);
  for (unsigned l = 0; l < 2 * box_lines; l++)
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
  REQUIRE(run("registers", in, 0, 0).fault == Fault::none);
}

TEST_CASE("tma: what is not waited for is not there") {
  const Device<uint16_t> in(numbers());
  // A try may be in vain: whoever does not try again reads too early.
  const Run r = run("a_try_for_a_wait", in, 0, 0);
  REQUIRE(r.fault == Fault::launch_failure);
  CHECK(has(r.text, "of which all have come in this phase"));
  const Environment set("PTX_RACES", "1");
  for (const char* name :
       {"no_full_wait", "a_try_for_a_wait", "no_empty_wait", "given_back_early", "no_block_barrier"}) {
    const Run r = run(name, in, 0, 0);
    INFO(name << ": " << r.text);
    CHECK(r.fault == Fault::launch_failure);
    CHECK((has(r.text, "a race") || has(r.text, "no barrier was made")));
  }
}

TEST_CASE("tma: what is refused") {
  const Device<uint16_t> in(numbers());
  const auto refused = [&](const std::string& name, const std::string& why, unsigned block = threads) {
    const Run r = run(name, in, 0, 0, block);
    INFO(name << ": " << r.text);
    CHECK(r.fault != Fault::none);
    CHECK(has(r.text, why));
  };
  refused("too_many_bytes", "nobody can go on");
  refused("too_few_bytes", "more bytes to a barrier than were announced");
  refused("no_bytes", "copies are under way");
  refused("other_parity", "of which all have come in this phase");
  refused("no_proxy_fence", "do not see the barrier that thread 0 made: no fence.proxy.async");
  refused("no_init", "no barrier was made at this address");
  refused("off_boundary", "off a boundary of 1024 bytes");
  refused("no_parameter", "no parameter of the kernel");
  refused("inside_the_map", "on a boundary of 64 bytes");
  refused("no_map", "no parameter of the kernel");
  refused("ends_early", "copies are under way");
  refused("registers_odd", "a multiple of 8 from 24 to 256");
  refused("registers_of_too_few", "a multiple of 8 from 24 to 256");
  refused("registers_up", "the warp has 255 registers");
  refused("registers_of_a_warp", "not the same number of registers");
  refused("registers_of_512", "in all, and there are 65536", 512);
  {
    const Environment set("PTX_GPU", "89");
    refused("boxes", "compute capability 9.0");
  }
  const Environment set("PTX_RACES", "1");
  refused("written_by_a_thread", "no fence.proxy.async");
  CHECK(run("written_and_fenced", in, 0, 0).fault == Fault::none);
  const Device<uint16_t> small(lines * pitch / 2);
  const Run r = run("boxes", small, 0, 0);
  CHECK(r.fault == Fault::illegal_address);
  CHECK(has(r.text, "past the end of the live allocation"));
}
