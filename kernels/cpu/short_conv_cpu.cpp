// short_conv on CPU cores: kernels/short_conv.cu, in one pass over memory in each direction, with the bits of its
// references.
//
// Channels do not meet, so loops run over neighbouring channels in vectors, tap after tap: every chain has its links in
// the order of the references. A task of the backward has the 128 tokens of one slice of dw's column sum, and 256
// channels. It makes dp of these tokens and of the W-1 after them, which dx wants, and keeps it in a core's cache.
// Weights are transposed first, into rows of channels (W,C).
// tests/test_short_conv.cpp
#include <omp.h>

#include <algorithm>

#include "core/nonlinear.cuh"
#include "core/reduce.cuh"
#include "kernels/short_conv.h"

namespace gated {
namespace {

constexpr size_t piece = 256;  // channels

template <class S>
constexpr S zeros[piece] = {};

// Up to `piece` channels from c0 on of row e of the inputs, those of the initial state in front.
template <class S>
struct InputRows {
  const S *x, *initial;
  const ShortConvShape& s;
  const S* operator()(size_t b, size_t e, size_t c0) const {
    if (e >= s.W - 1) return x + (b * s.T + e - (s.W - 1)) * s.C + c0;
    return initial ? initial + (b * (s.W - 1) + e) * s.C + c0 : zeros<S>;
  }
};

void transpose_weights(float* rows, const float* w, const ShortConvShape& s) {
#pragma omp parallel for if (worth_waking(s.W * s.C))
  for (size_t c = 0; c < s.C; c++)
    for (size_t j = 0; j < s.W; j++) rows[j * s.C + c] = w[c * s.W + j];
}

template <class S>
void add_product(float* sum, const float* a, const S* b, size_t n) {
#pragma omp simd
  for (size_t c = 0; c < n; c++) sum[c] = fused(a[c], float(b[c]), sum[c]);
}

// p of one token.
template <class S>
void convolve(float* p, const float* rows, const InputRows<S>& X, size_t b, size_t t, size_t c0, size_t n) {
  const ShortConvShape& s = X.s;
  if (s.W == 4 && t >= 3) {  // the usual case, with sums in registers
    const float* w = rows + c0;
    const S* x = X(b, t, c0);
#pragma omp simd
    for (size_t c = 0; c < n; c++) {
      float sum = fused(w[c], float(x[c]), 0.0f);
      sum = fused(w[s.C + c], float(x[s.C + c]), sum);
      sum = fused(w[2 * s.C + c], float(x[2 * s.C + c]), sum);
      p[c] = fused(w[3 * s.C + c], float(x[3 * s.C + c]), sum);
    }
    return;
  }
  std::fill_n(p, n, 0.0f);
  for (size_t j = 0; j < s.W; j++) add_product(p, rows + j * s.C + c0, X(b, t + j, c0), n);
}

}  // namespace

size_t short_conv_forward_cpu_scratch(const ShortConvShape& s) {
  return s.W * s.C * sizeof(float);
}

template <class S>
void short_conv_forward_cpu(S* y, S* final, const S* x, const float* w, const S* initial, const ShortConvShape& s,
                            Context& ctx) {
  float* const rows = ctx.scratch(short_conv_forward_cpu_scratch(s) / sizeof(float));
  transpose_weights(rows, w, s);
  const InputRows<S> X{x, initial, s};
#pragma omp parallel for if (worth_waking(s.B * s.T * s.C * s.W))
  for (size_t n = 0; n < s.B * s.T; n++)
    for (size_t c0 = 0; c0 < s.C; c0 += piece) {
      const size_t count = std::min(piece, s.C - c0);
      float p[piece];
      S* const out = y + n * s.C + c0;
      convolve(p, rows, X, n / s.T, n % s.T, c0, count);
#pragma omp simd
      for (size_t c = 0; c < count; c++) store(out[c], silu(p[c]));
    }
  for (size_t b = 0; final && b < s.B; b++)
    for (size_t r = 0; r < s.W - 1; r++)  // ascending: final may be initial
      for (size_t c0 = 0; c0 < s.C; c0 += piece)
        std::copy_n(X(b, s.T + r, c0), std::min(piece, s.C - c0), final + (b * (s.W - 1) + r) * s.C + c0);
}
IN_FLOAT_AND_BF16(short_conv_forward_cpu);

size_t short_conv_backward_cpu_scratch(const ShortConvShape& s) {
  const size_t slices = ceil_div(s.B * s.T, column_slice);
  return (s.W * s.C + slices * s.C * s.W + (column_slice + s.W) * piece * omp_get_max_threads()) * sizeof(float);
}

template <class S>
void short_conv_backward_cpu(S* dx, float* dw, S* dinitial, const S* dy, const S* dfinal, const S* x, const float* w,
                             const S* initial, const ShortConvShape& s, Context& ctx) {
  const size_t tokens = s.B * s.T, slices = ceil_div(tokens, column_slice), pieces = ceil_div(s.C, piece);
  float* const rows = ctx.scratch(short_conv_backward_cpu_scratch(s) / sizeof(float));
  float *const level = rows + s.W * s.C, *const dps = level + slices * s.C * s.W;
  transpose_weights(rows, w, s);
  const InputRows<S> X{x, initial, s};

#pragma omp parallel for schedule(dynamic)
  for (size_t task = 0; task < slices * pieces; task++) {
    const size_t n0 = task / pieces * column_slice, n1 = std::min(n0 + column_slice, tokens);
    const size_t c0 = task % pieces * piece, count = std::min(piece, s.C - c0);
    float* const dp = dps + (column_slice + s.W) * piece * omp_get_thread_num();
    float* const sum = dp + (column_slice + s.W - 1) * piece;
    for (size_t n = n0; n < std::min(n1 + s.W - 1, tokens); n++) {
      float p[piece], *to = dp + (n - n0) * piece;
      const S* d = dy + n * s.C + c0;
      convolve(p, rows, X, n / s.T, n % s.T, c0, count);
#pragma omp simd
      for (size_t c = 0; c < count; c++) to[c] = float(d[c]) * silu_slope(p[c]);
    }

    for (size_t j = 0; j < s.W; j++) {
      std::fill_n(sum, count, 0.0f);
      for (size_t n = n0; n < n1; n++) add_product(sum, dp + (n - n0) * piece, X(n / s.T, n % s.T + j, c0), count);
      for (size_t c = 0; c < count; c++) level[(n0 / column_slice * s.C + c0 + c) * s.W + j] = sum[c];
    }

    // Row e of X: what comes through the final state, then its tokens, the latest first.
    const auto input_gradient = [&](S* to, size_t b, size_t e) {
      if (e >= s.T && dfinal)
        std::copy_n(dfinal + (b * (s.W - 1) + e - s.T) * s.C + c0, count, sum);
      else
        std::fill_n(sum, count, 0.0f);
      for (size_t j = 0; j < s.W && j <= e; j++)
        if (e - j < s.T) add_product(sum, rows + j * s.C + c0, dp + (b * s.T + e - j - n0) * piece, count);
#pragma omp simd
      for (size_t c = 0; c < count; c++) store(to[c], sum[c]);
    };
    for (size_t n = n0; n < n1; n++) {
      const size_t b = n / s.T, t = n % s.T;
      input_gradient(dx + n * s.C + c0, b, t + s.W - 1);
      for (size_t e = 0; t == 0 && dinitial && e < s.W - 1; e++)
        input_gradient(dinitial + (b * (s.W - 1) + e) * s.C + c0, b, e);
    }
  }
  if (tokens > 0) column_add_slices_cpu(std::array{dw}, level, slices, s.C * s.W);
}
IN_FLOAT_AND_BF16(short_conv_backward_cpu);

}  // namespace gated
