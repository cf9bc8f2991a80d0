// The machine that runs PTX (ptx/machine.h) on kernels written here: memory, what the lanes of a warp do together,
// copies that arrive late. Expectations are the PTX ISA's (9.0). Arithmetic: tests/test_ptx_arithmetic.cpp; faults:
// tests/test_ptx_faults.cpp.
#include <array>
#include <bit>
#include <numeric>
#include <random>
#include <set>

#include "tests/ptx_kernels.h"

namespace {

using namespace ptx_test;
using ptx::Fault;

// ---- memory

// Each type, alone and as a vector, through each space: global to registers, to the space, back to other registers, to
// global.
struct Form {
  std::string kind;
  unsigned bytes, n;
};
std::vector<Form> forms() {
  std::vector<Form> all;
  for (const char* base : {"u", "s", "b"})
    for (unsigned bytes : {1, 2, 4, 8})
      for (unsigned n : {1, 2, 4})
        if (bytes * n <= 16) all.push_back({base + words(8 * bytes), bytes, n});
  for (unsigned n : {1, 2, 4}) all.push_back({"f32", 4, n});
  return all;
}
const std::string one_thread = begin + "setp.ne.s32 %p1, %r4, 0;\n@%p1 ret;\n";
const bool memory = [] {
  std::string body =
      ".shared .align 16 .b8 buffer[64];\n.local .align 16 .b8 depot[64];\n" + one_thread + R"(mov.u64 %rd10, depot;
cvta.local.u64 %rd11, %rd10;
mov.u64 %rd12, buffer;
cvta.shared.u64 %rd13, %rd12;
mov.u32 %r10, buffer;
cvta.to.shared.u64 %rd14, %rd13;
cvta.to.local.u64 %rd15, %rd11;
add.s64 %rd16, %rd2, 100000;
add.s32 %r11, %r10, 48;
cvta.global.u64 %rd16, %rd16;
)";
  // How a place is written to and read from.
  const std::vector<std::array<std::string, 4>> ways = {
      {"global.", "[%rd16]", "", "[%rd16]"},
      {"shared.", "[buffer]", "", "[%rd13]"},
      {"", "[%rd13+16]", "shared.", "[%r11+-32]"},
      {"shared.", "[%rd14]", "shared.", "[%r10]"},
      {"local.", "[depot+16]", "", "[%rd11+16]"},
      {"", "[%rd11+32]", "local.", "[%rd15+32]"},
      {"volatile.shared.", "[%r10]", "volatile.", "[%rd13]"},
      {"volatile.global.", "[%rd16+32]", "volatile.global.", "[%rd16+32]"}};
  unsigned at = 0;
  for (const auto& [to, where, from, there] : ways)
    for (const auto& [kind, bytes, n] : forms()) {
      const std::string stem = kind == "f32" ? "%f" : bytes == 8 ? "%rd" : bytes == 4 ? "%r" : "%rs";
      const auto registers = [&, n = n](unsigned first) {
        const auto next = [&](unsigned i) { return ", " + stem + words(i); };
        return "{" + stem + words(first) + each(first + 1, first + n, 1, next) + "}";
      };
      const std::string in = n == 1 ? stem + "20" : registers(20), out = n == 1 ? stem + "30" : registers(30);
      const std::string form = (n == 1 ? "" : "v" + words(n) + ".") + kind;
      body += with("ld.global.# #, [%rd1+#];\nst.## #, #;\n", form, in, at, to, form, where, in) +
              with("ld.## #, #;\nst.global.# [%rd2+#], #;\n", from, form, out, there, form, at, out);
      at += 16;
    }
  entry("memory", two_pointers, body);

  // Registers that are wider than what is loaded: the sign of it fills them; a store takes the low bits.
  std::string wide = one_thread;
  at = 0;
  for (const char* kind : {"s8", "u8", "b8", "s16", "u16", "s32", "u32"})
    for (std::string r : {"%rs20", "%r20", "%rd20"}) {
      const std::string type = r == "%rd20" ? "u64" : r == "%r20" ? "u32" : "u16";
      if (std::stoi(kind + 1) > std::stoi(type.substr(1))) continue;
      wide += with("ld.global.# #, [%rd1];\nst.global.# [%rd2+#], #;\n", kind, r, type, at, r) +
              with("ld.global.u64 %rd21, [%rd1];\ncvt.u32.u64 %r21, %rd21;\nst.global.# [%rd2+#], #;\n", kind, at + 8,
                   type == "u64" || kind[1] == '3' ? "%rd21" : "%r21");
      at += 16;
    }
  entry("wide", two_pointers, wide);

  entry("parameters",
        R"(	.param .u64 in,
	.param .u64 out,
	.param .u8 small,
	.param .align 8 .b8 big[24],
	.param .u16 half,
	.param .f32 last)",
        one_thread +
            R"(ld.param.u8 %r10, [small];
st.global.u32 [%rd2], %r10;
ld.param.s8 %r10, [big+13];
st.global.u32 [%rd2+4], %r10;
ld.param.v2.f32 {%f1, %f2}, [big+8];
st.global.v2.f32 [%rd2+8], {%f1, %f2};
ld.param.v4.u8 {%rs1, %rs2, %rs3, %rs4}, [big+4];
st.global.v4.u8 [%rd2+16], {%rs4, %rs3, %rs2, %rs1};
ld.param.u16 %rs1, [half];
st.global.u16 [%rd2+20], %rs1;
ld.param.u64 %rd5, [big+16];
st.global.u64 [%rd2+24], %rd5;
ld.param.f32 %f1, [last];
st.global.f32 [%rd2+32], %f1;
)");
  // By a register that holds an address; one that holds a sum with it, of a number or not; one that has held another.
  for (const auto& [name, body] : {std::pair("by_address", "mov.b64 %rd5, big;\n"),
                                   {"by_sum", "mov.b64 %rd6, big;\nadd.s64 %rd5, %rd6, 8;\n"},
                                   {"by_index", "mov.b64 %rd6, big;\nadd.s64 %rd5, %rd6, %rd7;\n"},
                                   {"by_two", "mov.b64 %rd5, first;\nmov.b64 %rd5, big;\n"}})
    entry(name, "\t.param .u32 first,\n\t.param .align 8 .b8 big[24]",
          body + std::string("ld.param.u32 %r10, [%rd5+4];\n"));

  // Every thread has local memory of its own, shared memory is the block's; both are fresh in each block.
  entry("own", two_pointers,
        ".shared .align 128 .b8 buffer[256];\n.local .align 4 .b8 depot[16];\n" + begin +
            R"(shl.b32 %r10, %r1, 2;
mov.u32 %r11, buffer;
add.s32 %r12, %r11, %r10;
mad.wide.u32 %rd11, %r4, 16, %rd2;
ld.local.u32 %r20, [depot+8];
ld.shared.u32 %r21, [%r12];
st.local.u32 [depot+8], %r4;
st.shared.u32 [%r12], %r4;
bar.sync 0;
xor.b32 %r13, %r12, 124;
ld.local.u32 %r22, [depot+8];
ld.shared.u32 %r23, [%r13];
st.global.v4.u32 [%rd11], {%r20, %r21, %r22, %r23};
)");
  return true;
}();

// Where each thread is, in the order in which they run.
const bool indices = [] {
  std::string body = begin + R"(ld.global.u32 %r10, [%rd2];
add.s32 %r11, %r10, 1;
st.global.u32 [%rd2], %r11;
mad.wide.u32 %rd11, %r10, 48, %rd2;
)";
  int at = 12;
  for (const char* name : {"tid", "ctaid", "ntid", "nctaid"})
    for (const char* side : {"x", "y", "z"})
      body += with("mov.u32 %r12, %#.#;\nst.global.u32 [%rd11+#], %r12;\n", name, side, at += 4);
  entry("indices", two_pointers, body);
  return true;
}();

}  // namespace

TEST_CASE("Threads and blocks are counted along x, then y, then z") {
  const Device<uint32_t> out(4 + 12 * 2 * 3 * 4 * 5 * 6 * 7);
  out[0] = 0;
  require_run("indices", {2, 3, 4}, {5, 6, 7}, out, out);
  const uint32_t* is = &out[4];
  for (uint32_t block = 0; block < 2 * 3 * 4; block++)
    for (uint32_t thread = 0; thread < 5 * 6 * 7; thread++, is += 12)
      REQUIRE(std::vector(is, is + 12) == std::vector<uint32_t>{thread % 5, thread / 5 % 6, thread / 30, block % 2,
                                                                block / 2 % 3, block / 6, 5, 6, 7, 2, 3, 4});
}

TEST_CASE("Loads and stores of every width go through every space") {
  std::vector<unsigned char> bytes(16 * 8 * forms().size());
  for (size_t i = 0; i < bytes.size(); i++) bytes[i] = (unsigned char)(i * 167 + i / 256);
  const Device<unsigned char> in(bytes), out(100064);
  require_run("memory", {1}, {1}, in, out);
  size_t at = 0;
  for (int way = 0; way < 8; way++)
    for (const auto& [kind, size, n] : forms()) {
      INFO("way " << way << ", v" << n << "." << kind);
      CHECK(memcmp(&in[at], &out[at], size * n) == 0);
      CHECK((size * n == 16 || out[at + size * n] == 0xff));
      at += 16;
    }
}

TEST_CASE("A load fills a wider register, a store takes its low bits") {
  for (Word value : {Word{0x8182838485868788}, Word{0x7172737475767778}}) {
    const Device<Word> in(std::vector{value}), out(2 * 19);
    require_run("wide", {1}, {1}, in, out);
    size_t at = 0;
    const auto check = [&](int64_t loaded, int size) {
      for (int width : {16, 32, 64}) {
        if (size > width) continue;
        const auto low = [](Word x, int bits) { return bits == 64 ? x : x | ~Word{0} << bits; };
        CHECK(out[at] == low(Word(loaded), width));
        CHECK(out[at + 1] == low(value, size));
        at += 2;
      }
    };
    check(int8_t(value), 8), check(uint8_t(value), 8), check(uint8_t(value), 8);
    check(int16_t(value), 16), check(uint16_t(value), 16);
    check(int32_t(value), 32), check(uint32_t(value), 32);
  }
}

TEST_CASE("Parameters lie where C puts them") {
  struct {
    const void *in, *out;
    uint8_t small;
    struct alignas(8) {
      unsigned char bytes[24];
    } big;
    uint16_t half;
    float last;
  } p{};
  const ptx::Kernel& k = kernel("parameters");
  const std::vector<std::pair<size_t, size_t>> places = {{0, 8}, {8, 8}, {16, 1}, {24, 24}, {48, 2}, {52, 4}};
  REQUIRE(k.parameters.size() == places.size());
  for (size_t i = 0; i < places.size(); i++)
    CHECK(std::pair(k.parameters[i].offset, k.parameters[i].bytes) == places[i]);
  CHECK(k.parameter_bytes == sizeof p);
  // Of `big` bytes 4 to 23; a parameter with whose address something is computed may be read all over.
  CHECK(k.loaded == std::vector<ptx::Parameter>{{0, 17}, {28, 22}, {52, 4}});
  CHECK(kernel("by_address").loaded == std::vector<ptx::Parameter>{{12, 4}});
  CHECK(kernel("by_sum").loaded == std::vector<ptx::Parameter>{{20, 4}});
  CHECK(kernel("by_index").loaded == std::vector<ptx::Parameter>{{8, 24}});
  CHECK(kernel("by_two").loaded == std::vector<ptx::Parameter>{{0, 4}, {8, 24}});
  const Device<unsigned char> out(36);
  p.in = p.out = out.p, p.small = 200, p.half = 0xabcd, p.last = 1.5f;
  for (unsigned char i = 0; i < 24; i++) p.big.bytes[i] = (unsigned char)(0x80 + 7 * i);
  require_run("parameters", {1}, {1}, &p);
  // A byte as a word, one with its sign, eight; four backwards; `half`, and nothing behind it; eight; `last`.
  const unsigned char* const big = p.big.bytes;
  std::vector<unsigned char> expected = {200, 0, 0, 0, big[13], 0xff, 0xff, 0xff};
  expected.insert(expected.end(), big + 8, big + 16);
  expected.insert(expected.end(), {big[7], big[6], big[5], big[4], 0xcd, 0xab, 0xff, 0xff});
  expected.insert(expected.end(), big + 16, big + 24);
  expected.insert(expected.end(), {0, 0, 0xc0, 0x3f});
  CHECK(std::vector(out.host(), out.host() + out.n) == expected);
}

TEST_CASE("Local memory is the thread's, shared memory the block's, and fresh memory is all ones") {
  const Device<uint32_t> out(4 * 3 * 64);
  for (uint32_t word : std::vector(out.host(), out.host() + out.n)) REQUIRE(word == ~0u);
  for (int again = 0; again < 2; again++) {
    require_run("own", {3}, {64}, out, out);
    for (uint32_t i = 0; i < 3 * 64; i++)
      CHECK(std::vector(&out[4 * i], &out[4 * i + 4]) == std::vector<uint32_t>{~0u, ~0u, i, i ^ 31});
  }
}

TEST_CASE("Allocations") {
  Device<char> a(100), b(1);
  CHECK(a.address() % 256 == 0);
  CHECK(ptx::is_device_address(a.p));
  CHECK(!ptx::is_device_address(&a));
  CHECK(ptx::storage(static_cast<char*>(a.p) + 99, 1));
  CHECK(!ptx::storage(static_cast<char*>(a.p) + 99, 2));
  CHECK(!ptx::storage(static_cast<char*>(a.p) - 1, 1));
  CHECK(!ptx::release(static_cast<char*>(a.p) + 1));
  CHECK(!ptx::release(&a));
  void* const p = ptx::allocate(10);
  CHECK(ptx::release(p));
  CHECK(!ptx::release(p));
  CHECK(!ptx::storage(p, 1));
  Device<char> c(10);
  CHECK(c.p != p);
  CHECK(ptx::allocate(size_t{1} << 60) == nullptr);
}

TEST_CASE("PTX_MEMORY: how much there is, and no more") {
  {
    const Environment set("PTX_MEMORY", "3");
    const size_t all = ptx::memory_use().free;
    CHECK(ptx::memory_use().total == 3 << 20);
    CHECK(all <= 3 << 20);
    CHECK(ptx::allocate(all + 1) == nullptr);
    void* const p = ptx::allocate(all);
    CHECK(p);
    CHECK(ptx::memory_use().free == 0);
    CHECK(ptx::release(p));
    CHECK(ptx::memory_use().free == all);
  }
  for (const char* value : {"0", "1G"}) {
    const Environment set("PTX_MEMORY", value);
    CHECK_THROWS_WITH(ptx::memory_use(), with("PTX_MEMORY=#: expected a number of MiB from 1", value));
  }
  // Where nobody says: what programs can still get, files that are kept in memory among it.
  const double kib = std::stod(gated::between(gated::contents("/proc/meminfo"), "MemAvailable:", " kB"));
  CHECK(double(ptx::memory_use().free) == Approx(1024 * kib).epsilon(0.1));
}

TEST_CASE("PTX_LAUNCHED: a kernel that runs adds its name, once") {
  const Folder folder;
  const Device<uint32_t> out(4 * 3 * 64);
  {
    const Environment set("PTX_LAUNCHED", folder / "launched");
    for (int again = 0; again < 2; again++) require_run("own", {3}, {64}, out, out);
  }
  require_run("swap", {1}, {1}, out, out);
  CHECK(folder.read("launched") == "own\n");
}

TEST_CASE("What is compiled is kept for one compiler and one kind of CPU") {
  const Folder folder;
  folder.write("k.ptx", head + entry_text("k", "\t.param .u32 x", ""));
  const auto digest = [&](const std::string& compiler, const std::string& says) {
    folder.program("cxx", "echo '" + says + "' >&2");
    folder.done("PATH=$PWD:$PATH CXX='" + compiler + "' {repo}/ptx/translate.py . k.ptx");
    const std::string digest = gated::words_of(folder.read("k.index")).at(1);
    CHECK(folder.read(digest + ".cpp").starts_with("// " + compiler + " -std=c++20 "));
    return digest;
  };
  const std::set<std::string> all = {digest("cxx", "gcc version 1"), digest("cxx", "gcc version 2"),
                                     digest("cxx", "gcc version 1\ncc1plus -mavx2"), digest("cxx -w", "gcc version 1")};
  CHECK(all.size() == 4);
  CHECK(all.count(digest("cxx", "gcc version 1")));
}

// ---- warps

namespace {

const bool warps = [] {
  // Each block is a test: b and c of each lane; its results of each mode, and whether the source lane was in range.
  std::string body = begin +
                     R"(mad.wide.u32 %rd11, %r4, 8, %rd1;
ld.global.v2.u32 {%r10, %r11}, [%rd11];
mad.wide.u32 %rd13, %r4, 32, %rd2;
add.s32 %r12, %r1, 1000;
)";
  int at = -8;
  for (const char* mode : {"up", "down", "bfly", "idx"})
    body += with("shfl.sync.#.b32 %r13|%p2, %r12, %r10, %r11, -1;\nselp.u32 %r14, 1, 0, %p2;\n", mode) +
            with("st.global.v2.u32 [%rd13+#], {%r13, %r14};\n", at += 8);
  entry("shuffles", two_pointers, body);

  // Lanes 0 to 9 leave. The others: half by half under masks of their own, then all that are left.
  entry("masks", two_pointers,
        begin +
            R"(mad.wide.u32 %rd11, %r4, 16, %rd2;
setp.lt.u32 %p1, %r1, 10;
@%p1 bra DONE;
and.b32 %r10, %r1, 1;
setp.eq.s32 %p2, %r10, 1;
@%p2 bra ODD;
shfl.sync.idx.b32 %r11, %r1, 12, 31, 0x55555555;
vote.sync.ballot.b32 %r12, %p2, 0x55555555;
bra.uni BOTH;
ODD:
shfl.sync.bfly.b32 %r11, %r1, 2, 31, -1431655766;
vote.sync.ballot.b32 %r12, %p2, -1431655766;
BOTH:
shfl.sync.down.b32 %r13, %r1, 1, 31, -1;
setp.gt.u32 %p3, %r1, 20;
vote.sync.ballot.b32 %r14, %p3, -1;
bar.warp.sync -1;
st.global.v4.u32 [%rd11], {%r11, %r12, %r13, %r14};
DONE:
)");

  // Neighbours swap what they have in shared memory; %laneid and %warpid.
  entry("swap", two_pointers,
        ".shared .align 8 .b8 buffer[512];\n" + begin +
            R"(mov.u32 %r10, buffer;
shl.b32 %r11, %r1, 2;
add.s32 %r12, %r10, %r11;
st.shared.u32 [%r12], %r1;
bar.warp.sync -1;
xor.b32 %r13, %r12, 4;
ld.shared.u32 %r14, [%r13];
mov.u32 %r15, %laneid;
mov.u32 %r16, %warpid;
mov.u32 %r17, WARP_SZ;
mad.wide.u32 %rd11, %r4, 16, %rd2;
st.global.v4.u32 [%rd11], {%r14, %r15, %r16, %r17};
)");

  // 32 rows of 8 elements in shared memory; lane i brings the address of row (5 i + 3) % 32.
  std::string matrices = ".shared .align 16 .b8 rows[512];\n" + begin +
                         R"(mad.wide.u32 %rd11, %r1, 16, %rd1;
ld.global.v4.u32 {%r20, %r21, %r22, %r23}, [%rd11];
mov.u32 %r10, rows;
shl.b32 %r11, %r1, 4;
add.s32 %r12, %r10, %r11;
st.shared.v4.u32 [%r12], {%r20, %r21, %r22, %r23};
bar.sync 0;
mad.lo.s32 %r13, %r1, 5, 3;
and.b32 %r13, %r13, 31;
shl.b32 %r13, %r13, 4;
add.s32 %r13, %r13, %r10;
mad.wide.u32 %rd13, %r1, 56, %rd2;
)";
  at = -4;
  for (const char* trans : {"", "trans."})
    for (unsigned n : {1, 2, 4})
      matrices += with("ldmatrix.sync.aligned.m8n8.x#.#shared.b16 {%r30#}, [%r13];\n", n, trans,
                       each(31, 30 + n, 1, [](unsigned i) { return with(", %r#", i); })) +
                  each(30, 30 + n, 1, [&](unsigned i) { return with("st.global.u32 [%rd13+#], %r#;\n", at += 4, i); });
  entry("matrices", two_pointers, matrices);

  entry(
      "product", two_pointers,
      begin + "mad.wide.u32 %rd11, %r1, 40, %rd1;\n" +
          each(0, 6, 1, [](unsigned i) { return with("ld.global.u32 %r#, [%rd11+#];\n", 20 + i, 4 * i); }) +
          each(0, 4, 1, [](unsigned i) { return with("ld.global.f32 %f#, [%rd11+#];\n", 20 + i, 24 + 4 * i); }) +
          R"(mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f30, %f31, %f32, %f33}, {%r20, %r21, %r22, %r23}, {%r24, %r25}, {%f20, %f21, %f22, %f23};
mad.wide.u32 %rd13, %r1, 16, %rd2;
st.global.v4.f32 [%rd13], {%f30, %f31, %f32, %f33};
)");
  return true;
}();

}  // namespace

TEST_CASE("shfl.sync takes from the lane that the ISA names") {
  std::mt19937 any(7);
  std::vector<uint32_t> bc;
  for (uint32_t clamp = 0; clamp < 32; clamp++)
    for (uint32_t segment = 0; segment < 32; segment++)
      for (uint32_t lane = 0, b = any() % 40; lane < 32; lane++) {
        bc.push_back(segment % 2 ? any() : b);
        bc.push_back(segment << 8 | clamp | (any() & 0xffffe0e0));  // (bits that do not count)
      }
  const Device<uint32_t> in(bc), out(4 * bc.size());
  require_run("shuffles", {unsigned(bc.size() / 64)}, {32}, in, out);
  size_t wrong = 0;
  for (size_t i = 0; i < bc.size() / 2; i++) {
    const int lane = int(i % 32), b = int(bc[2 * i] & 31), c = int(bc[2 * i + 1] & 31),
              mask = int(bc[2 * i + 1] >> 8 & 31);
    const int most = (lane & mask) | (c & ~mask), least = lane & mask;
    for (int mode = 0; mode < 4; mode++) {
      int j = mode == 0 ? lane - b : mode == 1 ? lane + b : mode == 2 ? lane ^ b : least | (b & ~mask);
      const bool inside = mode == 0 ? j >= most : j <= most;
      if (!inside) j = lane;
      wrong += out[8 * i + 2 * size_t(mode)] != uint32_t(1000 + j) || out[8 * i + 2 * size_t(mode) + 1] != inside;
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("Lanes meet under their own masks, without those that have returned") {
  for (const char* order : {"forward", "reverse", "5"}) {
    const Environment set("PTX_ORDER", order);
    const Device<uint32_t> out(4 * 32);
    require_run("masks", {1}, {32}, out, out);
    for (uint32_t i = 0; i < 32; i++) {
      INFO("lane " << i << ", order " << order);
      const uint32_t* const is = &out[4 * i];
      if (i < 10) {
        CHECK(is[0] == ~0u);
        continue;
      }
      // (from a lane that has returned comes anything)
      if (i % 2 == 0 || (i ^ 2) >= 10) CHECK(is[0] == (i % 2 ? i ^ 2 : 12));
      CHECK(is[1] == (i % 2 ? 0xaaaaa800 : 0));
      CHECK(is[2] == (i == 31 ? 31 : i + 1));
      CHECK(is[3] == 0xffe00000);
    }
  }
}

TEST_CASE("bar.warp.sync orders the lanes of a warp") {
  for (const char* order : {"forward", "reverse"}) {
    const Environment set("PTX_ORDER", order);
    const Device<uint32_t> out(4 * 100);
    require_run("swap", {1}, {100}, out, out);
    for (uint32_t i = 0; i < 100; i++)
      CHECK(std::vector(&out[4 * i], &out[4 * i + 4]) == std::vector{i ^ 1, i % 32, i / 32, 32u});
  }
}

TEST_CASE("ldmatrix hands out rows, and columns with .trans") {
  std::vector<uint16_t> rows(32 * 8);
  std::iota(rows.begin(), rows.end(), uint16_t(100));
  const Device<uint16_t> in(rows);
  const Device<uint32_t> out(32 * 14);
  require_run("matrices", {1}, {32}, in, out);
  // Row r of matrix m is at the address that lane 8 m + r brings.
  const auto element = [&](size_t m, size_t r, size_t c) { return rows[((8 * m + r) * 5 + 3) % 32 * 8 + c]; };
  for (size_t lane = 0; lane < 32; lane++) {
    size_t at = 14 * lane;
    for (bool trans : {false, true})
      for (size_t n : {1, 2, 4})
        for (size_t m = 0; m < n; m++) {
          const size_t row = lane / 4, column = 2 * (lane % 4);
          const uint32_t low = trans ? element(m, column, row) : element(m, row, column);
          const uint32_t high = trans ? element(m, column + 1, row) : element(m, row, column + 1);
          CHECK(out[at++] == (high << 16 | low));
        }
  }
}

TEST_CASE("mma multiplies the matrices whose fragments lanes hold") {
  std::mt19937 any(3);
  const auto fill = [&](auto& matrix) {
    for (auto& row : matrix)
      for (float& x : row) x = float(int(any() % 17) - 8);
  };
  float A[16][16], B[16][8], C[16][8];
  fill(A), fill(B), fill(C);
  const auto bf16 = [](float x) { return uint16_t(std::bit_cast<uint32_t>(x) >> 16); };
  const Device<unsigned char> in(32 * 40);
  const Device<float> out(32 * 4);
  // The figures of m16n8k16: where element i of a lane's fragment lies.
  for (unsigned lane = 0; lane < 32; lane++)
    for (unsigned i = 0; i < 8; i++) {
      const unsigned group = lane / 4, row = group + (i & 2 ? 8 : 0), column = lane % 4 * 2 + i % 2;
      const uint16_t a = bf16(A[row][column + (i < 4 ? 0 : 8)]), b = bf16(B[column + (i < 2 ? 0 : 8)][group]);
      memcpy(&in[40 * lane + 2 * i], &a, 2);
      if (i < 4) memcpy(&in[40 * lane + 16 + 2 * i], &b, 2);
      if (i < 4) memcpy(&in[40 * lane + 24 + 4 * i], &C[row][column], 4);
    }
  for (const char* gpu : {"80", "90"}) {
    const Environment set("PTX_GPU", gpu);
    require_run("product", {1}, {32}, in, out);
    for (unsigned lane = 0; lane < 32; lane++)
      for (unsigned i = 0; i < 4; i++) {
        const unsigned row = i < 2 ? lane / 4 : lane / 4 + 8, column = lane % 4 * 2 + (i & 1);
        float sum = C[row][column];
        for (int k = 0; k < 16; k++) sum += A[row][k] * B[k][column];
        CHECK(out[4 * lane + i] == sum);
      }
  }
}

// ---- cp.async

namespace {

const bool copies = [] {
  entry("sized", two_pointers + ",\n\t.param .u32 size",
        ".shared .align 16 .b8 buffer[16];\n" + one_thread +
            R"(ld.param.u32 %r10, [size];
mov.u32 %r11, 5;
st.shared.v4.u32 [buffer], {%r11, %r11, %r11, %r11};
cp.async.cg.shared.global [buffer], [%rd1], 16, %r10;
ld.shared.v4.u32 {%r20, %r21, %r22, %r23}, [buffer];
cp.async.wait_all;
ld.shared.v4.u32 {%r24, %r25, %r26, %r27}, [buffer];
st.global.v4.u32 [%rd2], {%r20, %r21, %r22, %r23};
st.global.v4.u32 [%rd2+16], {%r24, %r25, %r26, %r27};
)");
  // Three groups, and a copy that is in none yet; after each wait the first word of all four buffers.
  const std::string commit = "cp.async.commit_group;\n";
  std::string body = ".shared .align 16 .b8 buffer[64];\n" + one_thread;
  int at = -4;
  for (int offset : {0, 16, 32, 48})
    body += with("cp.async.cg.shared.global [buffer+#], [%rd1+#], 16;\n#", offset, offset, offset < 48 ? commit : "");
  for (std::string wait : {"", "group 3", "group 2", "group 1", "group 0", "all"})
    body += (wait.empty() ? "" : with("cp.async.wait_#;\n", wait)) + each(0, 64, 16, [&](unsigned i) {
              return with("ld.shared.u32 %r20, [buffer+#];\nst.global.u32 [%rd2+#], %r20;\n", i, at += 4);
            });
  entry("groups", two_pointers, body);
  return true;
}();

}  // namespace

TEST_CASE("cp.async: not there before its wait, then as many bytes as were asked for, and zeros") {
  for (uint32_t size = 0; size <= 16; size++) {
    const Device<unsigned char> in(size ? size : 1), out(32);  // (nothing behind it is read)
    for (uint32_t i = 0; i < size; i++) in[i] = (unsigned char)(i + 1);
    const struct {
      const void *in, *out;
      uint32_t size;
    } parameters{in.p, out.p, size};
    require_run("sized", {1}, {1}, &parameters);
    for (uint32_t i = 0; i < 16; i++) {
      CHECK(out[i] == 0xff);
      CHECK(out[16 + i] == (i < size ? i + 1 : 0));
    }
  }
}

TEST_CASE("cp.async.wait_group leaves the newest groups under way") {
  std::vector<uint32_t> from(16, 0);
  for (uint32_t i = 0; i < 4; i++) from[4 * i] = i + 1;
  const Device<uint32_t> in(from), out(24);
  require_run("groups", {1}, {1}, in, out);
  const size_t arrived[] = {0, 0, 1, 2, 3, 4};
  for (size_t step = 0; step < 6; step++)
    for (size_t i = 0; i < 4; i++) CHECK(out[4 * step + i] == (i < arrived[step] ? i + 1 : ~0u));
}
