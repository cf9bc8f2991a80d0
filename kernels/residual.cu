// residual: where a branch (attention, FFN) joins the residual stream
//
//   plain:    sum = x + branch
//   backward: the sum has derivative 1 in both, so dx = dbranch = dsum.
//   What reads the sum are a norm and the stream, which goes on past it: dsum = dresidual + dy, where dy comes back
//   through the norm and dresidual along the stream.
//
// With clips and dropout:
//   sum = clip(x + clip(branch, bound of the branch) * keep, bound of the sum)
//   clip(v, bound) cuts v to [-bound, bound]: of the branch (arXiv 2505.06708), of the sum (arXiv 2601.22966).
//   dropout (Srivastava et al. 2014): keep is 0 with probability p and otherwise 1/(1-p), so that its mean is 1.
// backward: clip has derivative 1 inside its bounds and 0 outside, where nothing that v does is seen; keep is a
// constant:
//   dx      = |sum| < bound of the sum ? dsum : 0
//   dbranch = |branch| < bound of the branch ? dx*keep : 0
//   A value on its bound counts as clipped, unlike in kernels/glu.cu: the backward sees the sum only after the clip,
//   and what was cut lies on the bound. An infinite bound clips nothing and passes every gradient.
// --residual=off: the branch takes the place of x. Then sum = clip(clip(branch) * keep), and x has no gradient. The two
//   formulas stay; dx is now only the gradient of the sum before its clip, from which dbranch is made. The transformer
//   block passes no dresidual (layers/block.cuh).
// Exactly: the product with keep and the sum are rounded each.
// Random numbers: a Philox block is four words (core/philox.cuh). Element (n,c) takes word c%4 of block n*ceil(C/4) +
//   c/4 of its Philox stream and stays where the draw, in [0,1), is p or more. The backward draws again: nothing is
//   stored.
//
// A Join says how a branch joins: both bounds, and the dropout. ResidualIn is x, branch and their Join;
//   ResidualBackwardIn is what a backward reads, and its x is the sum (residual.h).
// In bf16: the sum is rounded where it is stored, and what reads it, a norm and both backwards, reads it rounded. The
//   backward rounds the bound of the sum too: a sum that was cut is then found on its bound, and counts as clipped.
// shapes: x, branch, sum, dy, dresidual, dx, dbranch (N,C) f32 or bf16 | sum, dx and dbranch are written
// The norms join in the pass that reads x anyway, with the parts in residual.cuh: rmsnorm.cu, layernorm.cu, dyt.cu,
// gated_norm.cu. With --norm=none the join is an operation of its own, and stands here.
// twins: kernels/cpu/residual_cpu.cpp
// --dropout, --clip-output, --clip-residual, --residual | tests/test_residual.cpp
#include "core/launch_shape.cuh"
#include "core/reduce.cuh"
#include "kernels/residual.cuh"

namespace gated {

// ---- reference: the plain sum

template <class T>
void residual_forward_ref(T* sum, const T* x, const T* branch, size_t N, size_t C) {
  for (size_t i = 0; i < N * C; i++) sum[i] = x[i] + branch[i];
}
IN_FLOAT_AND_DOUBLE(residual_forward_ref);

template <class T>
void residual_backward_ref(T* dx, T* dbranch, const T* dsum, size_t N, size_t C) {
  for (size_t i = 0; i < N * C; i++) {
    const T d = dsum[i];
    dx[i] = d;
    dbranch[i] = d;
  }
}
IN_FLOAT_AND_DOUBLE(residual_backward_ref);

// ---- reference: with clips and dropout

namespace residual {
inline float keep_ref(const Dropout& dropout, size_t n, size_t c, size_t C) {
  if (dropout.p == 0) return 1;
  const size_t draw = n * 4 * ceil_div(C, 4) + c;
  return uniform_float(dropout.seed, dropout_stream(dropout), draw) >= dropout.p ? 1.0f / (1.0f - dropout.p) : 0.0f;
}
}  // namespace residual

template <class T>
void residual_join_forward_ref(T* sum, const ResidualInOf<T>& in, size_t N, size_t C) {
  const T bound_branch = in.join.clip_branch, bound_sum = in.join.clip_sum;
  for (size_t n = 0; n < N; n++) {
    for (size_t c = 0; c < C; c++) {
      const size_t i = n * C + c;
      const T keep = residual::keep_ref(in.join.dropout, n, c, C);
      const T joining = clip(in.branch[i], bound_branch) * keep;
      sum[i] = clip(in.x ? in.x[i] + joining : joining, bound_sum);
    }
  }
}
IN_FLOAT_AND_DOUBLE(residual_join_forward_ref);

// dy or in.dresidual may be null, and adds nothing then. dbranch null: nobody asks for it.
template <class T>
void residual_join_backward_ref(T* dx, T* dbranch, const T* dy, const ResidualBackwardInOf<T>& in, size_t N, size_t C) {
  const Join join = in.branch ? in.join : Join{};
  for (size_t n = 0; n < N; n++) {
    for (size_t c = 0; c < C; c++) {
      const size_t i = n * C + c;
      T d = dy ? dy[i] : in.dresidual[i];
      if (dy && in.dresidual) d = in.dresidual[i] + dy[i];
      if (join.clip_sum < INFINITY) d = clip_gradient(d, in.x[i], join.clip_sum);
      dx[i] = d;
      if (!dbranch) continue;
      d = d * T(residual::keep_ref(join.dropout, n, c, C));
      if (join.clip_branch < INFINITY) d = clip_gradient(d, in.branch[i], join.clip_branch);
      dbranch[i] = d;
    }
  }
}
IN_FLOAT_AND_DOUBLE(residual_join_backward_ref);

// ---- kernels
//
// The plain sum: an element needs no other, so a thread takes four neighbours (kernels/activation.cu). 12 bytes an
// element.

template <class S>
__global__ void __launch_bounds__(elementwise_block)
    residual_forward_kernel(S* sum, const S* x, const S* branch, size_t n) {
  const size_t i = elementwise_index();
  if (i >= n) return;
  Quad q = load_quad(x, i, n);
  const Quad b = load_quad(branch, i, n);
  for (int k = 0; k < 4; k++) q.v[k] = q.v[k] + b.v[k];
  store_quad(sum, i, n, q);
}

// Everything else goes row by row, a warp a row (kernels/rmsnorm.cu), because a row begins with a fresh Philox block:
// the four draws of a Quad then come from one. What is done for a Quad stands in residual.cuh, because the norms do it
// as well. The memory bus: forward 12 bytes an element, backward 8 (dresidual, dx) to 24 (dy, dresidual, sum, branch,
// dx, dbranch). In bf16 it is half.

template <class S>
__global__ void __launch_bounds__(rows_block) residual_join_kernel(JoinedRows<S> x, size_t N, size_t C) {
  const size_t row = warp_row();
  if (row >= N) return;
  for (size_t i = 4 * (threadIdx.x % 32); i < C; i += row_chains) x.first(row, i, C);  // leaves the sum
}

template <class S>
__global__ void __launch_bounds__(rows_block)
    residual_backward_kernel(JoinedGradient<S> dx, const S* dy, size_t N, size_t C) {
  const size_t row = warp_row();
  if (row >= N) return;
  for (size_t i = 4 * (threadIdx.x % 32); i < C; i += row_chains)
    // Without dy, -0: it is what adds nothing. v + -0 is v for every v, and -0 + 0 would be +0.
    dx.store(row, i, C, dy ? load_quad(dy + row * C, i, C) : Quad{{-0.0f, -0.0f, -0.0f, -0.0f}});
}

// ---- launchers

namespace residual {
inline void require_join(const char* op, const Join& join) {
  for (float bound : {join.clip_branch, join.clip_sum})
    require(bound > 0, "%s: a clip of %g, expected more than 0", op, double(bound));
  const Dropout& dropout = join.dropout;
  require(dropout.p >= 0 && dropout.p < 1, "%s: dropout is %g, expected 0 <= p < 1", op, double(dropout.p));
  require(dropout.p == 0 || dropout.stream, "%s: dropout draws from nowhere", op);
}
}  // namespace residual

void require_residual(const char* op, ConstReals sum, const ResidualIn& in, size_t C) {
  require(C > 0, "%s: rows have no columns", op);
  require(!in.branch == !sum, "%s: a residual branch and its sum come together", op);
  residual::require_join(op, in.join);
}

void require_residual_backward(const char* op, ConstReals dbranch, const ResidualBackwardIn& in, size_t C) {
  require(C > 0, "%s: rows have no columns", op);
  require(in.branch || !dbranch, "%s: dbranch without a branch", op);
  require(dbranch || !in.branch || in.join.plain(), "%s: with clip or dropout a branch has a gradient of its own", op);
  residual::require_join(op, in.join);
}

void residual_forward(Reals sum, const ResidualIn& in, size_t N, size_t C, Context& ctx) {
  require_residual("residual_forward", sum, in, C);
  require(in.branch != nullptr, "residual_forward: there is no branch to join");
  with_storage(sum, [&](auto stored) {
    using S = decltype(stored);
    if (ctx.device == Device::cpu) return residual_forward_cpu(sum.as<S>(), in.as<S>(), N, C);
    if (in.x && in.join.plain())
      launch(residual_forward_kernel<S>, elementwise_grid(N * C), elementwise_block, 0, ctx, sum.as<S>(), in.x.as<S>(),
             in.branch.as<S>(), N * C);
    else
      launch(residual_join_kernel<S>, rows_grid(N), rows_block, 0, ctx, JoinedRows<S>{sum.as<S>(), in.as<S>()}, N, C);
  });
}

void residual_backward(Reals dx, Reals dbranch, ConstReals dy, const ResidualBackwardIn& in, size_t N, size_t C,
                       Context& ctx) {
  require_residual_backward("residual_backward", dbranch, in, C);
  require(dy || in.dresidual, "residual_backward: neither dy nor dresidual");
  require(in.x || !in.branch || in.join.clip_sum == INFINITY, "residual_backward: a clipped sum is read again");
  with_storage(dx, [&](auto stored) {
    using S = decltype(stored);
    const auto typed = in.as<S>();
    if (ctx.device == Device::cpu) return residual_backward_cpu(dx.as<S>(), dbranch.as<S>(), dy.as<S>(), typed, N, C);
    launch(residual_backward_kernel<S>, rows_grid(N), rows_block, 0, ctx,
           JoinedGradient<S>{dx.as<S>(), dbranch.as<S>(), typed}, dy.as<S>(), N, C);
  });
}

}  // namespace gated
