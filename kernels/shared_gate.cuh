// shared_gate: y = x*s, or y = x + s when additive; all heads share one score, made from the logits of each:
//   s(n,d) = (1/H) sum over h of scale*act(z(n,h,d)): the average is taken after the activation
//   ("head-shared" in Qiu et al. 2025, arXiv 2505.06708)
// backward, dL/ds = sum over h of dy*x (additive: of dy):
//   dx = dy*s (additive: dy)      dz(n,h,d) = dL/ds(n,d)/H * scale*act'(z(n,h,d))
//   exactly: both sums are one chain from +0 over ascending h, acc + scale*act(z) and fma(dy, x or 1, acc),
//   then divided by H; dz = (sum/H) * (scale*act'(z)); act and act' as activation.cuh evaluates them
// shapes: x, z, y, dy, dx, dz (N,H,D) f32; all written; y may be x, dx may be dy, dz may be z
// --gate-shared | tests/test_shared_gate.cpp
#pragma once
#include <algorithm>
#include <vector>

#include "kernels/gate.cuh"

namespace gated {

// ---- reference

// s (D): the scores of a token, whose logits are z (H,D).
template <class Act, class T>
void shared_score_ref(T* s, const T* z, size_t H, size_t D, GateOp op) {
  for (size_t d = 0; d < D; d++) s[d] = T(0);
  for (size_t h = 0; h < H; h++) {
#pragma omp simd
    for (size_t d = 0; d < D; d++) s[d] += op.score<Act>(z[h * D + d]);
  }
  for (size_t d = 0; d < D; d++) s[d] /= T(H);
}

template <class Act, class T>
void shared_gate_forward_ref(T* y, const T* x, const T* z, size_t N, size_t H, size_t D, GateOp op) {
#pragma omp parallel firstprivate(op)
  {
    std::vector<T> s(D);
#pragma omp for
    for (size_t n = 0; n < N; n++) {
      shared_score_ref<Act>(s.data(), z + n * H * D, H, D, op);
      for (size_t h = 0; h < H; h++) {
        const size_t head = (n * H + h) * D;
#pragma omp simd
        for (size_t d = 0; d < D; d++) y[head + d] = op.y(x[head + d], s[d]);
      }
    }
  }
}

template <class Act, class T>
void shared_gate_backward_ref(T* dx, T* dz, const T* dy, const T* x, const T* z, size_t N, size_t H, size_t D,
                              GateOp op) {
#pragma omp parallel firstprivate(op)
  {
    std::vector<T> s(D), ds(D);
#pragma omp for
    for (size_t n = 0; n < N; n++) {
      shared_score_ref<Act>(s.data(), z + n * H * D, H, D, op);
      std::fill(ds.begin(), ds.end(), T(0));
      for (size_t h = 0; h < H; h++) {
        const size_t head = (n * H + h) * D;
#pragma omp simd
        for (size_t d = 0; d < D; d++) {
          const T g = dy[head + d];
          ds[d] = fused(g, op.dy_ds(x[head + d]), ds[d]);
          dx[head + d] = g * op.dy_dx(s[d]);
        }
      }
      for (size_t d = 0; d < D; d++) ds[d] /= T(H);
      for (size_t h = 0; h < H; h++) {
        const size_t head = (n * H + h) * D;
#pragma omp simd
        for (size_t d = 0; d < D; d++) dz[head + d] = ds[d] * op.slope<Act>(z[head + d]);
      }
    }
  }
}

// ---- kernels: a thread holds four neighbouring d of one token and visits its heads
// Every (N,H,D) array crosses the bus once, but for z, which the backward reads again for its slopes.

// The scores at column i; zn is the token's logits.
template <class Act, bool aligned>
__device__ inline Quad shared_score(const float* zn, size_t i, size_t H, size_t D, const GateOp& op) {
  Quad s = {};
  for (size_t h = 0; h < H; h++) {
    const Quad zq = load_quad<aligned>(zn + h * D, i, D);
    for (int k = 0; k < 4; k++) s.v[k] += op.score<Act>(zq.v[k]);
  }
  for (int k = 0; k < 4; k++) s.v[k] /= float(H);
  return s;
}

template <class Act, bool aligned>
__global__ void __launch_bounds__(elementwise_block)
    shared_gate_forward_kernel(float* y, const float* x, const float* z, size_t N, size_t H, size_t D, GateOp op) {
  const auto [n, i] = row_quad(D);
  if (n >= N) return;
  const Quad s = shared_score<Act, aligned>(z + n * H * D, i, H, D, op);
  for (size_t head = n * H * D; head < (n + 1) * H * D; head += D) {
    Quad q = load_quad<aligned>(x + head, i, D);
    for (int k = 0; k < 4; k++) q.v[k] = op.y(q.v[k], s.v[k]);
    store_quad<aligned>(y + head, i, D, q);
  }
}

template <class Act, bool aligned>
__global__ void __launch_bounds__(elementwise_block)
    shared_gate_backward_kernel(float* dx, float* dz, const float* dy, const float* x, const float* z, size_t N,
                                size_t H, size_t D, GateOp op) {
  const auto [n, i] = row_quad(D);
  if (n >= N) return;
  const Quad s = shared_score<Act, aligned>(z + n * H * D, i, H, D, op);
  Quad ds = {};
  for (size_t head = n * H * D; head < (n + 1) * H * D; head += D) {
    Quad q = load_quad<aligned>(dy + head, i, D);
    const Quad xq = load_quad<aligned>(x + head, i, D);
    for (int k = 0; k < 4; k++) {
      ds.v[k] = fused(q.v[k], op.dy_ds(xq.v[k]), ds.v[k]);
      q.v[k] = q.v[k] * op.dy_dx(s.v[k]);
    }
    store_quad<aligned>(dx + head, i, D, q);
  }
  for (int k = 0; k < 4; k++) ds.v[k] /= float(H);
  for (size_t head = n * H * D; head < (n + 1) * H * D; head += D) {
    Quad q = load_quad<aligned>(z + head, i, D);
    for (int k = 0; k < 4; k++) q.v[k] = ds.v[k] * op.slope<Act>(q.v[k]);
    store_quad<aligned>(dz + head, i, D, q);
  }
}

// ---- launchers

inline void shared_gate_forward(float* y, const float* x, const float* z, size_t N, size_t H, size_t D,
                                const GateOp& op, Context& ctx) {
  require(H > 0, "shared_gate_forward: no heads to share a gate");
  with_activation(GateActivations{}, "shared_gate_forward", op.act, [&](auto a) {
    using Act = decltype(a);
    if (ctx.device == Device::cpu) return shared_gate_forward_ref<Act>(y, x, z, N, H, D, op);
    auto* kernel = D % 4 == 0 ? shared_gate_forward_kernel<Act, true> : shared_gate_forward_kernel<Act, false>;
    launch(kernel, row_quads_grid(N, D), elementwise_block, 0, ctx, y, x, z, N, H, D, op);
  });
}

inline void shared_gate_backward(float* dx, float* dz, const float* dy, const float* x, const float* z, size_t N,
                                 size_t H, size_t D, const GateOp& op, Context& ctx) {
  require(H > 0, "shared_gate_backward: no heads to share a gate");
  with_activation(GateActivations{}, "shared_gate_backward", op.act, [&](auto a) {
    using Act = decltype(a);
    if (ctx.device == Device::cpu) return shared_gate_backward_ref<Act>(dx, dz, dy, x, z, N, H, D, op);
    auto* kernel = D % 4 == 0 ? shared_gate_backward_kernel<Act, true> : shared_gate_backward_kernel<Act, false>;
    launch(kernel, row_quads_grid(N, D), elementwise_block, 0, ctx, dx, dz, dy, x, z, N, H, D, op);
  });
}

}  // namespace gated
