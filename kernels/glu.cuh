// glu: the formulas of the clamped SwiGLU (kernels/glu.cu), for its reference, its kernels and the CPU.
#pragma once
#include "core/math.cuh"

namespace gated {

constexpr double swiglu_clamped_limit = 7, swiglu_clamped_steepness = 1.702;

// a(g) = gc * sigmoid(1.702 gc), gc = min(g, 7). A NaN stays one.
template <class T>
HD T clamped_swish(T g) {
  const T bounded = g > T(swiglu_clamped_limit) ? T(swiglu_clamped_limit) : g;
  return bounded * exact_sigmoid(T(swiglu_clamped_steepness) * bounded);
}
// a' up to the bound, with s = sigmoid(c g):  s + g * c*s*(1-s) = s * (1 + c*g*(1-s))
template <class T>
HD T clamped_swish_slope(T g) {
  const T steep = T(swiglu_clamped_steepness) * g, s = exact_sigmoid(steep);
  return s * fused(steep, T(1) - s, T(1));
}
template <class T>
HD bool gate_is_clamped(T g) {
  return g > T(swiglu_clamped_limit);
}

// 1 + uc, uc = u between -7 and 7, else the nearer of them.
template <class T>
HD T clamped_up_plus_1(T u) {
  constexpr T limit = T(swiglu_clamped_limit);
  return (u > limit ? limit : u < -limit ? -limit : u) + T(1);
}
template <class T>
HD bool up_is_clamped(T u) {
  return u > T(swiglu_clamped_limit) || u < -T(swiglu_clamped_limit);
}

}  // namespace gated
