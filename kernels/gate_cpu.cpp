// gate on the CPU. The reference (kernels/gate.cu) asks at every element which activation and which form the gate has, so its
// loops do not vectorise. Here a loop is compiled for each, with a thread for every part of the rows. Where a group shares a
// score, a few hundred logits become scores in one vectorised loop before they meet x. Every element is computed by the same
// operations, and the sum over a group in the same order, so the bits are the same.
#include <algorithm>

#include "core/reduce.cuh"
#include "kernels/gate.h"

namespace gated {

// "simd" says that iterations do not meet, which the compiler cannot see when an array is rewritten in place.
template <Activation act>
static void score_loop(float* s, const float* z, size_t n, float scale) {
#pragma omp simd
  for (size_t i = 0; i < n; i++) s[i] = scale * activation_value(act, z[i]);
}

template <Activation act>
static void score_and_slope_loop(float* s, float* slope, const float* z, size_t n, float scale) {
#pragma omp simd
  for (size_t i = 0; i < n; i++) {
    const float zi = z[i], score = activation_value(act, zi), derivative = activation_slope(act, zi);
    s[i] = scale * score;
    slope[i] = scale * derivative;
  }
}

void gate_scores_cpu(float* s, const float* z, size_t n, const GateOp& op) {
  with_known_activation(op.act, [&](auto act) { score_loop<act>(s, z, n, op.scale); });
}

void gate_scores_cpu(float* s, float* slope, const float* z, size_t n, const GateOp& op) {
  with_known_activation(op.act, [&](auto act) { score_and_slope_loop<act>(s, slope, z, n, op.scale); });
}

// ---- one logit an element

template <Activation act, bool additive>
static void forward_elementwise(float* y, const float* x, const float* z, size_t n, float scale) {
#pragma omp parallel for simd if (worth_waking(n))
  for (size_t i = 0; i < n; i++) {
    const float s = scale * activation_value(act, z[i]);
    y[i] = additive ? x[i] + s : x[i] * s;
  }
}

template <Activation act, bool additive>
static void backward_elementwise(float* dx, float* dz, const float* dy, const float* x, const float* z, size_t n,
                                 float scale) {
#pragma omp parallel for simd
  for (size_t i = 0; i < n; i++) {
    const float s = scale * activation_value(act, z[i]), slope = scale * activation_slope(act, z[i]);
    const float to_score = (additive ? dy[i] : dy[i] * x[i]) * slope, to_x = additive ? dy[i] : dy[i] * s;
    dx[i] = to_x;
    dz[i] = to_score;
  }
}

// ---- one logit a group

constexpr size_t most_logits = 256;

// As many logits as have about 16384 elements: enough to fill vectors, few enough to give every thread some.
static size_t logits_at_once(size_t group) {
  return std::clamp<size_t>(16384 / group, 1, most_logits);
}

template <bool additive>
static void forward_groups(float* y, const float* x, const float* z, size_t groups, size_t group, const GateOp& op) {
  const size_t at_once = logits_at_once(group);
#pragma omp parallel for if (worth_waking(groups * group))
  for (size_t first = 0; first < groups; first += at_once) {
    const size_t count = std::min(at_once, groups - first);
    float scores[most_logits];
    gate_scores_cpu(scores, z + first, count, op);
    for (size_t g = 0; g < count; g++) {
      const float *xg = x + (first + g) * group, s = scores[g];
      float* yg = y + (first + g) * group;
#pragma omp simd
      for (size_t i = 0; i < group; i++) yg[i] = additive ? xg[i] + s : xg[i] * s;
    }
  }
}

template <bool additive>
static void backward_groups(float* dx, float* dz, const float* dy, const float* x, const float* z, size_t groups,
                            size_t group, const GateOp& op) {
  const size_t at_once = logits_at_once(group);
#pragma omp parallel for
  for (size_t first = 0; first < groups; first += at_once) {
    const size_t count = std::min(at_once, groups - first);
    float scores[most_logits], slopes[most_logits];
    gate_scores_cpu(scores, slopes, z + first, count, op);
    for (size_t g = 0; g < count; g++) {
      const float *xg = x + (first + g) * group, *dyg = dy + (first + g) * group, s = scores[g];
      float* dxg = dx + (first + g) * group;
      const float ds = row_reduce_cpu<float>(
          group, [=](float acc, size_t i) { return fused(dyg[i], additive ? 1.0f : xg[i], acc); });
      dz[first + g] = ds * slopes[g];
#pragma omp simd
      for (size_t i = 0; i < group; i++) dxg[i] = additive ? dyg[i] : dyg[i] * s;
    }
  }
}

// ----

void gate_forward_cpu(float* y, const float* x, const float* z, size_t N, size_t C, size_t group, const GateOp& op) {
  const size_t n = N * C;
  if (group > 1) {
    auto* forward = op.additive ? forward_groups<true> : forward_groups<false>;
    return forward(y, x, z, n / group, group, op);
  }
  with_known_activation(op.act, [&](auto act) {
    auto* forward = op.additive ? forward_elementwise<act, true> : forward_elementwise<act, false>;
    forward(y, x, z, n, op.scale);
  });
}

void gate_backward_cpu(float* dx, float* dz, const float* dy, const float* x, const float* z, size_t N, size_t C,
                       size_t group, const GateOp& op) {
  const size_t n = N * C;
  if (group > 1) {
    auto* backward = op.additive ? backward_groups<true> : backward_groups<false>;
    return backward(dx, dz, dy, x, z, n / group, group, op);
  }
  with_known_activation(op.act, [&](auto act) {
    auto* backward = op.additive ? backward_elementwise<act, true> : backward_elementwise<act, false>;
    backward(dx, dz, dy, x, z, n, op.scale);
  });
}

}  // namespace gated
