// gated_norm, down the columns: the gradients of the parameters of kernels/gated_norm.cu. Each is a sum over all rows:
//   dW_up   (scores,rank)   += dz^T a          a product, in slices of 1024 rows (kernels/matmul.cu)
//   dW_down (rank,C)        += dlow^T n        a product
//   dw (C)                  += sum of dn*unit  a sum down a column, in slices of 128 rows (core/reduce.cuh)
//   db (C)                  += sum of dn       the same
// unit is n before weight and bias: x*r, or tanh(alpha*x).
// The kernel leaves the sums of slices; gated_norm_backward adds them. Slices of their own for every block change no
// bit, because the order of these sums is made of slices anyway.
//
// n, z and dz of (N,C) were never stored. The kernel computes them again from x, dy and a. dn, a and dlow are what the
// kernel along the rows has left. All four gradients take what they want of them:
//
//                columns c0..c0+31
//              +-------------------+
//   64 rows    | unit  n   dz  dn  |   four tiles in shared memory, made by patches as gated_norm.cuh draws them
//              +-------------------+
//               | | | |                then read by columns: every thread goes down the 64 rows
//   64 more     v v v v
//    ...       to the end of the slice
//
// A block has 32 columns, 1024 rows and 16 of the rank (blockIdx.y says which). Its threads part into two halves, and
// every thread carries 8 chains in registers from the first row of the slice to the last:
//
//   threads    0.. 63   four columns by two j of dW_up:    dz[row][c] * a[row][j]
//             64..127   four columns by two j of dW_down:  n[row][c] * dlow[row][j]
//
//   a half has 8 x 4 = 32 columns and 8 x 2 = 16 of the rank
//
// Threads 0 to 31 also carry dw of a column each, and threads 32 to 63 db. Blocks are no wider than a line of the
// cache, 32 floats, because a GPU has many multiprocessors and a slice is as high as it is: 4096 rows of 2048 columns
// are 256 blocks. The bus: x, dy and dn, once for every 16 of the rank.
// twins: kernels/cpu/gated_norm_cpu.cpp
// tests/test_gated_norm.cpp
#include "core/launch.cuh"
#include "kernels/gated_norm.cuh"

namespace gated {

template <class S>
__global__ void __launch_bounds__(gated_norm::threads)
    gated_norm_columns_kernel(GatedNormSlices out, const S* x, const S* dy, GatedNormLeft left, const float* r,
                              GatedNormWeights weights, const float* up_t, GatedNormShape shape) {
  using namespace gated_norm;
  constexpr unsigned rows = DownColumns::rows, width = DownColumns::width, pitch = DownColumns::pitch;
  STATIC_SHARED(float, units, [rows * pitch]);
  STATIC_SHARED(float, ns, [rows * pitch]);
  STATIC_SHARED(float, dzs, [rows * pitch]);
  STATIC_SHARED(float, dns, [rows * pitch]);
  // Of 16 j: [j][row], and W_up of the block's columns, [j][column]. Zeros after the rank, whose chains are not kept.
  STATIC_SHARED(float, as, [piece * rows]);
  STATIC_SHARED(float, dlows, [piece * rows]);
  STATIC_SHARED(float, ups, [piece * width]);
  const size_t N = shape.N, C = shape.C, rank = shape.rank, scores_of_row = shape.scores();
  const GateOp op = shape.op;
  const unsigned across = unsigned(ceil_div(C, width)), slice = blockIdx.x / across;
  const size_t c0 = size_t(blockIdx.x % across) * width, c = c0 + DownColumns::column_offset();
  const bool up = threadIdx.x < threads / 2;  // the half that makes dW_up
  const unsigned j_offset = threadIdx.x / 8 % 8 * 2;

  const auto load_values = [&](size_t j1, size_t first) {
    for (unsigned i = 4 * threadIdx.x; i < piece * rows; i += 4 * threads) {
      const size_t j = j1 + i / rows, row = first + i % rows;
      const bool exists = j < rank && row < N;
      store_quad<true>(as, i, piece * rows, exists ? load_quad(left.a + j * N, row, N) : Quad{});
      store_quad<true>(dlows, i, piece * rows, exists ? load_quad(left.dlow + j * N, row, N) : Quad{});
    }
  };
  const auto load_up = [&](size_t j1) {
    static_assert(piece * width == 4 * threads);
    const size_t i = 4 * threadIdx.x, j = j1 + i / width;
    const bool exists = j < rank && c < C;
    const float* const of_up = up_t + j * scores_of_row;
    const bool one = scores_of_row < C;  // score for a row: all columns have it
    store_quad<true>(ups, i, piece * width,
                     !exists ? Quad{}
                     : one   ? Quad{{*of_up, *of_up, *of_up, *of_up}}
                             : load_quad(of_up, c, C));
  };

  float chain[2][4] = {}, column_sum = 0;
  const size_t start = slice * matmul_slice;
  const unsigned height = N - start < matmul_slice ? unsigned(N - start) : matmul_slice;
  for (unsigned above = 0; above < height; above += rows) {
    const size_t first = start + above;
    DownColumns block(shape, weights, first);
    block.load_r(r);
    const Patch unit = block.unit(block.load(x, c)), d = block.load(dy, c);
    block.store(dns, block.load(left.dn, c));

    // By patches: what the kernel along the rows computed.
    Patch z = {};
    for (size_t j1 = 0; j1 < rank; j1 += piece) {
      if (above == 0 || rank > piece) load_up(j1);
      load_values(j1, first);
      __syncthreads();  // all are whole
      block.expand<4>(z, as, rank - j1 < piece ? unsigned(rank - j1) : piece, [&](unsigned j) {
        return load_quad<true>(ups + j * width, DownColumns::column_offset(), width);
      });
      if (rank > piece) __syncthreads();  // all have read them
    }
    if (rank > piece) load_values(piece * blockIdx.y, first);

    const Patch n = block.n(unit, c), slope = scores(op, z).slope;
    block.store(units, unit);
    block.store(ns, n);
    block.store(dzs, patch([&](int k, int e) {
                  if (scores_of_row < C) return k < int(block.count) ? left.dscores[block.row0 + k] : 0.0f;
                  return d.row[k].v[e] * gate_dy_ds(op, n.row[k].v[e]) * slope.row[k].v[e];
                }));
    __syncthreads();  // the tiles are whole

    // By columns. Rows past the last are left out, not added as zeros: fused(0, 0, -0) is +0.
    const unsigned count = height - above < rows ? height - above : rows, whole = count / 4 * 4;
    const float *tile = up ? dzs : ns, *values = (up ? as : dlows) + j_offset * rows;
    const auto four_rows = [&](unsigned row, unsigned n) {
      Quad value[2];
      for (int j = 0; j < 2; j++) value[j] = load_quad<true>(values + j * rows, row, rows);
      for (unsigned k = 0; k < 4; k++) {
        if (k == n) break;
        const Quad q = load_quad<true>(tile + (row + k) * pitch, threadIdx.x % 8 * 4, width);
        for (int j = 0; j < 2; j++)
          for (int e = 0; e < 4; e++) chain[j][e] = fused(q.v[e], value[j].v[k], chain[j][e]);
      }
    };
    for (unsigned row = 0; row < whole; row += 4) four_rows(row, 4);
    if (whole < count) four_rows(whole, count - whole);

    const size_t column = c0 + threadIdx.x % width;
    float* const sums = threadIdx.x < width ? out.w : out.b;
    if (threadIdx.x < 2 * width && blockIdx.y == 0 && column < C && sums) {
      for (unsigned row = 0, at = threadIdx.x % width; row < count; row++, at += pitch)
        column_sum = threadIdx.x < width ? fused(dns[at], units[at], column_sum) : column_sum + dns[at];
      // A slice of a column sum is 128 rows: eight slices of dw and db end on the way through one of the products.
      if ((above + rows) % column_slice == 0 || above + rows >= height) {
        sums[first / column_slice * C + column] = column_sum;
        column_sum = 0;
      }
    }
    __syncthreads();  // all have read as, dlows and the tiles, which the next 64 rows overwrite
  }

  const size_t j0 = piece * blockIdx.y + j_offset;
  for (size_t j = 0; j < 2 && j0 + j < rank; j++) {
    if (up) {
      for (size_t e = 0; e < 4 && c + e < scores_of_row; e++)
        out.up[(slice * scores_of_row + c + e) * rank + j0 + j] = chain[j][e];
    } else if (c < C) {
      const Quad q = {{chain[j][0], chain[j][1], chain[j][2], chain[j][3]}};
      store_quad(out.down + (slice * rank + j0 + j) * C, c, C, q);
    }
  }
}

void gated_norm_columns(const GatedNormSlices& out, ConstReals x, ConstReals dy, const GatedNormLeft& left,
                        const float* r, const GatedNormWeights& weights, const float* up_t, const GatedNormShape& shape,
                        Context& ctx) {
  const size_t blocks = ceil_div(shape.N, matmul_slice) * ceil_div(shape.C, gated_norm::DownColumns::width);
  const size_t ranks = ceil_div(shape.rank, gated_norm::piece);
  with_storage(x, [&](auto stored) {
    using S = decltype(stored);
    launch(gated_norm_columns_kernel<S>, dim3(grid_of(blocks).x, unsigned(ranks)), gated_norm::threads, 0, ctx, out,
           x.as<S>(), dy.as<S>(), left, r, weights, up_t, shape);
  });
}

}  // namespace gated
