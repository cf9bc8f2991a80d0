// combine: what a token's experts say, added up with their weights: the end of a mixture of experts
//
//   y_n = sum over j of w_nj * row(n,j) (+ plus_n)         row(n,j) = rows[row_of_slot[n*k + j]], the output of the
//                                                          token's j-th expert (kernels/dispatch.cu)
// plus is what an expert that all tokens share says of them.
// backward: y is a sum of products, and each factor gets the other one times dy. A row belongs to one slot alone:
//     drow(n,j) = w_nj * dy_n        dw_nj = dy_n . row(n,j), a sum over the columns        dplus = dy
// exactly: y starts as the product w_n0 * row(n,0), rounded; the others join it in slot order, one fused step each;
//   plus is added last; y in bf16 is that, rounded. dw is a row's sum (core/reduce.cuh). Weights and their gradients
//   stay fp32.
// shapes: y, plus, dy (N,C) f32 or bf16; rows, drows (M,C), M = N*k; w, dw (N,k) f32 | all written; y may be plus,
//   drows may be rows
// twins: kernels/cpu/combine_cpu.cpp
// --experts, --experts-per-token, --shared-experts | tests/test_combine.cpp
#include "kernels/combine.h"

#include "core/launch_shape.cuh"
#include "core/reduce.cuh"

namespace gated {

// ---- reference

template <class T>
void combine_forward_ref(T* y, const T* rows, const T* weight, const T* plus, const Dispatch& d, const DispatchShape& s,
                         size_t C) {
  for (size_t n = 0; n < s.N; n++)
    for (size_t c = 0; c < C; c++) {
      const auto of_slot = [&](size_t j) { return rows[d.row_of_slot[n * s.k + j] * C + c]; };
      T sum = weight[n * s.k] * of_slot(0);
      for (size_t j = 1; j < s.k; j++) sum = fused(weight[n * s.k + j], of_slot(j), sum);
      y[n * C + c] = plus ? sum + plus[n * C + c] : sum;
    }
}
IN_FLOAT_AND_DOUBLE(combine_forward_ref);

template <class T>
void combine_backward_ref(T* drows, T* dweight, const T* dy, const T* rows, const T* weight, const Dispatch& d,
                          const DispatchShape& s, size_t C) {
  for (size_t slot = 0; slot < s.M(); slot++) {
    const T* dyn = dy + slot / s.k * C;
    const size_t row = d.row_of_slot[slot];
    RowSum<T> sum;
    for (size_t c = 0; c < C; c++) sum.fma(dyn[c], rows[row * C + c]);
    dweight[slot] = sum.total();
    for (size_t c = 0; c < C; c++) drows[row * C + c] = weight[slot] * dyn[c];
  }
}
IN_FLOAT_AND_DOUBLE(combine_backward_ref);

// ---- kernels

// A thread owns four neighbouring columns of a token, a Quad (kernels/activation.cu), and carries their sums in
// registers along the k rows. The bus: 1 + k elements for one of y, and one more with plus.
template <class S>
__global__ void __launch_bounds__(elementwise_block)
    combine_forward_kernel(S* y, const S* rows, const float* weight, const S* plus, const int* row_of_slot, size_t N,
                           size_t k, size_t C) {
  const auto [n, c] = row_quad(C);
  if (n >= N) return;
  Quad sum = load_quad(rows + row_of_slot[n * k] * C, c, C);
  for (int i = 0; i < 4; i++) sum.v[i] = weight[n * k] * sum.v[i];
  for (size_t j = 1; j < k; j++) {
    const float w = weight[n * k + j];
    const Quad q = load_quad(rows + row_of_slot[n * k + j] * C, c, C);
    for (int i = 0; i < 4; i++) sum.v[i] = fused(w, q.v[i], sum.v[i]);
  }
  if (plus) {
    const Quad q = load_quad(plus + n * C, c, C);
    for (int i = 0; i < 4; i++) sum.v[i] = sum.v[i] + q.v[i];
  }
  store_quad(y + n * C, c, C, sum);
}

// A warp owns a slot: one pass over the token's dy and the slot's row, as along a row of kernels/rmsnorm.cu, of whose
// sum dw a lane carries four chains. It reads its columns of the row before it writes them: drows may be rows. The
// warps of a token's k slots lie side by side, so all but one of them find dy in a cache. The bus: rows in and out, and
// dy once.
template <class S>
__global__ void __launch_bounds__(rows_block)
    combine_backward_kernel(S* drows, float* dweight, const S* dy, const S* rows, const float* weight,
                            const int* row_of_slot, size_t M, size_t k, size_t C) {
  const size_t slot = warp_row(), lane = threadIdx.x % 32;
  if (slot >= M) return;
  const size_t row = row_of_slot[slot];
  const float w = weight[slot];
  float chain[4] = {};
  for (size_t c = 4 * lane; c < C; c += row_chains) {
    const Quad g = load_quad(dy + slot / k * C, c, C), q = load_quad(rows + row * C, c, C);
    Quad d;
    for (int i = 0; i < 4; i++) {
      if (c + i < C) chain[i] = fused(g.v[i], q.v[i], chain[i]);
      d.v[i] = w * g.v[i];
    }
    store_quad(drows + row * C, c, C, d);
  }
  const float sum = warp_chains_sum(chain);
  if (lane == 0) dweight[slot] = sum;
}

// ---- launchers

void combine_forward(Reals y, ConstReals rows, const float* weight, ConstReals plus, const Dispatch& d,
                     const DispatchShape& s, size_t C, Context& ctx) {
  require_dispatch("combine_forward", s);
  with_storage(y, [&](auto stored) {
    using S = decltype(stored);
    if (ctx.device == Device::cpu) return combine_forward_cpu(y.as<S>(), rows.as<S>(), weight, plus.as<S>(), d, s, C);
    launch(combine_forward_kernel<S>, row_quads_grid(s.N, C), elementwise_block, 0, ctx, y.as<S>(), rows.as<S>(),
           weight, plus.as<S>(), d.row_of_slot, s.N, s.k, C);
  });
}

void combine_backward(Reals drows, float* dweight, ConstReals dy, ConstReals rows, const float* weight,
                      const Dispatch& d, const DispatchShape& s, size_t C, Context& ctx) {
  require_dispatch("combine_backward", s);
  with_storage(drows, [&](auto stored) {
    using S = decltype(stored);
    if (ctx.device == Device::cpu)
      return combine_backward_cpu(drows.as<S>(), dweight, dy.as<S>(), rows.as<S>(), weight, d, s, C);
    launch(combine_backward_kernel<S>, rows_grid(s.M()), rows_block, 0, ctx, drows.as<S>(), dweight, dy.as<S>(),
           rows.as<S>(), weight, d.row_of_slot, s.M(), s.k, C);
  });
}

}  // namespace gated
