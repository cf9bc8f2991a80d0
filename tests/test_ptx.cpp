// The machine that runs PTX (ptx/machine.h) on kernels written here: memory, what the lanes of a warp do together, copies that arrive
// late, every fault that it reports, races, orders. Expectations are the PTX ISA's (9.0). Arithmetic: tests/test_ptx_arithmetic.cpp.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "tests/ptx_kernels.h"

namespace {

using namespace ptx_test;
using ptx::Fault;

struct Environment {
  std::string name;
  Environment(const std::string& name, const std::string& value) : name(name) {
    setenv(name.c_str(), value.c_str(), 1);
  }
  ~Environment() { unsetenv(name.c_str()); }
};

// Calls f; what it says on stderr.
std::string said(const std::function<void()>& f) {
  FILE* const file = tmpfile();
  fflush(stderr);
  const int before = dup(2);
  dup2(fileno(file), 2);
  f();
  fflush(stderr);
  dup2(before, 2);
  close(before);
  std::string text(size_t(lseek(fileno(file), 0, SEEK_END)), '\0');
  rewind(file);
  text.resize(fread(text.data(), 1, text.size(), file));
  fclose(file);
  return text;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

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

// ---- memory

// Each type, alone and as a vector, through each space: global to registers, to the space, back to other registers, to global.
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
      ".shared .align 16 .b8 buffer[64];\n.local .align 16 .b8 depot[64];\n" + one_thread +
      "mov.u64 %rd10, depot;\ncvta.local.u64 %rd11, %rd10;\nmov.u64 %rd12, buffer;\ncvta.shared.u64 %rd13, %rd12;\n"
      "mov.u32 %r10, buffer;\ncvta.to.shared.u64 %rd14, %rd13;\ncvta.to.local.u64 %rd15, %rd11;\n"
      "add.s64 %rd16, %rd2, 100000;\nadd.s32 %r11, %r10, 48;\ncvta.global.u64 %rd16, %rd16;\n";
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
      const auto registers = [&](unsigned first) {
        std::string list = stem + words(first);
        for (unsigned i = 1; i < n; i++) list += ", " + stem + words(first + i);
        return n == 1 ? list : "{" + list + "}";
      };
      const std::string form = (n == 1 ? "" : "v" + words(n) + ".") + kind;
      body += "ld.global." + form + " " + registers(20) + ", [%rd1+" + words(at) + "];\nst." + to + form + " " + where +
              ", " + registers(20) + ";\nld." + from + form + " " + registers(30) + ", " + there + ";\nst.global." +
              form + " [%rd2+" + words(at) + "], " + registers(30) + ";\n";
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
      wide += "ld.global." + std::string(kind) + " " + r + ", [%rd1];\nst.global." + type + " [%rd2+" + words(at) +
              "], " + r + ";\n";
      wide += "ld.global.u64 %rd21, [%rd1];\ncvt.u32.u64 %r21, %rd21;\nst.global." + std::string(kind) + " [%rd2+" +
              words(at + 8) + "], " + (type == "u64" || kind[1] == '3' ? "%rd21" : "%r21") + ";\n";
      at += 16;
    }
  entry("wide", two_pointers, wide);

  entry("parameters",
        "\t.param .u64 in,\n\t.param .u64 out,\n\t.param .u8 small,\n\t.param .align 8 .b8 big[24],\n\t.param .u16 "
        "half,\n\t.param .f32 last",
        one_thread +
            "ld.param.u8 %r10, [small];\nst.global.u32 [%rd2], %r10;\nld.param.s8 %r10, [big+13];\nst.global.u32 "
            "[%rd2+4], %r10;\n"
            "ld.param.v2.f32 {%f1, %f2}, [big+8];\nst.global.v2.f32 [%rd2+8], {%f1, %f2};\n"
            "ld.param.v4.u8 {%rs1, %rs2, %rs3, %rs4}, [big+4];\nst.global.v4.u8 [%rd2+16], {%rs4, %rs3, %rs2, %rs1};\n"
            "ld.param.u16 %rs1, [half];\nst.global.u16 [%rd2+20], %rs1;\nld.param.u64 %rd5, [big+16];\nst.global.u64 "
            "[%rd2+24], %rd5;\n"
            "ld.param.f32 %f1, [last];\nst.global.f32 [%rd2+32], %f1;\n");

  // Every thread has local memory of its own, shared memory is the block's; both are fresh in each block.
  entry("own", two_pointers,
        ".shared .align 128 .b8 buffer[256];\n.local .align 4 .b8 depot[16];\n" + begin +
            "shl.b32 %r10, %r1, 2;\nmov.u32 %r11, buffer;\nadd.s32 %r12, %r11, %r10;\nmul.wide.u32 %rd10, %r4, 16;\n"
            "add.s64 %rd11, %rd2, %rd10;\nld.local.u32 %r20, [depot+8];\nld.shared.u32 %r21, [%r12];\nst.local.u32 "
            "[depot+8], %r4;\n"
            "st.shared.u32 [%r12], %r4;\nbar.sync 0;\nxor.b32 %r13, %r12, 124;\nld.local.u32 %r22, [depot+8];\n"
            "ld.shared.u32 %r23, [%r13];\nst.global.v4.u32 [%rd11], {%r20, %r21, %r22, %r23};\n");
  return true;
}();

}  // namespace

TEST_CASE("Loads and stores of every width go through every space") {
  std::vector<unsigned char> bytes(16 * 8 * forms().size());
  std::iota(bytes.begin(), bytes.end(), 1);
  for (size_t i = 0; i < bytes.size(); i++) bytes[i] = (unsigned char)(i * 167 + i / 256);
  const Device<unsigned char> in(bytes), out(100064);
  const void* const parameters[] = {in.p, out.p};
  require_run("memory", 1, 1, parameters);
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
    const void* const parameters[] = {in.p, out.p};
    require_run("wide", 1, 1, parameters);
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
  const Device<unsigned char> out(36);
  p.in = p.out = out.p, p.small = 200, p.half = 0xabcd, p.last = 1.5f;
  for (unsigned char i = 0; i < 24; i++) p.big.bytes[i] = (unsigned char)(0x80 + 7 * i);
  require_run("parameters", 1, 1, &p);
  const auto word = [&](size_t at) {
    uint32_t x;
    memcpy(&x, &out[at], 4);
    return x;
  };
  CHECK(word(0) == 200);
  CHECK(int32_t(word(4)) == int8_t(p.big.bytes[13]));
  CHECK(memcmp(&out[8], p.big.bytes + 8, 8) == 0);
  for (size_t i = 0; i < 4; i++) CHECK(out[16 + i] == p.big.bytes[7 - i]);
  CHECK((word(20) & 0xffff) == 0xabcd);
  CHECK(memcmp(&out[24], p.big.bytes + 16, 8) == 0);
  CHECK(memcmp(&out[32], &p.last, 4) == 0);
}

TEST_CASE("Local memory is the thread's, shared memory the block's, and fresh memory is all ones") {
  const Device<uint32_t> out(4 * 3 * 64);
  for (uint32_t word : std::vector(out.host(), out.host() + out.n)) REQUIRE(word == ~0u);
  const void* const parameters[] = {out.p, out.p};
  for (int again = 0; again < 2; again++) {
    require_run("own", 3, 64, parameters);
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
  char* const managed = static_cast<char*>(ptx::allocate_managed(5000));
  CHECK(managed[4999] == char(0xff));
  managed[4999] = 3;
  CHECK(static_cast<char*>(ptx::storage(managed, 5000))[4999] == 3);
  CHECK(ptx::release(managed));
}

// ---- warps

namespace {

const bool warps = [] {
  // Each block is a test: b and c of each lane; its results of each mode, and whether the source lane was in range.
  std::string body =
      begin +
      "mul.wide.u32 %rd10, %r4, 8;\nadd.s64 %rd11, %rd1, %rd10;\nld.global.v2.u32 {%r10, %r11}, [%rd11];\n"
      "mul.wide.u32 %rd12, %r4, 32;\nadd.s64 %rd13, %rd2, %rd12;\nadd.s32 %r12, %r1, 1000;\n";
  int at = 0;
  for (std::string mode : {"up", "down", "bfly", "idx"}) {
    body += "shfl.sync." + mode +
            ".b32 %r13|%p2, %r12, %r10, %r11, -1;\nselp.u32 %r14, 1, 0, %p2;\nst.global.v2.u32 [%rd13+" + words(at) +
            "], {%r13, %r14};\n";
    at += 8;
  }
  entry("shuffles", two_pointers, body);

  // Lanes 0 to 9 leave. The others: half by half under masks of their own, then all that are left.
  entry("masks", two_pointers,
        begin +
            "mul.wide.u32 %rd10, %r4, 16;\nadd.s64 %rd11, %rd2, %rd10;\nsetp.lt.u32 %p1, %r1, 10;\n@%p1 bra DONE;\n"
            "and.b32 %r10, %r1, 1;\nsetp.eq.s32 %p2, %r10, 1;\n@%p2 bra ODD;\n"
            "shfl.sync.idx.b32 %r11, %r1, 12, 31, 0x55555555;\nvote.sync.ballot.b32 %r12, %p2, 0x55555555;\nbra.uni "
            "BOTH;\n"
            "ODD:\nshfl.sync.bfly.b32 %r11, %r1, 2, 31, -1431655766;\nvote.sync.ballot.b32 %r12, %p2, -1431655766;\n"
            "BOTH:\nshfl.sync.down.b32 %r13, %r1, 1, 31, -1;\nsetp.gt.u32 %p3, %r1, 20;\nvote.sync.ballot.b32 %r14, "
            "%p3, -1;\n"
            "bar.warp.sync -1;\nst.global.v4.u32 [%rd11], {%r11, %r12, %r13, %r14};\nDONE:\n");

  // Neighbours swap what they have in shared memory; %laneid and %warpid.
  entry("swap", two_pointers,
        ".shared .align 4 .b8 buffer[512];\n" + begin +
            "mov.u32 %r10, buffer;\nshl.b32 %r11, %r1, 2;\nadd.s32 %r12, %r10, %r11;\nst.shared.u32 [%r12], "
            "%r1;\nbar.warp.sync -1;\n"
            "xor.b32 %r13, %r12, 4;\nld.shared.u32 %r14, [%r13];\nmov.u32 %r15, %laneid;\nmov.u32 %r16, "
            "%warpid;\nmov.u32 %r17, WARP_SZ;\n"
            "mul.wide.u32 %rd10, %r4, 16;\nadd.s64 %rd11, %rd2, %rd10;\nst.global.v4.u32 [%rd11], {%r14, %r15, %r16, "
            "%r17};\n");

  // 32 rows of 8 elements in shared memory; lane i brings the address of row (5 i + 3) % 32.
  std::string matrices =
      ".shared .align 16 .b8 rows[512];\n" + begin +
      "mul.wide.u32 %rd10, %r1, 16;\nadd.s64 %rd11, %rd1, %rd10;\nld.global.v4.u32 {%r20, %r21, %r22, %r23}, [%rd11];\n"
      "mov.u32 %r10, rows;\nshl.b32 %r11, %r1, 4;\nadd.s32 %r12, %r10, %r11;\n"
      "st.shared.v4.u32 [%r12], {%r20, %r21, %r22, %r23};\nbar.sync 0;\nmad.lo.s32 %r13, %r1, 5, 3;\n"
      "and.b32 %r13, %r13, 31;\nshl.b32 %r13, %r13, 4;\nadd.s32 %r13, %r13, %r10;\n"
      "mul.wide.u32 %rd12, %r1, 56;\nadd.s64 %rd13, %rd2, %rd12;\n";
  at = 0;
  for (std::string trans : {"", "trans."})
    for (int n : {1, 2, 4}) {
      matrices += "ldmatrix.sync.aligned.m8n8.x" + words(n) + "." + trans + "shared.b16 {%r30";
      for (int i = 1; i < n; i++) matrices += ", %r" + words(30 + i);
      matrices += "}, [%r13];\n";
      for (int i = 0; i < n; i++, at += 4)
        matrices += "st.global.u32 [%rd13+" + words(at) + "], %r" + words(30 + i) + ";\n";
    }
  entry("matrices", two_pointers, matrices);

  std::string product = begin + "mul.wide.u32 %rd10, %r1, 40;\nadd.s64 %rd11, %rd1, %rd10;\n";
  for (int i = 0; i < 6; i++) product += "ld.global.u32 %r" + words(20 + i) + ", [%rd11+" + words(4 * i) + "];\n";
  for (int i = 0; i < 4; i++) product += "ld.global.f32 %f" + words(20 + i) + ", [%rd11+" + words(24 + 4 * i) + "];\n";
  entry("product", two_pointers,
        product +
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f30, %f31, %f32, %f33}, {%r20, %r21, %r22, %r23}, "
            "{%r24, %r25}, {%f20, %f21, %f22, %f23};\nmul.wide.u32 %rd12, %r1, 16;\nadd.s64 %rd13, %rd2, %rd12;\n"
            "st.global.v4.f32 [%rd13], {%f30, %f31, %f32, %f33};\n");
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
  const void* const parameters[] = {in.p, out.p};
  require_run("shuffles", unsigned(bc.size() / 64), 32, parameters);
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
    const void* const parameters[] = {out.p, out.p};
    require_run("masks", 1, 32, parameters);
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
    const void* const parameters[] = {out.p, out.p};
    require_run("swap", 1, 100, parameters);
    for (uint32_t i = 0; i < 100; i++)
      CHECK(std::vector(&out[4 * i], &out[4 * i + 4]) == std::vector{i ^ 1, i % 32, i / 32, 32u});
  }
}

TEST_CASE("ldmatrix hands out rows, and columns with .trans") {
  std::vector<uint16_t> rows(32 * 8);
  std::iota(rows.begin(), rows.end(), uint16_t(100));
  const Device<uint16_t> in(rows);
  const Device<uint32_t> out(32 * 14);
  const void* const parameters[] = {in.p, out.p};
  require_run("matrices", 1, 32, parameters);
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
  const auto number = [&] { return float(int(any() % 17) - 8); };
  float A[16][16], B[16][8], C[16][8];
  for (auto& row : A)
    for (float& x : row) x = number();
  for (auto& row : B)
    for (float& x : row) x = number();
  for (auto& row : C)
    for (float& x : row) x = number();
  const auto bf16 = [](float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return uint16_t(bits >> 16);
  };
  const Device<unsigned char> in(32 * 40);
  const Device<float> out(32 * 4);
  // The figures of m16n8k16: where element i of a lane's fragment lies.
  for (unsigned lane = 0; lane < 32; lane++) {
    const unsigned group = lane >> 2, in_group = lane % 4;
    for (unsigned i = 0; i < 8; i++) {
      const unsigned row = i < 2 || (i >= 4 && i < 6) ? group : group + 8,
                     column = in_group * 2 + (i & 1) + (i < 4 ? 0 : 8);
      const uint16_t a = bf16(A[row][column]), b = bf16(B[in_group * 2 + (i & 1) + (i < 2 ? 0 : 8)][group]);
      memcpy(&in[40 * lane + 2 * i], &a, 2);
      if (i < 4) memcpy(&in[40 * lane + 16 + 2 * i], &b, 2);
      if (i < 4) memcpy(&in[40 * lane + 24 + 4 * i], &C[i < 2 ? group : group + 8][in_group * 2 + (i & 1)], 4);
    }
  }
  for (const char* gpu : {"80", "90"}) {
    const Environment set("PTX_GPU", gpu);
    const void* const parameters[] = {in.p, out.p};
    require_run("product", 1, 32, parameters);
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
            "ld.param.u32 %r10, [size];\nmov.u32 %r11, 5;\nst.shared.v4.u32 [buffer], {%r11, %r11, %r11, %r11};\n"
            "cp.async.cg.shared.global [buffer], [%rd1], 16, %r10;\nld.shared.v4.u32 {%r20, %r21, %r22, %r23}, "
            "[buffer];\n"
            "cp.async.wait_all;\nld.shared.v4.u32 {%r24, %r25, %r26, %r27}, [buffer];\n"
            "st.global.v4.u32 [%rd2], {%r20, %r21, %r22, %r23};\nst.global.v4.u32 [%rd2+16], {%r24, %r25, %r26, "
            "%r27};\n");
  // Three groups, and a copy that is in none yet; after each wait the first word of all four buffers.
  std::string body = ".shared .align 16 .b8 buffer[64];\n" + one_thread;
  int at = 0;
  const auto look = [&] {
    for (int i = 0; i < 4; i++, at += 4)
      body += "ld.shared.u32 %r20, [buffer+" + words(16 * i) + "];\nst.global.u32 [%rd2+" + words(at) + "], %r20;\n";
  };
  for (int i = 0; i < 4; i++) {
    const std::string offset = words(16 * i);
    body += "cp.async.cg.shared.global [buffer+" + offset + "], [%rd1+" + offset + "], 16;\n";
    if (i < 3) body += "cp.async.commit_group;\n";
  }
  look();
  for (std::string wait : {"group 3", "group 2", "group 1", "group 0", "all"}) {
    body += "cp.async.wait_" + wait + ";\n";
    look();
  }
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
    require_run("sized", 1, 1, &parameters);
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
  const void* const parameters[] = {in.p, out.p};
  require_run("groups", 1, 1, parameters);
  const size_t arrived[] = {0, 0, 1, 2, 3, 4};
  for (size_t step = 0; step < 6; step++)
    for (size_t i = 0; i < 4; i++) CHECK(out[4 * step + i] == (i < arrived[step] ? i + 1 : ~0u));
}

// ---- faults

namespace {

Cases faults{"faults", "", ""}, meetings{"meetings", "", ""}, races{"races", "", ""};
std::map<std::string, unsigned> number_of;  // of a case, by what it does
std::vector<std::string> refused;

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
      ".shared .align 4 .b8 first[36];\n.shared .align 4 .b8 second[64];\n.local .align 16 .b8 depot[64];\nmov.u32 "
      "%r20, dynamic;\n"
      "mov.u32 %r21, first;\nmov.u32 %r22, second;\nmov.u64 %rd20, depot;\ncvta.local.u64 %rd21, %rd20;\n"
      "mov.u64 %rd22, first;\ncvta.shared.u64 %rd22, %rd22;\nmov.u32 %r23, 17;\n";
  for (const char* what : {"ld.global.f32 %f1, [%rd1]",
                           "st.global.f32 [%rd1], %f1",
                           "ld.f32 %f1, [%rd1]",
                           "st.u32 [%rd1], %r1",
                           "ld.global.u16 %rs1, [%rd1]",
                           "ld.global.v2.f32 {%f1, %f2}, [%rd1]",
                           "ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd1]",
                           "st.global.u64 [%rd1], %rd1",
                           "ld.shared.u32 %r10, [first+36]",
                           "st.shared.u32 [first+36], %r1",
                           "ld.shared.u32 %r10, [%r22+-4]",
                           "ld.shared.u32 %r10, [%r21+-4]",
                           "ld.shared.u32 %r10, [%r22+64]",
                           "ld.shared.v4.u32 {%r10, %r11, %r12, %r13}, [first+32]",
                           "ld.shared.u64 %rd10, [first+4]",
                           "ld.u32 %r10, [%rd22+36]",
                           "st.u32 [%rd22+-4], %r1",
                           "ld.shared.u32 %r10, [%r20+64]",
                           "ld.shared.u32 %r10, [%r20+60]",
                           "ld.shared.u32 %r10, [%r20+-4]",
                           "ld.local.u32 %r10, [depot+64]",
                           "st.local.u32 [%rd20+-4], %r1",
                           "st.u32 [%rd21+64], %r1",
                           "ld.local.u32 %r10, [depot+2]",
                           "ld.local.v4.u32 {%r10, %r11, %r12, %r13}, [depot+52]",
                           "cp.async.cg.shared.global [second], [%rd1], 16",
                           "cp.async.cg.shared.global [second+4], [%rd1], 16",
                           "cp.async.cg.shared.global [first+32], [%rd1], 16",
                           "cp.async.cg.shared.global [second], [%rd1], 16, %r23",
                           "SPIN: ld.volatile.global.u32 %r10, [%rd1]; setp.ne.s32 %p3, %r10, 0; @%p3 bra SPIN",
                           "shfl.sync.idx.b32 %r10, %r1, 0, 31, 1",
                           "bar.warp.sync 4"})
    fault_case(what);
  faults.body += "DONE:\n";
  faults.end();

  meetings.head = ".shared .align 16 .b8 buffer[512];\n";
  const std::string halves = "mov.u32 %r12, %laneid;\nsetp.lt.u32 %p2, %r12, 16;\n@%p2 bra LOW_;\n",
                    warps = "setp.lt.u32 %p2, %r1, 32;\n@%p2 bra LOW_;\n";
  const auto branches = [&](const std::string& what, const std::string& who, const std::string& high,
                            const std::string& low) {
    meeting(what, replaced(who + high + ";\nbra END_;\nLOW_:\n.loc 1 77 1\n" + low + ";\nEND_:\n", "_",
                           words(meetings.many)));
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
  meeting("mma", mma);
  meeting("mma without lane 5", "setp.eq.s32 %p2, %r1, 5;\n@%p2 ret;\n" + mma);
  meeting("ldmatrix", "mov.u32 %r11, buffer;\n" + ldmatrix);
  meeting("ldmatrix without lane 5", "mov.u32 %r11, buffer;\nsetp.eq.s32 %p2, %r1, 5;\n@%p2 ret;\n" + ldmatrix);
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
  race("race: a copy that has arrived, for its thread alone", 0, "cp.async.cg.shared.global [buffer], [%rd1], 16",
       "cp.async.wait_all;\n", 32, read);
  race("fine: a copy and a barrier", 0, "cp.async.cg.shared.global [buffer], [%rd1], 16",
       "cp.async.wait_all;\nbar.sync 0;\n", 32, read);
  races.end();

  // Threads and blocks in the order in which they run: the first word counts them.
  entry("order", two_pointers,
        begin +
            "ld.global.u32 %r10, [%rd2];\nadd.s32 %r10, %r10, 1;\nst.global.u32 [%rd2], %r10;\nmul.wide.u32 %rd10, "
            "%r10, 4;\n"
            "add.s64 %rd10, %rd10, %rd2;\nst.global.u32 [%rd10], %r4;\n");

  for (std::string text : {"add.f32 %f1, %f1, %f1",
                           "add.ftz.f32 %f1, %f1, %f1",
                           "add.rn.ftz.f32 %f1, %f1, %f1",
                           "add.rz.f32 %f1, %f1, %f1",
                           "add.rn.sat.f32 %f1, %f1, %f1",
                           "add.sat.s32 %r1, %r1, %r1",
                           "add.cc.u32 %r1, %r1, %r1",
                           "addc.u32 %r1, %r1, %r1",
                           "add.f16 %rs1, %rs1, %rs1",
                           "add.rn.bf16 %rs1, %rs1, %rs1",
                           "add.f16x2 %r1, %r1, %r1",
                           "add.rn.f64 %rd1, %rd1, %rd1",
                           "sub.f32 %f1, %f1, %f1",
                           "mul.f32 %f1, %f1, %f1",
                           "mul.rz.f32 %f1, %f1, %f1",
                           "mul.hi.u16 %rs1, %rs1, %rs1",
                           "mul24.lo.u32 %r1, %r1, %r1",
                           "mad.lo.cc.u32 %r1, %r1, %r1, %r1",
                           "mad.hi.u32 %r1, %r1, %r1, %r1",
                           "mad.rn.f32 %f1, %f1, %f1, %f1",
                           "fma.rz.f32 %f1, %f1, %f1, %f1",
                           "fma.rn.relu.bf16 %rs1, %rs1, %rs1, %rs1",
                           "div.full.f32 %f1, %f1, %f1",
                           "div.approx.f32 %f1, %f1, %f1",
                           "rcp.approx.ftz.f32 %f1, %f1",
                           "sqrt.approx.f32 %f1, %f1",
                           "rsqrt.approx.f32 %f1, %f1",
                           "ex2.approx.f32 %f1, %f1",
                           "lg2.approx.f32 %f1, %f1",
                           "sin.approx.f32 %f1, %f1",
                           "tanh.approx.f32 %f1, %f1",
                           "max.NaN.f32 %f1, %f1, %f1",
                           "max.xorsign.abs.f32 %f1, %f1, %f1",
                           "min.ftz.f32 %f1, %f1, %f1",
                           "max.f32 %f1, %f1, %f1, %f1",
                           "max.relu.s32 %r1, %r1, %r1",
                           "abs.ftz.f32 %f1, %f1",
                           "neg.ftz.f32 %f1, %f1",
                           "neg.f16 %rs1, %rs1",
                           "copysign.f64 %rd1, %rd1, %rd1",
                           "and.f32 %f1, %f1, %f1",
                           "lop3.b32 %r1, %r1, %r1, %r1, 5",
                           "shf.l.wrap.b32 %r1, %r1, %r1, %r1",
                           "shl.u32 %r1, %r1, 1",
                           "popc.b64 %r1, %rd1",
                           "clz.b32 %r1, %r1",
                           "brev.b64 %rd1, %rd1",
                           "bfind.u32 %r1, %r1",
                           "bfind.shiftamt.s32 %r1, %r1",
                           "bfe.u32 %r1, %r1, 1, 1",
                           "bfi.b64 %rd1, %rd1, %rd1, 1, 1",
                           "prmt.b32.f4e %r1, %r1, %r1, %r1",
                           "dp4a.u32.u32 %r1, %r1, %r1, %r1",
                           "setp.lt.and.s32 %p1, %r1, %r1, %p2",
                           "setp.lt.ftz.f32 %p1, %f1, %f1",
                           "setp.lt.s32 %p1|%p2, %r1, %r1",
                           "setp.lo.s32 %p1, %r1, %r1",
                           "setp.lt.b32 %p1, %r1, %r1",
                           "setp.equ.s32 %p1, %r1, %r1",
                           "setp.eq.f16 %p1, %rs1, %rs1",
                           "set.lt.u32.s32 %r1, %r1, %r1",
                           "slct.f32.s32 %f1, %f1, %f1, %r1",
                           "mov.b128 %rd1, %rd1",
                           "mov.u32 %r1, %clock",
                           "mov.u32 %r1, %lanemask_lt",
                           "mov.u32 %r1, nowhere",
                           "cvt.rn.ftz.f32.s32 %f1, %r1",
                           "cvt.sat.u8.s32 %r1, %r1",
                           "cvt.rni.s32.f32 %r1, %f1",
                           "cvt.rzi.ftz.s32.f32 %r1, %f1",
                           "cvt.rzi.f32.f32 %f1, %f1",
                           "cvt.rz.f32.s32 %f1, %r1",
                           "cvt.rz.bf16x2.f32 %r1, %f1, %f1",
                           "cvt.rn.relu.bf16x2.f32 %r1, %f1, %f1",
                           "cvt.rn.f16.f32 %rs1, %f1",
                           "cvt.f32.bf16 %f1, %rs1",
                           "cvt.rna.tf32.f32 %r1, %f1",
                           "cvt.f64.f32 %rd1, %f1",
                           "cvta.const.u64 %rd1, %rd1",
                           "cvta.param.u64 %rd1, %rd1",
                           "cvta.global.u32 %r1, %r1",
                           "ld.global.nc.f32 %f1, [%rd1]",
                           "ld.global.L1::no_allocate.f32 %f1, [%rd1]",
                           "ld.global.ca.f32 %f1, [%rd1]",
                           "ld.relaxed.gpu.global.u32 %r1, [%rd1]",
                           "ld.acquire.gpu.global.u32 %r1, [%rd1]",
                           "ld.const.f32 %f1, [%rd1]",
                           "ld.shared::cluster.u32 %r1, [%r1]",
                           "ld.global.v4.u64 {%rd1, %rd2, %rd3, %rd4}, [%rd1]",
                           "ld.global.v2.f32 {%f1, %f2, %f3}, [%rd1]",
                           "ldu.global.f32 %f1, [%rd1]",
                           "st.global.cs.f32 [%rd1], %f1",
                           "st.release.gpu.global.u32 [%rd1], %r1",
                           "st.param.u32 [in], %r1",
                           "ld.global.f32 %rd5, [%rd1]",
                           "prefetch.global.L2 [%rd1]",
                           "atom.add.u32 %r1, [%rd1], %r1",
                           "atom.global.add.f32 %f1, [%rd1], %f1",
                           "red.global.add.f32 [%rd1], %f1",
                           "mov.b64 {%r1, %r2, %r3}, %rd1",
                           "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f1, %f2, %f3, %f4}, {%r1, %r2, %r3}, "
                           "{%r1, %r2}, {%f1, %f2, %f3, %f4}",
                           "shfl.sync.up.b32 %r1, %r1, 1, 0",
                           "selp.u32 %r1, %r1, %r1, %r1",
                           "add.s32 %r1, %r1",
                           "add.s32 %r1, %r1, %f1, %r2",
                           "brx.idx %r1, there",
                           "call.uni there",
                           "trap",
                           "brkpt",
                           "bar.sync 0, 64",
                           "bar.sync %r1",
                           "bar.arrive 0, 64",
                           "bar.red.popc.u32 %r1, 0, %p1",
                           "barrier.sync 0",
                           "membar.gl",
                           "fence.acq_rel.gpu",
                           "shfl.up.b32 %r1, %r1, 1, 0",
                           "vote.sync.any.pred %p1, %p1, -1",
                           "vote.ballot.b32 %r1, %p1",
                           "match.any.sync.b32 %r1, %r1, -1",
                           "redux.sync.add.s32 %r1, %r1, -1",
                           "activemask.b32 %r1",
                           "elect.sync %r1|%p1, -1",
                           "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r1}, [%r1]",
                           "ldmatrix.sync.aligned.m8n8.x1.b16 {%r1}, [%rd1]",
                           "stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r1], {%r1}",
                           "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%f1, %f2, %f3, %f4}, {%r1, %r2}, "
                           "{%r3}, {%f1, %f2, %f3, %f4}",
                           "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1, %f2, %f3, %f4}, {%r1, %r2, %r3, "
                           "%r4}, {%r1, %r2}, {%f1, %f2, %f3, %f4}",
                           "cp.async.ca.shared.global [%r1], [%rd1], 4",
                           "cp.async.cg.shared.global.L2::128B [%r1], [%rd1], 16",
                           "cp.async.cg.shared.global [%r1], [%rd1], 8",
                           "cp.async.cg.shared.global [%r1], [%rd1], 16, %p1",
                           "cp.async.wait_group %r1",
                           "cp.async.mbarrier.arrive.shared.b64 [%r1]",
                           ".reg .f64 %fd<2>;\nadd.rn.f64 %fd1, %fd1, %fd1"}) {
    entry("refused" + words(refused.size()), two_pointers, ".loc 1 7 1\n" + text + ";\n");
    refused.push_back(text.substr(text.rfind('\n') + 1));
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
  const void* const gone = ptx::allocate(256);
  REQUIRE(ptx::release(const_cast<void*>(gone)));
  const Word p = a.address();
  alignas(16) static float host[4];
  for (std::string what :
       {"ld.global.f32 %f1, [%rd1]", "st.global.f32 [%rd1], %f1", "ld.f32 %f1, [%rd1]", "st.u32 [%rd1], %r1"}) {
    const std::string thread = "thread (3,0,0) of (40,1,1)";
    require_case_fault(faults, what, p + 100, illegal,
                       {thread, what, "0 bytes past the end of the live allocation before it, of 100 bytes"});
    require_case_fault(faults, what, p - 4, illegal,
                       {thread, what, "past the end of the live allocation before it, of 64 bytes"});
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

TEST_CASE("An access outside of a shared variable or of local memory is reported") {
  const Device<float> a(25);
  for (const auto& [what, number] : number_of) {
    const bool shared = has(what, "first") || has(what, "%r2") || has(what, "%rd22") || has(what, "second+"),
               local = has(what, "depot") || has(what, "%rd20") || has(what, "%rd21");
    if (number >= faults.many || (!shared && !local) || has(what, "%r23")) continue;
    INFO(what);
    const bool misaligned =
        has(what, "first+4]") || has(what, "second+4]") || has(what, "depot+2]") || has(what, "depot+52]");
    const CaseParameters parameters{a.address(), a.address(), number};
    if (has(what, "%r20+60"))
      CHECK(ptx::run(kernel("faults"), {1, 1, 1}, {40, 1, 1}, 64, &parameters) == Fault::none);
    else
      require_fault("faults", parameters, {40, 1, 1}, misaligned ? Fault::misaligned_address : Fault::illegal_address,
                    {"thread (3,0,0)",
                     shared && !has(what, "%rd22+-4") ? "not all inside one variable" : "nor the thread's own"});
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
  const std::string missing = "a lane of the warp is missing or has returned";
  for (const char* what :
       {"mma", "mma without lane 5", "ldmatrix", "ldmatrix without lane 5"})  // (in a block of 40 lanes are missing)
    require_case_fault(meetings, what, 0, Fault::launch_failure, {missing});
  require_case_fault(meetings, "ldmatrix of no row", 0, Fault::misaligned_address, {"thread (1,0,0)", "16 bytes at 8"});
}

TEST_CASE("What is not known is refused by its name, before anything runs") {
  for (size_t i = 0; i < refused.size(); i++) {
    INFO(refused[i]);
    const std::string name = "refused" + words(i);
    try {
      kernel(name);
      CHECK(false);
    } catch (const std::runtime_error& e) {
      CHECK(std::string(e.what()) == name + ": here/kernels.cu:7: this is not known: " + refused[i]);
    }
  }
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
