// nonlinear: activations, the functions that stand between two matrix products or open a gate, one element each.
//
//   identity    x
//   sigmoid     s = 1/(1 + e^-x)
//   ns_sigmoid  1/2 + s/2, a gate that never closes          (Qiu et al. 2025, arXiv 2505.06708)
//   silu        x*s                             (Elfwing, Uchibe & Doya 2017, arXiv 1702.03118)
//   tanh        tanh x
//   gelu_tanh   x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3)))
//                                            (Hendrycks & Gimpel 2016, arXiv 1606.08415)
//   gelu_erf    x*Phi(x) = x/2 * (1 + erf(x/sqrt 2))                    (the same)
//   relu2       max(x,0)^2                                   (So et al. 2021, arXiv 2109.08668)
//
// The slope of an activation is its derivative. The code is the exact order of evaluation, and every constant is rounded
// once to T. The slope of gelu_tanh needs a finite x^2: |x| < 1.8e19.
// activation_value(act, x) and activation_slope(act, x) choose at run time.
// --gate-act, --norm-gate-act, --ffn, --gelu | tests/test_activation.cpp
#pragma once
#include <initializer_list>
#include <string>
#include <type_traits>

#include "core/check.h"
#include "core/math.cuh"

namespace gated {

enum class Activation { identity, sigmoid, ns_sigmoid, silu, tanh, gelu_tanh, gelu_erf, relu2 };

inline const char* name_of(Activation act) {
  constexpr const char* names[] = {"identity", "sigmoid",   "ns_sigmoid", "silu",
                                   "tanh",     "gelu_tanh", "gelu_erf",   "relu2"};
  return names[int(act)];
}

// ---- one after the other (the values of sigmoid and tanh are exact_sigmoid and exact_tanh, core/math.cuh)

// s' = e^-x / (1 + e^-x)^2 = s * e^-x/(1 + e^-x) = s * (1-s)
template <class T>
HD T sigmoid_slope(T x) {
  const T s = exact_sigmoid(x);
  return s * (T(1) - s);
}

template <class T>
HD T ns_sigmoid(T x) {
  return fused(T(0.5), exact_sigmoid(x), T(0.5));
}
// (1/2 + s/2)' = s'/2
template <class T>
HD T ns_sigmoid_slope(T x) {
  return T(0.5) * sigmoid_slope(x);
}

template <class T>
HD T silu(T x) {
  return x * exact_sigmoid(x);
}
// (x*s)' = s + x * s*(1-s) = s * (1 + x*(1-s))
template <class T>
HD T silu_slope(T x) {
  const T s = exact_sigmoid(x);
  return s * fused(x, T(1) - s, T(1));
}

// tanh' = (cosh^2 - sinh^2)/cosh^2 = 1 - tanh^2
template <class T>
HD T tanh_slope(T x) {
  const T t = exact_tanh(x);
  return fused(-t, t, T(1));
}

constexpr double root_2_over_pi = 0.797884560802865356, gelu_cubic = 0.044715;

// t = tanh u, u = c*(x + k x^3) = c*x * (1 + k x^2), c = sqrt(2/pi), k = 0.044715
template <class T>
HD T gelu_tanh_inner(T x) {
  return exact_tanh(T(root_2_over_pi) * x * fused(T(gelu_cubic), x * x, T(1)));
}
template <class T>
HD T gelu_tanh(T x) {
  return T(0.5) * x * (T(1) + gelu_tanh_inner(x));
}
// (x/2 * (1+t))' = x/2 * (1-t^2) * u' + (1+t)/2, u' = c * (1 + 3k x^2)
template <class T>
HD T gelu_tanh_slope(T x) {
  const T t = gelu_tanh_inner(x);
  const T du = T(root_2_over_pi) * fused(T(3 * gelu_cubic), x * x, T(1));
  return fused(T(0.5) * x * fused(-t, t, T(1)), du, T(0.5) * (T(1) + t));
}

constexpr double root_half = 0.707106781186547524, one_over_root_2_pi = 0.398942280401432678;

template <class T>
HD T gelu_erf(T x) {
  return T(0.5) * x * (T(1) + exact_erf(x * T(root_half)));
}
// (x*Phi)' = x*phi + Phi, where Phi' = phi = e^(-x^2/2) / sqrt(2 pi), the density of the normal distribution
template <class T>
HD T gelu_erf_slope(T x) {
  const T density = exact_exp(T(-0.5) * (x * x)) * T(one_over_root_2_pi);
  return fused(x, density, T(0.5) * (T(1) + exact_erf(x * T(root_half))));
}

template <class T>
HD T relu2(T x) {
  const T r = max_of(T(0), x);  // in this order a NaN stays one
  return r * r;
}
// (r^2)' = 2r * r', and r' is 1 wherever r is not 0
template <class T>
HD T relu2_slope(T x) {
  const T r = max_of(T(0), x);
  return r + r;
}

// ---- chosen at run time. All threads of a kernel take the same branch, so the choice costs little beside a load.

template <class T>
HD T activation_value(Activation act, T x) {
  switch (act) {
    case Activation::identity: break;
    case Activation::sigmoid: return exact_sigmoid(x);
    case Activation::ns_sigmoid: return ns_sigmoid(x);
    case Activation::silu: return silu(x);
    case Activation::tanh: return exact_tanh(x);
    case Activation::gelu_tanh: return gelu_tanh(x);
    case Activation::gelu_erf: return gelu_erf(x);
    case Activation::relu2: return relu2(x);
  }
  return x;
}

template <class T>
HD T activation_slope(Activation act, T x) {
  switch (act) {
    case Activation::identity: break;
    case Activation::sigmoid: return sigmoid_slope(x);
    case Activation::ns_sigmoid: return ns_sigmoid_slope(x);
    case Activation::silu: return silu_slope(x);
    case Activation::tanh: return tanh_slope(x);
    case Activation::gelu_tanh: return gelu_tanh_slope(x);
    case Activation::gelu_erf: return gelu_erf_slope(x);
    case Activation::relu2: return relu2_slope(x);
  }
  return T(1);
}

// ---- on the host

// Refuses an activation that an operation does not take, and says which it takes.
inline void require_activation(const char* operation, Activation act, std::initializer_list<Activation> allowed) {
  std::string names;
  for (Activation a : allowed) {
    if (a == act) return;
    names += std::string(" ") + name_of(a);
  }
  fail("%s: act is %s, expected one of:%s", operation, name_of(act), names.c_str());
}

// A loop of the CPU vectorises only where the compiler knows the activation: in a loop over activation_value(act, x), with
// `act` a constant, nothing is left of the switch. This calls f with the constant:
//   with_known_activation(act, [&](auto known) { loop<known>(y, x, n); });
template <class F>
void with_known_activation(Activation act, F f) {
  switch (act) {
    case Activation::identity: return f(std::integral_constant<Activation, Activation::identity>{});
    case Activation::sigmoid: return f(std::integral_constant<Activation, Activation::sigmoid>{});
    case Activation::ns_sigmoid: return f(std::integral_constant<Activation, Activation::ns_sigmoid>{});
    case Activation::silu: return f(std::integral_constant<Activation, Activation::silu>{});
    case Activation::tanh: return f(std::integral_constant<Activation, Activation::tanh>{});
    case Activation::gelu_tanh: return f(std::integral_constant<Activation, Activation::gelu_tanh>{});
    case Activation::gelu_erf: return f(std::integral_constant<Activation, Activation::gelu_erf>{});
    case Activation::relu2: return f(std::integral_constant<Activation, Activation::relu2>{});
  }
}

}  // namespace gated
