// layernorm: y = xh*w + b, xh = (x - mean)*r, r = 1/sqrt(variance + eps)    (Ba, Kiros & Hinton 2016, arXiv 1607.06450)
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
//   Every x_c is in its own u_c and, through the mean, in all of them: ∂u_j/∂x_c = [j = c] - 1/C, where [j = c] is 1
//   for j = c and 0 else. So
//     dx_c = du_c - mean(du)      mean(du) = r*(mean(g) - mean(xh)*mean(g*xh)) = r*mean(g), because mean(xh) = 0
//          = r*(g_c - mean(g) - xh_c * mean(g*xh))
// exactly: y = fma(xh, w, b); dx = r * fma(-xh, mean(g*xh), g - mean(g)). Means are sums along a row, dw and db are
//   sums down a column (core/reduce.cuh), each in its canonical order.
// The variance takes a second pass over the row, in cache: mean(x^2) - mean^2 cancels where x has a mean.
// in bf16: everything is computed in float, and each number is rounded once, as it is stored
// shapes: x, y, dy, dx (N,C) f32 or bf16; w, b, dw, db (C); mean, r (N), saved for the backward | dx is written, dw and
//   db accumulated
// twins: kernels/cpu/layernorm_cpu.cpp
// --norm=layernorm | tests/test_layernorm.cpp
#include "kernels/layernorm.h"

#include "core/launch_shape.cuh"
#include "core/reduce.cuh"
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

// ---- kernels along the rows: y, mean, r and dx
//
// A warp owns a row, as in kernels/rmsnorm.cu: a lane carries four chains of each sum. The first pass over a row brings
// it from memory, the later ones find it in a cache. The memory bus: forward 8 bytes an element (x, y), backward 12
// (dy, x, dx). In bf16 it is half. x and dx are what the kernel is given: for LayerNorm itself they load and store a
// Quad (PlainRows).

template <class S, class X>
__global__ void __launch_bounds__(rows_block)
    layernorm_forward_kernel(S* y, float* all_means, float* all_r, X x, const float* w, const float* b, size_t N,
                             size_t C, float eps) {
  const size_t row = warp_row(), lane = threadIdx.x % 32;
  if (row >= N) return;
  by_alignment(C, [&](auto aligned) {
    float chain[4] = {};
    for (size_t i = 4 * lane; i < C; i += row_chains) {
      const Quad q = x.first(row, i, C);
      for (int k = 0; k < 4; k++) chain[k] = chain[k] + q.v[k];
    }
    const float mean = warp_chains_sum(chain) / float(C);  // every lane has it

    float square_chain[4] = {};
    for (size_t i = 4 * lane; i < C; i += row_chains) {
      const Quad q = x.again(row, i, C);
      for (int k = 0; k < 4; k++)
        if (aligned || i + k < C) square_chain[k] = fused(q.v[k] - mean, q.v[k] - mean, square_chain[k]);
    }
    const float r = 1.0f / exact_sqrt(warp_chains_sum(square_chain) / float(C) + eps);
    if (lane == 0) {
      all_means[row] = mean;
      all_r[row] = r;
    }

    for (size_t i = 4 * lane; i < C; i += row_chains) {
      Quad q = x.again(row, i, C);
      const Quad wq = load_quad(w, i, C), bq = load_quad(b, i, C);
      for (int k = 0; k < 4; k++) q.v[k] = fused((q.v[k] - mean) * r, wq.v[k], bq.v[k]);
      store_quad(y + row * C, i, C, q);
    }
  });
}

// Both sums of a row are made in one pass. A lane reads its columns of dy again before it writes those of dx, and no
// other lane reads them: dx may be dy.
template <class S, class Dx>
__global__ void __launch_bounds__(rows_block)
    layernorm_backward_kernel(Dx dx, const S* dy, const S* x, const float* w, const float* all_means,
                              const float* all_r, size_t N, size_t C) {
  const size_t row = warp_row(), lane = threadIdx.x % 32;
  if (row >= N) return;
  by_alignment(C, [&](auto aligned) {
    const S *dyr = dy + row * C, *xr = x + row * C;
    const float mean = all_means[row], r = all_r[row];

    float g_chain[4] = {}, gxh_chain[4] = {};
    for (size_t i = 4 * lane; i < C; i += row_chains) {
      const Quad d = load_quad(dyr, i, C), wq = load_quad(w, i, C), q = load_quad(xr, i, C);
      for (int k = 0; k < 4; k++) {
        const float g = d.v[k] * wq.v[k], xh = (q.v[k] - mean) * r;
        if (aligned || i + k < C) {
          g_chain[k] = g_chain[k] + g;
          gxh_chain[k] = fused(g, xh, gxh_chain[k]);
        }
      }
    }
    const float mean_g = warp_chains_sum(g_chain) / float(C), mean_gxh = warp_chains_sum(gxh_chain) / float(C);

    for (size_t i = 4 * lane; i < C; i += row_chains) {
      Quad d = load_quad(dyr, i, C);
      const Quad wq = load_quad(w, i, C), q = load_quad(xr, i, C);
      for (int k = 0; k < 4; k++) {
        const float g = d.v[k] * wq.v[k], xh = (q.v[k] - mean) * r;
        d.v[k] = r * fused(-xh, mean_gxh, g - mean_g);
      }
      dx.store(row, i, C, d);
    }
  });
}

// ---- down the columns: dw and db, made in one run, as dw of kernels/rmsnorm.cu

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

// ---- the general form: x is the join of the stream and of a branch (residual.cu), in the same pass over memory
//
// Its reference is the two operations, one after the other. In the kernels JoinedRows and JoinedGradient (residual.cuh)
// take the place of plain loads and stores: with a branch 16 bytes an element forward, with dresidual 16 backward. The
// structs are in layernorm.h; ResidualIn, what is normalised, and ResidualBackwardIn are in residual.h.

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

// ---- launchers

void layernorm_forward(const LayernormOutputs& out, const ResidualIn& in, const float* w, const float* b, size_t N,
                       size_t C, float eps, Context& ctx) {
  require_residual("layernorm_forward", out.sum, in, C);
  with_storage(out.y, [&](auto stored) {
    using S = decltype(stored);
    if (ctx.device == Device::cpu) return layernorm_forward_cpu(out.as<S>(), in.as<S>(), w, b, N, C, eps);
    const auto run = [&](auto x) {
      launch(layernorm_forward_kernel<S, decltype(x)>, rows_grid(N), rows_block, 0, ctx, out.y.as<S>(), out.mean, out.r,
             x, w, b, N, C, eps);
    };
    if (!in.branch) return run(PlainRows<const S>{in.x.as<S>()});
    run(JoinedRows<S>{out.sum.as<S>(), in.as<S>()});
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
    const S *d = dy.as<S>(), *x = in.x.as<S>();
    const bool on_cpu = ctx.device == Device::cpu;
    if (on_cpu && layernorm_backward_slices_cpu(out.as<S>(), d, in.as<S>(), w, mean, r, N, C)) return;
    column_reduce_add(std::array{out.dw, out.db}, N, C, LayernormFold<S>{d, x, mean, r, C}, ctx);
    if (on_cpu) return layernorm_backward_rows_cpu(out.as<S>(), d, in.as<S>(), w, mean, r, N, C);
    const auto run = [&](auto dx) {
      launch(layernorm_backward_kernel<S, decltype(dx)>, rows_grid(N), rows_block, 0, ctx, dx, d, x, w, mean, r, N, C);
    };
    if (!in.branch && !in.dresidual) return run(PlainRows<S>{out.dx.as<S>()});
    run(JoinedGradient<S>{out.dx.as<S>(), out.dbranch.as<S>(), in.as<S>()});
  });
}

}  // namespace gated
