// adamw: Adam with decoupled weight decay      (Loshchilov & Hutter 2017, arXiv 1711.05101, algorithm 2)
//   g' = scale*g, scale = norm > clip ? clip/norm : 1         (norm of the whole gradient, on the device)
//   m = beta1*m + (1-beta1)*g'      v = beta2*v + (1-beta2)*g'^2
//   w = w - lr*weight_decay*w - lr * (m/(1-beta1^t)) / (sqrt(v/(1-beta2^t)) + epsilon)
// exactly, with correction1 = 1/(1-beta1^t) and correction2 = 1/sqrt(1-beta2^t) rounded once from double:
//   m = fma(beta1, m, (1-beta1)*g')   v = fma(beta2, v, (1-beta2)*(g'*g'))
//   w = fma(-(lr*correction1), m / fma(sqrt(v), correction2, epsilon), fma(-(lr*weight_decay), w, w))
//   Pulling sqrt(1-beta2^t) out of the root leaves one division and one root an element.
// shapes: w, m, v, g (n) f32, m and v zero before the first step | w, m and v are updated in place
// A norm that is not finite leaves w, m and v as they are: one bad batch must not reach the weights before
// the training loop has seen it.
// --lr, --beta1, --beta2, --adam-eps, --weight-decay, --clip | tests/test_adamw.cpp
#pragma once
#include <cfloat>

#include "core/context.cuh"
#include "core/launch_shape.cuh"
#include "core/math.cuh"
#include "core/reduce.cuh"

namespace gated {

// The learning rate is that of the step, after warm-up and decay.
struct AdamWHyperparameters {
  float learning_rate, beta1, beta2, epsilon, weight_decay;
};

struct AdamW : AdamWHyperparameters {
  float correction1, correction2;
};

// base^n by squaring: multiplications only, so that every machine has the same bits (pow has not).
inline double power(double base, size_t n) {
  double result = 1;
  for (; n; n /= 2, base *= base)
    if (n % 2) result *= base;
  return result;
}

// The constants of step t = 1, 2, … The betas enter as the floats that the kernel uses, so that the corrected
// moments of a constant gradient are unbiased.
inline AdamW adamw_at_step(const AdamWHyperparameters& h, size_t t) {
  require(t >= 1, "adamw: steps count from 1");
  for (float beta : {h.beta1, h.beta2})
    require(beta >= 0 && beta < 1, "adamw: beta is %g, expected 0 <= beta < 1", double(beta));
  require(h.epsilon > 0, "adamw: epsilon is %g, expected more than 0 (0/0 where the gradient is zero)",
          double(h.epsilon));
  return {h, float(1 / (1 - power(h.beta1, t))), float(1 / std::sqrt(1 - power(h.beta2, t)))};
}

// ---- formulas, one element: reference and kernel share them

// False for NaN as well.
HD bool norm_is_finite(float norm) {
  return norm <= FLT_MAX;
}

HD float clip_scale(float norm, float clip) {
  return norm > clip ? clip / norm : 1.0f;
}

HD void adamw_element(float& w, float& m, float& v, float g, const AdamW& a) {
  m = fused(a.beta1, m, (1.0f - a.beta1) * g);
  v = fused(a.beta2, v, (1.0f - a.beta2) * (g * g));
  const float decayed = fused(-(a.learning_rate * a.weight_decay), w, w);
  const float denominator = fused(exact_sqrt(v), a.correction2, a.epsilon);
  w = fused(-(a.learning_rate * a.correction1), m / denominator, decayed);
}

// ---- reference

inline void adamw_update_ref(float* w, float* m, float* v, const float* g, const float* norm, float clip, size_t n,
                             const AdamW& adamw) {
  if (norm && !norm_is_finite(*norm)) return;
  const float scale = norm ? clip_scale(*norm, clip) : 1.0f;
  const AdamW a = adamw;  // a copy that no store to w, m or v can change
#pragma omp parallel for simd firstprivate(a)
  for (size_t i = 0; i < n; i++) adamw_element(w[i], m[i], v[i], scale * g[i], a);
}

// ---- kernel: a thread holds four neighbouring elements; 28 bytes an element cross the bus, each once

template <bool aligned>
__global__ void __launch_bounds__(elementwise_block)
    adamw_update_kernel(float* w, float* m, float* v, const float* g, const float* norm, float clip, size_t n,
                        AdamW a) {
  const size_t i = elementwise_index();
  if (i >= n || (norm && !norm_is_finite(*norm))) return;
  const float scale = norm ? clip_scale(*norm, clip) : 1.0f;
  Quad wq = load_quad<aligned>(w, i, n), mq = load_quad<aligned>(m, i, n), vq = load_quad<aligned>(v, i, n);
  const Quad gq = load_quad<aligned>(g, i, n);
  for (int k = 0; k < 4; k++) adamw_element(wq.v[k], mq.v[k], vq.v[k], scale * gq.v[k], a);
  store_quad<aligned>(w, i, n, wq);
  store_quad<aligned>(m, i, n, mq);
  store_quad<aligned>(v, i, n, vq);
}

// ---- launcher

// norm: one float on the device, or null for a gradient that is neither clipped nor checked. clip may be
// INFINITY: checked, not clipped.
inline void adamw_update(float* w, float* m, float* v, const float* g, const float* norm, float clip, size_t n,
                         const AdamW& adamw, Context& ctx) {
  require(!norm || clip > 0, "adamw: clip is %g, expected more than 0", double(clip));
  if (ctx.device == Device::cpu) return adamw_update_ref(w, m, v, g, norm, clip, n, adamw);
  auto* kernel = n % 4 == 0 ? adamw_update_kernel<true> : adamw_update_kernel<false>;
  launch(kernel, elementwise_grid(n), elementwise_block, 0, ctx, w, m, v, g, norm, clip, n, adamw);
}

}  // namespace gated
