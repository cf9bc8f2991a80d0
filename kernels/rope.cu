// rope: rotary position embedding                                     (Su et al. 2021, arXiv 2104.09864)
//   Attention alone does not know where a token stands. RoPE tells it by turning queries and keys: elements i and
//   i + R/2 of a head are a point in the plane, and at position t it turns by the angle a = t * theta^(-2i/R):
//     y1 = x1 cos a - x2 sin a
//     y2 = x2 cos a + x1 sin a
//   A dot product does not change when both vectors turn by the same angle. So <q,k> of a query at position t and
//   a key at position u depends on t - u only. Point i = 0 turns by one radian a token, the last one slowly: early
//   points tell near tokens apart, late ones far tokens.
//   The halves of R elements pair up, as in Qwen3, not the even elements with the odd ones. R is D or less: the
//   other elements of a head, y = x, know no position.
//
// backward: a point goes through a matrix, so its gradient goes through the transpose:
//     (y1)   (cos a  -sin a) (x1)        (dx1)   ( cos a  sin a) (dy1)
//     (y2) = (sin a   cos a) (x2)   =>   (dx2) = (-sin a  cos a) (dy2)
//   which is the rotation by -a: the gradient turns back.
//
// YaRN (Peng et al. 2023, arXiv 2309.00071) lets a model read s times the L tokens that it was trained with. A point
//   that has gone round many times within L tokens tells near tokens apart and keeps its frequency f_i = theta^(-2i/R).
//   One that has gone round less than once would come to angles that the model never saw: its frequency becomes f_i/s,
//   so s*L tokens take it no further than L did. The points between are blended, along a straight line in i. A point
//   goes round n times in L tokens where f_i*L = 2 pi n, so at
//     i(n) = R * log(L / (2 pi n)) / (2 log theta)
//     low = floor(i(32)), high = ceil(i(1)), neither outside 0 to R-1;  ramp_i = (i - low)/(high - low), in 0 to 1
//     f_i' = f_i * ((1 - ramp_i) + ramp_i/s)
//   Attention over more tokens is flatter. YaRN sharpens it again: cos and sin, of queries and of keys, are multiplied
//   by 0.1 log s + 1, so scores are multiplied by the square of that. gpt-oss takes low and high as they are,
//   unrounded.
//
// Two others scale frequencies alone. Linear (Chen et al. 2023, arXiv 2306.15595): f_i' = f_i/s for every point. Llama
//   3: as YaRN keeps and slows points, but blends along a straight line in the number of times n_i = f_i L / (2 pi)
//   that a point goes round, from 1 (slowed) to 4 (kept):
//     keep_i = (n_i - 1)/(4 - 1), in 0 to 1;  f_i' = f_i * (keep_i + (1 - keep_i)/s)
//
// order: of the two products in a sum, the one with sin is rounded, the one with cos goes into the fused
//   multiply-add. The tables are made on the host in double and rounded once, so they are the same on every machine.
// shapes: x, y, dx, dy (B,T,H,D) f32 or bf16; tables cos, sin (rows, R/2) f32, R even | y, dx are written; y may be x,
//   dx dy
// twins: kernels/cpu/rope_cpu.cpp
// --rope-theta, --rope-fraction, --rope-scaling, --window-rope-theta, --yarn | tests/test_rope.cpp
#include "kernels/rope.h"

#include <algorithm>
#include <cmath>

#include "core/host_math.h"
#include "core/launch.cuh"
#include "core/math.cuh"
#include "core/quad.cuh"

namespace gated {

// ---- reference: fused(a, b, c) is a*b + c, rounded once

template <class Real>
void rope_forward_ref(Real* y, const Real* x, const Real* cos, const Real* sin, size_t B, size_t T, size_t H, size_t D,
                      size_t R) {
  const size_t half = R / 2;
  for (size_t token = 0; token < B * T; token++)
    for (size_t h = 0; h < H; h++) {
      const Real *c = cos + token % T * half, *s = sin + token % T * half;
      const Real* x_h = x + (token * H + h) * D;
      Real* y_h = y + (token * H + h) * D;
      for (size_t i = 0; i < half; i++) {
        const Real x1 = x_h[i], x2 = x_h[half + i];
        y_h[i] = fused(x1, c[i], -(x2 * s[i]));
        y_h[half + i] = fused(x2, c[i], x1 * s[i]);
      }
      for (size_t d = R; d < D; d++) y_h[d] = x_h[d];
    }
}
IN_FLOAT_AND_DOUBLE(rope_forward_ref);

template <class Real>
void rope_backward_ref(Real* dx, const Real* dy, const Real* cos, const Real* sin, size_t B, size_t T, size_t H,
                       size_t D, size_t R) {
  const size_t half = R / 2;
  for (size_t token = 0; token < B * T; token++)
    for (size_t h = 0; h < H; h++) {
      const Real *c = cos + token % T * half, *s = sin + token % T * half;
      const Real* dy_h = dy + (token * H + h) * D;
      Real* dx_h = dx + (token * H + h) * D;
      for (size_t i = 0; i < half; i++) {
        const Real dy1 = dy_h[i], dy2 = dy_h[half + i];
        dx_h[i] = fused(dy1, c[i], dy2 * s[i]);
        dx_h[half + i] = fused(dy2, c[i], -(dy1 * s[i]));
      }
      for (size_t d = R; d < D; d++) dx_h[d] = dy_h[d];
    }
}
IN_FLOAT_AND_DOUBLE(rope_backward_ref);

// ---- the tables

double RopeScaling::factor() const {
  return kind == Kind::yarn ? 0.1 * host_log(scale) + 1 : 1;
}

std::vector<double> rope_frequencies(size_t R, double theta, const RopeScaling& scaling) {
  using Kind = RopeScaling::Kind;
  require(R > 0 && R % 2 == 0, "rope: %zu elements of a head turn, expected an even number", R);
  require(theta >= 1, "rope: theta is %g, expected 1 or more", theta);
  std::vector<double> frequencies(R / 2);
  for (size_t i = 0; i < R / 2; i++) frequencies[i] = host_pow(theta, -2.0 * double(i) / double(R));
  if (!scaling.on()) return frequencies;
  const double s = scaling.scale, L = double(scaling.trained), slow = scaling.slow, fast = scaling.fast;
  require(s >= 1, "rope: a scale of %g, expected 1 or more", s);
  constexpr double two_pi = 2 * 3.14159265358979323846;
  if (scaling.kind == Kind::linear)
    for (double& f : frequencies) f /= s;
  if (scaling.kind == Kind::llama3) {
    require(scaling.trained > 0 && slow < fast,
            "rope: points that go round %g to %g times in %zu tokens, expected a range", slow, fast, scaling.trained);
    for (double& f : frequencies) {
      const double keep = std::clamp((L * f / two_pi - slow) / (fast - slow), 0.0, 1.0);
      f *= keep + (1 - keep) / s;
    }
  }
  if (scaling.kind == Kind::yarn) {
    require(theta > 1 && scaling.trained > 0 && slow > 0 && slow < fast,
            "rope: YaRN stretches %zu tokens at a theta of %g, points that go round %g to %g times, expected more than "
            "0, 1 and a range above 0",
            scaling.trained, theta, slow, fast);
    const auto goes_round = [&](double times) {
      return double(R) * host_log(L / (two_pi * times)) / (2 * host_log(theta));
    };
    const bool whole = scaling.whole_points;
    const double first = goes_round(fast), last = goes_round(slow);
    const double low = std::max(whole ? std::floor(first) : first, 0.0);
    // (where both are the same point, a step between it and the next)
    const double high = std::max(std::min(whole ? std::ceil(last) : last, double(R - 1)), low + 0.001);
    for (size_t i = 0; i < R / 2; i++) {
      const double ramp = std::clamp((double(i) - low) / (high - low), 0.0, 1.0);
      frequencies[i] *= (1 - ramp) + ramp / s;
    }
  }
  return frequencies;
}

RopeTables make_rope_tables(size_t rows, size_t R, double theta, Device device, const RopeScaling& scaling) {
  const std::vector<double> frequencies = rope_frequencies(R, theta, scaling);
  const double factor = scaling.factor();
  const size_t half = R / 2;
  std::vector<float> cos(rows * half), sin(rows * half);
#pragma omp parallel for
  for (size_t i = 0; i < half; i++) {
    for (size_t t = 0; t < rows; t++) {
      const auto at = host_sin_cos(double(t) * frequencies[i]);
      cos[t * half + i] = float(factor * at.cos);
      sin[t * half + i] = float(factor * at.sin);
    }
  }
  return {Buffer<float>(device, cos), Buffer<float>(device, sin), rows, half};
}

// ---- kernel
//
// A thread owns four neighbouring points of one head, and so two quads of the row (kernels/activation.cu):
//
//   head   0 . . . i i+1 i+2 i+3 . . . R/2 . . . i+R/2 .. i+R/2+3 . . . R . . . d .. d+3 . . . D
//                  '-- first --'               '---- second ----'             '- copied -'
//
// It reads both before it writes either, and no other thread needs them: y may be x. A head has ceil(R/8) such threads
// and, where it is longer than R and y is not x, `copies` threads that carry four other elements over. Every element
// crosses the bus once in and once out; the H heads of a token read the same row of the tables, which stays in the
// cache.

constexpr unsigned rope_block = 256;

template <class S>
__global__ void __launch_bounds__(rope_block)
    rope_kernel(S* y, const S* x, const float* cos, const float* sin, size_t heads, size_t T, size_t H, size_t D,
                size_t half, size_t copies, bool inverse, bool aligned) {
  const size_t turns = ceil_div(half, 4), quads = turns + copies;
  const size_t n = threadIdx.x + size_t(blockDim.x) * blockIdx.x, head = n / quads, quad = n % quads;
  if (head >= heads) return;
  x += head * D;
  y += head * D;
  if (quad >= turns) {
    const size_t d = 2 * half + 4 * (quad - turns);
    store_quad_inside(y, d, D, load_quad_inside(x, d, D, aligned), aligned);
    return;
  }
  const size_t i = 4 * quad, t = head / H % T;
  const Quad c = load_quad_inside(cos + t * half, i, half, aligned);
  const Quad s = load_quad_inside(sin + t * half, i, half, aligned);
  Quad first = load_quad_inside(x, i, half, aligned), second = load_quad_inside(x + half, i, half, aligned);
  for (int k = 0; k < 4; k++) {
    const float x1 = first.v[k], x2 = second.v[k], turn = inverse ? -s.v[k] : s.v[k];
    first.v[k] = fused(x1, c.v[k], -(x2 * turn));
    second.v[k] = fused(x2, c.v[k], x1 * turn);
  }
  store_quad_inside(y, i, half, first, aligned);
  store_quad_inside(y + half, i, half, second, aligned);
}

// ---- launchers

static void rope(Reals y, ConstReals x, const RopeTables& tables, size_t first_position, bool inverse, size_t B,
                 size_t T, size_t H, size_t D, Context& ctx) {
  const size_t half = tables.half;
  require(D >= 2 * half, "rope: heads have %zu elements, the tables turn %zu", D, 2 * half);
  require(first_position + T <= tables.rows, "rope: positions %zu to %zu, the tables end before %zu; make longer ones",
          first_position, first_position + T, tables.rows);
  const float *cos = tables.cos.data() + first_position * half, *sin = tables.sin.data() + first_position * half;
  with_storage(y, [&](auto stored) {
    using S = decltype(stored);
    if (ctx.device == Device::cpu)
      return (inverse ? rope_backward_cpu<S> : rope_forward_cpu<S>)(y.as<S>(), x.as<S>(), cos, sin, B, T, H, D,
                                                                    2 * half);
    // Heads, their second halves and the rows of the tables all begin on a boundary of four elements.
    const bool aligned = half % 4 == 0 && D % 4 == 0;
    const size_t heads = B * T * H, copies = y == x ? 0 : ceil_div(D - 2 * half, 4);
    launch(rope_kernel<S>, grid_of(ceil_div(heads * (ceil_div(half, 4) + copies), rope_block)), rope_block, 0, ctx,
           y.as<S>(), x.as<S>(), cos, sin, heads, T, H, D, half, copies, inverse, aligned);
  });
}

void rope_forward(Reals y, ConstReals x, const RopeTables& tables, size_t first_position, size_t B, size_t T, size_t H,
                  size_t D, Context& ctx) {
  rope(y, x, tables, first_position, false, B, T, H, D, ctx);
}

void rope_backward(Reals dx, ConstReals dy, const RopeTables& tables, size_t first_position, size_t B, size_t T,
                   size_t H, size_t D, Context& ctx) {
  rope(dx, dy, tables, first_position, true, B, T, H, D, ctx);
}

}  // namespace gated
