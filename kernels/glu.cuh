// glu: y = act(g)*u, act = sigmoid (GLU), silu (SwiGLU), gelu_tanh or gelu_erf (GEGLU)
//   (Dauphin et al. 2016, arXiv 1612.08083; Shazeer 2020, arXiv 2002.05202)
//   the middle of a feed-forward layer: g = x Wgate^T, u = x Wup^T, and y goes on to the down projection
// backward: du = dy*act(g)      dg = dy*u*act'(g)
//   exactly: y = act(g)*u; du = dy*act(g); dg = (dy*u)*act'(g), act and act' as activation.cuh evaluates them
// shapes: every array (n) f32, written; dg may be g and du may be u: then the layer keeps no copy for them
// --ffn=swiglu|glu|geglu | tests/test_glu.cpp
#pragma once
#include "kernels/activation.cuh"

namespace gated {

// ---- reference

template <class Act, class T>
void glu_forward_ref(T* y, const T* g, const T* u, size_t n) {
#pragma omp parallel for simd
  for (size_t i = 0; i < n; i++) y[i] = Act::value(g[i]) * u[i];
}

// Both gradients of an element stand before either is stored: dg may be g.
template <class Act, class T>
void glu_backward_ref(T* dg, T* du, const T* dy, const T* g, const T* u, size_t n) {
#pragma omp parallel for simd
  for (size_t i = 0; i < n; i++) {
    const T to_gate = dy[i] * u[i] * Act::slope(g[i]);
    const T to_up = dy[i] * Act::value(g[i]);
    dg[i] = to_gate;
    du[i] = to_up;
  }
}

// ---- kernels: a thread holds four neighbouring elements; each array crosses the bus once

template <class Act, bool aligned>
__global__ void __launch_bounds__(elementwise_block)
    glu_forward_kernel(float* y, const float* g, const float* u, size_t n) {
  const size_t i = elementwise_index();
  if (i >= n) return;
  Quad q = load_quad<aligned>(g, i, n);
  const Quad uq = load_quad<aligned>(u, i, n);
  for (int k = 0; k < 4; k++) q.v[k] = Act::value(q.v[k]) * uq.v[k];
  store_quad<aligned>(y, i, n, q);
}

template <class Act, bool aligned>
__global__ void __launch_bounds__(elementwise_block)
    glu_backward_kernel(float* dg, float* du, const float* dy, const float* g, const float* u, size_t n) {
  const size_t i = elementwise_index();
  if (i >= n) return;
  const Quad dyq = load_quad<aligned>(dy, i, n), gq = load_quad<aligned>(g, i, n);
  Quad uq = load_quad<aligned>(u, i, n), dgq;
  for (int k = 0; k < 4; k++) {
    dgq.v[k] = dyq.v[k] * uq.v[k] * Act::slope(gq.v[k]);
    uq.v[k] = dyq.v[k] * Act::value(gq.v[k]);
  }
  store_quad<aligned>(dg, i, n, dgq);
  store_quad<aligned>(du, i, n, uq);
}

// ---- launchers

using GluActivations = ActivationSet<Sigmoid, Silu, GeluTanh, GeluErf>;

inline void glu_forward(float* y, const float* g, const float* u, size_t n, Activation act, Context& ctx) {
  with_activation(GluActivations{}, "glu_forward", act, [&](auto a) {
    using Act = decltype(a);
    if (ctx.device == Device::cpu) return glu_forward_ref<Act>(y, g, u, n);
    auto* kernel = n % 4 == 0 ? glu_forward_kernel<Act, true> : glu_forward_kernel<Act, false>;
    launch(kernel, elementwise_grid(n), elementwise_block, 0, ctx, y, g, u, n);
  });
}

inline void glu_backward(float* dg, float* du, const float* dy, const float* g, const float* u, size_t n,
                         Activation act, Context& ctx) {
  with_activation(GluActivations{}, "glu_backward", act, [&](auto a) {
    using Act = decltype(a);
    if (ctx.device == Device::cpu) return glu_backward_ref<Act>(dg, du, dy, g, u, n);
    auto* kernel = n % 4 == 0 ? glu_backward_kernel<Act, true> : glu_backward_kernel<Act, false>;
    launch(kernel, elementwise_grid(n), elementwise_block, 0, ctx, dg, du, dy, g, u, n);
  });
}

}  // namespace gated
