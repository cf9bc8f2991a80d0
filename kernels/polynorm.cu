// polynorm: y = w0*norm(x^3) + w1*norm(x^2) + w2*norm(x) + b    (Zhuo et al. 2024, arXiv 2411.03884)
//   norm(v) = v*r, r = 1/sqrt(mean of v^2 over the row + eps): RMSNorm without a weight. The powers of an activation
//   differ by orders of magnitude; normed, they can be added. w (3) and b (1) are learned and serve all rows and
//   columns.
// backward: first that of one norm, n_i = v_i*r, for a gradient g_i of n_i. r depends on every v_i of the row:
//     ∂r/∂v_i = -1/2 * (mean + eps)^(-3/2) * 2*v_i/C = -r^3 * v_i/C
//   v_i reaches the loss through n_i and, by way of r, through all n_k = v_k*r:
//     ∂L/∂v_i = g_i*r + sum over k of g_k*v_k * ∂r/∂v_i = g_i*r - r*(v_i*r) * sum over k of g_k*(v_k*r)/C
//             = r * (g_i - n_i*mean(g*n))
//   Now v_j = x^(3-j), n_j = v_j*r_j, and the gradient of n_j is w_j*dy. The three ways from x to y add up:
//     dx = sum over j of w_j*r_j * (dy - n_j*mean(dy*n_j)) * v_j'      v' = 3x^2, 2x, 1
//     dw_j += sum over rows and columns of dy*n_j                      db += sum of dy
//   mean(dy*n_j) is the row's share of dw_j over C: four sums a row serve both.
// exactly: v_1 = x*x, v_0 = v_1*x, v_2 = x; the sums in the row order, those of the rows in the column order
//   (core/reduce.cuh); the rest as the reference evaluates it
// in bf16: everything is computed in float, and each number is rounded once, as it is stored
// shapes: x, y, dy, dx (N,C) f32 or bf16; f32: w, dw (3), b, db (1), r (N,3), which is saved, and row_sums (N,4), what
//   the rows add to dw and db
//   y, dx written, dw, db accumulated; y may be x, dx may be dy or x
// twins: kernels/cpu/polynorm_cpu.cpp
// --ffn=polynorm | tests/test_polynorm.cpp
#include "kernels/polynorm.h"

#include <array>

#include "core/launch_shape.cuh"
#include "core/reduce.cuh"

namespace gated {

// ---- reference

template <class T>
void polynorm_forward_ref(T* y, T* r, const T* x, const T* w, const T* b, size_t N, size_t C, T eps) {
  for (size_t n = 0; n < N; n++) {
    const T* xn = x + n * C;
    T* rn = r + n * 3;
    for (int j = 0; j < 3; j++) {
      RowSum<T> squares;
      for (size_t c = 0; c < C; c++) squares.fma(polynorm_power(xn[c], j), polynorm_power(xn[c], j));
      rn[j] = T(1) / exact_sqrt(squares.total() / T(C) + eps);
    }
    for (size_t c = 0; c < C; c++) {
      T sum = *b;
      for (int j = 2; j >= 0; j--) sum = fused(w[j], polynorm_power(xn[c], j) * rn[j], sum);
      y[n * C + c] = sum;
    }
  }
}

template <class T>
void polynorm_backward_ref(T* dx, T* dw, T* db, const T* dy, const T* x, const T* w, const T* r, size_t N, size_t C) {
  ColumnSum<T> dw_sum[3], db_sum;
  for (size_t n = 0; n < N; n++) {
    const T *xn = x + n * C, *dyn = dy + n * C, *rn = r + n * 3;
    RowSum<T> product[3], plain;
    T mean[3];
    for (size_t c = 0; c < C; c++) plain.add(dyn[c]);
    for (int j = 0; j < 3; j++) {
      for (size_t c = 0; c < C; c++) product[j].fma(dyn[c], polynorm_power(xn[c], j) * rn[j]);
      mean[j] = product[j].total() / T(C);
      dw_sum[j].add(product[j].total());
    }
    db_sum.add(plain.total());

    for (size_t c = 0; c < C; c++) {
      const T x1 = xn[c], x2 = x1 * x1;
      T d[3];  // the gradient of v_j is w_j*r_j*d_j
      for (int j = 0; j < 3; j++) d[j] = fused(-(polynorm_power(x1, j) * rn[j]), mean[j], dyn[c]);
      T sum = w[2] * rn[2] * d[2];
      sum = fused(w[1] * rn[1] * (T(2) * x1), d[1], sum);
      sum = fused(w[0] * rn[0] * (T(3) * x2), d[0], sum);
      dx[n * C + c] = sum;
    }
  }
  for (int j = 0; j < 3; j++) dw[j] = dw[j] + dw_sum[j].total();
  *db = *db + db_sum.total();
}
IN_FLOAT_AND_DOUBLE(polynorm_forward_ref);
IN_FLOAT_AND_DOUBLE(polynorm_backward_ref);

// ---- kernels
//
// A warp owns a row and walks it twice, as in kernels/rmsnorm.cu: once for the row's sums, of each of which a lane
// carries four chains, and once for its outputs.

template <class S>
__global__ void __launch_bounds__(rows_block)
    polynorm_forward_kernel(S* y, float* r, const S* x, const float* w, const float* b, size_t N, size_t C, float eps) {
  const size_t n = warp_row(), lane = threadIdx.x % 32;
  if (n >= N) return;
  const S* xn = x + n * C;
  float chain[3][4] = {};
  for (size_t c = 4 * lane; c < C; c += row_chains) {
    const Quad q = load_quad(xn, c, C);  // past the end 0, whose square adds nothing
    for (int k = 0; k < 4; k++)
      for (int j = 0; j < 3; j++) {
        const float v = polynorm_power(q.v[k], j);
        chain[j][k] = fused(v, v, chain[j][k]);
      }
  }
  float rn[3];
  for (int j = 0; j < 3; j++) {
    rn[j] = 1.0f / exact_sqrt(warp_chains_sum(chain[j]) / float(C) + eps);
    if (lane == 0) r[n * 3 + j] = rn[j];
  }

  const float w0 = w[0], w1 = w[1], w2 = w[2], bias = *b;
  for (size_t c = 4 * lane; c < C; c += row_chains) {
    Quad q = load_quad(xn, c, C);
    for (int k = 0; k < 4; k++) {
      const float x1 = q.v[k], x2 = x1 * x1;
      q.v[k] = fused(w0, x2 * x1 * rn[0], fused(w1, x2 * rn[1], fused(w2, x1 * rn[2], bias)));
    }
    store_quad(y + n * C, c, C, q);
  }
}

// row_sums[n]: sums of dy*n_0, dy*n_1, dy*n_2 and dy over the row. Columns past the end enter no chain: a chain that
// underflowed to -0 would become +0. 12 bytes an element cross the bus (in bf16 6), as the second walk reads from the
// cache.
template <class S>
__global__ void __launch_bounds__(rows_block)
    polynorm_backward_kernel(S* dx, float* row_sums, const S* dy, const S* x, const float* w, const float* r, size_t N,
                             size_t C) {
  const size_t n = warp_row(), lane = threadIdx.x % 32;
  if (n >= N) return;
  const S *xn = x + n * C, *dyn = dy + n * C;
  const float rn[3] = {r[n * 3], r[n * 3 + 1], r[n * 3 + 2]};
  float chain[4][4] = {};
  for (size_t c = 4 * lane; c < C; c += row_chains) {
    const Quad q = load_quad(xn, c, C), dyq = load_quad(dyn, c, C);
    for (int k = 0; k < 4 && c + k < C; k++) {
      for (int j = 0; j < 3; j++) chain[j][k] = fused(dyq.v[k], polynorm_power(q.v[k], j) * rn[j], chain[j][k]);
      chain[3][k] = chain[3][k] + dyq.v[k];
    }
  }
  float sum[4];
  for (int j = 0; j < 4; j++) {
    sum[j] = warp_chains_sum(chain[j]);
    if (lane == 0) row_sums[n * 4 + j] = sum[j];
  }

  const float mean[3] = {sum[0] / float(C), sum[1] / float(C), sum[2] / float(C)};
  const float g0 = w[0] * rn[0], g1 = w[1] * rn[1], g2 = w[2] * rn[2];
  for (size_t c = 4 * lane; c < C; c += row_chains) {
    Quad q = load_quad(xn, c, C);
    const Quad dyq = load_quad(dyn, c, C);
    for (int k = 0; k < 4; k++) {
      const float x1 = q.v[k], x2 = x1 * x1;
      const float d0 = fused(-(x2 * x1 * rn[0]), mean[0], dyq.v[k]);
      const float d1 = fused(-(x2 * rn[1]), mean[1], dyq.v[k]);
      const float d2 = fused(-(x1 * rn[2]), mean[2], dyq.v[k]);
      q.v[k] = fused(g0 * (3.0f * x2), d0, fused(g1 * (2.0f * x1), d1, g2 * d2));
    }
    store_quad(dx + n * C, c, C, q);
  }
}

// The four columns of row_sums, added up in one pass: dw and db.
struct PolynormRowSums {
  const float* row_sums;
  HD void operator()(float (&sum)[4], size_t row, size_t) const {
    for (int j = 0; j < 4; j++) sum[j] = sum[j] + row_sums[row * 4 + j];
  }
};

// ---- launchers

void polynorm_forward(Reals y, float* r, ConstReals x, const float* w, const float* b, size_t N, size_t C, float eps,
                      Context& ctx) {
  require(C > 0, "polynorm_forward: rows have no columns");
  with_storage(y, [&](auto stored) {
    using S = decltype(stored);
    if (ctx.device == Device::cpu) return polynorm_forward_cpu(y.as<S>(), r, x.as<S>(), w, b, N, C, eps);
    launch(polynorm_forward_kernel<S>, rows_grid(N), rows_block, 0, ctx, y.as<S>(), r, x.as<S>(), w, b, N, C, eps);
  });
}

size_t polynorm_backward_scratch(size_t N) {
  return column_reduce_scratch(N, 1, 4);
}

void polynorm_backward(Reals dx, float* dw, float* db, float* row_sums, ConstReals dy, ConstReals x, const float* w,
                       const float* r, size_t N, size_t C, Context& ctx) {
  require(C > 0, "polynorm_backward: rows have no columns");
  with_storage(dx, [&](auto stored) {
    using S = decltype(stored);
    if (ctx.device == Device::cpu)
      return polynorm_backward_cpu(dx.as<S>(), row_sums, dy.as<S>(), x.as<S>(), w, r, N, C);
    launch(polynorm_backward_kernel<S>, rows_grid(N), rows_block, 0, ctx, dx.as<S>(), row_sums, dy.as<S>(), x.as<S>(),
           w, r, N, C);
  });
  column_reduce_add(std::array{dw, dw + 1, dw + 2, db}, N, 1, PolynormRowSums{row_sums}, ctx);
}

}  // namespace gated
