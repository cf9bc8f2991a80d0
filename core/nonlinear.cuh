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
// The slope of an activation is its derivative. The code is the exact order of evaluation, and every constant is
// rounded once to T. The slope of gelu_tanh needs a finite x^2: |x| < 1.8e19.
// A table of them all stands behind the functions: the enum, its names, what each operation and flag takes, and every
// dispatch follow from it. So a new one is its functions and a row.
// --gate-act, --norm-gate-act, --ffn, --gelu | tests/test_activation.cpp
#pragma once
#include <string>
#include <type_traits>

#include "core/check.h"
#include "core/math.cuh"

namespace gated {

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

// ---- the table

// What may take an activation.
enum ActivationUse : unsigned {
  attention_gate = 1,  // --gate-act
  norm_gate = 2,       // --norm-gate-act
  any_gate = 3,        // kernels/gate.h
  of_glu = 4,          // kernels/glu.h
  of_plain = 8         // kernels/activation.h
};

// row(enumerator, name in flags and messages, value and slope at x, uses, what --help says), in the order of --help.
// clang-format off
#define ACTIVATIONS(row)                                                                                               \
  row(sigmoid,    "sigmoid",    exact_sigmoid(x), sigmoid_slope(x),    any_gate | of_glu,            "1 / (1 + e^-z)") \
  row(tanh,       "tanh",       exact_tanh(x),    tanh_slope(x),       norm_gate,                    "tanh z")         \
  row(silu,       "silu",       silu(x),          silu_slope(x),       any_gate | of_glu | of_plain, "z sigmoid(z)")   \
  row(ns_sigmoid, "ns-sigmoid", ns_sigmoid(x),    ns_sigmoid_slope(x), attention_gate,                                 \
      "(1 + sigmoid z) / 2: never sparse")                                                                             \
  row(identity,   "identity",   x,                T(1),                any_gate,                     "z")              \
  row(gelu_tanh,  "gelu_tanh",  gelu_tanh(x),     gelu_tanh_slope(x),  of_glu | of_plain,            "GPT-2's GELU")   \
  row(gelu_erf,   "gelu_erf",   gelu_erf(x),      gelu_erf_slope(x),   of_glu | of_plain,            "GELU")           \
  row(relu2,      "relu2",      relu2(x),         relu2_slope(x),      of_plain,                     "max(z, 0)^2")
// clang-format on

#define ENUMERATOR(act, ...) act,
enum class Activation { ACTIVATIONS(ENUMERATOR) };
#undef ENUMERATOR

struct ActivationRow {
  Activation act;
  const char* name;
  unsigned uses;
  const char* meaning;
};
#define ROW(act, name, value, slope, uses, meaning) {Activation::act, name, uses, meaning},
constexpr ActivationRow activations[] = {ACTIVATIONS(ROW)};
#undef ROW

inline const char* name_of(Activation act) {
  return activations[int(act)].name;
}

// ---- chosen at run time. All threads of a kernel take the same branch, so the choice costs little beside a load.

#define VALUE(act, name, value, ...) \
  case Activation::act: return value;
template <class T>
HD T activation_value(Activation act, T x) {
  switch (act) { ACTIVATIONS(VALUE) }
  return x;
}
#undef VALUE

#define SLOPE(act, name, value, slope, ...) \
  case Activation::act: return slope;
template <class T>
HD T activation_slope(Activation act, T x) {
  switch (act) { ACTIVATIONS(SLOPE) }
  return T(1);
}
#undef SLOPE

// A loop vectorises only where the compiler knows the activation: in a loop over activation_value(act, x), with `act` a
// constant, nothing is left of the switch. This calls f with the constant, which is one of those for `uses`:
//   with_known_activation<of_plain>(act, [&](auto known) { loop<known>(y, x, n); });
#define CALL(act, name, value, slope, for_uses, ...)                                                \
  case Activation::act:                                                                             \
    if constexpr (((for_uses)&uses) != 0) f(std::integral_constant<Activation, Activation::act>{}); \
    return;
#pragma nv_exec_check_disable
template <unsigned uses, class F>
HD void with_known_activation(Activation chosen, F f) {
  switch (chosen) { ACTIVATIONS(CALL) }
}
#undef CALL

// ---- on the host

// Refuses an activation that is not for these uses, and says which are.
inline void require_activation(const char* operation, Activation act, unsigned uses) {
  std::string names;
  for (const ActivationRow& a : activations) {
    if (!(a.uses & uses)) continue;
    if (a.act == act) return;
    names += std::string(" ") + a.name;
  }
  fail("%s: act is %s, expected one of:%s", operation, name_of(act), names.c_str());
}

}  // namespace gated
