// dyt: y = w*tanh(alpha*x) + b      (Zhu et al. 2025, "Transformers without normalization", arXiv 2503.10622)
//
// Not a norm, but in its place: tanh holds outliers down, and no element needs another of its row. alpha is one number
// for all elements; every column has a weight and a bias of its own.
//
// backward. Write t = tanh(alpha*x); tanh has derivative 1 - t^2, so alpha*x has the gradient dz = dy*w*(1 - t^2).
//   alpha*x depends on both factors:      dx = alpha*dz      dalpha += sum of dz*x over all elements
//   y = w*t + b:                          dw_c += sum over the rows of dy_c*t_c      db_c += sum over the rows of dy_c
// exactly: y = fma(w, t, b); dz = (dy*w) * fma(-t, t, 1). dw and db are sums down a column, dalpha is the sum down a
//   column of the sums along the rows (core/reduce.cuh), each in its canonical order.
// in bf16: everything is computed in float, and each number is rounded once, as it is stored
// shapes: x, y, dy, dx (N,C) f32 or bf16; w, b, dw, db (C); alpha, dalpha (1) | dx is written, dalpha, dw and db
//   accumulated
// twins: kernels/cpu/dyt_cpu.cpp
// --norm=dyt | tests/test_dyt.cpp
#include "kernels/dyt.h"

#include <algorithm>

#include "core/launch_shape.cuh"
#include "core/reduce.cuh"
#include "kernels/residual.cuh"

namespace gated {

// ---- reference: fused(a,b,c) is a*b + c, rounded once

template <class T>
void dyt_forward_ref(T* y, const T* x, const T* alpha, const T* w, const T* b, size_t N, size_t C) {
  for (size_t n = 0; n < N; n++)
    for (size_t c = 0; c < C; c++) y[n * C + c] = fused(w[c], exact_tanh(*alpha * x[n * C + c]), b[c]);
}
IN_FLOAT_AND_DOUBLE(dyt_forward_ref);

// dw and db come first: they still read dy where dx is in its place.
template <class T>
void dyt_backward_ref(T* dx, T* dalpha, T* dw, T* db, const T* dy, const T* x, const T* alpha, const T* w, size_t N,
                      size_t C) {
  for (size_t c = 0; c < C; c++) {
    ColumnSum<T> sum_w, sum_b;
    for (size_t n = 0; n < N; n++) {
      sum_w.fma(dy[n * C + c], exact_tanh(*alpha * x[n * C + c]));
      sum_b.add(dy[n * C + c]);
    }
    dw[c] = dw[c] + sum_w.total();
    db[c] = db[c] + sum_b.total();
  }
  ColumnSum<T> all_rows;
  for (size_t n = 0; n < N; n++) {
    RowSum<T> row;
    for (size_t c = 0; c < C; c++) {
      const size_t i = n * C + c;
      const T t = exact_tanh(*alpha * x[i]);
      const T dz = dy[i] * w[c] * fused(-t, t, T(1));
      row.fma(dz, x[i]);
      dx[i] = *alpha * dz;
    }
    all_rows.add(row.total());
  }
  *dalpha = *dalpha + all_rows.total();
}
IN_FLOAT_AND_DOUBLE(dyt_backward_ref);

// ---- kernels along the rows: y, dx and each row's share of dalpha
//
// A warp owns a row, as in kernels/rmsnorm.cu. The bus: forward 8 bytes an element (x, y), backward 12 (dy, x, dx). In
// bf16 it is half. x and dx are what the kernel is given: for DyT itself they load and store a Quad (PlainRows).

template <class S, class X>
__global__ void __launch_bounds__(rows_block)
    dyt_forward_kernel(S* y, X x, const float* alpha, const float* w, const float* b, size_t N, size_t C) {
  const size_t row = warp_row();
  if (row >= N) return;
  const float a = *alpha;
  by_alignment(C, [&](auto) {
    for (size_t i = 4 * (threadIdx.x % 32); i < C; i += row_chains) {
      Quad q = x.first(row, i, C);
      const Quad wq = load_quad(w, i, C), bq = load_quad(b, i, C);
      for (int k = 0; k < 4; k++) q.v[k] = fused(wq.v[k], exact_tanh(a * q.v[k]), bq.v[k]);
      store_quad(y + row * C, i, C, q);
    }
  });
}

// dx waits for no sum, so one pass makes it and the row's share of dalpha. A lane reads its columns of dy before it
// writes those of dx, and no other lane reads them: dx may be dy.
template <class S, class Dx>
__global__ void __launch_bounds__(rows_block)
    dyt_backward_kernel(Dx dx, float* row_sums, const S* dy, const S* x, const float* alpha, const float* w, size_t N,
                        size_t C) {
  const size_t row = warp_row(), lane = threadIdx.x % 32;
  if (row >= N) return;
  const float a = *alpha;
  by_alignment(C, [&](auto aligned) {
    float chain[4] = {};
    for (size_t i = 4 * lane; i < C; i += row_chains) {
      Quad d = load_quad(dy + row * C, i, C);
      const Quad q = load_quad(x + row * C, i, C), wq = load_quad(w, i, C);
      for (int k = 0; k < 4; k++) {
        const float t = exact_tanh(a * q.v[k]), dz = d.v[k] * wq.v[k] * fused(-t, t, 1.0f);
        if (aligned || i + k < C) chain[k] = fused(dz, q.v[k], chain[k]);
        d.v[k] = a * dz;
      }
      dx.store(row, i, C, d);
    }
    const float sum = warp_chains_sum(chain);
    if (lane == 0) row_sums[row] = sum;
  });
}

// ---- down the columns: dw and db in one run, as in kernels/rmsnorm.cu; then dalpha, the column of the rows' sums

template <class S>
struct DytFold {
  const S *dy, *x;
  const float* alpha;
  size_t C;
  HD void operator()(float (&acc)[2], size_t row, size_t c) const {
    const float dyc = dy[row * C + c];
    acc[0] = fused(dyc, exact_tanh(*alpha * x[row * C + c]), acc[0]);
    acc[1] = acc[1] + dyc;
  }
};

// ---- the general form: x is the join of the stream and of a branch (residual.cu), in the same pass over memory
//
// Its reference is the two operations, one after the other. In the kernels JoinedRows and JoinedGradient (residual.cuh)
// take the place of plain loads and stores: with a branch 16 bytes an element forward, with dresidual 16 backward. The
// structs are in dyt.h; ResidualIn, what DyT is applied to, and ResidualBackwardIn are in residual.h.

template <class T>
void dyt_general_forward_ref(const DytOutputsOf<T>& out, const ResidualInOf<T>& in, const T* alpha, const T* w,
                             const T* b, size_t N, size_t C) {
  if (in.branch) residual_join_forward_ref(out.sum, in, N, C);
  dyt_forward_ref(out.y, in.branch ? out.sum : in.x, alpha, w, b, N, C);
}
IN_FLOAT_AND_DOUBLE(dyt_general_forward_ref);

template <class T>
void dyt_general_backward_ref(const DytGradientsOf<T>& out, const T* dy, const ResidualBackwardInOf<T>& in,
                              const T* alpha, const T* w, size_t N, size_t C) {
  std::vector<T> through_norm(N * C);
  dyt_backward_ref(through_norm.data(), out.dalpha, out.dw, out.db, dy, in.x, alpha, w, N, C);
  residual_join_backward_ref(out.dx, out.dbranch, through_norm.data(), in, N, C);
}
IN_FLOAT_AND_DOUBLE(dyt_general_backward_ref);

// ---- launchers

void dyt_forward(const DytOutputs& out, const ResidualIn& in, const float* alpha, const float* w, const float* b,
                 size_t N, size_t C, Context& ctx) {
  require_residual("dyt_forward", out.sum, in, C);
  with_storage(out.y, [&](auto stored) {
    using S = decltype(stored);
    if (ctx.device == Device::cpu) return dyt_forward_cpu(out.as<S>(), in.as<S>(), alpha, w, b, N, C);
    const auto run = [&](auto x) {
      launch(dyt_forward_kernel<S, decltype(x)>, rows_grid(N), rows_block, 0, ctx, out.y.as<S>(), x, alpha, w, b, N, C);
    };
    if (!in.branch) return run(PlainRows<const S>{in.x.as<S>()});
    run(JoinedRows<S>{out.sum.as<S>(), in.as<S>()});
  });
}

size_t dyt_backward_scratch(size_t N, size_t C) {
  return std::max(column_reduce_scratch(N, C, 2), column_reduce_scratch(N, 1));
}

// The columns come first, so that dx may be dy.
void dyt_backward(const DytGradients& out, ConstReals dy, const ResidualBackwardIn& in, const float* alpha,
                  const float* w, size_t N, size_t C, Context& ctx) {
  require_residual_backward("dyt_backward", out.dbranch, in, C);
  with_storage(out.dx, [&](auto stored) {
    using S = decltype(stored);
    const S *d = dy.as<S>(), *x = in.x.as<S>();
    const bool on_cpu = ctx.device == Device::cpu;
    if (on_cpu && dyt_backward_slices_cpu(out.as<S>(), d, in.as<S>(), alpha, w, N, C)) return;
    column_reduce_add(std::array{out.dw, out.db}, N, C, DytFold<S>{d, x, alpha, C}, ctx);
    if (on_cpu) return dyt_backward_rows_cpu(out.as<S>(), d, in.as<S>(), alpha, w, N, C);
    const auto run = [&](auto dx) {
      launch(dyt_backward_kernel<S, decltype(dx)>, rows_grid(N), rows_block, 0, ctx, dx, out.row_sums, d, x, alpha, w,
             N, C);
    };
    if (!in.branch && !in.dresidual) return run(PlainRows<S>{out.dx.as<S>()});
    run(JoinedGradient<S>{out.dx.as<S>(), out.dbranch.as<S>(), in.as<S>()});
  });
  column_reduce_add(out.dalpha, N, 1, AddRows<float>{out.row_sums, 1}, ctx);
}

}  // namespace gated
