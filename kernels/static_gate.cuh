// static_gate: y = x*s, or y = x + s when additive; s = scale*act(theta), one score a column, the same for
//   every token: the input-independent gate                        (Qiu et al. 2025, arXiv 2505.06708)
// backward: multiplicative  dx = dy*s   dtheta += column sum of dy * x*scale*act'(theta)
//           additive        dx = dy     dtheta += column sum of dy * scale*act'(theta)
//   exactly: the sum runs in the canonical column order by fma(dy, (x or 1) * (scale*act'(theta)), acc), act
//   and act' as activation.cuh evaluates them
// shapes: x, y, dy, dx (N,C) f32; theta, dtheta (C)
//   y, dx written, dtheta accumulated; y may be x, dx may be dy
// --gate-input=none | tests/test_static_gate.cpp
#pragma once
#include <vector>

#include "kernels/gate.cuh"

namespace gated {

// ---- reference

template <class Act, class T>
std::vector<T> static_score_ref(const T* theta, size_t C, GateOp op) {
  std::vector<T> s(C);
  for (size_t c = 0; c < C; c++) s[c] = op.score<Act>(theta[c]);
  return s;
}

template <class Act, class T>
void static_gate_forward_ref(T* y, const T* x, const T* theta, size_t N, size_t C, GateOp op) {
  const std::vector<T> s = static_score_ref<Act>(theta, C, op);
#pragma omp parallel for firstprivate(op)
  for (size_t row = 0; row < N; row++) {
#pragma omp simd
    for (size_t c = 0; c < C; c++) y[row * C + c] = op.y(x[row * C + c], s[c]);
  }
}

// One term of dtheta: the column fold shared by reference and kernel.
template <class Act, class T>
struct StaticGateGrad {
  const T *dy, *x, *theta;
  size_t C;
  GateOp op;
  HD T operator()(T acc, size_t row, size_t c) const {
    return fused(dy[row * C + c], op.dy_ds(x[row * C + c]) * op.slope<Act>(theta[c]), acc);
  }
};

template <class Act, class T>
void static_gate_backward_ref(T* dx, T* dtheta, const T* dy, const T* x, const T* theta, size_t N, size_t C,
                              GateOp op) {
  column_reduce_add_ref(dtheta, N, C, StaticGateGrad<Act, T>{dy, x, theta, C, op});
  std::vector<T> d = static_score_ref<Act>(theta, C, op);
  for (T& v : d) v = op.dy_dx(v);
#pragma omp parallel for
  for (size_t row = 0; row < N; row++) {
#pragma omp simd
    for (size_t c = 0; c < C; c++) dx[row * C + c] = dy[row * C + c] * d[c];
  }
}

// ---- kernels: a thread holds four neighbouring columns of one row; each (N,C) array crosses the bus once
// (x and dy once more in the column sum)

template <class Act, bool aligned>
__global__ void __launch_bounds__(elementwise_block)
    static_gate_forward_kernel(float* y, const float* x, const float* theta, size_t N, size_t C, GateOp op) {
  const auto [row, i] = row_quad(C);
  if (row >= N) return;
  Quad q = load_quad<aligned>(x + row * C, i, C);
  const Quad t = load_quad<aligned>(theta, i, C);
  for (int k = 0; k < 4; k++) q.v[k] = op.y(q.v[k], op.score<Act>(t.v[k]));
  store_quad<aligned>(y + row * C, i, C, q);
}

template <class Act, bool aligned>
__global__ void __launch_bounds__(elementwise_block)
    static_gate_backward_kernel(float* dx, const float* dy, const float* theta, size_t N, size_t C, GateOp op) {
  const auto [row, i] = row_quad(C);
  if (row >= N) return;
  Quad q = load_quad<aligned>(dy + row * C, i, C);
  const Quad t = load_quad<aligned>(theta, i, C);
  for (int k = 0; k < 4; k++) q.v[k] = q.v[k] * op.dy_dx(op.score<Act>(t.v[k]));
  store_quad<aligned>(dx + row * C, i, C, q);
}

// ---- launchers

inline void static_gate_forward(float* y, const float* x, const float* theta, size_t N, size_t C, const GateOp& op,
                                Context& ctx) {
  with_activation(GateActivations{}, "static_gate_forward", op.act, [&](auto a) {
    using Act = decltype(a);
    if (ctx.device == Device::cpu) return static_gate_forward_ref<Act>(y, x, theta, N, C, op);
    auto* kernel = C % 4 == 0 ? static_gate_forward_kernel<Act, true> : static_gate_forward_kernel<Act, false>;
    launch(kernel, row_quads_grid(N, C), elementwise_block, 0, ctx, y, x, theta, N, C, op);
  });
}

inline void static_gate_backward(float* dx, float* dtheta, const float* dy, const float* x, const float* theta,
                                 size_t N, size_t C, const GateOp& op, Context& ctx) {
  with_activation(GateActivations{}, "static_gate_backward", op.act, [&](auto a) {
    using Act = decltype(a);
    if (ctx.device == Device::cpu) return static_gate_backward_ref<Act>(dx, dtheta, dy, x, theta, N, C, op);
    column_reduce_add(dtheta, N, C, StaticGateGrad<Act, float>{dy, x, theta, C, op}, ctx);
    auto* kernel = C % 4 == 0 ? static_gate_backward_kernel<Act, true> : static_gate_backward_kernel<Act, false>;
    launch(kernel, row_quads_grid(N, C), elementwise_block, 0, ctx, dx, dy, theta, N, C, op);
  });
}

}  // namespace gated
