// glu: y = act(g)*u: GLU where act is a sigmoid, SwiGLU where it is silu, GEGLU where it is a GELU
//   (Dauphin et al. 2016, arXiv 1612.08083; Shazeer 2020, arXiv 2002.05202)
//   The middle of a feed-forward layer: g = x Wgate^T and u = x Wup^T, and y goes on to the down projection. The first
//   product decides, channel by channel, how much of the second passes: it is a gate.
// backward: g_i and u_i reach the loss through y_i alone. The product rule gives one factor for each:
//     du_i = dy_i * ∂y_i/∂u_i = dy_i * act(g_i)
//     dg_i = dy_i * ∂y_i/∂g_i = dy_i * u_i * act'(g_i)
//   exactly: dg = (dy*u) * act'(g), two products, each rounded
// act and act', one by one: core/nonlinear.cuh
//
// clamped SwiGLU: y = (uc + 1) * a(g), a(g) = gc * sigmoid(1.702 gc), gc = min(g, 7), uc = u clamped to [-7, 7]
//   (gpt-oss, arXiv 2508.10925) No element of y is larger than 8*7, and with u near 0 the gate's value passes as it is.
//   The steepness 1.702 makes x*sigmoid(1.702 x) the near twin of GELU.
// backward: as above, with uc + 1 in place of u, and the gradient is 0 where an input was cut. At the bound itself,
//   where left and right slope differ, the gradient passes, as it does in torch.clamp:
//     dg_i = dy_i * (uc_i + 1) * a'(g_i) where g_i <= 7, else 0
//     du_i = dy_i * a(g_i)               where -7 <= u_i <= 7, else 0
//   a and a': kernels/glu.cuh
// in bf16: everything is computed in float, and each number is rounded once, as it is stored
// shapes: every array (n) f32 or bf16, written; y may be g or u, dg may be g, du may be u or dy
// twins: kernels/cpu/glu_cpu.cpp
// --ffn=swiglu|glu|geglu|swiglu-clamped | tests/test_glu.cpp
#include "kernels/glu.h"

#include "core/launch_shape.cuh"
#include "core/quad.cuh"
#include "kernels/glu.cuh"

namespace gated {

// ---- reference

template <class T>
void glu_forward_ref(T* y, const T* g, const T* u, size_t n, Activation act) {
  for (size_t i = 0; i < n; i++) y[i] = activation_value(act, g[i]) * u[i];
}

// Both gradients of an element are computed before either is stored: dg may be g.
template <class T>
void glu_backward_ref(T* dg, T* du, const T* dy, const T* g, const T* u, size_t n, Activation act) {
  for (size_t i = 0; i < n; i++) {
    const T to_gate = dy[i] * u[i] * activation_slope(act, g[i]);
    const T to_up = dy[i] * activation_value(act, g[i]);
    dg[i] = to_gate;
    du[i] = to_up;
  }
}
IN_FLOAT_AND_DOUBLE(glu_forward_ref);
IN_FLOAT_AND_DOUBLE(glu_backward_ref);

template <class T>
void swiglu_clamped_forward_ref(T* y, const T* g, const T* u, size_t n) {
  for (size_t i = 0; i < n; i++) y[i] = ClampedSwiglu::y(g[i], u[i]);
}

template <class T>
void swiglu_clamped_backward_ref(T* dg, T* du, const T* dy, const T* g, const T* u, size_t n) {
  for (size_t i = 0; i < n; i++) {
    T to_gate, to_up;
    ClampedSwiglu::back(to_gate, to_up, dy[i], g[i], u[i]);
    dg[i] = to_gate;
    du[i] = to_up;
  }
}
IN_FLOAT_AND_DOUBLE(swiglu_clamped_forward_ref);
IN_FLOAT_AND_DOUBLE(swiglu_clamped_backward_ref);

// ---- kernels
//
// Elements do not meet: a thread takes four neighbours, a Quad (kernels/activation.cu). Every array crosses the memory
// bus once: the forward moves 12 bytes an element, the backward 20. Recomputing act(g) in the backward is cheaper than
// saving it, which would cost 4 bytes more in each of the two. In bf16 it is half of these bytes.

template <class S, class Op>
__global__ void __launch_bounds__(elementwise_block) glu_forward_kernel(S* y, const S* g, const S* u, size_t n) {
  const size_t i = elementwise_index();
  if (i >= n) return;
  Quad q = load_quad(g, i, n);
  const Quad uq = load_quad(u, i, n);
  for (int k = 0; k < 4; k++) q.v[k] = Op::y(q.v[k], uq.v[k]);
  store_quad(y, i, n, q);
}

// All loads come before the first store, so dg may be g, and du may be u or dy.
template <class S, class Op>
__global__ void __launch_bounds__(elementwise_block)
    glu_backward_kernel(S* dg, S* du, const S* dy, const S* g, const S* u, size_t n) {
  const size_t i = elementwise_index();
  if (i >= n) return;
  const Quad dyq = load_quad(dy, i, n), gq = load_quad(g, i, n), uq = load_quad(u, i, n);
  Quad dgq, duq;
  for (int k = 0; k < 4; k++) Op::back(dgq.v[k], duq.v[k], dyq.v[k], gq.v[k], uq.v[k]);
  store_quad(dg, i, n, dgq);
  store_quad(du, i, n, duq);
}

// ---- launchers

void glu_forward(Reals y, ConstReals g, ConstReals u, size_t n, Activation act, Context& ctx) {
  require_activation("glu_forward", act, of_glu);
  with_storage(y, [&](auto stored) {
    using S = decltype(stored);
    if (ctx.device == Device::cpu) return glu_forward_cpu(y.as<S>(), g.as<S>(), u.as<S>(), n, act);
    with_known_activation<of_glu>(act, [&](auto known) {
      launch(glu_forward_kernel<S, Glu<known>>, elementwise_grid(n), elementwise_block, 0, ctx, y.as<S>(), g.as<S>(),
             u.as<S>(), n);
    });
  });
}

void glu_backward(Reals dg, Reals du, ConstReals dy, ConstReals g, ConstReals u, size_t n, Activation act,
                  Context& ctx) {
  require_activation("glu_backward", act, of_glu);
  with_storage(dg, [&](auto stored) {
    using S = decltype(stored);
    if (ctx.device == Device::cpu)
      return glu_backward_cpu(dg.as<S>(), du.as<S>(), dy.as<S>(), g.as<S>(), u.as<S>(), n, act);
    with_known_activation<of_glu>(act, [&](auto known) {
      launch(glu_backward_kernel<S, Glu<known>>, elementwise_grid(n), elementwise_block, 0, ctx, dg.as<S>(), du.as<S>(),
             dy.as<S>(), g.as<S>(), u.as<S>(), n);
    });
  });
}

void swiglu_clamped_forward(Reals y, ConstReals g, ConstReals u, size_t n, Context& ctx) {
  with_storage(y, [&](auto stored) {
    using S = decltype(stored);
    if (ctx.device == Device::cpu) return swiglu_clamped_forward_cpu(y.as<S>(), g.as<S>(), u.as<S>(), n);
    launch(glu_forward_kernel<S, ClampedSwiglu>, elementwise_grid(n), elementwise_block, 0, ctx, y.as<S>(), g.as<S>(),
           u.as<S>(), n);
  });
}

void swiglu_clamped_backward(Reals dg, Reals du, ConstReals dy, ConstReals g, ConstReals u, size_t n, Context& ctx) {
  with_storage(dg, [&](auto stored) {
    using S = decltype(stored);
    if (ctx.device == Device::cpu)
      return swiglu_clamped_backward_cpu(dg.as<S>(), du.as<S>(), dy.as<S>(), g.as<S>(), u.as<S>(), n);
    launch(glu_backward_kernel<S, ClampedSwiglu>, elementwise_grid(n), elementwise_block, 0, ctx, dg.as<S>(),
           du.as<S>(), dy.as<S>(), g.as<S>(), u.as<S>(), n);
  });
}

}  // namespace gated
