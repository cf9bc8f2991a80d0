// short_conv: y = SiLU(p), p_tc = sum over j of w_cj x_(t-W+1+j)c: every channel c, by itself, mixes the last W tokens
//   A linear attention knows little of the order of tokens that stand side by side. A convolution over W = 4 of them in
//   front
//   of q, k and v gives it that, at W multiply-adds a channel.              (in Mamba: Gu & Dao 2023, arXiv 2312.00752)
//   It is causal: tap W-1 is the token itself, tap 0 the one W-1 before. In front of a sequence stand the W-1 inputs of
//   its initial state, so write the inputs as one row of rows, e = 0 .. T+W-2:
//     X = initial, then x            p_t = sum over j of w_j X_(t+j)            final = the last W-1 rows of X
// backward: dp = dy * SiLU'(p), and p is made again. X_e reaches the loss through the tokens t = e-j that it is a tap
//   of, and through the final state, where it is one of its rows:
//     dX_e  = sum over j of w_j dp_(e-j)    (0 <= e-j < T)    plus dfinal_(e-T) where e >= T
//     dw_cj = sum over the tokens of all sequences of dp_tc X_(t+j)c
//   dx and dinitial are the rows of dX.
// order: fused(a,b,c) is a*b + c, rounded once. p is one chain over j from +0. dX_e is one chain over j too, so the
//   latest token comes first, and it begins with dfinal, or +0. That makes a sequence that is cut anywhere, with the
//   state carried on and its gradient back, have the bits of the whole. dw is a column sum over all B*T tokens
//   (core/reduce.cuh), of fused(dp, X, chain). dp = dy * slope.
// shapes: x, y, dx, dy (B,T,C), states (B,W-1,C) f32 or bf16; w, dw (C,W) f32 | y, final, dx, dinitial are
//   written, dw accumulated
// SiLU and its slope: core/nonlinear.cuh
// twins: kernels/cpu/short_conv_cpu.cpp
// --conv-width | tests/test_short_conv.cpp
#include "kernels/short_conv.h"

#include "core/nonlinear.cuh"
#include "core/launch_shape.cuh"
#include "core/reduce.cuh"

namespace gated {

// ---- reference

namespace short_conv {

// X: where the inputs of all taps are found.
template <class S>
struct Inputs {
  using Real = Wide<S>;
  const S *x, *initial;
  ShortConvShape s;
  HD Real operator()(size_t b, size_t e, size_t c) const {
    if (e >= s.W - 1) return Real(x[(b * s.T + e - (s.W - 1)) * s.C + c]);
    return initial ? Real(initial[(b * (s.W - 1) + e) * s.C + c]) : Real(0);
  }
  HD Real p(const Real* w, size_t b, size_t t, size_t c) const {
    Real sum = 0;
    for (size_t j = 0; j < s.W; j++) sum = fused(w[c * s.W + j], (*this)(b, t + j, c), sum);
    return sum;
  }
};

// dX_e of one channel; dp (B,T,C).
template <class Real, class S>
HD Real input_gradient(const Real* dp, const S* dfinal, const Real* w, const ShortConvShape& s, size_t b, size_t e,
                       size_t c) {
  Real sum = e >= s.T && dfinal ? Real(dfinal[(b * (s.W - 1) + e - s.T) * s.C + c]) : Real(0);
  for (size_t j = 0; j < s.W && j <= e; j++)
    if (e - j < s.T) sum = fused(w[c * s.W + j], dp[(b * s.T + e - j) * s.C + c], sum);
  return sum;
}

}  // namespace short_conv

template <class Real>
void short_conv_forward_ref(Real* y, Real* final, const Real* x, const Real* w, const Real* initial,
                            const ShortConvShape& s) {
  const short_conv::Inputs<Real> X{x, initial, s};
  for (size_t b = 0; b < s.B; b++)
    for (size_t c = 0; c < s.C; c++) {
      for (size_t t = 0; t < s.T; t++) y[(b * s.T + t) * s.C + c] = silu(X.p(w, b, t, c));
      for (size_t i = 0; final && i < s.W - 1; i++) final[(b * (s.W - 1) + i) * s.C + c] = X(b, s.T + i, c);
    }
}
IN_FLOAT_AND_DOUBLE(short_conv_forward_ref);

template <class Real>
void short_conv_backward_ref(Real* dx, Real* dw, Real* dinitial, const Real* dy, const Real* dfinal, const Real* x,
                             const Real* w, const Real* initial, const ShortConvShape& s) {
  const short_conv::Inputs<Real> X{x, initial, s};
  std::vector<Real> dp(s.B * s.T * s.C);
  for (size_t b = 0; b < s.B; b++)
    for (size_t t = 0; t < s.T; t++)
      for (size_t c = 0; c < s.C; c++) {
        const size_t i = (b * s.T + t) * s.C + c;
        dp[i] = dy[i] * silu_slope(X.p(w, b, t, c));
      }
  for (size_t c = 0; c < s.C; c++) {
    for (size_t j = 0; j < s.W; j++) {
      ColumnSum<Real> sum;
      for (size_t b = 0; b < s.B; b++)
        for (size_t t = 0; t < s.T; t++) sum.fma(dp[(b * s.T + t) * s.C + c], X(b, t + j, c));
      dw[c * s.W + j] = dw[c * s.W + j] + sum.total();
    }
    for (size_t b = 0; b < s.B; b++)
      for (size_t e = 0; e < s.T + s.W - 1; e++) {
        const Real d = short_conv::input_gradient(dp.data(), dfinal, w, s, b, e, c);
        if (e >= s.W - 1)
          dx[(b * s.T + e - (s.W - 1)) * s.C + c] = d;
        else if (dinitial)
          dinitial[(b * (s.W - 1) + e) * s.C + c] = d;
      }
  }
}
IN_FLOAT_AND_DOUBLE(short_conv_backward_ref);

// ---- kernels
//
// A thread owns one channel of one token. The threads of a warp have neighbouring channels, so each of the W rows that
// it reads is 128 neighbouring bytes, and W-1 of them are in the cache from the tokens before. The bus: forward 8 bytes
// an element (x, y).
// Backward takes three steps, as dX_e wants dp of W tokens and dw wants it of all: dp (dy, x; 12 bytes an element with
// its write), dX (8), and the column sums (8), whose columns are the C*W weights: W neighbours share a channel.
// States are done by threads of their own, one for a channel of a sequence, which walks over the W-1 rows.

template <class S>
__global__ void __launch_bounds__(elementwise_block)
    short_conv_forward_kernel(S* y, short_conv::Inputs<S> X, const float* w) {
  const size_t i = threadIdx.x + size_t(blockDim.x) * blockIdx.x, row = i / X.s.C;
  if (row >= X.s.B * X.s.T) return;
  y[i] = S(silu(X.p(w, row / X.s.T, row % X.s.T, i % X.s.C)));
}

// Rows ascend, and each is read from further on than it is written to: final may be initial.
template <class S>
__global__ void __launch_bounds__(elementwise_block) short_conv_final_kernel(S* final, short_conv::Inputs<S> X) {
  const size_t i = threadIdx.x + size_t(blockDim.x) * blockIdx.x, b = i / X.s.C, c = i % X.s.C, rows = X.s.W - 1;
  if (b >= X.s.B) return;
  for (size_t r = 0; r < rows; r++) final[(b * rows + r) * X.s.C + c] = S(X(b, X.s.T + r, c));
}

template <class S>
__global__ void __launch_bounds__(elementwise_block)
    short_conv_dp_kernel(float* dp, const S* dy, short_conv::Inputs<S> X, const float* w) {
  const size_t i = threadIdx.x + size_t(blockDim.x) * blockIdx.x, row = i / X.s.C;
  if (row >= X.s.B * X.s.T) return;
  dp[i] = float(dy[i]) * silu_slope(X.p(w, row / X.s.T, row % X.s.T, i % X.s.C));
}

template <class S>
__global__ void __launch_bounds__(elementwise_block)
    short_conv_dx_kernel(S* dx, const float* dp, const S* dfinal, const float* w, ShortConvShape s) {
  const size_t i = threadIdx.x + size_t(blockDim.x) * blockIdx.x, row = i / s.C;
  if (row >= s.B * s.T) return;
  dx[i] = S(short_conv::input_gradient(dp, dfinal, w, s, row / s.T, row % s.T + s.W - 1, i % s.C));
}

template <class S>
__global__ void __launch_bounds__(elementwise_block)
    short_conv_dinitial_kernel(S* dinitial, const float* dp, const S* dfinal, const float* w, ShortConvShape s) {
  const size_t i = threadIdx.x + size_t(blockDim.x) * blockIdx.x, b = i / s.C, c = i % s.C, rows = s.W - 1;
  if (b >= s.B) return;
  for (size_t e = 0; e < rows; e++)
    dinitial[(b * rows + e) * s.C + c] = S(short_conv::input_gradient(dp, dfinal, w, s, b, e, c));
}

template <class S>
struct ShortConvFoldDw {
  const float* dp;
  short_conv::Inputs<S> X;
  HD float operator()(float acc, size_t row, size_t column) const {
    const size_t c = column / X.s.W, j = column % X.s.W;
    return fused(dp[row * X.s.C + c], X(row / X.s.T, row % X.s.T + j, c), acc);
  }
};

// ---- launchers

void short_conv_forward(Reals y, Reals final, ConstReals x, const float* w, ConstReals initial, const ShortConvShape& s,
                        Context& ctx) {
  require(s.W > 0, "short_conv_forward: no taps");
  with_storage(y, [&](auto stored) {
    using S = decltype(stored);
    if (ctx.device == Device::cpu)
      return short_conv_forward_cpu(y.as<S>(), final.as<S>(), x.as<S>(), w, initial.as<S>(), s, ctx);
    const short_conv::Inputs<S> X{x.as<S>(), initial.as<S>(), s};
    launch(short_conv_forward_kernel<S>, grid_of(ceil_div(s.B * s.T * s.C, elementwise_block)), elementwise_block, 0,
           ctx, y.as<S>(), X, w);
    if (final)
      launch(short_conv_final_kernel<S>, grid_of(ceil_div(s.B * s.C, elementwise_block)), elementwise_block, 0, ctx,
             final.as<S>(), X);
  });
}

void short_conv_backward(Reals dx, float* dw, Reals dinitial, ConstReals dy, ConstReals dfinal, ConstReals x,
                         const float* w, ConstReals initial, const ShortConvShape& s, Context& ctx) {
  require(s.W > 0, "short_conv_backward: no taps");
  require(!(dx == dy), "short_conv_backward: dx is dy, which later tokens still need");
  with_storage(dx, [&](auto stored) {
    using S = decltype(stored);
    if (ctx.device == Device::cpu)
      return short_conv_backward_cpu(dx.as<S>(), dw, dinitial.as<S>(), dy.as<S>(), dfinal.as<S>(), x.as<S>(), w,
                                     initial.as<S>(), s, ctx);
    const short_conv::Inputs<S> X{x.as<S>(), initial.as<S>(), s};
    const size_t n = s.B * s.T * s.C;
    float* const dp = ctx.scratch(short_conv_backward_scratch(s, ctx.device) / sizeof(float));
    const dim3 elements = grid_of(ceil_div(n, elementwise_block));
    launch(short_conv_dp_kernel<S>, elements, elementwise_block, 0, ctx, dp, dy.as<S>(), X, w);
    column_reduce_add_in(dp + n, std::array{dw}, s.B * s.T, s.C * s.W, OneSum<ShortConvFoldDw<S>>{{dp, X}}, ctx);
    launch(short_conv_dx_kernel<S>, elements, elementwise_block, 0, ctx, dx.as<S>(), dp, dfinal.as<S>(), w, s);
    if (dinitial)
      launch(short_conv_dinitial_kernel<S>, grid_of(ceil_div(s.B * s.C, elementwise_block)), elementwise_block, 0, ctx,
             dinitial.as<S>(), dp, dfinal.as<S>(), w, s);
  });
}

size_t short_conv_forward_scratch(const ShortConvShape& s, Device device) {
  return device == Device::cpu ? short_conv_forward_cpu_scratch(s) : 0;
}

size_t short_conv_backward_scratch(const ShortConvShape& s, Device device) {
  if (device == Device::cpu) return short_conv_backward_cpu_scratch(s);
  return s.B * s.T * s.C * sizeof(float) + column_reduce_scratch(s.B * s.T, s.C * s.W);
}

}  // namespace gated
