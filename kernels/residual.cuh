// residual: where a branch joins the residual stream: h = clip(x + dropout(clip(branch)))
//   clip(v) cuts v to [-bound, bound]: of the branch (arXiv 2505.06708), of the sum (arXiv 2601.22966)
//   dropout (Srivastava et al. 2014) is inverted: an element stays with probability 1-p, scaled by 1/(1-p)
//   exactly: h = clip(x + clip(branch)*keep), keep = 1/(1-p) or 0; product and sum are rounded each
// backward, d = dresidual + the gradient that comes back through what read h:
//   dx = |h| < bound of the sum ? d : 0      dbranch = |branch| < bound of the branch ? dx*keep : 0
//   On its bound a value counts as clipped. An infinite bound clips nothing and passes every d.
// Element (row, c) draws word c%4 of block row*ceil(C/4) + c/4 of the random stream, and stays where the draw
// is p or more. The backward draws again: nothing is stored.
// shapes: x, branch, sum, dresidual, dx, dbranch (N,C) f32 | sum, dx and dbranch are written
// The norms join in the pass that reads x anyway (rmsnorm.cuh, layernorm.cuh, dyt.cuh); with --norm=none the
// join is an operation of its own.
// --dropout, --clip-output, --clip-residual | tests/test_residual.cpp
#pragma once
#include "core/context.cuh"
#include "core/math.cuh"
#include "core/philox.cuh"
#include "core/launch_shape.cuh"
#include "core/reduce.cuh"

namespace gated {

struct Dropout {
  float p = 0;                    // 0: off
  uint64_t seed = 0, stream = 0;  // of the random numbers; stream is a stream_of(Purpose::dropout, …)
};

struct Join {
  float clip_branch = INFINITY, clip_sum = INFINITY;
  Dropout dropout;

  // A plain addition: both of its inputs have the gradient of the sum.
  bool plain() const { return clip_branch == INFINITY && clip_sum == INFINITY && dropout.p == 0; }
};

// What a norm reads: x, or with a branch the join of both, which it leaves in sum (neither x nor branch).
// Without a branch nothing joins: then `join` does not count, here and in the backward.
template <class T>
struct ResidualForwardOf {
  const T* x;
  const T* branch = nullptr;
  T* sum = nullptr;
  Join join = {};
};
using ResidualForward = ResidualForwardOf<float>;

// Where a norm's backward leaves its gradient. x is what was normalised, the sum where there was a branch.
// dresidual null: nothing else read the sum; dx may be dresidual.
// dbranch null: there was no branch, or a plain join, so that the branch has the gradient dx.
template <class T>
struct ResidualBackwardOf {
  T* dx;
  T* dbranch = nullptr;
  const T* dresidual = nullptr;
  const T* x;
  const T* branch = nullptr;
  Join join = {};

  HD Join joined() const { return branch ? join : Join{}; }
};
using ResidualBackward = ResidualBackwardOf<float>;

// ---- formulas, one element each: the norms, reference and kernel share them

// A NaN stays.
template <class T>
HD T clip(T v, T bound) {
  return v > bound ? bound : v < -bound ? -bound : v;
}

template <class T>
HD T join_element(T x, T branch, T keep, const Join& join) {
  return clip(x + clip(branch, T(join.clip_branch)) * keep, T(join.clip_sum));
}

// The gradient of clip at v: d inside the bounds.
template <class T>
HD T clip_gradient(T d, T v, float bound) {
  return bound == INFINITY || (v > -T(bound) && v < T(bound)) ? d : T(0);
}

// The factors `keep` of columns c to c+3, c a multiple of 4.
HD Quad dropout_quad(const Dropout& dropout, size_t row, size_t c, size_t C) {
  if (dropout.p == 0) return {{1.0f, 1.0f, 1.0f, 1.0f}};
  const PhiloxBlock draw = random_block(dropout.seed, dropout.stream, row * ((C + 3) / 4) + c / 4);
  const float scale = 1.0f / (1.0f - dropout.p);
  Quad keep;
  for (int k = 0; k < 4; k++) keep.v[k] = unit_float(draw.word[k]) >= dropout.p ? scale : 0.0f;
  return keep;
}

// ---- reference

// element(c, keep) for every column of a row. Without dropout a loop that vectorises.
template <class T, class Element>
void dropout_row_ref(const Dropout& dropout, size_t row, size_t C, Element element) {
  if (dropout.p == 0) {
#pragma omp simd
    for (size_t c = 0; c < C; c++) element(c, T(1));
    return;
  }
  for (size_t c0 = 0; c0 < C; c0 += 4) {
    const Quad keep = dropout_quad(dropout, row, c0, C);
    for (size_t c = c0; c < C && c < c0 + 4; c++) element(c, T(keep.v[c - c0]));
  }
}

// Returns what is normalised: a row of x, or of the sum, which it writes.
template <class T>
const T* residual_row_ref(const ResidualForwardOf<T>& in, size_t row, size_t C) {
  const T* x = in.x + row * C;
  if (!in.branch) return x;
  const T* branch = in.branch + row * C;
  T* sum = in.sum + row * C;
  const Join join = in.join;  // a copy that no store to sum can change
  dropout_row_ref<T>(join.dropout, row, C,
                     [=](size_t c, T keep) { sum[c] = join_element(x[c], branch[c], keep, join); });
  return sum;
}

// gradient(c): what comes back through the norm to column c of the row.
template <class T, class Gradient>
void residual_backward_row_ref(const ResidualBackwardOf<T>& out, size_t row, size_t C, Gradient gradient) {
  const size_t at = row * C;
  const Join join = out.joined();
  const T* dresidual = out.dresidual ? out.dresidual + at : nullptr;
  T* dx = out.dx + at;
  if (dresidual) {
#pragma omp simd
    for (size_t c = 0; c < C; c++) dx[c] = dresidual[c] + gradient(c);
  } else {
#pragma omp simd
    for (size_t c = 0; c < C; c++) dx[c] = gradient(c);
  }
  if (join.clip_sum < INFINITY)
    for (size_t c = 0; c < C; c++) dx[c] = clip_gradient(dx[c], out.x[at + c], join.clip_sum);
  if (!out.dbranch) return;
  T* dbranch = out.dbranch + at;
  dropout_row_ref<T>(join.dropout, row, C, [=](size_t c, T keep) { dbranch[c] = dx[c] * keep; });
  if (join.clip_branch < INFINITY)
    for (size_t c = 0; c < C; c++) dbranch[c] = clip_gradient(dbranch[c], out.branch[at + c], join.clip_branch);
}

template <class T>
void residual_forward_ref(const ResidualForwardOf<T>& in, size_t N, size_t C) {
#pragma omp parallel for
  for (size_t row = 0; row < N; row++) residual_row_ref(in, row, C);
}

// -0 is what adds nothing: x + -0 is x, for -0 too.
template <class T>
void residual_backward_ref(const ResidualBackwardOf<T>& out, const T* dy, size_t N, size_t C) {
#pragma omp parallel for
  for (size_t row = 0; row < N; row++)
    residual_backward_row_ref(out, row, C, [=](size_t c) { return dy ? dy[row * C + c] : T(-0.0); });
}

// ---- kernels: one warp a row, a lane holds four neighbouring columns of every 128

// Elements i..i+3 of what is normalised.
template <bool aligned>
__device__ inline Quad residual_quad(const ResidualForward& in, size_t row, size_t i, size_t C) {
  Quad q = load_quad<aligned>(in.x + row * C, i, C);
  if (!in.branch) return q;
  const Quad b = load_quad<aligned>(in.branch + row * C, i, C), keep = dropout_quad(in.join.dropout, row, i, C);
  for (int k = 0; k < 4; k++) q.v[k] = join_element(q.v[k], b.v[k], keep.v[k], in.join);
  return q;
}

// The same, and leaves the sum.
template <bool aligned>
__device__ inline Quad residual_join_quad(const ResidualForward& in, size_t row, size_t i, size_t C) {
  const Quad q = residual_quad<aligned>(in, row, i, C);
  if (in.branch) store_quad<aligned>(in.sum + row * C, i, C, q);
  return q;
}

// d: what comes back through the norm to elements i..i+3; x: what was normalised.
template <bool aligned>
__device__ inline void residual_backward_quad(const ResidualBackward& out, size_t row, size_t i, size_t C, Quad d,
                                              Quad x) {
  const Join join = out.joined();
  if (out.dresidual) {
    const Quad res = load_quad<aligned>(out.dresidual + row * C, i, C);
    for (int k = 0; k < 4; k++) d.v[k] = res.v[k] + d.v[k];
  }
  for (int k = 0; k < 4; k++) d.v[k] = clip_gradient(d.v[k], x.v[k], join.clip_sum);
  store_quad<aligned>(out.dx + row * C, i, C, d);
  if (!out.dbranch) return;
  const Quad keep = dropout_quad(join.dropout, row, i, C);
  const Quad b = join.clip_branch < INFINITY ? load_quad<aligned>(out.branch + row * C, i, C) : Quad{};
  for (int k = 0; k < 4; k++) d.v[k] = clip_gradient(d.v[k] * keep.v[k], b.v[k], join.clip_branch);
  store_quad<aligned>(out.dbranch + row * C, i, C, d);
}

template <bool aligned>
__global__ void __launch_bounds__(rows_block) residual_forward_kernel(ResidualForward in, size_t N, size_t C) {
  const size_t row = warp_row();
  if (row >= N) return;
  for (size_t i = 4 * (threadIdx.x % 32); i < C; i += row_chains) residual_join_quad<aligned>(in, row, i, C);
}

template <bool aligned>
__global__ void __launch_bounds__(rows_block)
    residual_backward_kernel(ResidualBackward out, const float* dy, size_t N, size_t C) {
  const size_t row = warp_row();
  if (row >= N) return;
  for (size_t i = 4 * (threadIdx.x % 32); i < C; i += row_chains) {
    const Quad d = dy ? load_quad<aligned>(dy + row * C, i, C) : Quad{{-0.0f, -0.0f, -0.0f, -0.0f}};
    const Quad x = out.joined().clip_sum < INFINITY ? load_quad<aligned>(out.x + row * C, i, C) : Quad{};
    residual_backward_quad<aligned>(out, row, i, C, d, x);
  }
}

// ---- launchers

inline void require_join(const char* op, const Join& join) {
  for (float bound : {join.clip_branch, join.clip_sum})
    require(bound > 0, "%s: a clip of %g, expected more than 0", op, double(bound));
  require(join.dropout.p >= 0 && join.dropout.p < 1, "%s: dropout is %g, expected 0 <= p < 1", op,
          double(join.dropout.p));
}

// What every norm asks of its residual arguments.
inline void require_residual(const char* op, const ResidualForward& in, size_t C) {
  require(C > 0, "%s: rows have no columns", op);
  require(!in.branch == !in.sum, "%s: a residual branch and its sum come together", op);
  require_join(op, in.join);
}

inline void require_residual(const char* op, const ResidualBackward& out, size_t C) {
  require(C > 0, "%s: rows have no columns", op);
  require(out.branch || !out.dbranch || out.join.plain(), "%s: dbranch needs the branch that was clipped or dropped",
          op);
  require(out.dbranch || out.joined().plain(), "%s: behind clip and dropout a branch has a gradient of its own", op);
  require_join(op, out.join);
}

// sum (N,C) is written.
inline void residual_forward(const ResidualForward& in, size_t N, size_t C, Context& ctx) {
  require_residual("residual_forward", in, C);
  require(in.branch, "residual_forward: there is no branch to join");
  if (ctx.device == Device::cpu) return residual_forward_ref(in, N, C);
  auto* kernel = C % 4 == 0 ? residual_forward_kernel<true> : residual_forward_kernel<false>;
  launch(kernel, rows_grid(N), rows_block, 0, ctx, in, N, C);
}

// dx and, where it is not null, dbranch (N,C) are written. dy: the gradient of what read the sum as its norm,
// or null where dresidual is all there is; dx may be dy. x is read where the sum was clipped.
inline void residual_backward(const ResidualBackward& out, const float* dy, size_t N, size_t C, Context& ctx) {
  require_residual("residual_backward", out, C);
  require(dy || out.dresidual, "residual_backward: neither dy nor dresidual");
  require(out.x || out.joined().clip_sum == INFINITY, "residual_backward: a clipped sum is read again");
  if (ctx.device == Device::cpu) return residual_backward_ref(out, dy, N, C);
  auto* kernel = C % 4 == 0 ? residual_backward_kernel<true> : residual_backward_kernel<false>;
  launch(kernel, rows_grid(N), rows_block, 0, ctx, out, dy, N, C);
}

}  // namespace gated
