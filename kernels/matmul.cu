// matmul: products of matrices, C = A B^T and the two products of its backward
//
// The product that a linear layer computes is C = A B^T, with A (M,K) and B (N,K):
//   C_mn = sum over k of A_mk B_nk                  a row of A times a row of B
//
// Order. Floating-point addition is not associative, so an exact result needs an order of its own:
//   k goes in slices of 1024; a slice is one chain of fused multiply-adds from +0 in ascending k;
//   the total is ((slice 0 + slice 1) + slice 2) + ...; then C = total, C = C + total, or C = bias + total.
// One chain over all of k would be simpler. But different blocks can compute different slices at the same time, and a
// weight gradient needs that: its C is small (768 x 768 is 36 tiles for the 132 multiprocessors of an H200) and its K,
// the tokens, is long. Outputs are independent of each other, so tiles and vectors may have any shape. Tails are cut,
// never padded: fmaf(0, 0, -0) is +0, so a padded chain could have other bits.
//
// Layouts. Training needs three products for every weight W (out,in), all of row-major matrices. With y = x W^T,
//   y_no = sum over i of x_ni W_oi                  nt   y  = x W^T     (N,out) from (N,in) and (out,in)
// the loss L changes with x_ni through every y_no, and with W_oi through every token n. The chain rule gives
//   dx_ni = sum over o of dy_no W_oi                nn   dx = dy W      (N,in) from (N,out) and (out,in)
//   dW_oi = sum over n of dy_no x_ni                tn   dW = dy^T x    (out,in) from (N,out) and (N,in)
// The letters say whether an operand is transposed ("t") or not ("n") in C = op(A) op(B). Nothing is transposed in
// memory: a layout only says whether k runs along the rows of an operand or down its columns.
//
// shapes: C (M,N); A (M,K), or (K,M) in tn; B (N,K) in nt, else (K,N); bias (N). M, N, K are this operation's letters:
//   which sizes of the model they are depends on the layout, as above.
// twins: kernels/cpu/matmul_cpu.cpp, kernels/bf16/matmul_bf16.cu, kernels/bf16/matmul_cublas.cu (not the same bits)
// --matmul=exact|cublas | tests/test_matmul.cpp
#include "kernels/matmul.h"

#include <algorithm>

#include "core/launch_shape.cuh"
#include "core/math.cuh"
#include "core/quad.cuh"
#include "kernels/matmul_tile.cuh"

namespace gated {

// ---- reference

template <class T>
void matmul_nt_ref(T* C, const T* A, const T* B, size_t M, size_t N, size_t K) {
  for (size_t m = 0; m < M; m++)
    for (size_t n = 0; n < N; n++) {
      T total = 0;
      for (size_t k0 = 0; k0 < K; k0 += matmul_slice) {
        T chain = 0;
        for (size_t k = k0; k < K && k < k0 + matmul_slice; k++) chain = fused(A[m * K + k], B[n * K + k], chain);
        total = k0 == 0 ? chain : total + chain;
      }
      C[m * N + n] = total;
    }
}
IN_FLOAT_AND_DOUBLE(matmul_nt_ref);

// Every other form is the plain one of copies of the operands that lie as nt wants them.
template <class T>
void matmul_strided_ref(Matrix<T> C, Matrix<const T> A, Matrix<const T> B, size_t M, size_t N, size_t K, Layout layout,
                        Accumulate accumulate, const T* bias) {
  std::vector<T> a(M * K), b(N * K), product(M * N);
  for (size_t m = 0; m < M; m++)
    for (size_t k = 0; k < K; k++) a[m * K + k] = layout == Layout::tn ? A.data[k * A.ld + m] : A.data[m * A.ld + k];
  for (size_t n = 0; n < N; n++)
    for (size_t k = 0; k < K; k++) b[n * K + k] = layout == Layout::nt ? B.data[n * B.ld + k] : B.data[k * B.ld + n];
  matmul_nt_ref(product.data(), a.data(), b.data(), M, N, K);
  for (size_t m = 0; m < M; m++)
    for (size_t n = 0; n < N; n++) {
      T& c = C.data[m * C.ld + n];
      const T total = product[m * N + n];
      c = accumulate == Accumulate::yes ? c + total : bias ? bias[n] + total : total;
    }
}
IN_FLOAT_AND_DOUBLE(matmul_strided_ref);

template <class T>
void matmul_ref(T* C, const T* A, const T* B, size_t M, size_t N, size_t K, Layout layout, Accumulate accumulate,
                const T* bias) {
  matmul_strided_ref<T>({C, N}, {A, packed_lda(M, K, layout)}, {B, packed_ldb(N, K, layout)}, M, N, K, layout,
                        accumulate, bias);
}
IN_FLOAT_AND_DOUBLE(matmul_ref);

// ---- kernel: the tile of a block is in kernels/matmul_tile.cuh

// The whole product as if one block computed it, and which slices of k go side by side. Usually none do: a block goes
// through all of them. Else block z computes slice first_slice + z alone and leaves it in a matrix of its own, the z-th
// from C on.
struct MatmulJob {
  MatmulBlock whole;
  bool side_by_side = false;
  size_t first_slice = 0;
};

// A block owns the tile of C at m0, n0. The second launch bound: so many blocks shall fit on a multiprocessor at once,
// which limits the registers of a thread.
template <Layout layout, int BM, int BN, int TM, int TN, bool aligned>
__global__ void __launch_bounds__(BM / TM * BN / TN, 2) matmul_kernel(MatmulJob job) {
  MatmulBlock block = job.whole;
  block.m0 = size_t(blockIdx.x) * BM, block.n0 = size_t(blockIdx.y) * BN;
  block.C.data += (blockIdx.z * block.m_end + block.m0) * block.C.ld + block.n0;
  if (block.sum.data) block.sum.data += block.m0 * block.sum.ld + block.n0;
  if (block.bias) block.bias += block.n0;
  if (job.side_by_side) {
    block.begin = (job.first_slice + blockIdx.z) * matmul_slice;
    if (block.begin + matmul_slice < block.end) block.end = block.begin + matmul_slice;
  }
  matmul_tile<layout, BM, BN, TM, TN, aligned>(block);
}

// C = slice 0 + slice 1 + ..., or C + that, or bias + that: a thread owns four neighbours of a row and goes through the
// slices (count, M, pitch). C may be slice 0.
__global__ void matmul_add_slices_kernel(Matrix<float> C, const float* slices, size_t pitch, size_t count,
                                         const float* bias, size_t M, size_t N, bool accumulate, bool aligned) {
  const auto [m, n] = row_quad(N);
  if (m >= M) return;
  const bool aligned_slices = pitch % 4 == 0;
  Quad sum = load_quad_inside(slices + m * pitch, n, N, aligned_slices);
  for (size_t s = 1; s < count; s++) {
    const Quad q = load_quad_inside(slices + (s * M + m) * pitch, n, N, aligned_slices);
    for (int j = 0; j < 4; j++) sum.v[j] = sum.v[j] + q.v[j];
  }
  float* c = C.data + m * C.ld;
  if (accumulate) sum = matmul_add(c, n, N, sum, aligned);
  if (bias) sum = matmul_add(bias, n, N, sum, aligned);
  store_quad_inside(c, n, N, sum, aligned);
}

// ---- the plan: which tile, and how many slices at the same time
//
// The large tile does twice the arithmetic of the small one for a number read, but a GPU wants blocks enough to fill it
// (132 multiprocessors on an H200, two blocks each). In this order:
//   1. the large tile, where C alone has enough of them
//   2. the large tile, and slices side by side: `together` in a launch, each into a matrix of its own in scratch
//   3. the small tile, with slices side by side if it still has too few blocks
// Scratch for (2) and (3) is bounded. Where not all slices fit, they go in groups: after each, matmul_add_slices_kernel
// adds the group up into its first matrix, and the next group is computed into the others. The sum goes on in ascending
// order, so groups do not change a bit:
//
//     scratch   [ s0 ][ s1 ][ s2 ]     s0 + s1 + s2 -> [0]
//               [sum ][ s3 ][ s4 ]     sum + s3 + s4 -> [0]
//               [sum ][ s5 ]           sum + s5 -> C, with what C is added to
//
// C is small whenever slices go side by side (fewer than 264 tiles), so scratch holds at least a dozen of them.

constexpr size_t matmul_most_scratch = size_t{256} << 20;

// Matrices like C that fit into scratch.
size_t matmul_slices_that_fit(size_t M, size_t N) {
  return matmul_most_scratch / (M * matmul_scratch_pitch(N) * sizeof(float));
}

// The fewest groups that fit, and all of about the same size. (After the first, a group has one matrix less.)
static size_t matmul_slices_together(size_t M, size_t N, size_t slices) {
  if (slices <= 1) return 1;
  const size_t fit = matmul_slices_that_fit(M, N);
  if (slices <= fit) return slices;
  const size_t groups = ceil_div(slices - 1, fit - 1);
  return ceil_div(slices - 1, groups) + 1;
}

MatmulPlan matmul_plan(size_t M, size_t N, size_t K) {
  const size_t large = ceil_div(M, 128) * ceil_div(N, 128), small = ceil_div(M, 64) * ceil_div(N, 64);
  const size_t slices = ceil_div(K, matmul_slice);
  if (large >= matmul_many_blocks) return {Tile::large, 1};
  if (large * slices >= matmul_many_blocks) return {Tile::large, matmul_slices_together(M, N, slices)};
  if (small >= matmul_many_blocks) return {Tile::small, 1};
  return {Tile::small, matmul_slices_together(M, N, slices)};
}

size_t matmul_plan_scratch(const MatmulPlan& plan, size_t M, size_t N, size_t K, Accumulate accumulate) {
  const size_t matrix = M * matmul_scratch_pitch(N) * sizeof(float);
  if (plan.together > 1) return plan.together * matrix;
  return accumulate == Accumulate::yes && K > matmul_slice ? matrix : 0;  // the sum of all slices, while C waits for it
}

size_t matmul_scratch(size_t M, size_t N, size_t K, Accumulate accumulate) {
  return M == 0 || N == 0 ? 0 : matmul_plan_scratch(matmul_plan(M, N, K), M, N, K, accumulate);
}

size_t matmul_scratch_up_to(size_t M, size_t N, size_t K, Accumulate accumulate) {
  // Scratch grows with K until its slices no longer fit, and after that is never more. Once C alone has blocks enough,
  // no slices go side by side and scratch grows with M. Below, a smaller M may leave less of the bound over.
  size_t most = matmul_scratch(M, N, K, accumulate);
  for (size_t m = 1; N > 0 && m <= M && ceil_div(m, 128) * ceil_div(N, 128) < matmul_many_blocks; m++)
    most = std::max(most, matmul_scratch(m, N, std::min(K, matmul_slices_that_fit(m, N) * matmul_slice), accumulate));
  return most;
}

// ---- launchers

void matmul_add_slices(Matrix<float> C, const float* slices, size_t pitch, size_t count, const float* bias, size_t M,
                       size_t N, Accumulate accumulate, Context& ctx) {
  const bool aligned = matmul_rows_aligned(C.data, M == 1 ? 0 : C.ld) && matmul_rows_aligned(bias, 0);
  launch(matmul_add_slices_kernel, row_quads_grid(M, N), elementwise_block, 0, ctx, C, slices, pitch, count, bias, M, N,
         accumulate == Accumulate::yes, aligned);
}

void matmul_add_slices(float* C, const float* slices, size_t count, size_t n, Context& ctx) {
  matmul_add_slices({C, n}, slices, n, count, nullptr, 1, n, Accumulate::yes, ctx);
}

template <Layout layout, int BM, int BN, int TM, int TN>
static void matmul_launch(const MatmulJob& job, size_t slices_together, Context& ctx) {
  const MatmulBlock& whole = job.whole;
  const bool aligned = matmul_rows_aligned(whole.A.data, whole.A.ld) && matmul_rows_aligned(whole.B.data, whole.B.ld);
  auto* kernel = aligned ? matmul_kernel<layout, BM, BN, TM, TN, true> : matmul_kernel<layout, BM, BN, TM, TN, false>;
  const size_t columns = ceil_div(whole.n_end, BN);
  require(columns <= 65535 && slices_together <= 65535, "matmul: N %zu or K %zu is too large for a grid", whole.n_end,
          whole.end);
  const dim3 grid(grid_of(ceil_div(whole.m_end, BM)).x, unsigned(columns), unsigned(slices_together));
  launch(kernel, grid, BM / TM * BN / TN, 0, ctx, job);
}

static void matmul_launch(const MatmulJob& job, Layout layout, Tile tile, size_t slices_together, Context& ctx) {
  by_layout(layout, [&]<Layout l>() {
    if (tile == Tile::large)
      matmul_launch<l, 128, 128, 8, 8>(job, slices_together, ctx);
    else
      matmul_launch<l, 64, 64, 4, 4>(job, slices_together, ctx);
  });
}

void matmul_by_plan(Matrix<float> C, Matrix<const float> A, Matrix<const float> B, size_t M, size_t N, size_t K,
                    Layout layout, Accumulate accumulate, const MatmulPlan& plan, Context& ctx, const float* bias) {
  const size_t pitch = matmul_scratch_pitch(N), slices = std::max<size_t>(1, ceil_div(K, matmul_slice));
  const size_t scratch = matmul_plan_scratch(plan, M, N, K, accumulate);
  float* const sums = scratch ? ctx.scratch(scratch / sizeof(float)) : nullptr;
  MatmulBlock whole = {.C = C, .A = A, .B = B, .m_end = M, .n_end = N, .end = K, .aligned = true};
  if (plan.together == 1) {
    whole.sum = {sums, pitch}, whole.bias = bias, whole.accumulate = accumulate == Accumulate::yes;
    whole.aligned = matmul_rows_aligned(C.data, C.ld) && matmul_rows_aligned(bias, 0);
    return matmul_launch({whole}, layout, plan.tile, 1, ctx);
  }
  for (size_t done = 0; done < slices;) {
    const size_t kept = done ? 1 : 0;  // matrices that hold what was summed so far
    const size_t count = std::min(plan.together - kept, slices - done);
    whole.C = {sums + kept * M * pitch, pitch};
    matmul_launch({whole, true, done}, layout, plan.tile, count, ctx);
    done += count;
    if (done < slices)
      matmul_add_slices({sums, pitch}, sums, pitch, kept + count, nullptr, M, N, Accumulate::no, ctx);
    else
      matmul_add_slices(C, sums, pitch, kept + count, bias, M, N, accumulate, ctx);
  }
}

void matmul(Matrix<float> C, Matrix<const float> A, Matrix<const float> B, size_t M, size_t N, size_t K, Layout layout,
            Accumulate accumulate, Context& ctx, const float* bias) {
  require(!bias || accumulate == Accumulate::no, "matmul: a bias is for a product that is written, not accumulated");
  const size_t lda = packed_lda(M, K, layout), ldb = packed_ldb(N, K, layout);
  require(C.ld >= N && A.ld >= lda && B.ld >= ldb,
          "matmul: leading dimensions of C, A, B are %zu, %zu, %zu, expected at least %zu, %zu, %zu", C.ld, A.ld, B.ld,
          N, lda, ldb);
  if (M == 0 || N == 0) return;
  if (ctx.device == Device::cpu) return matmul_cpu(C, A, B, M, N, K, layout, accumulate, bias);
  if (ctx.matmul_engine() == MatmulEngine::cublas && K > 0) {
    if (matmul_cublas(C, A, B, M, N, K, layout, accumulate, {.bias = bias}, ctx)) return;
    // A bias that cuBLASLt cannot add: C begins as it, which is a product of depth 0.
    matmul_by_plan(C, A, B, M, N, 0, layout, Accumulate::no, matmul_plan(M, N, 0), ctx, bias);
    matmul_cublas(C, A, B, M, N, K, layout, Accumulate::yes, {}, ctx);
    return;
  }
  matmul_by_plan(C, A, B, M, N, K, layout, accumulate, matmul_plan(M, N, K), ctx, bias);
}

void matmul(float* C, const float* A, const float* B, size_t M, size_t N, size_t K, Layout layout,
            Accumulate accumulate, Context& ctx, const float* bias) {
  matmul({C, N}, {A, packed_lda(M, K, layout)}, {B, packed_ldb(N, K, layout)}, M, N, K, layout, accumulate, ctx, bias);
}

}  // namespace gated
