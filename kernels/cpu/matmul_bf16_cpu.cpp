// matmul_bf16 on the CPU: the bits of kernels/bf16/matmul_bf16.cu, with `lanes` columns of C side by side in a vector.
//
// An instruction of a tensor core on vectors (core/mma_lanes.h) wants its factors as floats beside their exponents. A
// row block of A is turned into that form once, for all threads; a thread then takes panels of B, `lanes` columns wide,
// turns a slice of one into that form, and multiplies four rows of A at a time with it.
#include <omp.h>

#include <algorithm>

#include "core/mma_product_cpu.h"
#include "core/pieces.h"
#include "kernels/bf16/matmul_bf16.h"

namespace gated {

namespace {

constexpr size_t block_rows = 512;

struct Workspace {
  Workspace(Pieces& pieces, size_t M, size_t N, size_t K)
      : height(round_up(std::min(block_rows, M), mma_rows_together)),
        steps(ceil_div(std::min(K, matmul_bf16_slice), mma_depth)),
        panels(pieces.take<MmaPanel>(size_t(omp_get_max_threads()) * steps)),
        rows(pieces.take<MmaRow>(height * steps)),
        totals(pieces.take<float>(K > matmul_bf16_slice ? height * round_up(N, lanes) : 0)) {}
  size_t height, steps;  // of the largest row block, of the deepest slice
  MmaPanel* panels;      // (threads,steps)
  MmaRow* rows;          // as mma_row_at() says
  float* totals;         // (height,N), of a row block, between slices
};

template <MmaArithmetic arithmetic, class Out>
void product(Matrix<Out> C, std::span<const MmaFactors> factors, size_t M, size_t N, Layout layout, bool accumulate,
             const float* bias, Context& ctx) {
  const size_t K = joined_depth(factors);
  Pieces pieces(ctx.scratch<unsigned char>(matmul_bf16_cpu_scratch(M, N, K)));
  const Workspace work(pieces, M, N, K);
  const size_t panels = ceil_div(N, lanes), slices = std::max<size_t>(1, ceil_div(K, matmul_bf16_slice));
  // The factors that step s of a slice from k0 on multiplies: their strides from row to row of A, from column to column
  // of B and from k to k, and how many of the step's k they have.
  struct Step {
    const bf16 *a, *b;
    size_t a_row, a_k, b_column, b_k, count;
  };
  const auto step_of = [&](size_t k0, size_t s) -> Step {
    size_t k = k0 + s * mma_depth, i = 0;
    for (size_t all; i + 1 < factors.size() && k >= (all = round_up(factors[i].K, joined_unit)); i++) k -= all;
    const auto& [A, B, own_K] = factors[i];
    const size_t a_row = layout == Layout::tn ? 1 : A.ld, a_k = layout == Layout::tn ? A.ld : 1;
    const size_t b_column = layout == Layout::nt ? B.ld : 1, b_k = layout == Layout::nt ? 1 : B.ld;
    const size_t count = k < own_K ? std::min(mma_depth, own_K - k) : 0;
    return {A.data + k * a_k, B.data + k * b_k, a_row, a_k, b_column, b_k, count};
  };
  for (size_t m0 = 0; m0 < M; m0 += block_rows) {
    const size_t count = std::min(block_rows, M - m0), groups = ceil_div(count, mma_rows_together);
    for (size_t slice = 0; slice < slices; slice++) {
      const size_t k0 = slice * matmul_bf16_slice, depth = std::min(matmul_bf16_slice, K - k0);
      const size_t steps = ceil_div(depth, mma_depth);
      // After the last row stands the last row again.
#pragma omp parallel for
      for (size_t g = 0; g < groups; g++)
        for (size_t s = 0; s < steps; s++) {
          const Step step = step_of(k0, s);
          for (size_t r = g * mma_rows_together; r < (g + 1) * mma_rows_together; r++) {
            const size_t m = m0 + std::min(r, count - 1);
            mma_row_at(work.rows, r, s, steps) = mma_row(step.a + m * step.a_row, step.a_k, step.count);
          }
        }
#pragma omp parallel
      {
        MmaPanel* const panel = work.panels + size_t(omp_get_thread_num()) * work.steps;
#pragma omp for schedule(dynamic)
        for (size_t p = 0; p < panels; p++) {
          const size_t n0 = p * lanes, columns = std::min(lanes, N - n0);
          for (size_t s = 0; s < steps; s++) {
            const Step step = step_of(k0, s);
            panel[s] = mma_panel(step.b + n0 * step.b_column, step.b_k, step.b_column, step.count, columns);
          }
          for (size_t g = 0; g < groups; g++) {
            vec sum[mma_rows_together] = {};
            for (size_t s = 0; s < steps; s++)
              mma_lanes<arithmetic>(sum, &mma_row_at(work.rows, g * mma_rows_together, s, steps), panel[s]);
            for (size_t r = 0; r < mma_rows_together && g * mma_rows_together + r < count; r++) {
              const size_t m = g * mma_rows_together + r;
              if (slices > 1) {
                float* const total = &work.totals[(m * panels + p) * lanes];
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
void matmul_bf16_cpu(Matrix<Out> C, std::span<const MmaFactors> factors, size_t M, size_t N, Layout layout,
                     Accumulate accumulate, const float* bias, Context& ctx) {
  const auto run = ctx.mma_arithmetic == MmaArithmetic::hopper ? product<MmaArithmetic::hopper, Out>
                                                               : product<MmaArithmetic::ampere, Out>;
  run(C, factors, M, N, layout, accumulate == Accumulate::yes, bias, ctx);
}
template void matmul_bf16_cpu(Matrix<float>, std::span<const MmaFactors>, size_t, size_t, Layout, Accumulate,
                              const float*, Context&);
template void matmul_bf16_cpu(Matrix<bf16>, std::span<const MmaFactors>, size_t, size_t, Layout, Accumulate,
                              const float*, Context&);

size_t matmul_bf16_cpu_scratch(size_t M, size_t N, size_t K) {
  return bytes_of_memory<Workspace>(M, N, K);
}

}  // namespace gated
