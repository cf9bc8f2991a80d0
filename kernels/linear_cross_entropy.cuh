// linear_cross_entropy: what the kernel, the reference and the CPU's twin of a row have in common.
// kernels/linear_cross_entropy.cu
#pragma once
#include "core/math.cuh"

namespace gated {

HD bool target_is_known(int target, size_t V) {
  return target >= 0 && size_t(target) < V;
}

// lse = m + log(sum of e^(l - m)). A target outside the vocabulary makes it NaN, which neither loss nor gradient can
// hide.
template <class T>
HD T log_sum_exp(T max, T sum, bool known) {
  return known ? max + exact_log(sum) : T(NAN);
}

template <class T>
HD T dlogit(T logit, T lse, T one_at_target, T dloss) {
  return (exp_to_40(logit - lse) - one_at_target) * dloss;
}

}  // namespace gated
