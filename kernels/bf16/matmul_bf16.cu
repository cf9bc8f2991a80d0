// matmul_bf16: C = A B^T and the two products of its backward (kernels/matmul.cu), of bf16 matrices, on tensor cores.
//
// Order. One instruction adds 16 products to a sum in an arithmetic of its own, which is known to the bit (core/mma.h).
// So the order that an exact result needs is one of instructions:
//   k goes in slices of 4096; a slice is one chain of instructions from +0, 16 k at a time in ascending order;
//   the total is ((slice 0 + slice 1) + slice 2) + ..., in floats; then C = total, C = C + total, or C = bias + total;
//   a C in bf16 is that, rounded to nearest even.
// A slice is deep because the sums of a tile fill the registers: most products are then a single slice. After the last
// k the factors are 0: a product of 0 changes no bit.
//
// Several products that are summed are one chain: the x of q, k and v gets dx = dq W_q + dk W_k + dv W_v, and k
// runs through the rows of W_q, then of W_k, then of W_v. The k of each begins at a multiple of 32, the depth of a
// strip, with zeros in front of it; slices are cut from the k of all. So dx is rounded once, and written once: product
// by product it would be rounded three times, and read twice in between.
//
// In a feed-forward layer an activation follows: y = act(C), or y = act(g) * C with the product g of another matrix.
// Here it is made in the end of the product, of each C as it is stored: C is then not read again, which is a third of
// the bytes that a kernel for act(g) * C moves, and half of those for act(C). So is its backward, in the end of the
// product dy = dx W. dy is never stored. A kernel for dy * act'(u) moves 6 bytes an element; here only the 2 of u are
// added to what the product moves. With a gate it is 6 instead of 10. The bits are those of the kernels.
//
// How it is computed, a rung at a time:
//
//   1 one sum           The reference below: 16 k at a time, each step what the instruction computes.
//   2 one instruction   A warp multiplies a tile of A (16,16) by one of B (16,8). A tile lies in the registers of 32
//                       lanes; what a lane has of it is its fragment. C (16,8), with the number of the lane that has
//                       each element:
//
//                                column  0  1  2  3  4  5  6  7
//                         rows 0, 8      0  0  1  1  2  2  3  3
//                         rows 1, 9      4  4  5  5  6  6  7  7
//                           ...
//                         rows 7, 15    28 28 29 29 30 30 31 31
//
//                       So a lane has two neighbours in a row, and the two eight rows below. Those of A and B:
//                       core/mma.cuh.
//   3 many of them      A warp holds 4 x 4 tiles of C. It loads four tiles of A and four of B and multiplies each with
//                       each: a fragment that is loaded once is used four times. ldmatrix deals them out from shared
//                       memory.
//   4 a block           Eight warps have a tile of 128 x 128 of C. They share what they multiply, in shared memory: of
//                       every number that comes from memory 128 products are made.
//   5 stages            Memory answers after hundreds of cycles. So while one strip of k is multiplied, the next two
//                       are on their way (cp.async).
//
// Rungs 3 to 5, drawn, with the barriers and the banks: kernels/bf16/matmul_bf16_tile.cuh. On Hopper the tensor core
// reads shared memory itself: kernels/bf16/matmul_wgmma.cu.
//
// shapes: C, y, g (M,N); A (M,K), or (K,M) in tn; B (N,K) in nt, else (K,N); bias (N)
// on the CPU: kernels/cpu/matmul_bf16_cpu.cpp, the same bits | tests/test_matmul_bf16.cpp
#include "kernels/bf16/matmul_bf16.h"

#include <algorithm>

#include "core/launch.cuh"
#include "kernels/activation.h"
#include "kernels/bias.h"
#include "kernels/glu.h"
#include "kernels/gradient.h"
#include "kernels/bf16/matmul_bf16_tile.cuh"
#include "kernels/bf16/matmul_wgmma.h"

namespace gated {

// ---- reference

template <class Out>
void matmul_bf16_ref(Out* C, const bf16* A, const bf16* B, size_t M, size_t N, size_t K, Layout layout,
                     Accumulate accumulate, MmaArithmetic arithmetic, const float* bias) {
  for (size_t m = 0; m < M; m++)
    for (size_t n = 0; n < N; n++) {
      float total = 0;
      for (size_t k0 = 0; k0 < K; k0 += matmul_bf16_slice) {
        float chain = 0;
        for (size_t k = k0; k < K && k < k0 + matmul_bf16_slice; k += mma_depth) {
          bf16 a[mma_depth] = {}, b[mma_depth] = {};
          for (size_t i = 0; i < mma_depth && k + i < K; i++) {
            a[i] = layout == Layout::tn ? A[(k + i) * M + m] : A[m * K + k + i];
            b[i] = layout == Layout::nt ? B[n * K + k + i] : B[(k + i) * N + n];
          }
          chain = mma_ref(chain, a, b, arithmetic);
        }
        total = k0 == 0 ? chain : total + chain;
      }
      Out& c = C[m * N + n];
      c = Out(accumulate == Accumulate::yes ? c + total : bias ? bias[n] + total : total);
    }
}
template void matmul_bf16_ref(float*, const bf16*, const bf16*, size_t, size_t, size_t, Layout, Accumulate,
                              MmaArithmetic, const float*);
template void matmul_bf16_ref(bf16*, const bf16*, const bf16*, size_t, size_t, size_t, Layout, Accumulate,
                              MmaArithmetic, const float*);

// The factors side by side, with the zeros between them, are two matrices.
template <class Out>
void matmul_bf16_joined_ref(Out* C, std::span<const MmaFactors> factors, size_t M, size_t N, Accumulate accumulate,
                            MmaArithmetic arithmetic) {
  const size_t K = joined_depth(factors);
  std::vector<bf16> A(M * K), B(K * N);
  size_t k0 = 0;
  for (const MmaFactors& f : factors) {
    for (size_t k = 0; k < f.K; k++) {
      for (size_t m = 0; m < M; m++) A[m * K + k0 + k] = f.A.data[m * f.A.ld + k];
      for (size_t n = 0; n < N; n++) B[(k0 + k) * N + n] = f.B.data[k * f.B.ld + n];
    }
    k0 += round_up(f.K, joined_unit);
  }
  matmul_bf16_ref(C, A.data(), B.data(), M, N, K, Layout::nn, accumulate, arithmetic, nullptr);
}
template void matmul_bf16_joined_ref(float*, std::span<const MmaFactors>, size_t, size_t, Accumulate, MmaArithmetic);
template void matmul_bf16_joined_ref(bf16*, std::span<const MmaFactors>, size_t, size_t, Accumulate, MmaArithmetic);

// ---- kernel: the tile of a block is in kernels/bf16/matmul_bf16_tile.cuh

template <class Out>
struct MmaJob {
  Matrix<Out> C;
  Matrix<const bf16> A, B;
  size_t M, N, K, depth;  // depth: K, or that of all factors
  Accumulate accumulate = Accumulate::no;
  const float* bias = nullptr;
  MoreFactors more = {};    // in nn
  float* totals = nullptr;  // scratch, where there are several slices
  Activated activated = {};
};

template <Layout layout, bool aligned, class Out>
__global__ void __launch_bounds__(mma_threads, mma_blocks) matmul_bf16_kernel(MmaJob<Out> job) {
  DYNAMIC_SHARED(bf16, shared);
  const size_t m0 = size_t{blockIdx.x} * mma_tile_rows, n0 = size_t{blockIdx.y} * mma_tile_rows;
  MmaBlock<Out> block = {.C = job.C,
                         .totals = job.totals,
                         .total = size_t{blockIdx.y} * gridDim.x + blockIdx.x,
                         .A = job.A,
                         .B = job.B,
                         .bias = job.bias,
                         .m0 = m0,
                         .m_end = job.M,
                         .n0 = n0,
                         .n_end = job.N,
                         .K = job.K,
                         .more = job.more,
                         .depth = job.depth,
                         .accumulate = job.accumulate,
                         .activated = job.activated};
  if constexpr (layout == Layout::tn)
    if (gridDim.z > 1) take_slice(block, blockIdx.z);
  multiply_tile<layout, aligned>(block, shared);
}

// ---- launchers

template <class Out>
static std::vector<MmaFactors> factors_of(const MmaJob<Out>& job) {
  std::vector<MmaFactors> factors = {{job.A, job.B, job.K}};
  factors.insert(factors.end(), job.more.at, job.more.at + job.more.count);
  return factors;
}

static size_t totals_of_slices(size_t M, size_t N, size_t K) {
  return mma_totals(ceil_div(M, mma_tile_rows), N, K);
}

// A weight gradient is small and its k, the tokens, deep: where its tiles alone do not fill a GPU, its slices go side
// by side. How many of them scratch holds; they go only if it holds all.
static size_t slices_side_by_side(size_t M, size_t N, size_t K, Layout layout) {
  const size_t tiles = ceil_div(M, mma_tile_rows) * ceil_div(N, mma_tile_rows), slices = ceil_div(K, matmul_bf16_slice);
  if (layout != Layout::tn || slices <= 1 || tiles >= matmul_many_blocks) return 0;
  return std::min(slices, matmul_slices_that_fit(M, N));
}

template <Layout layout, bool aligned, class Out>
static void launch_mma(const MmaJob<Out>& job, size_t slices, Context& ctx) {
  const size_t columns = ceil_div(job.N, mma_tile_rows);
  require(columns <= 65535 && slices <= 65535 && job.depth <= mma_most_k,
          "matmul_bf16: N %zu or K %zu is too large for a grid", job.N, job.depth);
  const dim3 grid(grid_of(ceil_div(job.M, mma_tile_rows)).x, unsigned(columns), unsigned(slices));
  launch(matmul_bf16_kernel<layout, aligned, Out>, grid, mma_threads, mma_shared, ctx, job);
}

template <class Out>
static void launch_mma(const MmaJob<Out>& job, Layout layout, size_t slices, Context& ctx) {
  const bool aligned = mma_aligned(job.A, job.B, job.more);
  by_layout(layout, [&]<Layout l>() {
    aligned ? launch_mma<l, true>(job, slices, ctx) : launch_mma<l, false>(job, slices, ctx);
  });
}

void activate(const Activated& to, bf16* C, size_t n, Context& ctx) {
  if (to.y && to.g) return glu_forward(to.y, to.g, C, n, to.act, ctx);
  if (to.y) return activation_forward(to.y, C, n, to.act, ctx);
  if (to.u && to.g) return glu_backward(to.dg, C, C, to.g, to.u, n, to.act, ctx);
  if (to.u) activation_backward(C, C, to.u, n, to.act, ctx);
}

void require_activated(const char* operation, const Activated& to, Layout layout, Accumulate accumulate,
                       Storage stored) {
  if (!to.y && !to.u) return;
  require(layout == (to.y ? Layout::nt : Layout::nn) && accumulate == Accumulate::no && stored == Storage::bf16,
          "%s: an activation is made of a C in bf16 that is written in layout nt, its backward in layout nn",
          operation);
  require_activation(operation, to.act, to.g ? of_glu : of_plain);
}

// By cuBLASLt, which makes the GELU of tanh itself where it can.
template <class Out>
static void multiply_by_cublas(const MmaJob<Out>& job, Layout layout, Context& ctx) {
  const auto multiply = [&](Accumulate accumulate, const CublasEpilogue& epilogue) {
    return matmul_cublas(job.C, job.A, job.B, job.M, job.N, job.K, layout, accumulate, epilogue, ctx);
  };
  const Activated& to = job.activated;
  if (to.y && !to.g && to.act == Activation::gelu_tanh && multiply(job.accumulate, {.bias = job.bias, .gelu = to.y}))
    return;
  if (multiply(job.accumulate, {.bias = job.bias})) {
    for (int i = 0; i < job.more.count; i++) {
      const MmaFactors& f = job.more.at[i];
      matmul_cublas(job.C, f.A, f.B, job.M, job.N, f.K, layout, Accumulate::yes, {}, ctx);
    }
  } else {
    // A bias that cuBLASLt cannot add: C begins as it, which is a product of depth 0.
    MmaJob<Out> first = job;
    first.K = first.depth = 0;
    first.activated = {};
    launch_mma(first, layout, 1, ctx);
    multiply(Accumulate::yes, {});
  }
  if constexpr (storage_of<Out> == Storage::bf16) activate(to, job.C.data, job.M * job.N, ctx);
}

// By wgmma, where there is such a GPU and enough tiles in all slices that go side by side. A tile is twice as large as
// one of launch_mma, of which two share a multiprocessor: so half as many tiles as there are multiprocessors do.
template <class Out>
static void multiply_by_tensor_cores(const MmaJob<Out>& job, Layout layout, size_t slices, Context& ctx) {
  const bool enough = 2 * slices * matmul_wgmma_tiles(job.M, job.N, 256) >= multiprocessors();
  if (!enough ||
      !matmul_wgmma(job.C, factors_of(job), job.M, job.N, layout, job.accumulate, job.totals, job.bias, job.activated,
                    ctx, matmul_wgmma_columns(job.M, job.N, slices, multiprocessors()), slices))
    launch_mma(job, layout, slices, ctx);
}

template <class Out>
static void matmul_bf16_of(MmaJob<Out> job, Layout layout, Context& ctx) {
  require(!job.bias || job.accumulate == Accumulate::no,
          "matmul_bf16: a bias is for a product that is written, not accumulated");
  require_activated("matmul_bf16", job.activated, layout, job.accumulate, storage_of<Out>);
  if (job.M == 0 || job.N == 0) return;
  if (ctx.device == Device::cpu) {
    matmul_bf16_cpu<Out>(job.C, factors_of(job), job.M, job.N, layout, job.accumulate, job.bias, ctx);
    if constexpr (storage_of<Out> == Storage::bf16) activate(job.activated, job.C.data, job.M * job.N, ctx);
    return;
  }
  if (ctx.matmul_engine() == MatmulEngine::cublas && job.K > 0) return multiply_by_cublas(job, layout, ctx);
  emulate_mma(ctx);
  if constexpr (std::is_same_v<Out, float>) {
    const size_t slices = ceil_div(job.K, matmul_bf16_slice);
    if (slices > 0 && slices == slices_side_by_side(job.M, job.N, job.K, layout)) {
      const size_t pitch = matmul_scratch_pitch(job.N);
      const Matrix<float> totals = {ctx.scratch(slices * job.M * pitch), pitch};
      const MmaJob<float> slices_of_job = {totals, job.A, job.B, job.M, job.N, job.K, job.K};
      multiply_by_tensor_cores(slices_of_job, layout, slices, ctx);
      return matmul_add_slices(job.C, totals.data, pitch, slices, job.bias, job.M, job.N, job.accumulate, ctx);
    }
  }
  if (const size_t totals = totals_of_slices(job.M, job.N, job.depth)) job.totals = ctx.scratch(totals);
  multiply_by_tensor_cores(job, layout, 1, ctx);
}

size_t matmul_bf16_scratch(size_t M, size_t N, size_t K, Layout layout, Device device, bool bias) {
  if (device == Device::cpu) return matmul_bf16_cpu_scratch(M, N, K);
  const size_t of_bias = std::max(layout == Layout::tn ? M * sizeof(float) : 0, N * sizeof(bf16));
  const size_t of_cublas = bias && device == Device::cuda ? of_bias : 0;
  const size_t slices = slices_side_by_side(M, N, K, layout), side_by_side = slices * M * matmul_scratch_pitch(N);
  const size_t totals = slices == ceil_div(K, matmul_bf16_slice) ? 0 : totals_of_slices(M, N, K);
  return std::max(std::max(totals, side_by_side) * sizeof(float), of_cublas);
}

static void multiply(StoredMatrix<void> C, Matrix<const bf16> A, Matrix<const bf16> B, size_t M, size_t N, size_t K,
                     Layout layout, Accumulate accumulate, Context& ctx, const float* bias,
                     const Activated& activated) {
  const size_t lda = packed_lda(M, K, layout), ldb = packed_ldb(N, K, layout);
  require(C.ld >= N && A.ld >= lda && B.ld >= ldb,
          "matmul_bf16: leading dimensions of C, A, B are %zu, %zu, %zu, expected at least %zu, %zu, %zu", C.ld, A.ld,
          B.ld, N, lda, ldb);
  with_storage(C.data, [&](auto stored) {
    using Out = decltype(stored);
    const MmaJob<Out> job = {.C = {C.data.as<Out>(), C.ld},
                             .A = A,
                             .B = B,
                             .M = M,
                             .N = N,
                             .K = K,
                             .depth = K,
                             .accumulate = accumulate,
                             .bias = bias,
                             .activated = activated};
    matmul_bf16_of(job, layout, ctx);
  });
}

void matmul_bf16(StoredMatrix<void> C, Matrix<const bf16> A, Matrix<const bf16> B, size_t M, size_t N, size_t K,
                 Layout layout, Accumulate accumulate, Context& ctx, const float* bias) {
  multiply(C, A, B, M, N, K, layout, accumulate, ctx, bias, {});
}

void matmul_bf16(Reals C, const bf16* A, const bf16* B, size_t M, size_t N, size_t K, Layout layout,
                 Accumulate accumulate, Context& ctx, const float* bias, const Activated& activated) {
  multiply({C, N}, {A, packed_lda(M, K, layout)}, {B, packed_ldb(N, K, layout)}, M, N, K, layout, accumulate, ctx, bias,
           activated);
}

size_t joined_depth(std::span<const MmaFactors> factors) {
  size_t depth = 0;
  for (const MmaFactors& f : factors) depth = round_up(depth, joined_unit) + f.K;
  return depth;
}

void matmul_bf16_joined(Reals C, std::span<const MmaFactors> factors, size_t M, size_t N, Accumulate accumulate,
                        Context& ctx, const Activated& activated) {
  const MoreFactors more = more_factors("matmul_bf16_joined", factors);
  with_storage(C, [&](auto stored) {
    using Out = decltype(stored);
    const MmaJob<Out> job = {.C = {C.as<Out>(), N},
                             .A = factors[0].A,
                             .B = factors[0].B,
                             .M = M,
                             .N = N,
                             .K = factors[0].K,
                             .depth = joined_depth(factors),
                             .accumulate = accumulate,
                             .more = more,
                             .activated = activated};
    matmul_bf16_of(job, Layout::nn, ctx);
  });
}

// Of matrices as they are stored (kernels/matmul.h).
void matmul_stored(StoredMatrix<void> C, StoredMatrix<const void> A, StoredMatrix<const void> B, size_t M, size_t N,
                   size_t K, Layout layout, Accumulate accumulate, Context& ctx) {
  if (A.data.storage() == Storage::bf16)
    matmul_bf16(C, {A.data.as<bf16>(), A.ld}, {B.data.as<bf16>(), B.ld}, M, N, K, layout, accumulate, ctx);
  else
    matmul({C.data.as<float>(), C.ld}, {A.data.as<float>(), A.ld}, {B.data.as<float>(), B.ld}, M, N, K, layout,
           accumulate, ctx);
}
size_t matmul_stored_scratch(size_t M, size_t N, size_t K, Layout layout, Accumulate accumulate, Storage storage,
                             Device device) {
  if (storage == Storage::bf16) return matmul_bf16_scratch(M, N, K, layout, device);
  return device == Device::cpu ? 0 : matmul_scratch_up_to(M, N, K, accumulate);
}

void linear_gradients_bf16(float* dW, float* db, const bf16* dy, const bf16* x, size_t N, size_t out, size_t in,
                           Context& ctx) {
  if (db && ctx.matmul_engine() == MatmulEngine::cublas && N > 0 && in > 0) {
    float* const sums = ctx.scratch(out);
    if (matmul_cublas<bf16, float>({dW, in}, {dy, out}, {x, in}, out, in, N, Layout::tn, Accumulate::yes,
                                   {nullptr, nullptr, sums}, ctx))
      return accumulate_gradient(db, sums, out, ctx);
  }
  if (db) bias_backward(db, dy, N, out, ctx);
  matmul_bf16(dW, dy, x, out, in, N, Layout::tn, Accumulate::yes, ctx);
}

}  // namespace gated
