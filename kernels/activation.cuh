// The activations as types, for the operations that still take one as a template parameter.
#pragma once
#include "core/context.cuh"
#include "core/launch_shape.cuh"
#include "core/reduce.cuh"
#include "kernels/activation.h"

namespace gated {

template <Activation act>
struct ActivationType {
  static constexpr Activation kind = act;
  template <class T>
  static HD T value(T x) {
    return activation_value(kind, x);
  }
  template <class T>
  static HD T slope(T x) {
    return activation_slope(kind, x);
  }
};
using Identity = ActivationType<Activation::identity>;
using Sigmoid = ActivationType<Activation::sigmoid>;
using NsSigmoid = ActivationType<Activation::ns_sigmoid>;
using Silu = ActivationType<Activation::silu>;
using Tanh = ActivationType<Activation::tanh>;
using GeluTanh = ActivationType<Activation::gelu_tanh>;
using GeluErf = ActivationType<Activation::gelu_erf>;

template <class Act, class T>
void activation_forward_ref(T* y, const T* x, size_t n) {
#pragma omp parallel for simd
  for (size_t i = 0; i < n; i++) y[i] = Act::value(x[i]);
}

template <class Act, class T>
void activation_backward_ref(T* dx, const T* dy, const T* x, size_t n) {
#pragma omp parallel for simd
  for (size_t i = 0; i < n; i++) dx[i] = dy[i] * Act::slope(x[i]);
}

template <class... Act>
struct ActivationSet {};

// Calls f(Act{}) for the one of the set that `act` names.
template <class... Act, class F>
void with_activation(ActivationSet<Act...>, const char* operation, Activation act, F f) {
  if (((act == Act::kind && (f(Act{}), true)) || ...)) return;
  require_activation(operation, act, {Act::kind...});
}

}  // namespace gated
