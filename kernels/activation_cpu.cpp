// activation on the CPU: the loops of the reference (kernels/activation.cu), shared out among threads and vectorised. The
// bits are the same because every element is computed alone, by the same function.
#include "kernels/activation.h"

namespace gated {

// "simd" says that iterations do not meet, which the compiler cannot see when an array is rewritten in place.
template <Activation act>
static void activation_forward_loop(float* y, const float* x, size_t n) {
#pragma omp parallel for simd if (worth_waking(n))
  for (size_t i = 0; i < n; i++) y[i] = activation_value(act, x[i]);
}

template <Activation act>
static void activation_backward_loop(float* dx, const float* dy, const float* x, size_t n) {
#pragma omp parallel for simd
  for (size_t i = 0; i < n; i++) dx[i] = dy[i] * activation_slope(act, x[i]);
}

void activation_forward_cpu(float* y, const float* x, size_t n, Activation act) {
  with_known_activation(act, [&](auto known) { activation_forward_loop<known>(y, x, n); });
}

void activation_backward_cpu(float* dx, const float* dy, const float* x, size_t n, Activation act) {
  with_known_activation(act, [&](auto known) { activation_backward_loop<known>(dx, dy, x, n); });
}

}  // namespace gated
