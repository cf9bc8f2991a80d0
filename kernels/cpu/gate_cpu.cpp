// gate on the CPU. The reference (kernels/gate.cu) asks at every element which activation and which form the gate has,
// so its loops do not vectorise. Here a loop is compiled for each activation. It makes up to 256 logits into scores,
// before they meet x. Threads share the rows. Every element is computed by the same operations, and the sum over a
// group in the same order, so the bits are the same.
#include <algorithm>

#include "core/reduce.cuh"
#include "kernels/gate.h"

namespace gated {

// "simd" says that iterations do not meet, which the compiler cannot see when an array is rewritten in place.
template <Activation act, class S>
static void score_loop(float* s, const S* z, size_t n, float scale) {
#pragma omp simd
  for (size_t i = 0; i < n; i++) s[i] = scale * activation_value(act, float(z[i]));
}

template <Activation act, class S>
static void score_and_slope_loop(float* s, float* slope, const S* z, size_t n, float scale) {
#pragma omp simd
  for (size_t i = 0; i < n; i++) {
    const float zi = z[i], score = activation_value(act, zi), derivative = activation_slope(act, zi);
    s[i] = scale * score;
    slope[i] = scale * derivative;
  }
}

template <class S>
void gate_scores_cpu(float* s, const S* z, size_t n, const GateOp& op) {
  with_known_activation<any_gate>(op.act, [&](auto act) { score_loop<act>(s, z, n, op.scale); });
}
IN_FLOAT_AND_BF16(gate_scores_cpu);

template <class S>
void gate_scores_and_slopes_cpu(float* s, float* slope, const S* z, size_t n, const GateOp& op) {
  with_known_activation<any_gate>(op.act, [&](auto act) { score_and_slope_loop<act>(s, slope, z, n, op.scale); });
}
IN_FLOAT_AND_BF16(gate_scores_and_slopes_cpu);

// ---- a few hundred logits at a time, in groups of one element or of more

constexpr size_t most_logits = 256;

// As many logits as have about 16384 elements: enough to fill vectors, few enough to give every thread some.
static size_t logits_at_once(size_t group) {
  return std::clamp<size_t>(16384 / group, 1, most_logits);
}

template <bool additive, class S>
static void forward_groups(S* y, const S* x, const S* z, size_t groups, size_t group, const GateOp& op) {
  const size_t at_once = logits_at_once(group);
#pragma omp parallel for if (worth_waking(groups * group))
  for (size_t first = 0; first < groups; first += at_once) {
    const size_t count = std::min(at_once, groups - first);
    float scores[most_logits];
    gate_scores_cpu(scores, z + first, count, op);
    if (group == 1) {
#pragma omp simd
      for (size_t g = 0; g < count; g++) {
        const size_t i = first + g;
        store(y[i], additive ? x[i] + scores[g] : x[i] * scores[g]);
      }
      continue;
    }
    for (size_t g = 0; g < count; g++) {
      const S* xg = x + (first + g) * group;
      S* yg = y + (first + g) * group;
      const float s = scores[g];
#pragma omp simd
      for (size_t i = 0; i < group; i++) store(yg[i], additive ? xg[i] + s : xg[i] * s);
    }
  }
}

template <bool additive, class S>
static void backward_groups(S* dx, S* dz, const S* dy, const S* x, const S* z, size_t groups, size_t group,
                            const GateOp& op) {
  const size_t at_once = logits_at_once(group);
#pragma omp parallel for
  for (size_t first = 0; first < groups; first += at_once) {
    const size_t count = std::min(at_once, groups - first);
    float scores[most_logits], slopes[most_logits];
    gate_scores_and_slopes_cpu(scores, slopes, z + first, count, op);
    if (group == 1) {
#pragma omp simd
      for (size_t g = 0; g < count; g++) {
        const size_t i = first + g;
        const float dyi = dy[i], ds = additive ? dyi : dyi * x[i], to_x = additive ? dyi : dyi * scores[g];
        store(dx[i], to_x);
        store(dz[i], ds * slopes[g]);
      }
      continue;
    }
    for (size_t g = 0; g < count; g++) {
      const S *xg = x + (first + g) * group, *dyg = dy + (first + g) * group;
      const float s = scores[g];
      S* dxg = dx + (first + g) * group;
      const float ds = row_reduce_cpu<float>(
          group, [=](float acc, size_t i) { return fused(float(dyg[i]), additive ? 1.0f : float(xg[i]), acc); });
      dz[first + g] = S(ds * slopes[g]);
#pragma omp simd
      for (size_t i = 0; i < group; i++) store(dxg[i], additive ? float(dyg[i]) : dyg[i] * s);
    }
  }
}

// ----

template <class S>
void gate_forward_cpu(S* y, const S* x, const S* z, size_t N, size_t C, size_t group, const GateOp& op) {
  auto* forward = op.additive ? forward_groups<true, S> : forward_groups<false, S>;
  forward(y, x, z, N * C / group, group, op);
}
IN_FLOAT_AND_BF16(gate_forward_cpu);

template <class S>
void gate_backward_cpu(S* dx, S* dz, const S* dy, const S* x, const S* z, size_t N, size_t C, size_t group,
                       const GateOp& op) {
  auto* backward = op.additive ? backward_groups<true, S> : backward_groups<false, S>;
  backward(dx, dz, dy, x, z, N * C / group, group, op);
}
IN_FLOAT_AND_BF16(gate_backward_cpu);

}  // namespace gated
