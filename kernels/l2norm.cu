// l2norm: y = x*r, r = 1/sqrt(m*(sum x^2 + eps)): every head of a token gets the length 1/sqrt(m)
//   The delta rule (kernels/gated_delta.cu) wants keys of length 1: then beta = 1 replaces what is stored for a key,
//   and no beta in [0,1] makes the state grow. Queries get the length 1/sqrt(D), m = D, which softmax attention has in
//   its scores. It is RMSNorm without a weight: one that divides by the length, not by the length over sqrt(D).
// backward, of one head. x_c reaches the loss directly and through r, on which the whole head depends:
//     dx_c = dy_c*r + (sum_j dy_j*x_j) * ∂r/∂x_c
//   r = (m*(sum x^2 + eps))^(-1/2)   =>   ∂r/∂x_c = -1/2 * r^3 * 2*m*x_c = -m*r^3*x_c     and with x = y/r:
//     dx_c = r * (dy_c - y_c * m * sum_j y_j*dy_j)
//   so that x is not needed any more: y may stand in its place. In bf16 it is y as it is stored.
// exactly: dx = r * fma(-y, m*dot, dy); both sums are those of a row (core/reduce.cuh)
// shapes: x, y, dy, dx (N,H,D) f32 or bf16, r (N,H), saved for the backward; tokens may lie in wider rows | all are
// written
// twins: kernels/cpu/l2norm_cpu.cpp
// tests/test_l2norm.cpp
#include "kernels/l2norm.h"

#include "core/launch_shape.cuh"
#include "core/reduce.cuh"

namespace gated {

// ---- reference

template <class T>
void l2norm_forward_ref(T* y, T* r, const T* x, const L2normShape& s) {
  for (size_t n = 0; n < s.N * s.H; n++) {
    const T* xn = x + s.x_row(n);
    RowSum<T> squares;
    for (size_t c = 0; c < s.D; c++) squares.fma(xn[c], xn[c]);
    r[n] = T(1) / exact_sqrt(T(s.m) * (squares.total() + T(s.eps)));
    for (size_t c = 0; c < s.D; c++) y[s.y_row(n) + c] = xn[c] * r[n];
  }
}
IN_FLOAT_AND_DOUBLE(l2norm_forward_ref);

template <class T>
void l2norm_backward_ref(T* dx, const T* dy, const T* y, const T* r, const L2normShape& s) {
  for (size_t n = 0; n < s.N * s.H; n++) {
    const T *yn = y + s.y_row(n), *dyn = dy + s.y_row(n);
    RowSum<T> dot;
    for (size_t c = 0; c < s.D; c++) dot.fma(yn[c], dyn[c]);
    const T back = T(s.m) * dot.total();
    for (size_t c = 0; c < s.D; c++) dx[s.x_row(n) + c] = r[n] * fused(-yn[c], back, dyn[c]);
  }
}
IN_FLOAT_AND_DOUBLE(l2norm_backward_ref);

// ---- kernels
//
// A warp owns a head of a token, as it owns a row in kernels/rmsnorm.cu. A head of D = 128 is one Quad a lane: it is
// read once, 512 neighbouring bytes, and the second look finds it in a cache. The bus: forward 8 bytes an element,
// backward 12, in bf16 half. A lane writes what it alone reads: y may be x, dx may be dy.

template <class S>
__global__ void __launch_bounds__(rows_block)
    l2norm_forward_kernel(S* y, float* r, const S* x, L2normShape s, bool aligned) {
  const size_t row = warp_row();
  if (row >= s.N * s.H) return;
  x += s.x_row(row);
  y += s.y_row(row);
  float chain[4] = {};
  for (size_t i = 4 * (threadIdx.x % 32); i < s.D; i += row_chains) {
    const Quad q = load_quad_inside(x, i, s.D, aligned);
    for (int k = 0; k < 4; k++) chain[k] = fused(q.v[k], q.v[k], chain[k]);
  }
  const float scale = 1.0f / exact_sqrt(s.m * (warp_chains_sum(chain) + s.eps));
  if (threadIdx.x % 32 == 0) r[row] = scale;
  for (size_t i = 4 * (threadIdx.x % 32); i < s.D; i += row_chains) {
    Quad q = load_quad_inside(x, i, s.D, aligned);
    for (int k = 0; k < 4; k++) q.v[k] = q.v[k] * scale;
    store_quad_inside(y, i, s.D, q, aligned);
  }
}

template <class S>
__global__ void __launch_bounds__(rows_block)
    l2norm_backward_kernel(S* dx, const S* dy, const S* y, const float* r, L2normShape s, bool aligned) {
  const size_t row = warp_row();
  if (row >= s.N * s.H) return;
  dx += s.x_row(row);
  dy += s.y_row(row);
  y += s.y_row(row);
  float chain[4] = {};
  for (size_t i = 4 * (threadIdx.x % 32); i < s.D; i += row_chains) {
    const Quad q = load_quad_inside(y, i, s.D, aligned), d = load_quad_inside(dy, i, s.D, aligned);
    for (int k = 0; k < 4; k++)
      if (i + k < s.D) chain[k] = fused(q.v[k], d.v[k], chain[k]);
  }
  const float scale = r[row], back = s.m * warp_chains_sum(chain);
  for (size_t i = 4 * (threadIdx.x % 32); i < s.D; i += row_chains) {
    const Quad q = load_quad_inside(y, i, s.D, aligned);
    Quad d = load_quad_inside(dy, i, s.D, aligned);
    for (int k = 0; k < 4; k++) d.v[k] = scale * fused(-q.v[k], back, d.v[k]);
    store_quad_inside(dx, i, s.D, d, aligned);
  }
}

// ---- launchers

static void require_l2norm(const char* name, const L2normShape& s, bool in_place) {
  require(s.H > 0, "%s: tokens have no heads", name);
  require(s.D > 0, "%s: heads have no elements", name);
  const size_t width = s.H * s.D;
  require((!s.x_stride || s.x_stride >= width) && (!s.y_stride || s.y_stride >= width),
          "%s: strides are %zu and %zu, expected 0 or at least the %zu elements of a token", name, s.x_stride,
          s.y_stride, width);
  require(!in_place || s.x_row(s.H) == s.y_row(s.H), "%s: in place, but strides are %zu and %zu", name, s.x_stride,
          s.y_stride);
}

// May whole Quads be read at once?
static bool l2norm_aligned(const L2normShape& s, std::initializer_list<ConstReals> arrays) {
  return s.D % 4 == 0 && s.x_row(s.H) % 4 == 0 && s.y_row(s.H) % 4 == 0 && begin_on_quads(arrays);
}

void l2norm_forward(Reals y, float* r, ConstReals x, const L2normShape& s, Context& ctx) {
  require_l2norm("l2norm_forward", s, y == x);
  with_storage(y, [&](auto stored) {
    using S = decltype(stored);
    if (ctx.device == Device::cpu) return l2norm_forward_cpu(y.as<S>(), r, x.as<S>(), s);
    launch(l2norm_forward_kernel<S>, rows_grid(s.N * s.H), rows_block, 0, ctx, y.as<S>(), r, x.as<S>(), s,
           l2norm_aligned(s, {y, x}));
  });
}

void l2norm_backward(Reals dx, ConstReals dy, ConstReals y, const float* r, const L2normShape& s, Context& ctx) {
  require_l2norm("l2norm_backward", s, dx == dy);
  with_storage(dx, [&](auto stored) {
    using S = decltype(stored);
    if (ctx.device == Device::cpu) return l2norm_backward_cpu(dx.as<S>(), dy.as<S>(), y.as<S>(), r, s);
    launch(l2norm_backward_kernel<S>, rows_grid(s.N * s.H), rows_block, 0, ctx, dx.as<S>(), dy.as<S>(), y.as<S>(), r, s,
           l2norm_aligned(s, {dx, dy, y}));
  });
}

}  // namespace gated
