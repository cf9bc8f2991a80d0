// matmul: C = op(A) op(B), or C += op(A) op(B), row-major, in the three layouts that training needs:
//   nt   A (M,K)  B (N,K)    y  = x W^T      forward
//   nn   A (M,K)  B (K,N)    dx = dy W       gradient of the input
//   tn   A (K,M)  B (K,N)    dW = dy^T x     gradient of the weight
//
// Canonical order of an output element: k in slices of 1024; a slice is one fmaf chain from +0 in ascending
// k; the total is slice 0 plus slice 1 plus ... in ascending order; then C = total, C = C + total, or, with a
// bias (N) for every row of C, C = bias + total. Slices are independent, so a GPU may compute them at the
// same time; within one, outputs are independent, so tiles and vectors may have any shape. Tails are cut,
// never padded: fmaf(0, 0, -0) is +0, so a padded chain could have other bits. M, N or K may be 0: the total
// of no slices is +0. The tuned CPU twin is kernels/matmul_cpu.h. | tests/test_matmul.cpp
#pragma once
#include <algorithm>
#include <type_traits>

#include "core/context.cuh"
#include "core/math.cuh"
#include "core/reduce.cuh"

namespace gated {

enum class Layout { nt, nn, tn };
enum class Accumulate { no, yes };

constexpr size_t matmul_slice = 1024;

// ---- reference

template <class T>
void matmul_ref(T* C, const T* A, const T* B, size_t M, size_t N, size_t K, Layout layout, Accumulate accumulate,
                const T* bias = nullptr) {
  const size_t a_row = layout == Layout::tn ? 1 : K, a_k = layout == Layout::tn ? M : 1;
  const size_t b_col = layout == Layout::nt ? K : 1, b_k = layout == Layout::nt ? 1 : N;
#pragma omp parallel for
  for (size_t m = 0; m < M; m++)
    for (size_t n = 0; n < N; n++) {
      T total = 0;
      for (size_t k0 = 0; k0 < K; k0 += matmul_slice) {
        T chain = 0;
        for (size_t k = k0; k < K && k < k0 + matmul_slice; k++)
          chain = fused(A[m * a_row + k * a_k], B[n * b_col + k * b_k], chain);
        total = k0 == 0 ? chain : total + chain;
      }
      T& c = C[m * N + n];
      c = accumulate == Accumulate::yes ? c + total : bias ? bias[n] + total : total;
    }
}

// ---- kernel: a block owns a tile of C, a thread TM x TN of its elements
//
// The block walks along k, `strip_depth` at a time: both operands' strips go to shared memory, k-major
// whatever their layout, and every thread multiplies its TM numbers of one by its TN of the other. Meanwhile
// the next strips are on their way to registers, and go to a second pair of buffers: one barrier a strip. A
// slice is a whole number of strips, so the walk goes straight on from slice to slice. An element of A is
// read from memory N/BN times, one of B M/BM times; of every k, a thread of the large tile reads four float4s
// for 64 multiply-adds.

constexpr int strip_depth = 16;
static_assert(matmul_slice % strip_depth == 0);

// One operand's strip, `rows` by strip_depth, on its way through a thread's registers.
// k_contiguous: memory runs along k (A or B of a row-major (rows,K) matrix).
template <int rows, int threads, bool k_contiguous, bool aligned>
struct MatmulStrip {
  static constexpr int pitch = rows + 4;  // keeps float4 alignment and spreads the transposing stores over banks
  static constexpr int floats = strip_depth * pitch;
  static constexpr int quads = rows * strip_depth / 4 / threads;
  static constexpr int line = (k_contiguous ? strip_depth : rows) / 4;  // float4s of the strip along memory
  static_assert(quads * threads * 4 == rows * strip_depth && threads % line == 0);

  const float* matrix;
  size_t ld, at;  // at: this thread's first element of the strip to fetch next
  int rows_left;  // of the matrix, from the strip's first row on
  Quad next[quads];

  __device__ MatmulStrip(const float* matrix, size_t ld, size_t row0, size_t count, size_t k0)
      : matrix(matrix), ld(ld), rows_left(count - row0 < rows ? int(count - row0) : rows) {
    const size_t row = row0 + row_of(0), k = k0 + k_of(0);
    at = k_contiguous ? row * ld + k : k * ld + row;
  }

  // Where in the strip this thread's q-th four elements lie: their first row and k.
  __device__ static int row_of(int q) {
    return k_contiguous ? threadIdx.x / line + q * (threads / line) : threadIdx.x % line * 4;
  }
  __device__ static int k_of(int q) {
    return k_contiguous ? threadIdx.x % line * 4 : threadIdx.x / line + q * (threads / line);
  }

  // Elements past the last row, or at k_left and beyond, become 0: no output that is kept depends on them.
  __device__ void fetch(int k_left) {
#pragma unroll
    for (int q = 0; q < quads; q++) {
      const int row = row_of(q), k = k_of(q), count = k_contiguous ? k_left - k : rows_left - row;
      next[q] = {};
      if (row >= rows_left || k >= k_left) continue;
      const float* from = matrix + at + q * (threads / line) * ld;
      next[q] = aligned && count >= 4 ? load_quad<true>(from, 0, 4) : load_quad<false>(from, 0, count);
    }
    at += k_contiguous ? strip_depth : strip_depth * ld;
  }

  __device__ void store(float* shared) const {
#pragma unroll
    for (int q = 0; q < quads; q++) {
      float* to = shared + k_of(q) * pitch + row_of(q);
      if constexpr (k_contiguous)
        for (int i = 0; i < 4; i++) to[i * pitch] = next[q].v[i];
      else
        store_quad<true>(to, 0, 4, next[q]);
    }
  }
};

// split: block z computes slice z and leaves it in total[z] (M,N). Otherwise a block goes through all slices
// and keeps their sum in total, which is C itself unless C is accumulated to. aligned: the lines of A and B
// begin at multiples of 16 bytes; aligned_c: those of C and total.
template <Layout layout, int BM, int BN, int TM, int TN, bool aligned>
__global__ void __launch_bounds__(BM / TM * BN / TN, 2)
    matmul_kernel(float* C, float* total, const float* A, const float* B, const float* bias, size_t M, size_t N,
                  size_t K, bool accumulate, bool split, bool aligned_c) {
  constexpr int threads = BM / TM * BN / TN;
  using StripA = MatmulStrip<BM, threads, layout != Layout::tn, aligned>;
  using StripB = MatmulStrip<BN, threads, layout == Layout::nt, aligned>;
  __shared__ __align__(16) float a_shared[2][StripA::floats];
  __shared__ __align__(16) float b_shared[2][StripB::floats];
  const size_t m0 = size_t(blockIdx.x) * BM, n0 = size_t(blockIdx.y) * BN;

  // A warp is 4 threads high and 8 wide, so that it reads few distinct float4s of shared memory: 4 of A, 8 of
  // B. A thread's rows come in groups of four neighbours (one float4), the groups spread over the tile;
  // columns likewise.
  constexpr int warps_across = BN / TN / 8;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int ty = warp / warps_across * 4 + lane / 8, tx = warp % warps_across * 8 + lane % 8;
  auto row_of = [&](int group) { return group * (4 * BM / TM) + ty * 4; };
  auto col_of = [&](int group) { return group * (4 * BN / TN) + tx * 4; };

  float chain[TM][TN] = {};
  auto step = [&](const float* a_strip, const float* b_strip, int k) {
    Quad a[TM / 4], b[TN / 4];
#pragma unroll
    for (int g = 0; g < TM / 4; g++) a[g] = load_quad<true>(a_strip + k * StripA::pitch, row_of(g), BM);
#pragma unroll
    for (int g = 0; g < TN / 4; g++) b[g] = load_quad<true>(b_strip + k * StripB::pitch, col_of(g), BN);
#pragma unroll
    for (int i = 0; i < TM; i++)
#pragma unroll
      for (int j = 0; j < TN; j++) chain[i][j] = fused(a[i / 4].v[i % 4], b[j / 4].v[j % 4], chain[i][j]);
  };
  // A slice is done: its chains join the total, or the total with them joins C.
  auto finish = [&](bool first, bool last) {
    float* to = split ? total + blockIdx.z * M * N : last ? C : total;
#pragma unroll
    for (int i = 0; i < TM; i++)
#pragma unroll
      for (int g = 0; g < TN / 4; g++) {
        const size_t m = m0 + row_of(i / 4) + i % 4, n = n0 + col_of(g);
        Quad value;
        for (int j = 0; j < 4; j++) value.v[j] = chain[i][4 * g + j], chain[i][4 * g + j] = 0;
        auto join = [&](auto whole) {
          auto add = [&](const float* row) {
            const Quad q = load_quad<whole>(row, n, N);
            for (int j = 0; j < 4; j++) value.v[j] = q.v[j] + value.v[j];
          };
          if (!first && !split) add(total + m * N);
          if (last && !split && accumulate) add(C + m * N);
          if (last && !split && bias) add(bias);
          store_quad<whole>(to + m * N, n, N, value);
        };
        if (m >= M || n >= N) continue;
        if (aligned_c)
          join(std::true_type());
        else
          join(std::false_type());
      }
  };

  const size_t begin = split ? blockIdx.z * matmul_slice : 0;
  const size_t end = split && begin + matmul_slice < K ? begin + matmul_slice : K;
  auto depth_at = [&](size_t k) { return k >= end ? 0 : end - k < strip_depth ? int(end - k) : strip_depth; };
  StripA a(A, layout == Layout::tn ? M : K, m0, M, begin);
  StripB b(B, layout == Layout::nt ? K : N, n0, N, begin);
  a.fetch(depth_at(begin));
  b.fetch(depth_at(begin));
  int buffer = 0;
  size_t k0 = begin;
  for (bool first = true, last = false; !last; first = false) {
    const size_t slice_end = k0 + matmul_slice < end ? k0 + matmul_slice : end;
    for (; k0 < slice_end; k0 += strip_depth, buffer ^= 1) {
      a.store(a_shared[buffer]);
      b.store(b_shared[buffer]);
      __syncthreads();  // whoever is past it has also read the other pair, which the next round overwrites
      a.fetch(depth_at(k0 + strip_depth));
      b.fetch(depth_at(k0 + strip_depth));
      const int depth = depth_at(k0);
      if (depth == strip_depth) {
#pragma unroll
        for (int k = 0; k < strip_depth; k++) step(a_shared[buffer], b_shared[buffer], k);
      } else {
#pragma unroll 1
        for (int k = 0; k < depth; k++) step(a_shared[buffer], b_shared[buffer], k);
      }
    }
    last = slice_end == end;
    finish(first, last);
  }
}

// C (n elements in rows of N) = slice 0 + slice 1 + ..., or C + that, or bias + that.
__global__ inline void matmul_add_slices_kernel(float* C, const float* slices, const float* bias, size_t count,
                                                size_t n, size_t N, bool accumulate) {
  const size_t i = threadIdx.x + size_t(blockDim.x) * blockIdx.x;
  if (i >= n) return;
  float sum = slices[i];
  for (size_t s = 1; s < count; s++) sum += slices[s * n + i];
  C[i] = accumulate ? C[i] + sum : bias ? bias[i % N] + sum : sum;
}

}  // namespace gated

#include "kernels/matmul_cpu.h"

namespace gated {

// ---- launchers

inline size_t matmul_slices(size_t K) {
  return K == 0 ? 1 : ceil_div(K, matmul_slice);
}

// How a product is cut up on a GPU. Every choice gives the same bits.
enum class Tile { large, small };  // 128 x 128 with 8 x 8 a thread; 64 x 64 with 4 x 4
struct MatmulPlan {
  Tile tile;
  bool split;  // slices in parallel
};

// Blocks enough to fill a large GPU (132 multiprocessors on an H200, two blocks each) come before tile size,
// but slices side by side may take no more than 256 MiB.
inline MatmulPlan matmul_plan(size_t M, size_t N, size_t K) {
  constexpr size_t many_blocks = 264, many_floats = size_t{64} << 20;
  const size_t large = ceil_div(M, 128) * ceil_div(N, 128), small = ceil_div(M, 64) * ceil_div(N, 64);
  const size_t slices = ceil_div(K, matmul_slice);
  const bool may_split = slices > 1 && slices <= many_floats / (M * N);
  if (large >= many_blocks) return {Tile::large, false};
  if (large * slices >= many_blocks && may_split) return {Tile::large, true};
  return {Tile::small, small < many_blocks && may_split};
}

template <Layout layout, int BM, int BN, int TM, int TN>
void matmul_launch(float* C, const float* A, const float* B, const float* bias, size_t M, size_t N, size_t K,
                   bool accumulate, bool split, Context& ctx) {
  const size_t slices = ceil_div(K, matmul_slice), columns = ceil_div(N, BN);
  require(columns <= 65535 && slices <= 65535, "matmul: N %zu or K %zu is too large for a grid", N, K);
  float* total = split ? ctx.scratch(slices * M * N) : accumulate && slices > 1 ? ctx.scratch(M * N) : C;
  auto lines_aligned = [](const float* p, size_t ld) {
    return ld % 4 == 0 && reinterpret_cast<uintptr_t>(p) % 16 == 0;
  };
  const bool aligned = lines_aligned(A, layout == Layout::tn ? M : K) && lines_aligned(B, layout == Layout::nt ? K : N);
  const bool aligned_c = lines_aligned(C, N) && lines_aligned(total, N) && lines_aligned(bias, N);
  auto* kernel = aligned ? matmul_kernel<layout, BM, BN, TM, TN, true> : matmul_kernel<layout, BM, BN, TM, TN, false>;
  const dim3 grid(grid_of(ceil_div(M, BM)).x, unsigned(columns), split ? unsigned(slices) : 1);
  launch(kernel, grid, BM / TM * BN / TN, 0, ctx, C, total, A, B, bias, M, N, K, accumulate, split, aligned_c);
  if (split)
    launch(matmul_add_slices_kernel, grid_of(ceil_div(M * N, 256)), 256, 0, ctx, C, total, bias, slices, M * N, N,
           accumulate);
}

// The kernel by a given plan.
inline void matmul_by_plan(float* C, const float* A, const float* B, size_t M, size_t N, size_t K, Layout layout,
                           Accumulate accumulate, MatmulPlan plan, Context& ctx, const float* bias = nullptr) {
  auto with_tile = [&](auto layout_constant) {
    constexpr Layout l = decltype(layout_constant)::value;
    auto* run = plan.tile == Tile::large ? matmul_launch<l, 128, 128, 8, 8> : matmul_launch<l, 64, 64, 4, 4>;
    run(C, A, B, bias, M, N, K, accumulate == Accumulate::yes, plan.split, ctx);
  };
  if (layout == Layout::nt) with_tile(std::integral_constant<Layout, Layout::nt>());
  if (layout == Layout::nn) with_tile(std::integral_constant<Layout, Layout::nn>());
  if (layout == Layout::tn) with_tile(std::integral_constant<Layout, Layout::tn>());
}

// C (M,N) is written, or accumulated to. bias (N) or null: added to every row of a C that is written.
inline void matmul(float* C, const float* A, const float* B, size_t M, size_t N, size_t K, Layout layout,
                   Accumulate accumulate, Context& ctx, const float* bias = nullptr) {
  require(!bias || accumulate == Accumulate::no, "matmul: a bias is for a product that is written, not accumulated");
  if (M == 0 || N == 0) return;
  if (ctx.device == Device::cpu) return matmul_cpu(C, A, B, M, N, K, layout, accumulate, bias);
  matmul_by_plan(C, A, B, M, N, K, layout, accumulate, matmul_plan(M, N, K), ctx, bias);
}

}  // namespace gated
