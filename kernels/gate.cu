// gate: y = x*s, or y = x + s when additive; the score s = scale*act(z) is made from a logit z
//   A score of a sigmoid lies between 0 and 1: it lets x through, or holds it back.
//   One logit serves `group` neighbouring elements of a row:
//     group 1  every element has its own: --gate=elementwise, and the last step of GatedNorm
//     group D  every head of D elements:  --gate=headwise
//     group C  every token:               GatedNorm, tensorwise
//   (Qiu et al. 2025, "Gated attention for large language models", arXiv 2505.06708)
//   A GateOp holds act, scale and additive (gate.h).
// backward: x_i reaches the loss through y_i alone. The score reaches it through every y_i of its group, so its terms
//   add up; the logit reaches it through the score:
//     dx_i = dy_i * ∂y_i/∂x_i                     = dy_i * s             (additive: dy_i)
//     ds   = sum over the group of dy_i * ∂y_i/∂s = sum of dy_i * x_i    (additive: sum of dy_i)
//     dz   = ds * ∂s/∂z                           = ds * (scale*act'(z))
// act and act': core/nonlinear.cuh
// order: the sum is that of a row of `group` elements (core/reduce.cuh); for group 1 it is the product itself
// in bf16: everything is computed in float, and each number is rounded once, as it is stored
// shapes: x, y, dy, dx (N,C) and z, dz (N,C/group) f32 or bf16, all of them the same; written; y may be x, dx may be
//   dy, dz may be z
// twins: kernels/cpu/gate_cpu.cpp
// --attn=g1|g2|g3|g4|g5, --norm=gated | tests/test_gate.cpp
#include "kernels/gate.cuh"

#include "core/launch_shape.cuh"
#include "core/reduce.cuh"

namespace gated {

// ---- reference

template <class T>
void gate_forward_ref(T* y, const T* x, const T* z, size_t N, size_t C, size_t group, GateOp op) {
  for (size_t i = 0; i < N * C; i++) {
    const T s = T(op.scale) * activation_value(op.act, z[i / group]);
    y[i] = op.additive ? x[i] + s : x[i] * s;
  }
}

// One logit an element.
template <class T>
void gate_backward_elementwise_ref(T* dx, T* dz, const T* dy, const T* x, const T* z, size_t n, GateOp op) {
  for (size_t i = 0; i < n; i++) {
    const T s = T(op.scale) * activation_value(op.act, z[i]);
    const T slope = T(op.scale) * activation_slope(op.act, z[i]);
    dz[i] = (op.additive ? dy[i] : dy[i] * x[i]) * slope;
    dx[i] = op.additive ? dy[i] : dy[i] * s;
  }
}

template <class T>
void gate_backward_ref(T* dx, T* dz, const T* dy, const T* x, const T* z, size_t N, size_t C, size_t group, GateOp op) {
  if (group == 1) return gate_backward_elementwise_ref(dx, dz, dy, x, z, N * C, op);
  for (size_t g = 0; g < N * C / group; g++) {
    const T s = T(op.scale) * activation_value(op.act, z[g]);
    const T slope = T(op.scale) * activation_slope(op.act, z[g]);
    RowSum<T> ds;
    for (size_t i = g * group; i < (g + 1) * group; i++) {
      ds.fma(dy[i], op.additive ? T(1) : x[i]);
      dx[i] = op.additive ? dy[i] : dy[i] * s;
    }
    dz[g] = ds.total() * slope;
  }
}

IN_FLOAT_AND_DOUBLE(gate_forward_ref);
IN_FLOAT_AND_DOUBLE(gate_backward_ref);

// ---- kernels
//
// Where elements do not meet, a thread takes four neighbours, a Quad (kernels/activation.cu). Every (N,C) array crosses
// the bus once, and the time of these kernels is that of the bus: the choice of the activation, which is the same for
// every thread, hides behind it. gate_score and gate_slope (s and ∂s/∂z), gate_y, gate_dy_dx and gate_dy_ds are the
// formulas above, one line each in gate.cuh. fused(a,b,c) is a*b + c, rounded once.
// All loads of an element come before its stores, so an output may be the input that it belongs to.

template <class S>
__global__ void __launch_bounds__(elementwise_block)
    gate_forward_elementwise_kernel(S* y, const S* x, const S* z, size_t n, GateOp op) {
  const size_t i = elementwise_index();
  if (i >= n) return;
  Quad q = load_quad(x, i, n);
  const Quad zq = load_quad(z, i, n);
  for (int k = 0; k < 4; k++) q.v[k] = gate_y(op, q.v[k], gate_score(op, zq.v[k]));
  store_quad(y, i, n, q);
}

// Here a "row" is the group of one score. row_quad() gives every thread four neighbours of one group:
//
//   group 6           row 0           row 1
//   elements    0 1 2 3 4 5     0 1 2 3 4 5
//   threads     0 0 0 0 1 1     2 2 2 2 3 3
//
// The threads of a group load the same logit, which the cache serves, and make the score each for itself.
template <class S>
__global__ void __launch_bounds__(elementwise_block)
    gate_forward_group_kernel(S* y, const S* x, const S* z, size_t scores, size_t group, GateOp op) {
  const auto [row, i] = row_quad(group);
  if (row >= scores) return;
  const float s = gate_score(op, z[row]);
  Quad q = load_quad(x + row * group, i, group);
  for (int k = 0; k < 4; k++) q.v[k] = gate_y(op, q.v[k], s);
  store_quad(y + row * group, i, group, q);
}

template <class S>
__global__ void __launch_bounds__(elementwise_block)
    gate_backward_elementwise_kernel(S* dx, S* dz, const S* dy, const S* x, const S* z, size_t n, GateOp op) {
  const size_t i = elementwise_index();
  if (i >= n) return;
  Quad dyq = load_quad(dy, i, n), zq = load_quad(z, i, n);
  const Quad xq = load_quad(x, i, n);
#pragma unroll  // so that Quads stay in registers
  for (int k = 0; k < 4; k++) {
    const float s = gate_score(op, zq.v[k]), slope = gate_slope(op, zq.v[k]);
    zq.v[k] = dyq.v[k] * gate_dy_ds(op, xq.v[k]) * slope;
    dyq.v[k] = dyq.v[k] * gate_dy_dx(op, s);
  }
  store_quad(dx, i, n, dyq);
  store_quad(dz, i, n, zq);
}

// One warp a group, because its elements meet in dz: it walks along the group as along a row of kernels/rmsnorm.cu. dx
// needs the score alone, so it leaves in the same pass.
template <class S>
__global__ void __launch_bounds__(rows_block)
    gate_backward_group_kernel(S* dx, S* dz, const S* dy, const S* x, const S* z, size_t scores, size_t group,
                               GateOp op) {
  const size_t row = warp_row();
  if (row >= scores) return;
  const float logit = z[row], dy_dx = gate_dy_dx(op, gate_score(op, logit));
  float chain[4] = {};
  for (size_t i = 4 * (threadIdx.x % 32); i < group; i += row_chains) {
    Quad q = load_quad(dy + row * group, i, group);
    const Quad xq = load_quad(x + row * group, i, group);
    for (int k = 0; k < 4; k++)
      if (i + k < group) chain[k] = fused(q.v[k], gate_dy_ds(op, xq.v[k]), chain[k]);
    for (int k = 0; k < 4; k++) q.v[k] = q.v[k] * dy_dx;
    store_quad(dx + row * group, i, group, q);
  }
  const float ds = warp_chains_sum(chain);
  // dz may be z: all lanes have read the logit before one writes over it. (Shuffles alone do not order memory.)
  __syncwarp();
  if (threadIdx.x % 32 == 0) dz[row] = S(ds * gate_slope(op, logit));
}

// ---- launchers

void require_gate(const char* operation, const GateOp& op) {
  require_activation(operation, op.act, any_gate);
}

static void require_gate_shape(const char* operation, size_t C, size_t group, const GateOp& op) {
  require(group > 0 && C % group == 0, "%s: group is %zu, expected a divisor of the %zu columns", operation, group, C);
  require_gate(operation, op);
}

void gate_forward(Reals y, ConstReals x, ConstReals z, size_t N, size_t C, size_t group, const GateOp& op,
                  Context& ctx) {
  require_gate_shape("gate_forward", C, group, op);
  const size_t n = N * C, scores = n / group;
  with_storage(y, [&](auto stored) {
    using S = decltype(stored);
    if (ctx.device == Device::cpu) return gate_forward_cpu(y.as<S>(), x.as<S>(), z.as<S>(), N, C, group, op);
    if (group == 1)
      launch(gate_forward_elementwise_kernel<S>, elementwise_grid(n), elementwise_block, 0, ctx, y.as<S>(), x.as<S>(),
             z.as<S>(), n, op);
    else
      launch(gate_forward_group_kernel<S>, row_quads_grid(scores, group), elementwise_block, 0, ctx, y.as<S>(),
             x.as<S>(), z.as<S>(), scores, group, op);
  });
}

void gate_backward(Reals dx, Reals dz, ConstReals dy, ConstReals x, ConstReals z, size_t N, size_t C, size_t group,
                   const GateOp& op, Context& ctx) {
  require_gate_shape("gate_backward", C, group, op);
  const size_t n = N * C, scores = n / group;
  with_storage(dx, [&](auto stored) {
    using S = decltype(stored);
    if (ctx.device == Device::cpu)
      return gate_backward_cpu(dx.as<S>(), dz.as<S>(), dy.as<S>(), x.as<S>(), z.as<S>(), N, C, group, op);
    if (group == 1)
      launch(gate_backward_elementwise_kernel<S>, elementwise_grid(n), elementwise_block, 0, ctx, dx.as<S>(),
             dz.as<S>(), dy.as<S>(), x.as<S>(), z.as<S>(), n, op);
    else
      launch(gate_backward_group_kernel<S>, rows_grid(scores), rows_block, 0, ctx, dx.as<S>(), dz.as<S>(), dy.as<S>(),
             x.as<S>(), z.as<S>(), scores, group, op);
  });
}

}  // namespace gated
