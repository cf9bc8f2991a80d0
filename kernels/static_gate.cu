// static_gate: y = x*s, or y = x + s when additive; s = scale*act(theta): the logits are parameters, one a column, the
//   same for every token. It shows how much of a gate's gain needs a gate that looks at its input.
//   ("input-independent" in Qiu et al. 2025, "Gated attention for large language models", arXiv 2505.06708)
// backward: x_nc reaches the loss through y_nc alone; theta_c through the score, which every row of its column reads:
//     dx_nc      = dy_nc * s_c                                                     (additive: dy_nc)
//     dtheta_c  += sum over n of dy_nc * ∂y_nc/∂s_c * ∂s_c/∂theta_c
//                = sum over n of dy_nc * (x_nc * slope_c), slope = scale*act'(theta)   (additive: 1 in place of x_nc)
// act and act': core/nonlinear.cuh
// order: the sum is that of a column (core/reduce.cuh)
// in bf16: everything is computed in float, and each number is rounded once, as it is stored
// shapes: x, y, dy, dx (N,C) f32 or bf16; theta, dtheta (C) f32
//   y, dx written, dtheta accumulated; y may be x, dx may be dy
// twins: kernels/cpu/static_gate_cpu.cpp
// --gate=static | tests/test_static_gate.cpp
#include "kernels/static_gate.h"

#include "core/launch_shape.cuh"
#include "core/reduce.cuh"
#include "kernels/gate.cuh"

namespace gated {

// ---- reference

template <class T>
void static_gate_forward_ref(T* y, const T* x, const T* theta, size_t N, size_t C, GateOp op) {
  for (size_t i = 0; i < N * C; i++) {
    const T s = T(op.scale) * activation_value(op.act, theta[i % C]);
    y[i] = op.additive ? x[i] + s : x[i] * s;
  }
}

template <class T>
void static_gate_backward_ref(T* dx, T* dtheta, const T* dy, const T* x, const T* theta, size_t N, size_t C,
                              GateOp op) {
  for (size_t c = 0; c < C; c++) {
    const T s = T(op.scale) * activation_value(op.act, theta[c]);
    const T slope = T(op.scale) * activation_slope(op.act, theta[c]);
    ColumnSum<T> sum;
    for (size_t i = c; i < N * C; i += C) {
      sum.fma(dy[i], op.additive ? slope : x[i] * slope);
      dx[i] = op.additive ? dy[i] : dy[i] * s;
    }
    dtheta[c] = dtheta[c] + sum.total();
  }
}

IN_FLOAT_AND_DOUBLE(static_gate_forward_ref);
IN_FLOAT_AND_DOUBLE(static_gate_backward_ref);

// ---- kernels

// A thread holds four neighbouring columns of one row, a Quad (kernels/activation.cu). The logits come from the cache.
template <class S>
__global__ void __launch_bounds__(elementwise_block)
    static_gate_forward_kernel(S* y, const S* x, const float* theta, size_t N, size_t C, GateOp op) {
  const auto [row, i] = row_quad(C);
  if (row >= N) return;
  Quad q = load_quad(x + row * C, i, C);
  const Quad t = load_quad(theta, i, C);
  for (int k = 0; k < 4; k++) q.v[k] = gate_y(op, q.v[k], gate_score(op, t.v[k]));
  store_quad(y + row * C, i, C, q);
}

// A thread goes down one column of a slice of 128 rows. That is the order of a column sum, so the thread makes the
// slice's share of dtheta on its way, and needs score and slope once. Its neighbours go down the columns beside it, so
// that a warp reads and writes 128 bytes side by side, in bf16 64; dy, x and dx cross the bus once:
//
//              c 0   1   2   3   ...
//   row 0        |   |   |   |
//   ...          t0  t1  t2  t3       block of slice 0
//   row 127      v   v   v   v        -> sums[0][c]
//   row 128      |   |   |   |
//   ...          t0  t1  t2  t3       block of slice 1
template <class S>
__global__ void __launch_bounds__(column_block)
    static_gate_backward_kernel(S* dx, float* sums, const S* dy, const S* x, const float* theta, size_t N, size_t C,
                                GateOp op) {
  const size_t across = ceil_div(C, column_block);
  const size_t slice = blockIdx.x / across, c = blockIdx.x % across * column_block + threadIdx.x;
  if (c >= C) return;
  const float slope = gate_slope(op, theta[c]), dy_dx = gate_dy_dx(op, gate_score(op, theta[c]));
  const size_t end = (slice + 1) * column_slice < N ? (slice + 1) * column_slice : N;
  float sum = 0;
  for (size_t row = slice * column_slice; row < end; row++) {
    const float d = dy[row * C + c];
    sum = fused(d, gate_dy_ds(op, x[row * C + c]) * slope, sum);
    dx[row * C + c] = S(d * dy_dx);
  }
  sums[slice * C + c] = sum;
}

// ---- launchers

void static_gate_forward(Reals y, ConstReals x, const float* theta, size_t N, size_t C, const GateOp& op,
                         Context& ctx) {
  require_gate("static_gate_forward", op);
  with_storage(y, [&](auto stored) {
    using S = decltype(stored);
    if (ctx.device == Device::cpu) return static_gate_forward_cpu(y.as<S>(), x.as<S>(), theta, N, C, op);
    launch(static_gate_forward_kernel<S>, row_quads_grid(N, C), elementwise_block, 0, ctx, y.as<S>(), x.as<S>(), theta,
           N, C, op);
  });
}

size_t static_gate_backward_scratch(size_t N, size_t C) {
  return column_reduce_scratch(N, C);
}

void static_gate_backward(Reals dx, float* dtheta, ConstReals dy, ConstReals x, const float* theta, size_t N, size_t C,
                          const GateOp& op, Context& ctx) {
  require_gate("static_gate_backward", op);
  if (N == 0 || C == 0) return;
  with_storage(dx, [&](auto stored) {
    using S = decltype(stored);
    if (ctx.device == Device::cpu)
      return static_gate_backward_cpu(dx.as<S>(), dtheta, dy.as<S>(), x.as<S>(), theta, N, C, op);
    const size_t slices = ceil_div(N, column_slice);
    float* sums = ctx.scratch(static_gate_backward_scratch(N, C) / sizeof(float));
    launch(static_gate_backward_kernel<S>, grid_of(slices * ceil_div(C, column_block)), column_block, 0, ctx,
           dx.as<S>(), sums, dy.as<S>(), x.as<S>(), theta, N, C, op);
    column_add_slices(std::array{dtheta}, sums, slices, C, ctx);
  });
}

}  // namespace gated
