// tma on the emulator: what a box brings, and a ring of two stages between a producer and its consumers, in every order
// of threads; and what is said of a producer or a consumer that does not keep to it. The instructions themselves:
// tests/test_ptx_tma.cpp, and the kernel in tests/test_matmul_bf16.cpp.
#include "core/tma.cuh"

#include <algorithm>

#include "tests/catch.h"
#include "tests/refusal.h"
#include "tests/simt_config.h"

using namespace gated;

namespace {

constexpr int box_lines = 24, stages = 2, line = wgmma_line;
constexpr uint32_t box_bytes = tma_box_bytes(box_lines), stage_bytes = 3072;
static_assert(box_bytes == stage_bytes && stage_bytes % 1024 == 0);

// One phase after the other: arrivals and bytes.
constexpr bool counts() {
  MbarrierCount b;
  bool right = b.init(0) && b.init(1 << 20) && !b.init(2) && b.is_over(1) && !b.is_over(0);
  right &= !b.arrive(512) && !b.awaits_bytes_alone() && !b.arrive(0) && b.awaits_bytes_alone() && b.arrive(0);
  right &= !b.land(256) && !b.is_over(0) && b.land(257) && !b.land(256) && b.is_over(0) && !b.is_over(1);
  return right && !b.arrive(0) && !b.arrive(0) && b.phase() == 2 && b.is_over(1) && b.land(1);
}
static_assert(counts());

enum class Mistake {
  none,
  no_fill_wait,      // the consumer reads what has not come
  no_empty_wait,     // the producer writes over what is being read
  gives_back_early,  // the same, by the consumer
  announces_too_few,
  announces_too_many,
  announces_nothing,
  no_init,
  no_block_barrier,
  arrives_twice,
  ends_early,
  off_boundary
};

// Box b of a column of boxes, x = 0 or 64: sums[b][column of it] = the sum of (line + 1) * element.
__global__ void ring_kernel(float* sums, const __grid_constant__ TensorMap map, int boxes, int x, Mistake mistake) {
  DYNAMIC_SHARED(unsigned char, shared);
  unsigned char* const ring = shared + (-shared_address(shared) & 1023);
  Mbarrier* const full = reinterpret_cast<Mbarrier*>(ring + stages * stage_bytes);
  Mbarrier* const empty = full + stages;
  if (threadIdx.x == 0) {
    for (int i = 0; i < stages && mistake != Mistake::no_init; i++) full[i].init(1), empty[i].init(2);
    fence_proxy_async();
  }
  if (mistake != Mistake::no_block_barrier) __syncthreads();
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  if (warp == 0) {
    if (lane > 0) return;
    for (int b = 0; b < boxes; b++) {
      const int i = b % stages;
      if (mistake != Mistake::no_empty_wait) empty[i].wait(unsigned(b / stages % 2 ^ 1));
      const uint32_t more = mistake == Mistake::announces_too_many, fewer = mistake == Mistake::announces_too_few;
      full[i].arrive(mistake == Mistake::announces_nothing ? 0 : box_bytes + 16 * more - 16 * fewer);
      const uint32_t off = mistake == Mistake::off_boundary ? 128 : 0;
      tma_copy(ring + uint32_t(i) * stage_bytes + off, map, x, b * box_lines, full[i]);
      if (mistake == Mistake::arrives_twice) full[i].arrive();
    }
    return;
  }
  // Two warps, each with every second column.
  for (int b = 0; b < boxes && mistake != Mistake::ends_early; b++) {
    const int i = b % stages;
    if (mistake != Mistake::no_fill_wait) full[i].wait(unsigned(b / stages % 2));
    if (mistake == Mistake::gives_back_early && lane == 0) empty[i].arrive();
    const int column = 2 * lane + warp - 1;
    float sum = 0;
    for (int l = 0; l < box_lines; l++) {
      const uint32_t place = wgmma_swizzled(uint32_t(l * 128 + column * 2));
      sum += float(l + 1) * float(*reinterpret_cast<const bf16*>(ring + uint32_t(i) * stage_bytes + place));
      if (l % 8 == 0) __syncwarp();  // (so that others run in between)
    }
    sums[b * line + column] = sum;
    __syncwarp();
    if (mistake != Mistake::gives_back_early && lane == 0) empty[i].arrive();
  }
}

constexpr size_t length = 100, lines = 5 * box_lines - 7, pitch = 104;
constexpr int boxes = 6;  // the fifth is half outside, the sixth is outside

struct Lines {
  std::vector<bf16> a;
  Lines() : a(lines * pitch, bf16(NAN)) {
    for (size_t i = 0; i < lines; i++)
      for (size_t j = 0; j < length; j++) a[i * pitch + j] = bf16(float(int(i * 31 + j * 7) % 127 - 63));
  }
  TensorMap map() const { return tensor_map(tma_matrix(a.data(), pitch, length, lines, box_lines)); }
  std::vector<float> expected(size_t x) const {
    std::vector<float> sums(boxes * line);
    for (size_t i = 0; i < lines; i++)
      for (size_t j = x; j < std::min<size_t>(length, x + line); j++)
        sums[i / box_lines * line + j - x] += float(i % box_lines + 1) * float(a[i * pitch + j]);
    return sums;
  }
};

std::vector<float> ring(const Lines& m, int x, Mistake mistake = Mistake::none) {
  std::vector<float> sums(boxes * line);
  simt::launch(ring_kernel, 1, 96, stages * stage_bytes + 2 * stages * sizeof(Mbarrier) + 1024, sums.data(), m.map(),
               boxes, x, mistake);
  return sums;
}

}  // namespace

TEST_CASE("tma: boxes go round a ring, and are 0 outside of the matrix, in every order of threads", "[tma]") {
  const Lines m;
  const KeepsSimtConfig restore;
  for (simt::Order order : {simt::Order::forward, simt::Order::reverse, simt::Order::random, simt::Order::priority}) {
    simt::config.order = order;
    for (int x : {0, 64}) REQUIRE(ring(m, x) == m.expected(size_t(x)));
  }
}

TEST_CASE("tma: what does not keep to the ring is seen", "[tma]") {
  const Lines m;
  const auto refused = [&](Mistake mistake) { return refusal([&] { ring(m, 0, mistake); }); };
  CHECK(contains(refused(Mistake::announces_too_few), "more bytes to a barrier than were announced"));
  CHECK(contains(refused(Mistake::announces_too_many), "deadlock; at an mbarrier in its phase 0, for one of parity"));
  CHECK(contains(refused(Mistake::no_init), "no barrier was made at this address"));
  for (Mistake mistake : {Mistake::arrives_twice, Mistake::no_empty_wait, Mistake::no_fill_wait})
    CHECK(contains(refused(mistake), "of which all have come in this phase"));
  CHECK(contains(refused(Mistake::announces_nothing), "copies are under way into its shared memory"));
  CHECK(contains(refused(Mistake::ends_early), "deadlock"));
  CHECK(contains(refused(Mistake::off_boundary), "off a boundary of 1024"));
  if (simt::under_race_shadow) {
    for (Mistake mistake : {Mistake::gives_back_early, Mistake::no_block_barrier}) {
      INFO(int(mistake));
      CHECK(contains(refused(mistake), "unordered"));
    }
  }
}

TEST_CASE("tma: matrices of which there is no map", "[tma]") {
  const std::vector<bf16> a(1024);
  const TmaMatrix right = tma_matrix(a.data(), 16, 16, 4, 8);
  CHECK_NOTHROW(tensor_map(right));
  const auto refused = [&](auto change) {
    TmaMatrix m = right;
    change(m);
    return refusal([&] { tensor_map(m); });
  };
  CHECK(contains(refused([](auto& m) { m.address += 8; }), "does not begin on a boundary of 16 bytes"));
  CHECK(contains(refused([](auto& m) { m.pitch += 8; }), "not a multiple of 16 bytes apart"));
  CHECK(contains(refused([](auto& m) { m.pitch = 16; }), "lines overlap"));
  CHECK(contains(refused([](auto& m) { m.lines = 0; }), "of no lines, or too many"));
  CHECK(contains(refused([](auto& m) { m.length = (size_t{1} << 32) + 1; }), "of no lines, or too many"));
  CHECK(contains(refused([](auto& m) { m.box_lines = 257; }), "more than 256"));
}
