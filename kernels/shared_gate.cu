// shared_gate: y = x*s, or y = x + s when additive; the heads of a token share one score, which the logits of all make:
//     s(n,d) = 1/H * sum over h of scale*act(z(n,h,d))
//   The mean is taken after the activation.
//   ("head-shared" in Qiu et al. 2025, "Gated attention for large language models", arXiv 2505.06708)
// backward: x(n,h,d) reaches the loss through y(n,h,d) alone. The score reaches it through that column of every head,
//   and a logit reaches it through the score, of which it makes 1/H:
//     dx(n,h,d) = dy(n,h,d) * s(n,d)                               (additive: dy)
//     ds(n,d)   = sum over h of dy(n,h,d) * x(n,h,d)               (additive: sum of dy)
//     dz(n,h,d) = ds(n,d) * ∂s/∂z = ds(n,d)/H * scale*act'(z(n,h,d))
// act and act': core/nonlinear.cuh
// order: both sums over h are one chain from +0 in ascending h; the division by H comes last
// in bf16: everything is computed in float, and each number is rounded once, as it is stored
// shapes: x, z, y, dy, dx, dz (N,H,D) f32 or bf16; all written; y may be x, dx may be dy, dz may be z
// twins: kernels/cpu/shared_gate_cpu.cpp
// --gate=shared | tests/test_shared_gate.cpp
#include "kernels/shared_gate.h"

#include "core/launch_shape.cuh"
#include "kernels/gate.cuh"

namespace gated {

// ---- reference

template <class T>
T shared_score_ref(const T* z, size_t n, size_t d, size_t H, size_t D, GateOp op) {
  T s = 0;
  for (size_t h = 0; h < H; h++) s = s + T(op.scale) * activation_value(op.act, z[(n * H + h) * D + d]);
  return s / T(H);
}

template <class T>
void shared_gate_forward_ref(T* y, const T* x, const T* z, size_t N, size_t H, size_t D, GateOp op) {
  for (size_t n = 0; n < N; n++)
    for (size_t d = 0; d < D; d++) {
      const T s = shared_score_ref(z, n, d, H, D, op);
      for (size_t h = 0; h < H; h++) {
        const size_t i = (n * H + h) * D + d;
        y[i] = op.additive ? x[i] + s : x[i] * s;
      }
    }
}

template <class T>
void shared_gate_backward_ref(T* dx, T* dz, const T* dy, const T* x, const T* z, size_t N, size_t H, size_t D,
                              GateOp op) {
  for (size_t n = 0; n < N; n++)
    for (size_t d = 0; d < D; d++) {
      const T s = shared_score_ref(z, n, d, H, D, op);
      T ds = 0;
      for (size_t h = 0; h < H; h++) {
        const size_t i = (n * H + h) * D + d;
        ds = fused(dy[i], op.additive ? T(1) : x[i], ds);
        dx[i] = op.additive ? dy[i] : dy[i] * s;
      }
      for (size_t h = 0; h < H; h++) {
        const size_t i = (n * H + h) * D + d;
        const T slope = T(op.scale) * activation_slope(op.act, z[i]);
        dz[i] = ds / T(H) * slope;
      }
    }
}

IN_FLOAT_AND_DOUBLE(shared_gate_forward_ref);
IN_FLOAT_AND_DOUBLE(shared_gate_backward_ref);

// ---- kernels
//
// A thread holds four neighbouring d of one token (a Quad: kernels/activation.cu) and visits the heads one after the
// other, so the sums over h stay in its registers and no thread asks another. Of a token with H = 3, D = 8:
//
//          d 0 1 2 3     4 5 6 7
//   h 0      thread 0    thread 1
//   h 1      thread 0    thread 1
//   h 2      thread 0    thread 1
//
// row_quad() gives a thread its token and its first d. Every (N,H,D) array crosses the bus once, but for z, which the
// backward reads again for its slopes, mostly from the cache.

// The scores of columns i to i+3; z is that of the token.
template <class S>
__device__ inline Quad shared_score(const S* z, size_t i, size_t H, size_t D, const GateOp& op) {
  Quad s = {};
  for (size_t h = 0; h < H; h++) {
    const Quad q = load_quad(z + h * D, i, D);
    for (int k = 0; k < 4; k++) s.v[k] = s.v[k] + gate_score(op, q.v[k]);
  }
  for (int k = 0; k < 4; k++) s.v[k] = s.v[k] / float(H);
  return s;
}

template <class S>
__global__ void __launch_bounds__(elementwise_block)
    shared_gate_forward_kernel(S* y, const S* x, const S* z, size_t N, size_t H, size_t D, GateOp op) {
  const auto [n, i] = row_quad(D);
  if (n >= N) return;
  const Quad s = shared_score(z + n * H * D, i, H, D, op);
  for (size_t head = n * H * D; head < (n + 1) * H * D; head += D) {
    Quad q = load_quad(x + head, i, D);
    for (int k = 0; k < 4; k++) q.v[k] = gate_y(op, q.v[k], s.v[k]);
    store_quad(y + head, i, D, q);
  }
}

template <class S>
__global__ void __launch_bounds__(elementwise_block)
    shared_gate_backward_kernel(S* dx, S* dz, const S* dy, const S* x, const S* z, size_t N, size_t H, size_t D,
                                GateOp op) {
  const auto [n, i] = row_quad(D);
  if (n >= N) return;
  const Quad s = shared_score(z + n * H * D, i, H, D, op);
  Quad ds = {};
  for (size_t head = n * H * D; head < (n + 1) * H * D; head += D) {
    Quad q = load_quad(dy + head, i, D);
    const Quad xq = load_quad(x + head, i, D);
    for (int k = 0; k < 4; k++) {
      ds.v[k] = fused(q.v[k], gate_dy_ds(op, xq.v[k]), ds.v[k]);
      q.v[k] = q.v[k] * gate_dy_dx(op, s.v[k]);
    }
    store_quad(dx + head, i, D, q);
  }
  for (int k = 0; k < 4; k++) ds.v[k] = ds.v[k] / float(H);
  for (size_t head = n * H * D; head < (n + 1) * H * D; head += D) {
    Quad q = load_quad(z + head, i, D);
    for (int k = 0; k < 4; k++) q.v[k] = ds.v[k] * gate_slope(op, q.v[k]);
    store_quad(dz + head, i, D, q);
  }
}

// ---- launchers

static void require_shared_gate(const char* operation, size_t H, const GateOp& op) {
  require(H > 0, "%s: no heads to share a gate", operation);
  require_gate(operation, op);
}

void shared_gate_forward(Reals y, ConstReals x, ConstReals z, size_t N, size_t H, size_t D, const GateOp& op,
                         Context& ctx) {
  require_shared_gate("shared_gate_forward", H, op);
  with_storage(y, [&](auto stored) {
    using S = decltype(stored);
    if (ctx.device == Device::cpu) return shared_gate_forward_cpu(y.as<S>(), x.as<S>(), z.as<S>(), N, H, D, op);
    launch(shared_gate_forward_kernel<S>, row_quads_grid(N, D), elementwise_block, 0, ctx, y.as<S>(), x.as<S>(),
           z.as<S>(), N, H, D, op);
  });
}

void shared_gate_backward(Reals dx, Reals dz, ConstReals dy, ConstReals x, ConstReals z, size_t N, size_t H, size_t D,
                          const GateOp& op, Context& ctx) {
  require_shared_gate("shared_gate_backward", H, op);
  with_storage(dx, [&](auto stored) {
    using S = decltype(stored);
    if (ctx.device == Device::cpu)
      return shared_gate_backward_cpu(dx.as<S>(), dz.as<S>(), dy.as<S>(), x.as<S>(), z.as<S>(), N, H, D, op);
    launch(shared_gate_backward_kernel<S>, row_quads_grid(N, D), elementwise_block, 0, ctx, dx.as<S>(), dz.as<S>(),
           dy.as<S>(), x.as<S>(), z.as<S>(), N, H, D, op);
  });
}

}  // namespace gated
