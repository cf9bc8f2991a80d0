// layernorm: y = xh*w + b, xh = (x - mean)*r, r = 1/sqrt(variance + eps)     (Ba, Kiros & Hinton 2016, arXiv 1607.06450)
//
// A row x of C numbers is centred and divided by its standard deviation: variance = mean((x - mean)^2). Every column
// gets a weight and a bias of its own. For example x = (2, -1, 3, 0.5) has mean 1.125 and variance 2.297; with w = 1
// and b = 0, y = (0.577, -1.402, 1.237, -0.412).
//
// backward, of one row. g = dy*w is the gradient of xh.
//   dw_c += sum over the rows of dy_c*xh_c      db_c += sum over the rows of dy_c
//   Let u = x - mean, so that xh = u*r and r = (mean(u^2) + eps)^(-1/2): this is RMSNorm of u, and as derived in
//   rmsnorm.cu
//     du_c = r*(g_c - xh_c * mean(g*xh))
//   Every x_c is in its own u_c and, through the mean, in all of them: ∂u_j/∂x_c = [j = c] - 1/C, where [j = c] is 1 for
//   j = c and 0 else. So
//     dx_c = du_c - mean(du)      mean(du) = r*(mean(g) - mean(xh)*mean(g*xh)) = r*mean(g), because mean(xh) = 0
//          = r*(g_c - mean(g) - xh_c * mean(g*xh))
// exactly: y = fma(xh, w, b); dx = r * fma(-xh, mean(g*xh), g - mean(g)). Means are sums along a row, dw and db are
//   sums down a column (core/reduce.cuh), each in its canonical order.
// The variance takes a second pass over the row, in cache: mean(x^2) - mean^2 cancels where x has a mean.
// in bf16: everything is computed in float, and each number is rounded once, as it is stored
// shapes: x, y, dy, dx (N,C) f32 or bf16; w, b, dw, db (C); mean, r (N), saved for the backward | dx is written, dw and db
//   accumulated
// --norm=layernorm | tests/test_layernorm.cpp
#include "kernels/layernorm.h"

#include "core/launch_shape.cuh"
#include "core/reduce.cuh"
#include "core/rows_and_columns.cuh"
#include "kernels/residual.cuh"

namespace gated {

// ---- reference: fused(a,b,c) is a*b + c, rounded once

template <class T>
void layernorm_forward_ref(T* y, T* mean, T* r, const T* x, const T* w, const T* b, size_t N, size_t C, T eps) {
  for (size_t n = 0; n < N; n++) {
    const T* xn = x + n * C;
    RowSum<T> sum, squares;
    for (size_t c = 0; c < C; c++) sum.add(xn[c]);
    const T m = sum.total() / T(C);
    for (size_t c = 0; c < C; c++) squares.fma(xn[c] - m, xn[c] - m);
    mean[n] = m;
    r[n] = T(1) / exact_sqrt(squares.total() / T(C) + eps);
    for (size_t c = 0; c < C; c++) y[n * C + c] = fused((xn[c] - m) * r[n], w[c], b[c]);
  }
}
IN_FLOAT_AND_DOUBLE(layernorm_forward_ref);

// dw and db come first: they still read dy where dx is in its place.
template <class T>
void layernorm_backward_ref(T* dx, T* dw, T* db, const T* dy, const T* x, const T* w, const T* mean, const T* r,
                            size_t N, size_t C) {
  for (size_t c = 0; c < C; c++) {
    ColumnSum<T> sum_w, sum_b;
    for (size_t n = 0; n < N; n++) {
      sum_w.fma(dy[n * C + c], (x[n * C + c] - mean[n]) * r[n]);
      sum_b.add(dy[n * C + c]);
    }
    dw[c] = dw[c] + sum_w.total();
    db[c] = db[c] + sum_b.total();
  }
  for (size_t n = 0; n < N; n++) {
    const T *xn = x + n * C, *dyn = dy + n * C;
    RowSum<T> sum_g, sum_gxh;
    for (size_t c = 0; c < C; c++) {
      const T g = dyn[c] * w[c], xh = (xn[c] - mean[n]) * r[n];
      sum_g.add(g);
      sum_gxh.fma(g, xh);
    }
    const T mean_g = sum_g.total() / T(C), mean_gxh = sum_gxh.total() / T(C);
    for (size_t c = 0; c < C; c++) {
      const T g = dyn[c] * w[c], xh = (xn[c] - mean[n]) * r[n];
      dx[n * C + c] = r[n] * fused(-xh, mean_gxh, g - mean_g);
    }
  }
}
IN_FLOAT_AND_DOUBLE(layernorm_backward_ref);

// ---- the general form: x is the join of the stream and of a branch (residual.cu), in the same pass over memory
//
// Its reference is the two operations, one after the other. The structs are in layernorm.h; ResidualIn, what is normalised,
// and ResidualBackwardIn are in residual.h.

template <class T>
void layernorm_general_forward_ref(const LayernormOutputsOf<T>& out, const ResidualInOf<T>& in, const T* w, const T* b,
                                   size_t N, size_t C, T eps) {
  if (in.branch) residual_join_forward_ref(out.sum, in, N, C);
  const T* x = in.branch ? out.sum : in.x;
  layernorm_forward_ref(out.y, out.mean, out.r, x, w, b, N, C, eps);
}
IN_FLOAT_AND_DOUBLE(layernorm_general_forward_ref);

template <class T>
void layernorm_general_backward_ref(const LayernormGradientsOf<T>& out, const T* dy, const ResidualBackwardInOf<T>& in,
                                    const T* w, const T* mean, const T* r, size_t N, size_t C) {
  std::vector<T> through_norm(N * C);
  layernorm_backward_ref(through_norm.data(), out.dw, out.db, dy, in.x, w, mean, r, N, C);
  residual_join_backward_ref(out.dx, out.dbranch, through_norm.data(), in, N, C);
}
IN_FLOAT_AND_DOUBLE(layernorm_general_backward_ref);

// ---- kernels along the rows: y, mean, r and dx
//
// A warp owns a row. Its 32 lanes walk along it in steps of 128 columns, and a lane holds four neighbouring columns
// of every step: a Quad, which one 16-byte load brings (core/quad.cuh). Element i of a row is in chain i mod 128 of
// the row's sums, so a lane carries four chains of each sum in registers from step to step; at the end five shuffles
// add the lanes (warp_chains_sum). There is no shared memory and no barrier. A warp without a row returns as a whole.
// The first pass over a row brings it from memory, the later ones find it in a cache, L1 or L2. The memory bus: forward 8
// bytes an element (x, y), with a branch 16 (x, branch, sum, y); backward 12 (dy, x, dx), with dresidual 16. In bf16
// it is half.

template <class S>
__global__ void __launch_bounds__(rows_block)
    layernorm_forward_kernel(LayernormOutputsOf<S> out, ResidualInOf<S> in, const float* w, const float* b, size_t N,
                             size_t C, float eps) {
  const size_t row = warp_row(), lane = threadIdx.x % 32;
  if (row >= N) return;

  float chain[4] = {};
  for (size_t i = 4 * lane; i < C; i += row_chains) {
    const Quad x = residual_join_quad(out.sum, in, row, i, C);  // x, or the sum, which it stores
    for (int k = 0; k < 4; k++)
      if (i + k < C) chain[k] = chain[k] + x.v[k];
  }
  const float mean = warp_chains_sum(chain) / float(C);  // every lane has it

  float square_chain[4] = {};
  for (size_t i = 4 * lane; i < C; i += row_chains) {
    const Quad x = residual_quad(in, row, i, C);
    for (int k = 0; k < 4; k++)
      if (i + k < C) square_chain[k] = fused(x.v[k] - mean, x.v[k] - mean, square_chain[k]);
  }
  const float r = 1.0f / exact_sqrt(warp_chains_sum(square_chain) / float(C) + eps);
  if (lane == 0) {
    out.mean[row] = mean;
    out.r[row] = r;
  }

  for (size_t i = 4 * lane; i < C; i += row_chains) {
    Quad q = residual_quad(in, row, i, C);
    const Quad wq = load_quad(w, i, C), bq = load_quad(b, i, C);
    for (int k = 0; k < 4; k++) q.v[k] = fused((q.v[k] - mean) * r, wq.v[k], bq.v[k]);
    store_quad(out.y + row * C, i, C, q);
  }
}

// A row of dx. Both sums of a row are made in one pass. A lane reads its columns of dy again before it writes those
// of dx, and no other lane reads them: dx may be dy.
template <class S>
struct LayernormBackwardRows {
  LayernormGradientsOf<S> out;
  const S* dy;
  ResidualBackwardInOf<S> in;
  const float *w, *mean, *r;
  size_t C;

  void on_cpu(size_t N) const { layernorm_backward_rows_cpu(out, dy, in, w, mean, r, N, C); }

  __device__ void operator()(size_t row) const {
    const size_t lane = threadIdx.x % 32;
    const S *dyr = dy + row * C, *xr = in.x + row * C;
    const float m = mean[row], scale = r[row];

    float g_chain[4] = {}, gxh_chain[4] = {};
    for (size_t i = 4 * lane; i < C; i += row_chains) {
      const Quad d = load_quad(dyr, i, C), wq = load_quad(w, i, C), x = load_quad(xr, i, C);
      for (int k = 0; k < 4; k++) {
        const float g = d.v[k] * wq.v[k], xh = (x.v[k] - m) * scale;
        if (i + k < C) {
          g_chain[k] = g_chain[k] + g;
          gxh_chain[k] = fused(g, xh, gxh_chain[k]);
        }
      }
    }
    const float mean_g = warp_chains_sum(g_chain) / float(C), mean_gxh = warp_chains_sum(gxh_chain) / float(C);

    for (size_t i = 4 * lane; i < C; i += row_chains) {
      Quad d = load_quad(dyr, i, C);
      const Quad wq = load_quad(w, i, C), x = load_quad(xr, i, C);
      for (int k = 0; k < 4; k++) {
        const float g = d.v[k] * wq.v[k], xh = (x.v[k] - m) * scale;
        d.v[k] = scale * fused(-xh, mean_gxh, g - mean_g);
      }
      if (!in.dresidual && !in.branch)
        store_quad(out.dx + row * C, i, C, d);  // the norm alone ends here
      else
        residual_backward_quad(out.dx, out.dbranch, in, row, i, C, d, x);  // adds dresidual, goes through the join
    }
  }
};

// ---- down the columns: dw and db, made in one run
//
// The fold puts element (row,c) into the chains of column c. With enough rows rows_and_columns_kernel
// (core/rows_and_columns.cuh) makes dx, dw and db in one pass over dy and x. With fewer there is a kernel for each
// direction: then a thread owns one column of a slice of 128 rows, and dy and x cross the bus twice.

template <class S>
struct LayernormFold {
  const S *dy, *x;
  const float *mean, *r;
  size_t C;
  HD void operator()(float (&acc)[2], size_t row, size_t c) const {
    const float dyc = dy[row * C + c];
    acc[0] = fused(dyc, (x[row * C + c] - mean[row]) * r[row], acc[0]);
    acc[1] = acc[1] + dyc;
  }
};

// ---- launchers

// The plain calls are the general form without a branch.
void layernorm_forward(Reals y, float* mean, float* r, ConstReals x, const float* w, const float* b, size_t N, size_t C,
                       float eps, Context& ctx) {
  layernorm_forward({.y = y, .mean = mean, .r = r}, {.x = x}, w, b, N, C, eps, ctx);
}

void layernorm_backward(Reals dx, float* dw, float* db, ConstReals dy, ConstReals x, const float* w, const float* mean,
                        const float* r, size_t N, size_t C, Context& ctx) {
  layernorm_backward({.dx = dx, .dw = dw, .db = db}, dy, {.x = x}, w, mean, r, N, C, ctx);
}

void layernorm_forward(const LayernormOutputs& out, const ResidualIn& in, const float* w, const float* b, size_t N,
                       size_t C, float eps, Context& ctx) {
  require_residual("layernorm_forward", out.sum, in, C);
  with_storage(out.y, [&](auto stored) {
    using S = decltype(stored);
    if (ctx.device == Device::cpu) return layernorm_forward_cpu(out.as<S>(), in.as<S>(), w, b, N, C, eps);
    launch(layernorm_forward_kernel<S>, rows_grid(N), rows_block, 0, ctx, out.as<S>(), in.as<S>(), w, b, N, C, eps);
  });
}

size_t layernorm_backward_scratch(size_t N, size_t C) {
  return column_reduce_scratch(N, C, 2);
}

// The columns come first, so that dx may be dy.
void layernorm_backward(const LayernormGradients& out, ConstReals dy, const ResidualBackwardIn& in, const float* w,
                        const float* mean, const float* r, size_t N, size_t C, Context& ctx) {
  require_residual_backward("layernorm_backward", out.dbranch, in, C);
  with_storage(out.dx, [&](auto stored) {
    using S = decltype(stored);
    const S* d = dy.as<S>();
    const LayernormBackwardRows<S> rows = {out.as<S>(), d, in.as<S>(), w, mean, r, C};
    rows_and_columns<First::columns>(std::array{out.dw, out.db}, N, C, rows,
                                     LayernormFold<S>{d, in.x.as<S>(), mean, r, C}, ctx);
  });
}

}  // namespace gated
