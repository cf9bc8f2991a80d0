// glu on the CPU: the loops of the reference (kernels/glu.cu), shared out among threads and vectorised. The bits are
// the same because every element is computed alone, by the same functions.
#include "kernels/glu.h"

#include "kernels/glu.cuh"

namespace gated {

// "simd" says that iterations do not meet, which the compiler cannot see when an array is rewritten in place.
template <Activation act, class S>
static void glu_forward_loop(S* y, const S* g, const S* u, size_t n) {
#pragma omp parallel for simd if (worth_waking(n))
  for (size_t i = 0; i < n; i++) store(y[i], activation_value(act, float(g[i])) * u[i]);
}

// act(g) and act'(g) share most of their arithmetic: inlined side by side, it is done once.
template <Activation act, class S>
static void glu_backward_loop(S* dg, S* du, const S* dy, const S* g, const S* u, size_t n) {
#pragma omp parallel for simd
  for (size_t i = 0; i < n; i++) {
    const float to_gate = dy[i] * u[i] * activation_slope(act, float(g[i]));
    const float to_up = dy[i] * activation_value(act, float(g[i]));
    store(dg[i], to_gate);
    store(du[i], to_up);
  }
}

template <class S>
void glu_forward_cpu(S* y, const S* g, const S* u, size_t n, Activation act) {
  with_known_activation<of_glu>(act, [&](auto known) { glu_forward_loop<known, S>(y, g, u, n); });
}
IN_FLOAT_AND_BF16(glu_forward_cpu);

template <class S>
void glu_backward_cpu(S* dg, S* du, const S* dy, const S* g, const S* u, size_t n, Activation act) {
  with_known_activation<of_glu>(act, [&](auto known) { glu_backward_loop<known, S>(dg, du, dy, g, u, n); });
}
IN_FLOAT_AND_BF16(glu_backward_cpu);

template <class S>
void swiglu_clamped_forward_cpu(S* y, const S* g, const S* u, size_t n) {
#pragma omp parallel for simd if (worth_waking(n))
  for (size_t i = 0; i < n; i++) store(y[i], clamped_up_plus_1(float(u[i])) * clamped_swish(float(g[i])));
}
IN_FLOAT_AND_BF16(swiglu_clamped_forward_cpu);

template <class S>
void swiglu_clamped_backward_cpu(S* dg, S* du, const S* dy, const S* g, const S* u, size_t n) {
#pragma omp parallel for simd
  for (size_t i = 0; i < n; i++) {
    const float gi = g[i], ui = u[i];
    const float to_gate = dy[i] * clamped_up_plus_1(ui) * clamped_swish_slope(gi), to_up = dy[i] * clamped_swish(gi);
    const bool gate_held = gate_is_clamped(gi), up_held = up_is_clamped(ui);
    store(dg[i], gate_held ? 0.0f : to_gate);
    store(du[i], up_held ? 0.0f : to_up);
  }
}
IN_FLOAT_AND_BF16(swiglu_clamped_backward_cpu);

}  // namespace gated
