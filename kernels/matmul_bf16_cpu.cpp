// matmul_bf16 on the CPU: the bits of kernels/matmul_bf16.cu, with `lanes` columns of C side by side in a vector.
//
// An instruction of a tensor core on vectors (core/mma_lanes.h) wants its factors as floats beside their exponents. A row block of A
// is turned into that form once, for all threads; a thread then takes panels of B, `lanes` columns wide, turns a slice of one
// into that form, and multiplies four rows of A at a time with it.
#include <algorithm>
#include <memory>
#include <vector>

#include "core/mma_lanes.h"
#include "kernels/matmul_bf16.h"

namespace gated {

namespace {

constexpr size_t rows_together = 4, block_rows = 512;

template <MmaArithmetic arithmetic, class Out>
void product(Matrix<Out> C, Matrix<const bf16> A, Matrix<const bf16> B, size_t M, size_t N, size_t K, Layout layout,
             bool accumulate, const float* bias) {
  const size_t panels = ceil_div(N, lanes), slices = std::max<size_t>(1, ceil_div(K, matmul_bf16_slice));
  // Strides of A from row to row and from k to k; of B from column to column.
  const size_t a_row = layout == Layout::tn ? 1 : A.ld, a_k = layout == Layout::tn ? A.ld : 1;
  const size_t b_column = layout == Layout::nt ? B.ld : 1, b_k = layout == Layout::nt ? 1 : B.ld;
  std::vector<MmaRow> rows;
  std::vector<float> totals;  // of a row block, between slices
  for (size_t m0 = 0; m0 < M; m0 += block_rows) {
    const size_t count = std::min(block_rows, M - m0), groups = ceil_div(count, rows_together);
    totals.resize(slices > 1 ? groups * rows_together * panels * lanes : 0);
    for (size_t slice = 0; slice < slices; slice++) {
      const size_t k0 = slice * matmul_bf16_slice, depth = std::min(matmul_bf16_slice, K - k0);
      const size_t steps = ceil_div(depth, mma_depth);
      // By group, step and row. Behind the last row stands the last row again.
      rows.resize(groups * steps * rows_together);
#pragma omp parallel for
      for (size_t g = 0; g < groups; g++)
        for (size_t s = 0; s < steps; s++)
          for (size_t r = 0; r < rows_together; r++) {
            const size_t m = m0 + std::min(g * rows_together + r, count - 1), k = k0 + s * mma_depth;
            rows[(g * steps + s) * rows_together + r] =
                mma_row(A.data + m * a_row + k * a_k, a_k, std::min(mma_depth, k0 + depth - k));
          }
#pragma omp parallel
      {
        const std::unique_ptr<MmaPanel[]> panel(new MmaPanel[steps]);
#pragma omp for schedule(dynamic)
        for (size_t p = 0; p < panels; p++) {
          const size_t n0 = p * lanes, columns = std::min(lanes, N - n0);
          for (size_t s = 0; s < steps; s++) {
            const size_t k = k0 + s * mma_depth;
            panel[s] = mma_panel(B.data + n0 * b_column + k * b_k, b_k, b_column, std::min(mma_depth, k0 + depth - k),
                                 columns);
          }
          for (size_t g = 0; g < groups; g++) {
            vec sum[rows_together] = {};
            for (size_t s = 0; s < steps; s++)
              mma_lanes<arithmetic>(sum, &rows[(g * steps + s) * rows_together], panel[s]);
            for (size_t r = 0; r < rows_together && g * rows_together + r < count; r++) {
              const size_t m = g * rows_together + r;
              if (slices > 1) {
                float* const total = &totals[(m * panels + p) * lanes];
                if (slice > 0) sum[r] = load(total) + sum[r];
                store(total, sum[r]);
              }
              if (slice + 1 < slices) continue;
              for (size_t l = 0; l < columns; l++) {
                Out& c = C.data[(m0 + m) * C.ld + n0 + l];
                c = Out(accumulate ? c + sum[r][l] : bias ? bias[n0 + l] + sum[r][l] : sum[r][l]);
              }
            }
          }
        }
      }
    }
  }
}

}  // namespace

template <class Out>
void matmul_bf16_cpu(Matrix<Out> C, Matrix<const bf16> A, Matrix<const bf16> B, size_t M, size_t N, size_t K,
                     Layout layout, Accumulate accumulate, MmaArithmetic arithmetic, const float* bias) {
  const auto run =
      arithmetic == MmaArithmetic::hopper ? product<MmaArithmetic::hopper, Out> : product<MmaArithmetic::ampere, Out>;
  run(C, A, B, M, N, K, layout, accumulate == Accumulate::yes, bias);
}
template void matmul_bf16_cpu(Matrix<float>, Matrix<const bf16>, Matrix<const bf16>, size_t, size_t, size_t, Layout,
                              Accumulate, MmaArithmetic, const float*);
template void matmul_bf16_cpu(Matrix<bf16>, Matrix<const bf16>, Matrix<const bf16>, size_t, size_t, size_t, Layout,
                              Accumulate, MmaArithmetic, const float*);

}  // namespace gated
