// tma on the emulator: what a box brings, and a ring of two stages between a producer and its consumers, in one block
// and in the two of a cluster, in every order of threads; and what is said of a producer or a consumer that does not
// keep to it. The instructions themselves: tests/test_ptx_tma.cpp, and the kernel in tests/test_matmul_bf16.cpp.
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
  unsigned char* const ring = group_boundary(shared);
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

constexpr size_t ring_bytes(int boxes_of_stage) {
  return size_t(stages * boxes_of_stage) * stage_bytes + 2 * stages * sizeof(Mbarrier) + 1024;
}
std::vector<float> ring(const Lines& m, int x, Mistake mistake = Mistake::none) {
  std::vector<float> sums(boxes * line);
  simt::launch(ring_kernel, 1, 96, ring_bytes(1), sums.data(), m.map(), boxes, x, mistake);
  return sums;
}

// A cluster of two blocks, and two boxes a stage: each block asks for one of them, into both. What each block makes of
// box b, and then the threads' numbers, exchanged at a barrier of each block: sums[block].
enum class PairMistake {
  none,
  no_first_barrier,      // the other block has not made its barriers
  no_last_barrier,       // a block ends that the other one still comes to
  gives_back_here,       // and not to the other block, which waits for it
  gives_back_early,      // to the other block
  no_block_barrier,      // before the exchange
  barrier_of_one_block,  // of the cluster's
  static_shared
};
constexpr int ranks = 2, of_pairs = boxes * line + 96;

__global__ void pairs_kernel(float* sums, const __grid_constant__ TensorMap map, PairMistake mistake) {
  DYNAMIC_SHARED(unsigned char, shared);
  unsigned char* const ring = group_boundary(shared);
  Mbarrier* const full = reinterpret_cast<Mbarrier*>(ring + stages * ranks * stage_bytes);
  Mbarrier* const empty = full + stages;
  const unsigned rank = cluster_rank();
  if (mistake == PairMistake::static_shared) {
    STATIC_SHARED(float, one_for_all, [1]);
  }
  if (threadIdx.x == 0) {
    for (int i = 0; i < stages; i++) full[i].init(1), empty[i].init(ranks * 2);
    fence_proxy_async();
    fence_mbarrier_init();
  }
  if (mistake != PairMistake::no_first_barrier && (mistake != PairMistake::barrier_of_one_block || rank == 0))
    cluster_barrier();
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32, rounds = boxes / ranks;
  const auto give_back = [&](int i) {
    for (unsigned to = 0; to < ranks; to++)
      if (to == rank || mistake != PairMistake::gives_back_here) empty[i].arrive_at(to);
  };
  for (int b = 0; b < rounds; b++) {
    const int i = b % stages;
    unsigned char* const stage = ring + uint32_t(i * ranks) * stage_bytes;
    if (warp == 0) {
      if (lane > 0) break;
      empty[i].wait(unsigned(b / stages % 2 ^ 1));
      full[i].arrive(ranks * box_bytes);
      tma_copy_to_all<ranks>(stage + rank * stage_bytes, map, 0, (b * ranks + int(rank)) * box_lines, full[i]);
      continue;
    }
    full[i].wait(unsigned(b / stages % 2));
    if (mistake == PairMistake::gives_back_early && lane == 0) give_back(i);
    const int column = 2 * lane + warp - 1;
    for (int box = 0; box < ranks; box++) {
      float sum = 0;
      for (int l = 0; l < box_lines; l++) {
        const uint32_t place = uint32_t(box) * stage_bytes + wgmma_swizzled(uint32_t(l * 128 + column * 2));
        sum += float(l + 1) * float(*reinterpret_cast<const bf16*>(stage + place));
      }
      sums[rank * of_pairs + (b * ranks + box) * line + column] = sum;
    }
    __syncwarp();
    if (mistake != PairMistake::gives_back_early && lane == 0) give_back(i);
  }
  __syncthreads();
  float* const exchanged = reinterpret_cast<float*>(ring);  // (all of this block have read the last boxes)
  exchanged[threadIdx.x] = float(100 * rank + threadIdx.x);
  if (mistake != PairMistake::no_block_barrier) __syncthreads();
  sums[rank * of_pairs + boxes * line + threadIdx.x] = exchanged[(threadIdx.x + 40) % 96];
  if (mistake != PairMistake::no_last_barrier) cluster_barrier();
}

__global__ void race_of_second_cluster_kernel() {
  DYNAMIC_SHARED(unsigned, word);
  if (blockIdx.x >= ranks) *word = threadIdx.x;
}

std::vector<float> pairs(const Lines& m, PairMistake mistake = PairMistake::none) {
  std::vector<float> sums(ranks * of_pairs);
  simt::launch_clusters(pairs_kernel, ranks, 96, ranks, ring_bytes(ranks), sums.data(), m.map(), mistake);
  return sums;
}

}  // namespace

TEST_CASE("tma: boxes go round a ring, and are 0 outside of the matrix, in every order of threads", "[tma]") {
  const Lines m;
  in_every_order([&] {
    for (int x : {0, 64}) REQUIRE(ring(m, x) == m.expected(size_t(x)));
  });
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
  MbarrierCount count;
  CHECK(!count.init(2));
  CHECK(!count.arrive((1 << 20) - 1));
  CHECK(contains(count.arrive(1), "announce more than 2^20 - 1 bytes"));
  if (simt::under_race_shadow) {
    for (Mistake mistake : {Mistake::gives_back_early, Mistake::no_block_barrier}) {
      INFO(int(mistake));
      CHECK(contains(refused(mistake), "unordered"));
    }
  }
}

TEST_CASE("tma: a box comes into both blocks of a cluster, in every order of threads", "[tma]") {
  const Lines m;
  std::vector<float> expected;
  for (unsigned rank = 0; rank < ranks; rank++) {
    const std::vector<float> sums = m.expected(0);
    expected.insert(expected.end(), sums.begin(), sums.end());
    for (unsigned i = 0; i < 96; i++) expected.push_back(float(100 * rank + (i + 40) % 96));
  }
  in_every_order([&] { REQUIRE(pairs(m) == expected); });
}

TEST_CASE("tma: what blocks of a cluster do wrong to each other is seen", "[tma]") {
  const Lines m;
  const auto refused = [&](PairMistake mistake) { return refusal([&] { pairs(m, mistake); }); };
  CHECK(contains(refused(PairMistake::no_first_barrier), "no barrier was made at this address"));
  CHECK(contains(refused(PairMistake::no_last_barrier), "of the cluster has ended, and its barrier is come to"));
  CHECK(contains(refused(PairMistake::gives_back_here), "deadlock"));
  CHECK(contains(refused(PairMistake::barrier_of_one_block), "at a cluster barrier in tests/test_tma.cpp"));
  CHECK(contains(refused(PairMistake::static_shared), "static shared memory in a cluster"));
  if (simt::under_race_shadow) {
    for (PairMistake mistake : {PairMistake::gives_back_early, PairMistake::no_block_barrier}) {
      INFO(int(mistake));
      CHECK(contains(refused(mistake), "unordered"));
    }
    CHECK(contains(refusal([] { simt::launch_clusters(race_of_second_cluster_kernel, 4, 32, ranks, 4); }),
                   "block (2,0,0) thread 1 writes"));
  }
  const auto launch = [&](dim3 grid, dim3 block, unsigned cluster) {
    return refusal([&] {
      simt::launch_clusters(pairs_kernel, grid, block, cluster, 0, static_cast<float*>(nullptr), m.map(),
                            PairMistake::none);
    });
  };
  CHECK(contains(launch(3, 96, 2), "a grid of (3,1,1) blocks, expected a multiple of the cluster's 2"));
  CHECK(contains(launch(18, 32, 9), "clusters of 9 blocks of 32 threads, expected at most 8 blocks"));
  CHECK(contains(launch(2, 100, 2), "clusters of 2 blocks of 100 threads"));
  CHECK(contains(launch(4, 512, 4), "and 1024 threads"));
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
