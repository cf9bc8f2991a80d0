// activation: y = act(x), and the activations that gates and GLUs take
//   identity    x
//   sigmoid     s = 1/(1 + e^-x)
//   ns_sigmoid  1/2 + s/2, a gate that never closes          (Qiu et al. 2025, arXiv 2505.06708)
//   silu        x*s                             (Elfwing, Uchibe & Doya 2017, arXiv 1702.03118)
//   tanh        tanh x
//   gelu_tanh   x/2 * (1 + t), t = tanh(sqrt(2/pi) * (x + 0.044715 x^3))
//                                            (Hendrycks & Gimpel 2016, arXiv 1606.08415)
//   gelu_erf    x*Phi(x) = x/2 * (1 + erf(x/sqrt 2))                    (the same)
//   relu2       max(x,0)^2                                   (So et al. 2021, arXiv 2109.08668)
// backward: dx = dy*act'(x)
// exactly, fma rounding once and everything else in the order of its parentheses:
//   identity    y = x                          y' = 1
//   sigmoid     y = s                          y' = s * (1-s)
//   ns_sigmoid  y = fma(1/2, s, 1/2)           y' = 1/2 * (s * (1-s))
//   silu        y = x*s                        y' = s * fma(x, 1-s, 1)
//   tanh        y = t                          y' = fma(-t, t, 1)
//   gelu_tanh   t = tanh((c*x) * fma(k, x*x, 1)), c = sqrt(2/pi), k = 0.044715
//               y = (x/2) * (1+t)              y' = fma((x/2) * fma(-t, t, 1), c * fma(3k, x*x, 1), (1+t)/2)
//   gelu_erf    e = erf(x * sqrt(1/2))
//               y = (x/2) * (1+e)              y' = fma(x, exp(-(x*x)/2) * (1/sqrt(2 pi)), (1+e)/2)
//   relu2       y = max(x,0) * max(x,0)        y' = max(x,0) + max(x,0)
//   Constants are rounded once to T. gelu_tanh' needs a finite x^2: |x| < 1.8e19.
// shapes: every array (n) f32, written; y may be x, dx may be dy or x
// silu, gelu_tanh, gelu_erf and relu2 are also operations of their own, below. The others only serve gate.cuh
// and glu.cuh, which take an activation as a template parameter.
// --gate-act, --norm-gate-act, --ffn, --gelu | tests/test_activation.cpp
#pragma once
#include "core/context.cuh"
#include "core/launch_shape.cuh"
#include "core/math.cuh"
#include "core/reduce.cuh"

namespace gated {

enum class Activation { identity, sigmoid, ns_sigmoid, silu, tanh, gelu_tanh, gelu_erf, relu2 };

inline const char* name_of(Activation act) {
  constexpr const char* names[] = {"identity", "sigmoid",   "ns_sigmoid", "silu",
                                   "tanh",     "gelu_tanh", "gelu_erf",   "relu2"};
  return names[int(act)];
}

// ---- formulas, one element each: the loops of reference and kernel share them
// value(x) and slope(x) often call the same function of x; inlined side by side, it is computed once.

struct Identity {
  static constexpr Activation kind = Activation::identity;
  template <class T>
  static HD T value(T x) {
    return x;
  }
  template <class T>
  static HD T slope(T) {
    return T(1);
  }
};

struct Sigmoid {
  static constexpr Activation kind = Activation::sigmoid;
  template <class T>
  static HD T value(T x) {
    return exact_sigmoid(x);
  }
  template <class T>
  static HD T slope(T x) {
    const T s = exact_sigmoid(x);
    return s * (T(1) - s);
  }
};

struct NsSigmoid {
  static constexpr Activation kind = Activation::ns_sigmoid;
  template <class T>
  static HD T value(T x) {
    return fused(T(0.5), exact_sigmoid(x), T(0.5));
  }
  template <class T>
  static HD T slope(T x) {
    return T(0.5) * Sigmoid::slope(x);
  }
};

struct Silu {
  static constexpr Activation kind = Activation::silu;
  template <class T>
  static HD T value(T x) {
    return x * exact_sigmoid(x);
  }
  template <class T>
  static HD T slope(T x) {
    const T s = exact_sigmoid(x);
    return s * fused(x, T(1) - s, T(1));
  }
};

struct Tanh {
  static constexpr Activation kind = Activation::tanh;
  template <class T>
  static HD T value(T x) {
    return exact_tanh(x);
  }
  template <class T>
  static HD T slope(T x) {
    const T t = exact_tanh(x);
    return fused(-t, t, T(1));
  }
};

struct GeluTanh {
  static constexpr Activation kind = Activation::gelu_tanh;
  static constexpr double root_2_over_pi = 0.797884560802865356, cubic = 0.044715;
  template <class T>
  static HD T inner(T x) {
    return exact_tanh(T(root_2_over_pi) * x * fused(T(cubic), x * x, T(1)));
  }
  template <class T>
  static HD T value(T x) {
    return T(0.5) * x * (T(1) + inner(x));
  }
  template <class T>
  static HD T slope(T x) {
    const T t = inner(x);
    const T du = T(root_2_over_pi) * fused(T(3 * cubic), x * x, T(1));
    return fused(T(0.5) * x * fused(-t, t, T(1)), du, T(0.5) * (T(1) + t));
  }
};

struct GeluErf {
  static constexpr Activation kind = Activation::gelu_erf;
  static constexpr double root_half = 0.707106781186547524, one_over_root_2_pi = 0.398942280401432678;
  template <class T>
  static HD T value(T x) {
    return T(0.5) * x * (T(1) + exact_erf(x * T(root_half)));
  }
  template <class T>
  static HD T slope(T x) {
    const T density = exact_exp(T(-0.5) * (x * x)) * T(one_over_root_2_pi);
    return fused(x, density, T(0.5) * (T(1) + exact_erf(x * T(root_half))));
  }
};

struct Relu2 {
  static constexpr Activation kind = Activation::relu2;
  template <class T>
  static HD T value(T x) {
    const T r = max_of(T(0), x);  // in this order a NaN stays one
    return r * r;
  }
  template <class T>
  static HD T slope(T x) {
    const T r = max_of(T(0), x);
    return r + r;
  }
};

// The activations an operation takes, and no others are instantiated for it.
template <class... Act>
struct ActivationSet {};

// Calls f(Act{}) for the one of the set that `act` names.
template <class... Act, class F>
void with_activation(ActivationSet<Act...>, const char* operation, Activation act, F f) {
  if (((act == Act::kind && (f(Act{}), true)) || ...)) return;
  fail("%s: act is %s, expected one of:%s", operation, name_of(act),
       (std::string() + ... + (std::string(" ") + name_of(Act::kind))).c_str());
}

// ---- reference

// "simd" says that iterations do not meet, which the compiler cannot see when an array is rewritten in place.
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

// ---- kernels: a thread holds four neighbouring elements; each array crosses the bus once

template <class Act, bool aligned>
__global__ void __launch_bounds__(elementwise_block) activation_forward_kernel(float* y, const float* x, size_t n) {
  const size_t i = elementwise_index();
  if (i >= n) return;
  Quad q = load_quad<aligned>(x, i, n);
  for (int k = 0; k < 4; k++) q.v[k] = Act::value(q.v[k]);
  store_quad<aligned>(y, i, n, q);
}

template <class Act, bool aligned>
__global__ void __launch_bounds__(elementwise_block)
    activation_backward_kernel(float* dx, const float* dy, const float* x, size_t n) {
  const size_t i = elementwise_index();
  if (i >= n) return;
  Quad q = load_quad<aligned>(dy, i, n);
  const Quad xq = load_quad<aligned>(x, i, n);
  for (int k = 0; k < 4; k++) q.v[k] = q.v[k] * Act::slope(xq.v[k]);
  store_quad<aligned>(dx, i, n, q);
}

// ---- launchers

using PlainActivations = ActivationSet<Silu, GeluTanh, GeluErf, Relu2>;

inline void activation_forward(float* y, const float* x, size_t n, Activation act, Context& ctx) {
  with_activation(PlainActivations{}, "activation_forward", act, [&](auto a) {
    using Act = decltype(a);
    if (ctx.device == Device::cpu) return activation_forward_ref<Act>(y, x, n);
    auto* kernel = n % 4 == 0 ? activation_forward_kernel<Act, true> : activation_forward_kernel<Act, false>;
    launch(kernel, elementwise_grid(n), elementwise_block, 0, ctx, y, x, n);
  });
}

inline void activation_backward(float* dx, const float* dy, const float* x, size_t n, Activation act, Context& ctx) {
  with_activation(PlainActivations{}, "activation_backward", act, [&](auto a) {
    using Act = decltype(a);
    if (ctx.device == Device::cpu) return activation_backward_ref<Act>(dx, dy, x, n);
    auto* kernel = n % 4 == 0 ? activation_backward_kernel<Act, true> : activation_backward_kernel<Act, false>;
    launch(kernel, elementwise_grid(n), elementwise_block, 0, ctx, dx, dy, x, n);
  });
}

}  // namespace gated
