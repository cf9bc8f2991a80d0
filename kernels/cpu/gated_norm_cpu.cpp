// gated_norm on the CPU: the five steps of kernels/gated_norm.cu, on blocks of rows that stay in a core's cache.
//
// What it does differently from the reference, and why no bit changes:
//   - A thread takes a block of rows through all steps. Rows meet in the gradients of parameters alone.
//   - Products are matmul_cpu, the gate and SiLU are their twins: each has the bits of its reference.
//   - unit, the norm before weight and bias, is kept beside n, so that tanh is computed once.
//   - dw, db and the rows' shares of dalpha are added up while their rows are in the cache. A block is a whole number
//     of slices of a column sum, 128 rows, so one thread makes the chain of a slice in ascending order.
//   - Inside a block everything is floats. Where activations are stored as bf16, dy is widened on the way in, and y
//     rounded on the way out.
//   - The gradients of W_up and W_down are products over all rows, whose sum goes in slices of 1024
//     (kernels/matmul.cu). What they multiply waits in scratch until the blocks of a slice are done: no array of all
//     rows is made.
#include <omp.h>

#include <algorithm>

#include "core/reduce.cuh"
#include "kernels/activation.h"
#include "kernels/gated_norm.cuh"
#include "kernels/residual.cuh"

namespace gated {
namespace {

// Half a MiB of floats, or less to give every thread a block; whole slices of a column sum.
size_t rows_of_block(size_t N, size_t C) {
  const size_t fit = (size_t{1} << 17) / C, share = ceil_div(N, omp_get_max_threads());
  return std::max<size_t>(1, std::min(fit, share) / column_slice) * column_slice;
}

// Rows of the backward after which threads meet: whole slices of a product's sum, with a block for every thread.
size_t rows_of_stage(size_t N, size_t C) {
  return std::min(N, round_up(omp_get_max_threads() * rows_of_block(N, C), matmul_slice));
}

// What a thread works with in its block.
size_t forward_block_floats(const GatedNormShape& s) {
  return rows_of_block(s.N, s.C) * (s.rank + s.scores() + s.C);
}
size_t backward_block_floats(const GatedNormShape& s) {
  return rows_of_block(s.N, s.C) * 2 * s.C;
}

// Where n floats wait that will be stored: in their place if floats are stored there, else in `room`.
float* waiting(float* place, float*) {
  return place;
}
float* waiting(bf16*, float* room) {
  return room;
}
void store_waiting(float*, const float*, size_t) {}
void store_waiting(bf16* place, const float* waited, size_t n) {
#pragma omp simd
  for (size_t i = 0; i < n; i++) store(place[i], waited[i]);
}
// n stored numbers as floats: where they are, or in `room`.
const float* widened(float*, const float* stored, size_t) {
  return stored;
}
const float* widened(float* room, const bf16* stored, size_t n) {
#pragma omp simd
  for (size_t i = 0; i < n; i++) room[i] = stored[i];
  return room;
}

// Loops over a row vectorise where the compiler knows which norm it is.
template <bool rms>
NormUnderGate known_norm(const GatedNormWeights& weights, const GatedNormShape& shape) {
  NormUnderGate norm(weights, shape);
  norm.rms = rms;
  return norm;
}

// Step 1: rows row0 to row0 + rows - 1 of r, sum and n, of which they stand at the front.
template <bool rms, class S>
void normalise(float* ns, float* r, S* sum, const ResidualInOf<S>& in, const GatedNormWeights& weights,
               const GatedNormShape& shape, size_t row0, size_t rows) {
  const NormUnderGate norm = known_norm<rms>(weights, shape);
  const size_t C = shape.C;
  for (size_t row = row0; row < row0 + rows; row++) {
    const S* x = residual_row_cpu(sum, in, row, C);
    const float *w = weights.w, *b = weights.b;
    float *n = ns + (row - row0) * C, scale = 0;
    if (rms) {
      const float squares =
          row_reduce_cpu<float>(C, [=](float acc, size_t c) { return fused(float(x[c]), float(x[c]), acc); });
      r[row] = scale = 1.0f / exact_sqrt(squares / float(C) + shape.eps);
    }
    for (size_t c = 0; c < C; c++) n[c] = norm.n(norm.unit(x[c], scale), w[c], rms ? 0.0f : b[c]);
  }
}

// The same again in the backward, where r is known: unit and n of rows row0 to row0 + rows - 1, which stand at the
// front.
template <bool rms, class S>
void normalise_again(float* units, float* ns, const S* all_x, const float* r, const GatedNormWeights& weights,
                     const GatedNormShape& shape, size_t row0, size_t rows) {
  const NormUnderGate norm = known_norm<rms>(weights, shape);
  const size_t C = shape.C;
  for (size_t row = 0; row < rows; row++) {
    const S* x = all_x + (row0 + row) * C;
    const float *w = weights.w, *b = weights.b;
    const float scale = rms ? r[row0 + row] : 0.0f;
    float *unit = units + row * C, *n = ns + row * C;
    for (size_t c = 0; c < C; c++) unit[c] = norm.unit(x[c], scale);
    for (size_t c = 0; c < C; c++) n[c] = norm.n(unit[c], w[c], rms ? 0.0f : b[c]);
  }
}

// Sums of slices of 128 rows.
struct ColumnSums {
  float *w, *b, *alpha;  // (slices,C), (slices,C), (slices)
};

// The last step of the backward: dx and dbranch from dn, and what these rows add to the sums of their slices.
template <bool rms, class S>
void norm_backward(S* dx, S* dbranch, const ColumnSums& sums, const float* dns, const float* units,
                   const ResidualBackwardInOf<S>& in, const float* r, const GatedNormWeights& weights,
                   const GatedNormShape& shape, size_t row0, size_t rows) {
  const NormUnderGate norm = known_norm<rms>(weights, shape);
  const size_t C = shape.C;
  for (size_t row = 0; row < rows; row++) {
    const S* x = in.x + (row0 + row) * C;
    const float *unit = units + row * C, *dn = dns + row * C, *w = weights.w;
    const size_t slice = (row0 + row) / column_slice;
    float *dw = sums.w + slice * C, *db = sums.b + slice * C;
    for (size_t c = 0; c < C; c++) dw[c] = fused(dn[c], unit[c], dw[c]);
    for (size_t c = 0; !rms && c < C; c++) db[c] = db[c] + dn[c];
    const float sum = row_reduce_cpu<float>(
        C, [=](float acc, size_t c) { return norm.add_to_row(acc, norm.g(dn[c], unit[c], w[c]), unit[c], x[c]); });
    if (!rms) sums.alpha[slice] = sums.alpha[slice] + sum;
    const float mean = sum / float(C), scale = rms ? r[row0 + row] : 0.0f;
    residual_backward_row_cpu(dx, dbranch, in, row0 + row, C,
                              [=](size_t c) { return norm.dx(norm.g(dn[c], unit[c], w[c]), unit[c], mean, scale); });
  }
}

}  // namespace

size_t gated_norm_forward_cpu_scratch(const GatedNormShape& s) {
  return omp_get_max_threads() * forward_block_floats(s) * sizeof(float);
}

template <class S>
void gated_norm_forward_cpu(S* y, float* r, float* low, S* sum, const ResidualInOf<S>& in,
                            const GatedNormWeights& weights, const GatedNormShape& shape, float* scratch) {
  const size_t N = shape.N, C = shape.C, rank = shape.rank, scores = shape.scores();
  const size_t block_rows = rows_of_block(N, C);
  auto* normalise_rows = shape.base == NormGateBase::rmsnorm ? normalise<true, S> : normalise<false, S>;
#pragma omp parallel for if (worth_waking(N * C * rank))
  for (size_t row0 = 0; row0 < N; row0 += block_rows) {
    const size_t rows = std::min(block_rows, N - row0);
    float *a = scratch + omp_get_thread_num() * forward_block_floats(shape), *z = a + rows * rank;
    float *lows = low + row0 * rank, *n = waiting(y + row0 * C, z + rows * scores);  // and then y, until it is stored
    normalise_rows(n, r, sum, in, weights, shape, row0, rows);
    matmul_cpu(lows, n, weights.down, rows, rank, C, Layout::nt, Accumulate::no);
    activation_forward_cpu(a, lows, rows * rank, Activation::silu);
    matmul_cpu(z, a, weights.up, rows, scores, rank, Layout::nt, Accumulate::no);
    gate_forward_cpu(n, n, z, rows, C, C / scores, shape.op);
    store_waiting(y + row0 * C, n, rows * C);
  }
}
IN_FLOAT_AND_BF16(gated_norm_forward_cpu);

size_t gated_norm_backward_cpu_scratch(const GatedNormShape& s) {
  const size_t rows = rows_of_stage(s.N, s.C) * (s.C + s.scores() + 2 * s.rank);
  const size_t sums = ceil_div(s.N, column_slice) * (2 * s.C + 1), matrices = s.rank * (s.C + s.scores());
  return (rows + sums + matrices + omp_get_max_threads() * backward_block_floats(s)) * sizeof(float);
}

template <class S>
void gated_norm_backward_cpu(S* dx, S* dbranch, const GatedNormGradients& gradients, const S* dy,
                             const ResidualBackwardInOf<S>& in, const float* low, const float* r,
                             const GatedNormWeights& weights, const GatedNormShape& shape, float* scratch) {
  const size_t N = shape.N, C = shape.C, rank = shape.rank, scores = shape.scores();
  const size_t slices = ceil_div(N, column_slice), block_rows = rows_of_block(N, C), stage_rows = rows_of_stage(N, C);
  float *const stage_n = scratch, *const stage_dz = stage_n + stage_rows * C;
  float *const stage_a = stage_dz + stage_rows * scores, *const stage_dlow = stage_a + stage_rows * rank;
  float *const ddown = stage_dlow + stage_rows * rank, *const dup = ddown + rank * C;
  float* const column_sums = dup + rank * scores;
  const ColumnSums sums = {column_sums, column_sums + slices * C, column_sums + 2 * slices * C};
  float* const blocks = column_sums + slices * (2 * C + 1);
  std::fill(column_sums, blocks, 0.0f);
  const bool rms = shape.base == NormGateBase::rmsnorm;
  auto* normalise_rows = rms ? normalise_again<true, S> : normalise_again<false, S>;
  auto* norm_backward_rows = rms ? norm_backward<true, S> : norm_backward<false, S>;
  for (size_t first = 0; first < N; first += stage_rows) {
    const size_t end = std::min(first + stage_rows, N);
#pragma omp parallel for
    for (size_t row0 = first; row0 < end; row0 += block_rows) {
      const size_t rows = std::min(block_rows, end - row0), at = row0 - first;
      float *units = blocks + omp_get_thread_num() * backward_block_floats(shape), *dns = units + rows * C;
      float *ns = stage_n + at * C, *dz = stage_dz + at * scores, *a = stage_a + at * rank,
            *dlow = stage_dlow + at * rank;
      const float* lows = low + row0 * rank;
      normalise_rows(units, ns, in.x, r, weights, shape, row0, rows);
      activation_forward_cpu(a, lows, rows * rank, Activation::silu);
      matmul_cpu(dz, a, weights.up, rows, scores, rank, Layout::nt, Accumulate::no);  // z, until dz takes its place
      gate_backward_cpu(dns, dz, widened(dns, dy + row0 * C, rows * C), ns, dz, rows, C, C / scores, shape.op);
      matmul_cpu(dlow, dz, weights.up, rows, rank, scores, Layout::nn, Accumulate::no);
      activation_backward_cpu(dlow, dlow, lows, rows * rank, Activation::silu);
      matmul_cpu(dns, dlow, weights.down, rows, C, rank, Layout::nn, Accumulate::yes);
      norm_backward_rows(dx, dbranch, sums, dns, units, in, r, weights, shape, row0, rows);
    }
    for (size_t row0 = first; row0 < end; row0 += matmul_slice) {
      const size_t rows = std::min(matmul_slice, end - row0), at = row0 - first;
      const Accumulate to = row0 ? Accumulate::yes : Accumulate::no;
      matmul_cpu(ddown, stage_dlow + at * rank, stage_n + at * C, rank, C, rows, Layout::tn, to);
      matmul_cpu(dup, stage_dz + at * scores, stage_a + at * rank, scores, rank, rows, Layout::tn, to);
    }
  }
  for (size_t i = 0; i < rank * C; i++) gradients.down[i] += ddown[i];
  for (size_t i = 0; i < scores * rank; i++) gradients.up[i] += dup[i];
  column_add_slices_cpu(std::array{gradients.w}, sums.w, slices, C);
  if (rms) return;
  column_add_slices_cpu(std::array{gradients.b}, sums.b, slices, C);
  column_add_slices_cpu(std::array{gradients.alpha}, sums.alpha, slices, 1);
}
IN_FLOAT_AND_BF16(gated_norm_backward_cpu);

}  // namespace gated
