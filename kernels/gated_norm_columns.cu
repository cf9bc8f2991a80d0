// gated_norm, down the columns: the gradients of the parameters of kernels/gated_norm.cu. Each is a sum over all rows:
//   dW_up   (scores,rank)   += dz^T a          a product, in slices of 1024 rows (kernels/matmul.cu)
//   dW_down (rank,C)        += dlow^T n        a product
//   dw (C)                  += sum of dn*unit  a sum down a column, in slices of 128 rows (core/reduce.cuh)
//   db (C)                  += sum of dn       the same
// unit is n before weight and bias: x*r, or tanh(alpha*x).
// The kernel leaves the sums of slices; gated_norm_backward adds them. Slices of their own for every block change no
// bit, because the order of these sums is made of slices anyway.
//
// n, z, dz and dn of (N,C) were never stored. The kernel computes them again from x, dy, low and dlow, which the kernel
// along the rows has left, and all four gradients take what they want of them:
//
//                columns c0..c0+127
//              +-----------------------+
//   16 rows    | unit   n   dz   dn    |   four tiles in shared memory, computed by rows as gated_norm.cuh draws it
//              +-----------------------+
//               | | | |                    then read by columns: every thread goes down the 16 rows
//   16 more     v v v v
//    ...       to the end of the slice
//
// A block has 128 columns, 1024 rows and 16 of the rank (blockIdx.y says which). Its threads part into two halves, and
// every thread carries 17 chains in registers from the first row of the slice to the last:
//
//   threads    0..127   four columns by four j of dW_up:    dz[row][c] * a[row][j]       and one column of dw
//            128..255   four columns by four j of dW_down:  n[row][c] * dlow[row][j]     and one column of db
//
//   a warp has 32 x 4 = 128 columns; the four warps of a half have 4 x 4 = 16 of the rank
//
// Four by four, because then a Quad of a tile serves 16 multiply-adds. The bus: x and dy, once for every 16 of the
// rank.
// twins: kernels/cpu/gated_norm_cpu.cpp
// tests/test_gated_norm.cpp
#include "core/launch.cuh"
#include "kernels/gated_norm.cuh"

namespace gated {

template <class S>
__global__ void __launch_bounds__(gated_norm::threads)
    gated_norm_columns_kernel(GatedNormSlices out, const S* x, const S* dy, const float* low, const float* dlow,
                              const float* dscores, const float* r, GatedNormWeights weights, const float* up_t,
                              GatedNormShape shape) {
  using namespace gated_norm;
  STATIC_SHARED(float, units, [rows * pitch]);
  STATIC_SHARED(float, ns, [rows * pitch]);
  STATIC_SHARED(float, dzs, [rows * pitch]);
  STATIC_SHARED(float, dns, [rows * pitch]);
  DYNAMIC_SHARED(float, a);  // [j][row], with zeros after the rank up to the last 16: their chains are not kept
  const size_t N = shape.N, C = shape.C, rank = shape.rank, width = 16 * gridDim.y;
  float* const dlows = a + rows * width;
  const GateOp op = shape.op;
  const size_t across = (C + chunk - 1) / chunk, slice = blockIdx.x / across;
  const size_t c0 = blockIdx.x % across * chunk, c = c0 + lane_column();
  const bool up = threadIdx.x < threads / 2;  // the half that makes dW_up and dw
  const size_t j0 = 16 * blockIdx.y + threadIdx.x / 32 % (warps / 2) * 4, column = c0 + threadIdx.x % chunk;

  float chain[4][4] = {}, column_sum = 0;
  const size_t end = (slice + 1) * matmul_slice < N ? (slice + 1) * matmul_slice : N;
  for (size_t first = slice * matmul_slice; first < end; first += rows) {
    Rows block(shape, weights, first);
    block.load_r(r);
    block.load_values(a, low, width, true);
    block.load_values(dlows, dlow, width, false);
    __syncthreads();  // a and dlows are whole

    // By rows: what the kernel along the rows computed, for this chunk.
    const Quads unit = block.unit(block.load(x, c)), n = block.n(unit, c);
    const Quads d = block.load(dy, c), by_low = block.dlow_down(dlows, c);
    Quads s, slope;
    scores_and_slopes(s, slope, op, block.z(a, up_t, c));
    store_tile(units, unit);
    store_tile(ns, n);
    store_tile(dzs, quads([&](int k, int e) {
                 if (shape.scores() < C) return block.has(block.row0 + k) ? dscores[block.row0 + k] : 0.0f;
                 return d.row[k].v[e] * gate_dy_ds(op, n.row[k].v[e]) * slope.row[k].v[e];
               }));
    store_tile(dns,
               quads([&](int k, int e) { return d.row[k].v[e] * gate_dy_dx(op, s.row[k].v[e]) + by_low.row[k].v[e]; }));
    __syncthreads();  // the tiles are whole

    // By columns. Rows past the last are left out, not added as zeros: fused(0, 0, -0) is +0.
    const size_t count = end - first < rows ? end - first : rows;
    const float *tile = up ? dzs : ns, *values = (up ? a : dlows) + j0 * rows;
    for (size_t row = 0; row < count; row++) {
      const Quad q = load_quad<true>(tile + row * pitch, lane_column(), chunk);
      for (int j = 0; j < 4; j++)
        for (int e = 0; e < 4; e++) chain[j][e] = fused(q.v[e], values[j * rows + row], chain[j][e]);
    }
    for (size_t row = 0, at = threadIdx.x % chunk; row < count; row++, at += pitch)
      column_sum = up ? fused(dns[at], units[at], column_sum) : column_sum + dns[at];

    // A slice of a column sum is 128 rows: eight slices of dw and db end on the way through one of the products.
    if ((first + rows) % column_slice == 0 || first + rows >= N) {
      float* sums = up ? out.w : out.b;
      if (blockIdx.y == 0 && column < C && sums) sums[first / column_slice * C + column] = column_sum;
      column_sum = 0;
    }
    __syncthreads();  // all have read a, dlows and the tiles, which the next 16 rows overwrite
  }

  for (size_t j = 0; j < 4 && j0 + j < rank; j++) {
    if (up) {
      for (size_t e = 0; e < 4 && c + e < shape.scores(); e++)
        out.up[(slice * shape.scores() + c + e) * rank + j0 + j] = chain[j][e];
    } else if (c < C) {
      const Quad q = {{chain[j][0], chain[j][1], chain[j][2], chain[j][3]}};
      store_quad(out.down + (slice * rank + j0 + j) * C, c, C, q);
    }
  }
}

void gated_norm_columns(const GatedNormSlices& out, ConstReals x, ConstReals dy, const float* low, const float* dlow,
                        const float* dscores, const float* r, const GatedNormWeights& weights, const float* up_t,
                        const GatedNormShape& shape, Context& ctx) {
  const size_t ranks = ceil_div(shape.rank, 16);
  const size_t blocks = ceil_div(shape.N, matmul_slice) * ceil_div(shape.C, gated_norm::chunk);
  with_storage(x, [&](auto stored) {
    using S = decltype(stored);
    launch(gated_norm_columns_kernel<S>, dim3(grid_of(blocks).x, unsigned(ranks)), gated_norm::threads,
           2 * gated_norm::rows * 16 * ranks * sizeof(float), ctx, out, x.as<S>(), dy.as<S>(), low, dlow, dscores, r,
           weights, up_t, shape);
  });
}

}  // namespace gated
