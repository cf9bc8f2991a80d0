// glu on the CPU: the loops of the reference (kernels/glu.cu), shared out among threads and vectorised. The bits are
// the same because every element is computed alone, by the same functions.
#include "kernels/glu.h"

#include "kernels/glu.cuh"

namespace gated {

// "simd" says that iterations do not meet, which the compiler cannot see when an array is rewritten in place.
template <class Op, class S>
static void forward_loop(S* y, const S* g, const S* u, size_t n) {
#pragma omp parallel for simd if (worth_waking(n))
  for (size_t i = 0; i < n; i++) store(y[i], Op::y(float(g[i]), float(u[i])));
}

template <class Op, class S>
static void backward_loop(S* dg, S* du, const S* dy, const S* g, const S* u, size_t n) {
#pragma omp parallel for simd
  for (size_t i = 0; i < n; i++) {
    float to_gate, to_up;
    Op::back(to_gate, to_up, float(dy[i]), float(g[i]), float(u[i]));
    store(dg[i], to_gate);
    store(du[i], to_up);
  }
}

template <class S>
void glu_forward_cpu(S* y, const S* g, const S* u, size_t n, Activation act) {
  with_known_activation<of_glu>(act, [&](auto known) { forward_loop<Glu<known>>(y, g, u, n); });
}
IN_FLOAT_AND_BF16(glu_forward_cpu);

template <class S>
void glu_backward_cpu(S* dg, S* du, const S* dy, const S* g, const S* u, size_t n, Activation act) {
  with_known_activation<of_glu>(act, [&](auto known) { backward_loop<Glu<known>>(dg, du, dy, g, u, n); });
}
IN_FLOAT_AND_BF16(glu_backward_cpu);

template <class S>
void swiglu_clamped_forward_cpu(S* y, const S* g, const S* u, size_t n) {
  forward_loop<ClampedSwiglu>(y, g, u, n);
}
IN_FLOAT_AND_BF16(swiglu_clamped_forward_cpu);

template <class S>
void swiglu_clamped_backward_cpu(S* dg, S* du, const S* dy, const S* g, const S* u, size_t n) {
  backward_loop<ClampedSwiglu>(dg, du, dy, g, u, n);
}
IN_FLOAT_AND_BF16(swiglu_clamped_backward_cpu);

}  // namespace gated
