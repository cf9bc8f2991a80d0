// wgmma on the emulator: products of tiles in shared memory, in each of the four ways, against the definition
// (core/mma.h); and what a kernel that does not wait, or does not fence, is told. The instructions themselves:
// tests/test_ptx_wgmma.cpp, and the kernel in tests/test_matmul_bf16.cpp.
#include "core/wgmma.cuh"

#include <random>

#include "tests/catch.h"
#include "tests/refusal.h"
#include "tests/simt_config.h"

using namespace gated;

namespace {

constexpr int rows = 64, columns = 256, depth = 64;
constexpr size_t a_bytes = size_t{rows} * depth * sizeof(bf16);
constexpr size_t bytes = a_bytes + size_t{columns} * depth * sizeof(bf16);

struct Tiles {
  std::vector<bf16> A, B;  // (rows,depth), (columns,depth)
  std::vector<float> C;    // (rows,columns)
  Tiles() : A(rows * depth), B(columns * depth), C(rows * columns) {
    std::mt19937 any(11);
    const auto number = [&] { return std::ldexp(float(int(any() % 511) - 255), int(any() % 25) - 20); };
    for (bf16& x : A) x = bf16(number());
    for (bf16& x : B) x = bf16(number());
    for (float& x : C) x = number();
  }
  float expected(int m, int n, bool add) const {
    float sum = add ? C[m * columns + n] : 0;
    for (int k = 0; k < depth; k += 16) sum = mma_ref(sum, &A[m * depth + k], &B[n * depth + k], MmaArithmetic::hopper);
    return sum;
  }
};

enum class Mistake {
  none,
  no_fence,
  fences_too_early,
  no_wait,
  waits_for_too_few,
  writes_too_early,
  touches_sums,
  plain_descriptor
};

// One product of 64 x 256 x 64: four instructions, two groups.
template <bool a_along, bool b_along>
__global__ void product_kernel(float* out, const bf16* A, const bf16* B, const float* C, bool add, Mistake mistake) {
  DYNAMIC_SHARED(unsigned char, shared);
  // Shared memory does not begin on a boundary of 1024: the tiles do.
  unsigned char* const tiles = group_boundary(shared);
  const auto put = [&](unsigned char* tile, const bf16* from, int n, bool along) {
    for (int i = int(threadIdx.x); i < n * depth; i += wgmma_threads) {
      const int row = i / depth, k = i % depth, line = along ? row / 64 * 64 + k : row, element = along ? row % 64 : k;
      reinterpret_cast<bf16*>(tile)[line * 64 + ((element / 8) ^ (line % 8)) * 8 + element % 8] = from[i];
    }
  };
  put(tiles, A, rows, a_along);
  put(tiles + a_bytes, B, columns, b_along);
  WgmmaSums<columns> sums;
  for_wgmma_sums(0, columns / 2, [&](int i, int m, int n) { sums.x[i] = C[m * columns + n]; });
  fence_proxy_async();
  __syncthreads();
  if (mistake != Mistake::no_fence) sums.fence();
  if (mistake == Mistake::fences_too_early) sums.x[5] = 1;
  const uint32_t a = shared_address(tiles), b = a + uint32_t(a_bytes);
  for (uint32_t k = 0; k < depth; k += 16) {
    uint64_t of_a = wgmma_descriptor(a + (a_along ? 128 * k : 2 * k), 0, 1024);
    if (mistake == Mistake::plain_descriptor) of_a &= ~(uint64_t{1} << 62);
    sums.multiply<a_along, b_along>(of_a, wgmma_descriptor(b + (b_along ? 128 * k : 2 * k), 8192, 1024), add || k > 0);
    if (k == 16 || k == 48) sums.commit();
    if (mistake == Mistake::touches_sums) sums.x[5] = 1;
  }
  if (mistake == Mistake::writes_too_early) tiles[threadIdx.x] = 0x7f;
  if (mistake == Mistake::waits_for_too_few)
    sums.wait<1>();
  else if (mistake != Mistake::no_wait)
    sums.wait<0>();
  if (mistake == Mistake::none) {  // a wait for nothing changes nothing
    sums.x[7] = -sums.x[7];
    sums.wait<0>();
    sums.x[7] = -sums.x[7];
  }
  for_wgmma_sums(0, columns / 2, [&](int i, int m, int n) { out[m * columns + n] = sums.x[i]; });
}

// 64 x `wide` x 16 with A in registers, as mma has it, columns of B along the lines.
template <int wide>
__global__ void registers_kernel(float* out, const bf16* A, const bf16* B, const float* C) {
  DYNAMIC_SHARED(unsigned char, shared);
  bf16* const tile = reinterpret_cast<bf16*>(group_boundary(shared));
  for (int i = int(threadIdx.x); i < wide * 16; i += wgmma_threads) {
    const int n = i / 16, k = i % 16, line = n / 64 * 64 + k;
    tile[line * 64 + ((n % 64 / 8) ^ (line % 8)) * 8 + n % 8] = B[n * depth + k];
  }
  const int first = int(threadIdx.x) / 32 * 16 + int(threadIdx.x) % 32 / 4, t = int(threadIdx.x) % 4;
  const auto two = [&](int row, int k) {
    return A[row * depth + k].bits | uint32_t(A[row * depth + k + 1].bits) << 16;
  };
  const MmaA a[] = {{{two(first, 2 * t), two(first + 8, 2 * t), two(first, 2 * t + 8), two(first + 8, 2 * t + 8)}}};
  WgmmaSums<wide> sums;
  for_wgmma_sums(0, wide / 2, [&](int i, int m, int n) { sums.x[i] = C[m * columns + n]; });
  fence_proxy_async();
  __syncthreads();
  sums.fence();
  sums.template multiply<true>(a[0], wgmma_descriptor(shared_address(tile), 8192, 1024), true);
  sums.commit();
  wait_for_all(sums);
  in_use(a);
  for_wgmma_sums(0, wide / 2, [&](int i, int m, int n) { out[m * columns + n] = sums.x[i]; });
}

std::vector<float> product(const Tiles& t, bool a_along, bool b_along, bool add = true,
                           Mistake mistake = Mistake::none) {
  std::vector<float> out(t.C.size());
  const auto run = [&](auto kernel) {
    simt::launch(kernel, 1, wgmma_threads, bytes + wgmma_group_bytes, out.data(), t.A.data(), t.B.data(), t.C.data(),
                 add, mistake);
  };
  a_along ? (b_along ? run(product_kernel<true, true>) : run(product_kernel<true, false>))
          : (b_along ? run(product_kernel<false, true>) : run(product_kernel<false, false>));
  return out;
}

bool right(const Tiles& t, const std::vector<float>& out, bool add = true) {
  for (int m = 0; m < rows; m++)
    for (int n = 0; n < columns; n++)
      if (float_bits(out[m * columns + n]) != float_bits(t.expected(m, n, add))) return false;
  return true;
}

}  // namespace

TEST_CASE("wgmma: sums of the definition, tiles along k and along rows, in every order of threads", "[wgmma]") {
  const Tiles t;
  in_every_order([&] {
    for (bool a_along : {false, true})
      for (bool b_along : {false, true}) REQUIRE(right(t, product(t, a_along, b_along)));
  });
  REQUIRE(right(t, product(t, false, false, false), false));
  REQUIRE(simt::races().empty());
}

TEST_CASE("wgmma: a factor in registers", "[wgmma]") {
  const Tiles t;
  const auto right = [&](auto kernel, int wide) {
    std::vector<float> out(t.C.size());
    simt::launch(kernel, 1, wgmma_threads, 4 * 64 * 128 + wgmma_group_bytes, out.data(), t.A.data(), t.B.data(),
                 t.C.data());
    for (int m = 0; m < rows; m++)
      for (int n = 0; n < wide; n++)
        REQUIRE(float_bits(out[m * columns + n]) ==
                float_bits(mma_ref(t.C[m * columns + n], &t.A[m * depth], &t.B[n * depth], MmaArithmetic::hopper)));
  };
  right(registers_kernel<64>, 64);
  right(registers_kernel<128>, 128);
  right(registers_kernel<256>, 256);
}

TEST_CASE("wgmma: what a kernel does too early is seen", "[wgmma]") {
  const Tiles t;
  for (Mistake mistake : {Mistake::no_wait, Mistake::waits_for_too_few})
    for (float x : product(t, false, false, true, mistake)) REQUIRE(x != x);
  const auto refused = [&](Mistake mistake) { return refusal([&] { product(t, false, false, true, mistake); }); };
  if (simt::under_race_shadow)
    CHECK(contains(refused(Mistake::writes_too_early), "unordered"));
  else
    REQUIRE_FALSE(right(t, product(t, false, false, true, Mistake::writes_too_early)));
  for (Mistake mistake : {Mistake::no_fence, Mistake::fences_too_early})
    CHECK(contains(refused(mistake), "expected a fence"));
  CHECK(contains(refused(Mistake::touches_sums), "written to before they were waited for"));
  CHECK(contains(refused(Mistake::plain_descriptor), "swizzle of 128 bytes"));
}
