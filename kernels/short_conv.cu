// short_conv: y = SiLU(p), p_tc = sum over j of w_cj x_(t-W+1+j)c: every channel c, by itself, mixes the last W tokens
//   A linear attention knows little of the order of tokens that stand side by side. A convolution over W = 4 of them in
//   front of q, k and v gives it that, at W multiply-adds a channel.        (in Mamba: Gu & Dao 2023, arXiv 2312.00752)
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
// shapes: x, y, dx, dy (B,T,C), states (B,W-1,C) f32 or bf16; w, dw (C,W) f32 | y, final, dx, dinitial are written,
//   dw accumulated
// SiLU and its slope: core/nonlinear.cuh
// twins: kernels/cpu/short_conv_cpu.cpp
// --conv-width | tests/test_short_conv.cpp
#include "kernels/short_conv.h"

#include "core/launch_shape.cuh"
#include "core/nonlinear.cuh"
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

// ---- kernels for any number of taps
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

// ---- kernels for four taps, the default
//
// A thread owns one channel of a strip of neighbouring tokens and walks along them. The weights and the four inputs
// that the taps see stay in its registers, so an input is read once. The loop takes four tokens a turn: what they read
// is asked for together, and a window that moves by one is no more than other names for the same registers.
//
//                      X_t   X_t+1  X_t+2  X_t+3  X_t+4  X_t+5
//     token t          v[0]  v[1]   v[2]   v[3]
//     token t+1              v[0]   v[1]   v[2]   v[3]            after push(X_t+4)
//     token t+2                     v[0]   v[1]   v[2]   v[3]
//
// The backward has one kernel where any number of taps takes three. Its strips are the slices of dw's column sum, 128
// tokens of all sequences in a row, and dw's four chains are registers too. dX_e wants the dp of tokens e-3 to e: those
// are a second window. So the walk goes on for three tokens past its own, which the next thread has as well, and dp is
// never stored. The bus: x and dy are read, dx is written, where three steps moved dp three times as well.

constexpr size_t conv_strip = 32;
constexpr unsigned conv_turn = 4;

namespace short_conv {

// What the taps of a token see, the oldest first.
struct Window {
  float v[4];
  __device__ void push(float next) { v[0] = v[1], v[1] = v[2], v[2] = v[3], v[3] = next; }
};

__device__ inline float convolve(const Quad& w, const Window& x) {
  float p = 0;
  for (int j = 0; j < 4; j++) p = fused(w.v[j], x.v[j], p);
  return p;
}

// The window of the token before t, but for its oldest input, which leaves with the first push.
template <class S>
__device__ Window window_before(const Inputs<S>& X, size_t b, size_t t, size_t c) {
  return {{0, X(b, t, c), X(b, t + 1, c), X(b, t + 2, c)}};
}

}  // namespace short_conv

template <class S>
__global__ void __launch_bounds__(column_block)
    short_conv4_forward_kernel(S* y, short_conv::Inputs<S> X, const float* w) {
  const size_t T = X.s.T, C = X.s.C, blocks = ceil_div(C, column_block), strips = ceil_div(T, conv_strip);
  const size_t strip = blockIdx.x / blocks, c = blockIdx.x % blocks * column_block + threadIdx.x;
  if (c >= C) return;
  const size_t b = strip / strips, t0 = strip % strips * conv_strip, t1 = t0 + conv_strip < T ? t0 + conv_strip : T;
  const Quad weights = load_four(w + 4 * c);
  short_conv::Window window = short_conv::window_before(X, b, t0, c);
  const S* x = X.x + (b * T + t0) * C + c;
  y += (b * T + t0) * C + c;
  const auto turn = [&](auto whole, unsigned left) {
    float next[conv_turn];
    for (unsigned i = 0; i < conv_turn; i++) next[i] = whole || i < left ? float(x[i * C]) : 0.0f;
    for (unsigned i = 0; i < conv_turn; i++) {
      window.push(next[i]);
      if (whole || i < left) y[i * C] = S(silu(short_conv::convolve(weights, window)));
    }
    x += conv_turn * C, y += conv_turn * C;
  };
  for (size_t t = t0; t < t1; t += conv_turn)
    if (t + conv_turn <= t1)
      turn(std::true_type(), 0);
    else
      turn(std::false_type(), unsigned(t1 - t));
}

// level (slices,C,4): dw's sums of each slice.
template <class S>
__global__ void __launch_bounds__(column_block)
    short_conv4_backward_kernel(S* dx, float* level, S* dinitial, const S* dy, const S* dfinal, short_conv::Inputs<S> X,
                                const float* w) {
  const size_t T = X.s.T, C = X.s.C, rows = X.s.B * T, blocks = ceil_div(C, column_block);
  const size_t slice = blockIdx.x / blocks, c = blockIdx.x % blocks * column_block + threadIdx.x;
  if (c >= C) return;
  const size_t n1 = (slice + 1) * column_slice < rows ? (slice + 1) * column_slice : rows;
  const Quad weights = load_four(w + 4 * c);
  Quad dw = {};
  for (size_t n = slice * column_slice, t0, t1; n < n1; n += t1 - t0) {  // the part of each sequence: its t0 to t1-1
    const size_t b = n / T;
    t0 = n % T;
    t1 = t0 + (n1 - n) < T ? t0 + (n1 - n) : T;
    short_conv::Window window = short_conv::window_before(X, b, t0, c), dp = {};
    const S *x = X.x + n * C + c, *d = dy + n * C + c;
    S* out = dx + n * C + c;  // of the token that is three before
    // inside: all of the turn's tokens are this thread's, and so is every dX_e.
    const auto turn = [&](auto inside, size_t e0) {
      float next[conv_turn], slope[conv_turn];
      for (size_t i = 0; i < conv_turn; i++) {
        const bool there = inside || e0 + i < T;
        next[i] = there ? float(x[i * C]) : 0.0f;
        slope[i] = there ? float(d[i * C]) : 0.0f;
      }
      for (size_t i = 0; i < conv_turn; i++) {
        const size_t e = e0 + i;
        window.push(next[i]);
        dp.push(slope[i] * silu_slope(short_conv::convolve(weights, window)));
        if (inside || e < t1)
          for (int j = 0; j < 4; j++) dw.v[j] = fused(dp.v[3], window.v[j], dw.v[j]);
        if (!inside && (e >= t1 + 3 || (t0 > 0 && e < t0 + 3))) continue;  // dX_e is another thread's
        float sum = !inside && e >= T && dfinal ? float(dfinal[(b * 3 + e - T) * C + c]) : 0.0f;
        for (size_t j = 0; j < 4; j++)  // (e - j wraps where the tap lies before token 0)
          if (inside || e - j < T) sum = fused(weights.v[j], dp.v[3 - j], sum);
        if (inside || e >= 3)
          *(out + i * C - 3 * C) = S(sum);
        else if (dinitial)
          dinitial[(b * 3 + e) * C + c] = S(sum);
      }
      x += conv_turn * C, d += conv_turn * C, out += conv_turn * C;
    };
    for (size_t e = t0; e < t1 + 3; e += conv_turn)
      if (e > t0 && e + conv_turn <= t1)
        turn(std::true_type(), e);
      else
        turn(std::false_type(), e);
  }
  store_four(level + (slice * C + c) * 4, dw);
}

// ---- launchers

// Kernels of four taps load them at once.
static void require_taps(const char* operation, const float* w, const ShortConvShape& s) {
  require(s.W > 0 && s.T > 0, "%s: %zu taps over %zu tokens, expected at least 1 of each", operation, s.W, s.T);
  require(s.W != 4 || reinterpret_cast<uintptr_t>(w) % 16 == 0, "%s: w at %p, expected on a boundary of 16 bytes",
          operation, static_cast<const void*>(w));
}

void short_conv_forward(Reals y, Reals final, ConstReals x, const float* w, ConstReals initial, const ShortConvShape& s,
                        Context& ctx) {
  require_taps("short_conv_forward", w, s);
  require(!(y == x), "short_conv_forward: y is x, which later tokens still need");
  with_storage(y, [&](auto stored) {
    using S = decltype(stored);
    if (ctx.device == Device::cpu)
      return short_conv_forward_cpu(y.as<S>(), final.as<S>(), x.as<S>(), w, initial.as<S>(), s, ctx);
    const short_conv::Inputs<S> X{x.as<S>(), initial.as<S>(), s};
    if (s.W == 4)
      launch(short_conv4_forward_kernel<S>, grid_of(s.B * ceil_div(s.T, conv_strip) * ceil_div(s.C, column_block)),
             column_block, 0, ctx, y.as<S>(), X, w);
    else
      launch(short_conv_forward_kernel<S>, grid_of(ceil_div(s.B * s.T * s.C, elementwise_block)), elementwise_block, 0,
             ctx, y.as<S>(), X, w);
    if (final)
      launch(short_conv_final_kernel<S>, grid_of(ceil_div(s.B * s.C, elementwise_block)), elementwise_block, 0, ctx,
             final.as<S>(), X);
  });
}

void short_conv_backward(Reals dx, float* dw, Reals dinitial, ConstReals dy, ConstReals dfinal, ConstReals x,
                         const float* w, ConstReals initial, const ShortConvShape& s, Context& ctx) {
  require_taps("short_conv_backward", w, s);
  const auto is_read = [&](ConstReals out) { return out && (out == dy || out == x || out == dfinal); };
  require(!is_read(dx) && !is_read(dinitial),
          "short_conv_backward: dx or dinitial is dy, x or dfinal, which other tokens still need");
  with_storage(dx, [&](auto stored) {
    using S = decltype(stored);
    if (ctx.device == Device::cpu)
      return short_conv_backward_cpu(dx.as<S>(), dw, dinitial.as<S>(), dy.as<S>(), dfinal.as<S>(), x.as<S>(), w,
                                     initial.as<S>(), s, ctx);
    const short_conv::Inputs<S> X{x.as<S>(), initial.as<S>(), s};
    if (s.W == 4) {
      const size_t slices = ceil_div(s.B * s.T, column_slice);
      float* const level = ctx.scratch(short_conv_backward_scratch(s, ctx.device) / sizeof(float));
      launch(short_conv4_backward_kernel<S>, grid_of(slices * ceil_div(s.C, column_block)), column_block, 0, ctx,
             dx.as<S>(), level, dinitial.as<S>(), dy.as<S>(), dfinal.as<S>(), X, w);
      return column_add_slices(std::array{dw}, level, slices, s.C * 4, ctx);
    }
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
  return (s.W == 4 ? 0 : s.B * s.T * s.C * sizeof(float)) + column_reduce_scratch(s.B * s.T, s.C * s.W);
}

}  // namespace gated
