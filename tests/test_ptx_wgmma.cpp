// wgmma on the machine that runs PTX: the product of two tiles as they lie in shared memory, in each of the four ways,
// against the definition (core/mma.h); and what a missing wait, fence or stride does. Expectations are the PTX ISA's
// (9.0, 9.7.15); where an element lies is written down here once more.
#include <random>

#include "core/mma.h"
#include "tests/ptx_kernels.h"

namespace {

using namespace ptx_test;
using gated::bf16;
using ptx::Fault;

constexpr unsigned threads = 128, rows = 64, columns = 256, depth = 64, sums = 128;
constexpr unsigned a_bytes = rows * depth * 2, bytes = a_bytes + columns * depth * 2;

// A block's shared memory becomes what `in` holds, and its sums what `out` holds; then one product of 16 k.
const std::string body =
    with(".shared .align 1024 .b8 buffer[#];\n", bytes) + begin +
    R"(ld.param.u64 %rd5, [a];
ld.param.u64 %rd6, [b];
mad.wide.u32 %rd8, %r1, 16, %rd1;
mov.u32 %r10, buffer;
shl.b32 %r11, %r1, 4;
add.s32 %r12, %r10, %r11;
shr.u32 %r13, %r10, 4;
cvt.u64.u32 %rd9, %r13;
add.s64 %rd10, %rd5, %rd9;
add.s64 %rd11, %rd6, %rd9;
mad.wide.u32 %rd13, %r1, 512, %rd2;
)" +
    each(0, bytes, 16 * threads,
         [](unsigned at) {
           return with(
               "ld.global.v4.u32 {%r20, %r21, %r22, %r23}, [%rd8+#];\n"
               "st.shared.v4.u32 [%r12+#], {%r20, %r21, %r22, %r23};\n",
               at, at);
         }) +
    each(0, sums, 1, [](unsigned i) { return with("ld.global.f32 %f#, [%rd13+#];\n", 1 + i, 4 * i); }) +
    R"(setp.ne.u32 %p1, 1, 0;
fence.proxy.async.shared::cta;
bar.sync 0;
wgmma.fence.sync.aligned;
wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {%f1)" +
    each(2, sums + 1, 1, [](unsigned i) { return with(", %f#", i); }) +
    R"(}, %rd10, %rd11, %p1, 1, 1, ALONG;
wgmma.commit_group.sync.aligned;
// under way
wgmma.wait_group.sync.aligned 0;
)" + each(0, sums, 1, [](unsigned i) { return with("st.global.f32 [%rd13+#], %f#;\n", 4 * i, 1 + i); });

const std::string parameters = two_pointers + ",\n\t.param .u64 a,\n\t.param .u64 b";

constexpr unsigned registers_begin = 0x3f80;  // 1

// A kernel of that body with one thing changed.
void changed(const std::string& name, const std::string& what, const std::string& by) {
  if (!contains(body, what)) throw std::logic_error(name);
  entry(name, parameters, replaced(replaced(body, what, by), "ALONG", "0, 0"));
}

const bool made = [] {
  for (const char* along : {"0, 0", "0, 1", "1, 0", "1, 1"})
    entry("along" + replaced(along, ", ", ""), parameters, replaced(body, "ALONG", along));
  changed("no_fence", "wgmma.fence.sync.aligned;\n", "");
  changed("no_proxy_fence", "fence.proxy.async.shared::cta;\n", "");
  changed("no_barrier", "bar.sync 0;\n", "");
  changed("no_wait", "wgmma.wait_group.sync.aligned 0;\n", "");
  changed("no_commit", "wgmma.commit_group.sync.aligned;\n", "");
  changed("left_under_way", "wait_group.sync.aligned 0", "wait_group.sync.aligned 1");
  changed("written_too_early", "// under way\n", "mov.u32 %r30, 0;\nst.shared.u32 [%r12], %r30;\n");
  changed("three_warps", "bar.sync 0;\n", "bar.sync 0;\nsetp.gt.u32 %p2, %r1, 95;\n@%p2 ret;\n");
  changed("factors_of_warps", "bar.sync 0;\n",
          "bar.sync 0;\nshr.u32 %r13, %r1, 5;\ncvt.u64.u32 %rd9, %r13;\nadd.s64 %rd11, %rd11, %rd9;\n");
  changed("no_sums_before", "setp.ne.u32 %p1, 1, 0;", "setp.ne.u32 %p1, 0, 0;");
  // A in registers: number i of thread t's eight is the bf16 of these bits.
  std::string factor;
  for (unsigned i = 0; i < 8; i++)
    factor += "add.u32 %r" + words(50 + i) + ", %r1, " + words(registers_begin + 128 * i) + ";\n";
  for (unsigned j = 0; j < 4; j++)
    factor += "shl.b32 %r60, %r" + words(51 + 2 * j) + ", 16;\nor.b32 %r" + words(40 + j) + ", %r" + words(50 + 2 * j) +
              ", %r60;\n";
  const std::string of_registers =
      replaced(body, "%rd10, %rd11, %p1, 1, 1, ALONG", "{%r40, %r41, %r42, %r43}, %rd11, %p1, 1, 1, 0");
  entry("registers", parameters, replaced(of_registers, "wgmma.fence", factor + "wgmma.fence"));
  // nvcc moves sums that are under way from register to register.
  const std::string wait = "wgmma.wait_group.sync.aligned 0;\n";
  const auto moves = [](unsigned i) { return with("mov.f32 %f#, %f#;\nmov.f32 %f#, 0f00000000;\n", 300 + i, i, i); };
  const auto back = [](unsigned i) { return with("mov.f32 %f#, %f#;\n", i, 300 + i); };
  changed("moved", wait, each(1, sums + 1, 1, moves) + wait + each(1, sums + 1, 1, back));
  return true;
}();

struct Tiles {
  bf16 A[rows][depth], B[columns][depth];
  std::vector<float> C;  // as threads have it: (threads, sums)
  bool a_along, b_along;
  std::vector<uint16_t> image;

  Tiles(bool a_along, bool b_along) : C(threads * sums), a_along(a_along), b_along(b_along), image(bytes / 2) {
    std::mt19937 any(7);
    const auto fill = [&](auto& numbers) {
      for (auto& x : numbers)
        x = std::decay_t<decltype(x)>(std::ldexp(float(int(any() % 511) - 255), int(any() % 9) - 8));
    };
    for (auto& row : A) fill(row);
    for (auto& row : B) fill(row);
    fill(C);
    for (unsigned k = 0; k < depth; k++) {
      for (unsigned m = 0; m < rows; m++) image[place(0, m, k, a_along)] = A[m][k].bits;
      for (unsigned n = 0; n < columns; n++) image[place(a_bytes, n, k, b_along)] = B[n][k].bits;
    }
  }
  // Which 16-bit word: lines of 64 elements, chunks of eight exchanged by the line's number; 64 rows beside each other
  // make a band of 64 lines.
  static unsigned place(unsigned begin, unsigned row, unsigned k, bool along) {
    const unsigned line = along ? row / 64 * 64 + k : row, element = along ? row % 64 : k;
    return begin / 2 + line * 64 + ((element / 8) ^ (line % 8)) * 8 + element % 8;
  }
  // Sum j of a thread, k from `first` on.
  float expected(unsigned thread, unsigned j, unsigned first, bool add = true) const {
    const unsigned m = thread / 32 * 16 + thread % 32 / 4 + (j & 2 ? 8 : 0), n = j / 4 * 8 + thread % 4 * 2 + j % 2;
    return gated::mma_ref(add ? C[thread * sums + j] : 0, A[m] + first, B[n] + first, gated::MmaArithmetic::hopper);
  }
};

uint64_t descriptor(unsigned start, uint64_t leading, uint64_t stride) {
  return start / 16 | leading / 16 << 16 | stride / 16 << 32 | uint64_t{1} << 62;
}

struct Run : Ended {
  std::vector<float> out;
};
Run run(const std::string& name, const Tiles& tiles, uint64_t a, uint64_t b) {
  const Device<uint16_t> in(tiles.image);
  const Device<float> out(tiles.C);
  const struct {
    Word in, out;
    uint64_t a, b;
  } given{in.address(), out.address(), a, b};
  const Ended ended = ptx_test::run(name, {}, {threads, 1, 1}, &given);
  return {ended, {out.host(), out.host() + threads * sums}};
}
uint64_t along_k(unsigned begin, unsigned k) {
  return descriptor(begin + 2 * k, 0, 1024);
}
Run run(const std::string& name, const Tiles& tiles) {
  return run(name, tiles, along_k(0, 16), along_k(a_bytes, 16));
}
bool right(const Run& r, const Tiles& tiles, unsigned first, bool add = true) {
  for (unsigned thread = 0; thread < threads; thread++)
    for (unsigned j = 0; j < sums; j++)
      if (gated::float_bits(r.out[thread * sums + j]) != gated::float_bits(tiles.expected(thread, j, first, add)))
        return false;
  return true;
}

}  // namespace

TEST_CASE("wgmma multiplies the tiles that descriptors name, each along k or along rows") {
  for (const char* races : {"0", "1"}) {
    const Environment set("PTX_RACES", races);
    for (bool a_along : {false, true})
      for (bool b_along : {false, true}) {
        const Tiles tiles(a_along, b_along);
        for (unsigned k : {0u, 16u, 48u}) {
          INFO("rows of A along lines: " << a_along << ", of B: " << b_along << ", k from " << k);
          const uint64_t a = a_along ? descriptor(128 * k, 0, 1024) : along_k(0, k);
          const uint64_t b = b_along ? descriptor(a_bytes + 128 * k, 8192, 1024) : along_k(a_bytes, k);
          const Run r = run("along" + words(a_along) + words(b_along), tiles, a, b);
          CHECK(r.text == "");
          REQUIRE(r.fault == Fault::none);
          REQUIRE(right(r, tiles, k));
        }
      }
  }
  const Tiles tiles(false, false);
  REQUIRE(right(run("no_sums_before", tiles), tiles, 16, false));
}

// (9.7.15.5.1, figure of A's fragment) With g = lane / 4 and t = lane % 4, register j holds row g + 8 (j mod 2), k from
// 2t + 8 (j / 2) on.
TEST_CASE("wgmma takes A from registers, too") {
  Tiles tiles(false, false);
  for (unsigned thread = 0; thread < threads; thread++)
    for (unsigned i = 0; i < 8; i++) {
      const unsigned row = thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8, k = thread % 4 * 2 + i / 4 * 8 + i % 2;
      tiles.A[row][16 + k] = bf16::from_bits(uint16_t(registers_begin + thread + 128 * i));
    }
  for (const char* races : {"0", "1"}) {
    const Environment set("PTX_RACES", races);
    const Run r = run("registers", tiles);
    CHECK(r.text == "");
    REQUIRE(right(r, tiles, 16));
  }
}

TEST_CASE("wgmma: sums under way may be moved, and are nothing until their wait") {
  const Tiles tiles(false, false);
  REQUIRE(right(run("moved", tiles), tiles, 16));
  for (const char* name : {"no_wait", "no_commit", "left_under_way"}) {
    const Run r = run(name, tiles);
    INFO(name);
    REQUIRE(r.fault == Fault::none);
    for (float x : r.out) REQUIRE(x != x);
  }
}

TEST_CASE("wgmma reads its operands at its wait") {
  const Tiles tiles(false, false);
  REQUIRE_FALSE(right(run("written_too_early", tiles), tiles, 16));
  const Environment set("PTX_RACES", "1");
  const Run r = run("written_too_early", tiles);
  REQUIRE(r.fault == Fault::launch_failure);
  CHECK(contains(r.text, "a race"));
}

TEST_CASE("wgmma: what is refused") {
  const Tiles tiles(false, false);
  const auto refused = [&](const Run& r, const std::string& why) {
    INFO(r.text);
    CHECK(r.fault != Fault::none);
    CHECK(contains(r.text, why));
  };
  refused(run("no_fence", tiles), "wgmma.fence is missing");
  for (const char* name : {"factors_of_warps", "three_warps"})
    refused(run(name, tiles), "the warps of a warpgroup have not asked for the same products");
  refused(run("along00", tiles, 0, along_k(a_bytes, 0)), "swizzle of 128 bytes");
  refused(run("along00", tiles, along_k(0, 0) | uint64_t{1} << 49, along_k(a_bytes, 0)), "base offset");
  refused(run("along00", tiles, along_k(0, 0), descriptor(a_bytes, 0, 8192)), "not all inside one variable");
  REQUIRE_FALSE(right(run("along00", tiles, along_k(0, 16), descriptor(a_bytes + 32, 0, 512)), tiles, 16));
  {
    const Environment set("PTX_GPU", "89");
    refused(run("along00", tiles), "compute capability 9.0");
  }
  const Environment set("PTX_RACES", "1");
  refused(run("no_proxy_fence", tiles), "no fence.proxy.async");
  refused(run("no_barrier", tiles), "a race");
}
