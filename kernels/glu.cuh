// glu: the formulas of kernels/glu.cu, for its references, its kernels and the CPU.
#pragma once
#include "core/math.cuh"
#include "core/nonlinear.cuh"

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

// An element of y, and its gradients: what the kernels and the CPU's loops are templates of. T is float; in double the
// references take them.
template <Activation act>
struct Glu {
  template <class T>
  static HD T y(T g, T u) {
    return activation_value(act, g) * u;
  }
  // act(g) and act'(g) share most of their arithmetic: inlined side by side, it is done once.
  template <class T>
  static HD void back(T& dg, T& du, T dy, T g, T u) {
    dg = dy * u * activation_slope(act, g);
    du = dy * activation_value(act, g);
  }
};

struct ClampedSwiglu {
  // 1 + uc
  template <class T>
  static HD T up_plus_1(T u) {
    return clip(u, T(swiglu_clamped_limit)) + T(1);
  }
  template <class T>
  static HD T y(T g, T u) {
    return up_plus_1(u) * clamped_swish(g);
  }
  template <class T>
  static HD void back(T& dg, T& du, T dy, T g, T u) {
    const T to_gate = dy * up_plus_1(u) * clamped_swish_slope(g), to_up = dy * clamped_swish(g);
    constexpr T limit = T(swiglu_clamped_limit);
    dg = g > limit ? T(0) : to_gate;
    du = u > limit || u < -limit ? T(0) : to_up;
  }
};

}  // namespace gated
