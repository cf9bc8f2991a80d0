// rope: rotary position embedding                                     (Su et al. 2021, arXiv 2104.09864)
//   Elements i and i + R/2 of a head are a point in the plane; at position t it turns by t * theta^(-2i/R):
//     y1 = x1*cos - x2*sin      exactly fmaf(x1, cos, -(x2*sin))
//     y2 = x2*cos + x1*sin      exactly fmaf(x2, cos, x1*sin)
//   The two halves of R elements pair up, as in Qwen3, not their even and odd ones. <q,k> then depends on the
//   distance of their positions only. R is D, or less: the other elements of a head, y = x, know no position.
// backward: a rotation's transpose is its inverse: the same with -sin
// shapes: x, y, dx, dy (B,T,H,D) f32; tables cos, sin (rows, R/2), R even | y, dx written
//   y may be x, dx may be dy
// --rope-theta, --rope-fraction | tests/test_rope.cpp
#pragma once
#include "core/context.cuh"
#include "core/host_math.h"
#include "core/math.cuh"
#include "core/reduce.cuh"

namespace gated {

// cos and sin of every position below `rows`, for the first R = 2*half elements of a head.
struct RopeTables {
  Buffer<float> cos, sin;  // (rows, half)
  size_t rows = 0, half = 0;
};

// In double with this project's own functions, rounded to float once: the same bits on every machine.
inline RopeTables make_rope_tables(size_t rows, size_t R, double theta, Device device) {
  require(R > 0 && R % 2 == 0, "rope: %zu elements of a head turn, expected an even number", R);
  require(theta > 0, "rope: theta is %g, expected more than 0", theta);
  const size_t half = R / 2;
  std::vector<float> cos(rows * half), sin(rows * half);
#pragma omp parallel for
  for (size_t i = 0; i < half; i++) {
    const double frequency = host_pow(theta, -2.0 * double(i) / double(R));
    for (size_t t = 0; t < rows; t++) {
      cos[t * half + i] = float(host_cos(double(t) * frequency));
      sin[t * half + i] = float(host_sin(double(t) * frequency));
    }
  }
  return {Buffer<float>(device, cos), Buffer<float>(device, sin), rows, half};
}

// ---- reference

// cos and sin begin at the row of the first token.
template <bool inverse, class Real>
void rope_ref(Real* y, const Real* x, const Real* cos, const Real* sin, size_t B, size_t T, size_t H, size_t D,
              size_t R) {
  const size_t half = R / 2;
#pragma omp parallel for
  for (size_t token = 0; token < B * T; token++) {
    const Real *c = cos + token % T * half, *s = sin + token % T * half;
    for (size_t head = token * H; head < (token + 1) * H; head++) {
      const Real* xh = x + head * D;
      Real* yh = y + head * D;
#pragma omp simd
      for (size_t i = 0; i < half; i++) {
        const Real x1 = xh[i], x2 = xh[half + i], turn = inverse ? -s[i] : s[i];
        yh[i] = fused(x1, c[i], -(x2 * turn));
        yh[half + i] = fused(x2, c[i], x1 * turn);
      }
      if (y != x)
        for (size_t d = R; d < D; d++) yh[d] = xh[d];
    }
  }
}

// ---- kernel

constexpr unsigned rope_block = 256;

// A thread turns four neighbouring pairs of one head, or is one of `copies` a head that copy four elements
// which do not turn. All heads of a token read the same row of the tables.
template <bool inverse, bool aligned>
__global__ void __launch_bounds__(rope_block)
    rope_kernel(float* y, const float* x, const float* cos, const float* sin, size_t heads, size_t T, size_t H,
                size_t D, size_t half, size_t copies) {
  const size_t turns = (half + 3) / 4, quads = turns + copies;
  const size_t n = threadIdx.x + size_t(blockDim.x) * blockIdx.x, head = n / quads, quad = n % quads;
  if (head >= heads) return;
  x += head * D, y += head * D;
  if (quad >= turns) {
    const size_t d = 2 * half + 4 * (quad - turns);
    return store_quad<aligned>(y, d, D, load_quad<aligned>(x, d, D));
  }
  const size_t i = 4 * quad, t = head / H % T;
  const Quad c = load_quad<aligned>(cos + t * half, i, half), s = load_quad<aligned>(sin + t * half, i, half);
  Quad first = load_quad<aligned>(x, i, half), second = load_quad<aligned>(x + half, i, half);
  for (int k = 0; k < 4; k++) {
    const float x1 = first.v[k], x2 = second.v[k], turn = inverse ? -s.v[k] : s.v[k];
    first.v[k] = fused(x1, c.v[k], -(x2 * turn));
    second.v[k] = fused(x2, c.v[k], x1 * turn);
  }
  store_quad<aligned>(y, i, half, first);
  store_quad<aligned>(y + half, i, half, second);
}

// ---- launchers

// Turns the tokens at first_position .. first_position + T - 1 of each sequence.
template <bool inverse>
void rope(float* y, const float* x, const RopeTables& tables, size_t first_position, size_t B, size_t T, size_t H,
          size_t D, Context& ctx) {
  const size_t half = tables.half;
  require(D >= 2 * half, "rope: heads have %zu elements, the tables turn %zu", D, 2 * half);
  require(first_position + T <= tables.rows, "rope: positions %zu to %zu, the tables end before %zu; make longer ones",
          first_position, first_position + T, tables.rows);
  const float *cos = tables.cos.data() + first_position * half, *sin = tables.sin.data() + first_position * half;
  if (ctx.device == Device::cpu) return rope_ref<inverse>(y, x, cos, sin, B, T, H, D, 2 * half);
  const bool aligned = half % 4 == 0 && D % 4 == 0;
  const size_t heads = B * T * H, copies = y == x ? 0 : ceil_div(D - 2 * half, 4);
  launch(aligned ? rope_kernel<inverse, true> : rope_kernel<inverse, false>,
         grid_of(ceil_div(heads * (ceil_div(half, 4) + copies), rope_block)), rope_block, 0, ctx, y, x, cos, sin, heads,
         T, H, D, half, copies);
}

inline void rope_forward(float* y, const float* x, const RopeTables& tables, size_t first_position, size_t B, size_t T,
                         size_t H, size_t D, Context& ctx) {
  rope<false>(y, x, tables, first_position, B, T, H, D, ctx);
}

inline void rope_backward(float* dx, const float* dy, const RopeTables& tables, size_t first_position, size_t B,
                          size_t T, size_t H, size_t D, Context& ctx) {
  rope<true>(dx, dy, tables, first_position, B, T, H, D, ctx);
}

}  // namespace gated
