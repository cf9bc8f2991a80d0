// residual: the parts of kernels/residual.cu that the norms share, which join a branch in the pass that reads x anyway.
// The mathematics and the references are in residual.cu.
#pragma once
#include "core/philox.cuh"
#include "core/quad.cuh"
#include "kernels/residual.h"

namespace gated {

// ---- formulas, one element each

// The gradient of clip at v: d inside the bounds. An infinite bound passes every d, that of an infinite v too.
template <class T>
HD T clip_gradient(T d, T v, float bound) {
  return bound == INFINITY || (v > -T(bound) && v < T(bound)) ? d : T(0);
}

template <class T>
HD T join_element(T x, T branch, T keep, const Join& join) {
  return clip(x + clip(branch, T(join.clip_branch)) * keep, T(join.clip_sum));
}

// (Read anew for each four columns: kept in registers, it makes kernels of norms spill.)
HD uint64_t dropout_stream(const Dropout& dropout) {
  return *static_cast<const volatile uint64_t*>(dropout.stream);
}

// The factors `keep` of four columns: one block of Philox draws four words.
HD Quad dropout_factors(const PhiloxBlock& draw, float p) {
  const float scale = 1.0f / (1.0f - p);
  Quad keep;
  for (int k = 0; k < 4; k++) keep.v[k] = unit_float(draw.word[k]) >= p ? scale : 0.0f;
  return keep;
}

// Those of columns c to c+3, c a multiple of 4.
HD Quad dropout_quad(const Dropout& dropout, size_t row, size_t c, size_t C) {
  if (dropout.p == 0) return {{1.0f, 1.0f, 1.0f, 1.0f}};
  const size_t block = row * ceil_div(C, 4) + c / 4;
  return dropout_factors(random_block(dropout.seed, dropout_stream(dropout), block), dropout.p);
}

// How the sum of a backward was made: without a branch nothing joined.
template <class T>
HD Join join_of(const ResidualBackwardInOf<T>& in) {
  return in.branch ? in.join : Join{};
}

// ---- a row on the CPU

// The factors `keep` of some quads, from block `first` on.
inline void dropout_piece_cpu(float* keep, const Dropout& dropout, size_t first, size_t quads) {
  const uint64_t seed = dropout.seed, stream = dropout_stream(dropout);
  const float p = dropout.p;
#pragma omp simd
  for (size_t q = 0; q < quads; q++) {
    const Quad four = dropout_factors(random_block(seed, stream, first + q), p);
    for (size_t k = 0; k < 4; k++) keep[4 * q + k] = four.v[k];
  }
}

// element(c, keep) for columns begin to end - 1 of a row, begin a multiple of 4, in loops that vectorise.
template <class Element>
void dropout_row_cpu(const Dropout& dropout, size_t row, size_t C, size_t begin, size_t end, Element element) {
  if (dropout.p == 0) {
#pragma omp simd
    for (size_t c = begin; c < end; c++) element(c, 1.0f);
    return;
  }
  constexpr size_t piece = 256;
  for (size_t c0 = begin; c0 < end; c0 += piece) {
    float keep[piece];
    const size_t stop = end < c0 + piece ? end : c0 + piece;
    dropout_piece_cpu(keep, dropout, row * ceil_div(C, 4) + c0 / 4, ceil_div(stop - c0, 4));
#pragma omp simd
    for (size_t c = c0; c < stop; c++) element(c, keep[c - c0]);
  }
}

// Returns what is normalised: a row of x, or of the sum, which it writes.
template <class S>
const S* residual_row_cpu(S* all_sums, const ResidualInOf<S>& in, size_t row, size_t C) {
  const S* x = in.x ? in.x + row * C : nullptr;
  if (!in.branch) return x;
  const S* branch = in.branch + row * C;
  S* sum = all_sums + row * C;
  const Join join = in.join;  // a copy that no store to sum can change
  dropout_row_cpu(join.dropout, row, C, 0, C, [=](size_t c, float keep) {
    sum[c] = S(join_element(x ? float(x[c]) : -0.0f, float(branch[c]), keep, join));
  });
  return sum;
}

// element(c, d) for columns begin to end - 1: d is the gradient of the sum before its clip, dresidual (null: none) +
// gradient(c).
template <class S, class Gradient, class Element>
[[gnu::always_inline]] inline void each_sum_gradient(const S* dresidual, Gradient gradient, size_t begin, size_t end,
                                                     Element element) {
  if (dresidual) {
#pragma omp simd
    for (size_t c = begin; c < end; c++) element(c, dresidual[c] + gradient(c));
  } else {
#pragma omp simd
    for (size_t c = begin; c < end; c++) element(c, gradient(c));
  }
}

// residual_backward_row_cpu with clips and dropout. A row goes in pieces, whose gradient waits in d: a float, whatever
// is stored.
template <class S, class Gradient>
[[gnu::noinline]] void residual_backward_pieces_cpu(S* all_dx, S* all_dbranch, const S* dresidual,
                                                    const ResidualBackwardInOf<S>& in, size_t row, size_t C,
                                                    Gradient gradient) {
  constexpr size_t piece = 256;
  const size_t at = row * C;
  const Join join = join_of(in);
  for (size_t begin = 0; begin < C; begin += piece) {
    const size_t end = begin + piece < C ? begin + piece : C;
    float d[piece];
    each_sum_gradient(dresidual, gradient, begin, end, [&](size_t c, float v) { d[c - begin] = v; });
    if (join.clip_sum < INFINITY)
      for (size_t c = begin; c < end; c++)
        d[c - begin] = clip_gradient(d[c - begin], float(in.x[at + c]), join.clip_sum);
    for (size_t c = begin; c < end; c++) all_dx[at + c] = S(d[c - begin]);
    if (!all_dbranch) continue;
    dropout_row_cpu(join.dropout, row, C, begin, end,
                    [&](size_t c, float keep) { d[c - begin] = d[c - begin] * keep; });
    if (join.clip_branch < INFINITY)
      for (size_t c = begin; c < end; c++)
        d[c - begin] = clip_gradient(d[c - begin], float(in.branch[at + c]), join.clip_branch);
    for (size_t c = begin; c < end; c++) all_dbranch[at + c] = S(d[c - begin]);
  }
}

// Writes a row of dx, and of dbranch where it is not null. gradient(c): what comes back through the norm to column c.
template <class S, class Gradient>
void residual_backward_row_cpu(S* all_dx, S* all_dbranch, const ResidualBackwardInOf<S>& in, size_t row, size_t C,
                               Gradient gradient) {
  const S* dresidual = in.dresidual ? in.dresidual + row * C : nullptr;
  if (all_dbranch || join_of(in).clip_sum < INFINITY)
    return residual_backward_pieces_cpu(all_dx, all_dbranch, dresidual, in, row, C, gradient);
  S* dx = all_dx + row * C;
  each_sum_gradient(dresidual, gradient, 0, C, [=](size_t c, float d) { dx[c] = S(d); });
}

// ---- in a kernel along the rows of (N,C): a load that may join, a store that may add
//
// The kernels of norms are templates of both. Where nothing joins PlainRows takes their place (core/quad.cuh), and
// costs nothing.

// Loads what is normalised: x, or its sum with a branch. The first pass makes the sum and leaves it, and later ones
// read it, each lane what it has written itself.
template <class S>
struct JoinedRows {
  S* sum;
  ResidualInOf<S> in;
  const S* normalised = in.branch ? sum : in.x;

  __device__ Quad first(size_t row, size_t i, size_t C) const {
    // Without x, -0: v + -0 is v for every v.
    const Quad q = in.x ? load_quad(in.x + row * C, i, C) : Quad{{-0.0f, -0.0f, -0.0f, -0.0f}};
    return in.branch ? join(row, i, C, q, load_quad(in.branch + row * C, i, C)) : q;
  }
  // The sum of q and b, as it is stored.
  __device__ Quad join(size_t row, size_t i, size_t C, Quad q, Quad b) const {
    const Quad keep = dropout_quad(in.join.dropout, row, i, C);
    for (int k = 0; k < 4; k++) q.v[k] = join_element(q.v[k], b.v[k], keep.v[k], in.join);
    store_quad(sum + row * C, i, C, q);
    return stored_quad<S>(q);
  }
  __device__ Quad again(size_t row, size_t i, size_t C) const { return load_quad(normalised + row * C, i, C); }
};

// Stores the gradients of x and, where dbranch is not null, of the branch. d: what comes back through the norm; x: what
// was normalised, which a clip of the sum asks for.
template <class S>
struct JoinedGradient {
  S *dx, *dbranch;
  ResidualBackwardInOf<S> in;

  __device__ void store(size_t row, size_t i, size_t C, Quad d) const {
    const Quad x = join_of(in).clip_sum < INFINITY ? load_quad(in.x + row * C, i, C) : Quad{};
    if (in.dresidual) {
      const Quad other = load_quad(in.dresidual + row * C, i, C);
      for (int k = 0; k < 4; k++) d.v[k] = other.v[k] + d.v[k];
    }
    store_sum(row, i, C, d, x);
  }
  // d: with dresidual.
  __device__ void store_sum(size_t row, size_t i, size_t C, Quad d, Quad x) const {
    const Join join = join_of(in);
    for (int k = 0; k < 4; k++) d.v[k] = clip_gradient(d.v[k], x.v[k], join.clip_sum);
    store_quad(dx + row * C, i, C, d);
    if (!dbranch) return;
    const Quad keep = dropout_quad(join.dropout, row, i, C);
    const Quad b = join.clip_branch < INFINITY ? load_quad(in.branch + row * C, i, C) : Quad{};
    for (int k = 0; k < 4; k++) d.v[k] = clip_gradient(d.v[k] * keep.v[k], b.v[k], join.clip_branch);
    store_quad(dbranch + row * C, i, C, d);
  }
};

// ---- what every norm asks of its residual arguments; `op` names it in the message

void require_residual(const char* op, ConstReals sum, const ResidualIn& in, size_t C);
void require_residual_backward(const char* op, ConstReals dbranch, const ResidualBackwardIn& in, size_t C);

}  // namespace gated
