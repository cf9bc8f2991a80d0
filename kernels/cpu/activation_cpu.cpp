// activation on the CPU: the loops of the reference (kernels/activation.cu), shared out among threads and vectorised.
// The bits are the same because every element is computed alone, by the same function.
#include "kernels/activation.h"

namespace gated {

// "simd" says that iterations do not meet, which the compiler cannot see when an array is rewritten in place.
template <Activation act, class S>
static void activation_forward_loop(S* y, const S* x, size_t n) {
#pragma omp parallel for simd if (worth_waking(n))
  for (size_t i = 0; i < n; i++) store(y[i], activation_value(act, float(x[i])));
}

template <Activation act, class S>
static void activation_backward_loop(S* dx, const S* dy, const S* x, size_t n) {
#pragma omp parallel for simd
  for (size_t i = 0; i < n; i++) store(dx[i], dy[i] * activation_slope(act, float(x[i])));
}

template <class S>
void activation_forward_cpu(S* y, const S* x, size_t n, Activation act) {
  with_known_activation<of_plain>(act, [&](auto known) { activation_forward_loop<known>(y, x, n); });
}
IN_FLOAT_AND_BF16(activation_forward_cpu);

template <class S>
void activation_backward_cpu(S* dx, const S* dy, const S* x, size_t n, Activation act) {
  with_known_activation<of_plain>(act, [&](auto known) { activation_backward_loop<known>(dx, dy, x, n); });
}
IN_FLOAT_AND_BF16(activation_backward_cpu);

}  // namespace gated
