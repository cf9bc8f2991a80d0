// gate: y = x*s, or y = x + s when additive; s = scale*act(z), one score for `group` neighbouring elements
//   (Qiu et al. 2025, "Gated attention for large language models", arXiv 2505.06708)
//   group 1  a score for every element: G1 elementwise, the last step of GatedNorm
//   group D  a score for every head: G1 headwise
//   group C  a score for every token: GatedNorm tensorwise
//   act: sigmoid, ns_sigmoid, silu, tanh or identity
// backward: multiplicative  dx = dy*s   dz = (sum over the group of dy*x) * scale*act'(z)
//           additive        dx = dy     dz = (sum over the group of dy) * scale*act'(z)
//   exactly: the sum runs in the canonical row order over the group, by fma(dy, x or 1, acc); of one element
//   it is the product itself. dz = sum * (scale*act'(z)), act and act' as activation.cuh evaluates them.
// shapes: x, y, dy, dx (N,C) f32; z, dz (N, C/group); all written; y may be x, dx may be dy, dz may be z
// --attn=g1|g2|g3|g4|g5, --norm=gated | tests/test_gate.cpp
#pragma once
#include "kernels/activation.cuh"

namespace gated {

// ---- formulas

// first ? a : b by a mask: g++ does not vectorise a loop that selects by what does not change in it.
HD float choose(bool first, float a, float b) {
  const uint32_t mask = 0u - uint32_t(first);
  return bits_float((float_bits(a) & mask) | (float_bits(b) & ~mask));
}
HD double choose(bool first, double a, double b) {
  return first ? a : b;
}

// A gate: how a score is made, how it meets x, and the derivatives of both.
struct GateOp {
  Activation act = Activation::sigmoid;
  bool additive = false;
  float scale = 1;

  template <class Act, class T>
  HD T score(T z) const {
    return T(scale) * Act::value(z);
  }
  template <class Act, class T>
  HD T slope(T z) const {
    return T(scale) * Act::slope(z);
  }
  template <class T>
  HD T y(T x, T s) const {
    return choose(additive, x + s, x * s);
  }
  template <class T>
  HD T dy_dx(T s) const {
    return choose(additive, T(1), s);
  }
  template <class T>
  HD T dy_ds(T x) const {
    return choose(additive, T(1), x);
  }
};

using GateActivations = ActivationSet<Sigmoid, NsSigmoid, Silu, Tanh, Identity>;

// ---- reference

template <class Act, class T>
void gate_forward_ref(T* y, const T* x, const T* z, size_t N, size_t C, size_t group, GateOp op) {
  const size_t scores = N * C / group;
  if (group == 1) {
#pragma omp parallel for simd
    for (size_t i = 0; i < scores; i++) y[i] = op.y(x[i], op.score<Act>(z[i]));
    return;
  }
#pragma omp parallel for firstprivate(op)
  for (size_t head = 0; head < scores; head++) {
    const T s = op.score<Act>(z[head]);
#pragma omp simd
    for (size_t i = head * group; i < (head + 1) * group; i++) y[i] = op.y(x[i], s);
  }
}

template <class Act, class T>
void gate_backward_ref(T* dx, T* dz, const T* dy, const T* x, const T* z, size_t N, size_t C, size_t group, GateOp op) {
  const size_t scores = N * C / group;
  if (group == 1) {
#pragma omp parallel for simd
    for (size_t i = 0; i < scores; i++) {
      const T to_x = dy[i] * op.dy_dx(op.score<Act>(z[i]));
      const T to_score = dy[i] * op.dy_ds(x[i]) * op.slope<Act>(z[i]);
      dx[i] = to_x;
      dz[i] = to_score;
    }
    return;
  }
#pragma omp parallel for firstprivate(op)
  for (size_t head = 0; head < scores; head++) {
    const T *xh = x + head * group, *dyh = dy + head * group;
    const T sum = row_reduce_ref<T>(group, [&](T acc, size_t i) { return fused(dyh[i], op.dy_ds(xh[i]), acc); });
    const T d = op.dy_dx(op.score<Act>(z[head]));
    dz[head] = sum * op.slope<Act>(z[head]);
#pragma omp simd
    for (size_t i = 0; i < group; i++) dx[head * group + i] = dyh[i] * d;
  }
}

// ---- kernels: a thread holds four neighbouring elements; each (N,C) array crosses the bus once

template <class Act, bool aligned>
__global__ void __launch_bounds__(elementwise_block)
    gate_forward_elementwise_kernel(float* y, const float* x, const float* z, size_t n, GateOp op) {
  const size_t i = elementwise_index();
  if (i >= n) return;
  Quad q = load_quad<aligned>(x, i, n);
  const Quad zq = load_quad<aligned>(z, i, n);
  for (int k = 0; k < 4; k++) q.v[k] = op.y(q.v[k], op.score<Act>(zq.v[k]));
  store_quad<aligned>(y, i, n, q);
}

template <class Act, bool aligned>
__global__ void __launch_bounds__(elementwise_block)
    gate_forward_headwise_kernel(float* y, const float* x, const float* z, size_t scores, size_t group, GateOp op) {
  const auto [head, i] = row_quad(group);
  if (head >= scores) return;
  const float s = op.score<Act>(z[head]);
  Quad q = load_quad<aligned>(x + head * group, i, group);
  for (int k = 0; k < 4; k++) q.v[k] = op.y(q.v[k], s);
  store_quad<aligned>(y + head * group, i, group, q);
}

template <class Act, bool aligned>
__global__ void __launch_bounds__(elementwise_block)
    gate_backward_elementwise_kernel(float* dx, float* dz, const float* dy, const float* x, const float* z, size_t n,
                                     GateOp op) {
  const size_t i = elementwise_index();
  if (i >= n) return;
  Quad dyq = load_quad<aligned>(dy, i, n), zq = load_quad<aligned>(z, i, n);
  const Quad xq = load_quad<aligned>(x, i, n);
  for (int k = 0; k < 4; k++) {
    const float s = op.score<Act>(zq.v[k]), slope = op.slope<Act>(zq.v[k]);
    zq.v[k] = dyq.v[k] * op.dy_ds(xq.v[k]) * slope;
    dyq.v[k] = dyq.v[k] * op.dy_dx(s);
  }
  store_quad<aligned>(dx, i, n, dyq);
  store_quad<aligned>(dz, i, n, zq);
}

// One warp a head. dx needs only the score, so it leaves in the pass that adds up dz.
template <class Act, bool aligned>
__global__ void __launch_bounds__(rows_block)
    gate_backward_headwise_kernel(float* dx, float* dz, const float* dy, const float* x, const float* z, size_t scores,
                                  size_t group, GateOp op) {
  const size_t head = warp_row();
  if (head >= scores) return;
  const float score = z[head], d = op.dy_dx(op.score<Act>(score));
  const float sum = warp_row_reduce<aligned>(group, [&](float* chain, size_t i, int count) {
    Quad q = load_quad<aligned>(dy + head * group, i, group);
    const Quad xq = load_quad<aligned>(x + head * group, i, group);
    for (int k = 0; k < count; k++) chain[k] = fused(q.v[k], op.dy_ds(xq.v[k]), chain[k]);
    for (int k = 0; k < 4; k++) q.v[k] = q.v[k] * d;
    store_quad<aligned>(dx + head * group, i, group, q);
  });
  if (threadIdx.x % 32 == 0) dz[head] = sum * op.slope<Act>(score);
}

// ---- launchers

inline void gate_forward(float* y, const float* x, const float* z, size_t N, size_t C, size_t group, const GateOp& op,
                         Context& ctx) {
  require(group > 0 && C % group == 0, "gate_forward: group is %zu, expected a divisor of the %zu columns", group, C);
  with_activation(GateActivations{}, "gate_forward", op.act, [&](auto a) {
    using Act = decltype(a);
    if (ctx.device == Device::cpu) return gate_forward_ref<Act>(y, x, z, N, C, group, op);
    const size_t n = N * C, scores = n / group;
    if (group == 1) {
      auto* kernel =
          n % 4 == 0 ? gate_forward_elementwise_kernel<Act, true> : gate_forward_elementwise_kernel<Act, false>;
      return launch(kernel, elementwise_grid(n), elementwise_block, 0, ctx, y, x, z, n, op);
    }
    auto* kernel = group % 4 == 0 ? gate_forward_headwise_kernel<Act, true> : gate_forward_headwise_kernel<Act, false>;
    launch(kernel, row_quads_grid(scores, group), elementwise_block, 0, ctx, y, x, z, scores, group, op);
  });
}

inline void gate_backward(float* dx, float* dz, const float* dy, const float* x, const float* z, size_t N, size_t C,
                          size_t group, const GateOp& op, Context& ctx) {
  require(group > 0 && C % group == 0, "gate_backward: group is %zu, expected a divisor of the %zu columns", group, C);
  with_activation(GateActivations{}, "gate_backward", op.act, [&](auto a) {
    using Act = decltype(a);
    if (ctx.device == Device::cpu) return gate_backward_ref<Act>(dx, dz, dy, x, z, N, C, group, op);
    const size_t n = N * C, scores = n / group;
    if (group == 1) {
      auto* kernel =
          n % 4 == 0 ? gate_backward_elementwise_kernel<Act, true> : gate_backward_elementwise_kernel<Act, false>;
      return launch(kernel, elementwise_grid(n), elementwise_block, 0, ctx, dx, dz, dy, x, z, n, op);
    }
    auto* kernel =
        group % 4 == 0 ? gate_backward_headwise_kernel<Act, true> : gate_backward_headwise_kernel<Act, false>;
    launch(kernel, rows_grid(scores), rows_block, 0, ctx, dx, dz, dy, x, z, scores, group, op);
  });
}

}  // namespace gated
