// glu on the CPU: the loops of the reference (kernels/glu.cu), shared out among threads and vectorised. The bits are the
// same because every element is computed alone, by the same functions.
#include "kernels/glu.h"

#include "kernels/glu.cuh"

namespace gated {

// "simd" says that iterations do not meet, which the compiler cannot see when an array is rewritten in place.
template <Activation act>
static void glu_forward_loop(float* y, const float* g, const float* u, size_t n) {
#pragma omp parallel for simd if (worth_waking(n))
  for (size_t i = 0; i < n; i++) y[i] = activation_value(act, g[i]) * u[i];
}

// act(g) and act'(g) share most of their arithmetic: inlined side by side, it is done once.
template <Activation act>
static void glu_backward_loop(float* dg, float* du, const float* dy, const float* g, const float* u, size_t n) {
#pragma omp parallel for simd
  for (size_t i = 0; i < n; i++) {
    const float to_gate = dy[i] * u[i] * activation_slope(act, g[i]);
    const float to_up = dy[i] * activation_value(act, g[i]);
    dg[i] = to_gate;
    du[i] = to_up;
  }
}

void glu_forward_cpu(float* y, const float* g, const float* u, size_t n, Activation act) {
  with_known_activation(act, [&](auto known) { glu_forward_loop<known>(y, g, u, n); });
}

void glu_backward_cpu(float* dg, float* du, const float* dy, const float* g, const float* u, size_t n, Activation act) {
  with_known_activation(act, [&](auto known) { glu_backward_loop<known>(dg, du, dy, g, u, n); });
}

void swiglu_clamped_forward_cpu(float* y, const float* g, const float* u, size_t n) {
#pragma omp parallel for simd if (worth_waking(n))
  for (size_t i = 0; i < n; i++) y[i] = clamped_up_plus_1(u[i]) * clamped_swish(g[i]);
}

void swiglu_clamped_backward_cpu(float* dg, float* du, const float* dy, const float* g, const float* u, size_t n) {
#pragma omp parallel for simd
  for (size_t i = 0; i < n; i++) {
    const float to_gate = dy[i] * clamped_up_plus_1(u[i]) * clamped_swish_slope(g[i]),
                to_up = dy[i] * clamped_swish(g[i]);
    const bool gate_held = clamped_gate(g[i]), up_held = clamped_up(u[i]);
    dg[i] = gate_held ? 0.0f : to_gate;
    du[i] = up_held ? 0.0f : to_up;
  }
}

}  // namespace gated
