// grouped_matmul: rows in groups, each group multiplied with a matrix of its own
//
// In a mixture of experts a linear layer has E matrices W_e (out,in), and the router sends each row, a token's choice
// of an expert, to one of them. Sorted by expert, the rows of x lie together, and expert e's are row_start[e] to
// row_start[e+1]-1:
//   y_ro = sum over i of x_ri W_e,oi (+ b_e,o)      for the rows r of expert e
// That is one product per expert, with as many rows as the router chose to send: none, a few, or most of them. It is
// computed as it is: nothing is padded, and no token is dropped.
//
// backward. Row r of y depends on row r of x, and on the matrix and the bias of its own expert. So each expert has the
// three products of kernels/matmul.cu, of its rows alone:
//   dx_ri     = sum over o of dy_ro W_e,oi                       nn   grouped_matmul
//   dW_e,oi  += sum over the rows r of e of dy_ro x_ri           tn   grouped_matmul_tn
//   db_e,o   += sum over the rows r of e of dy_ro                     grouped_bias_backward
//
// Order: for each expert that of matmul() and of bias_backward() on its rows alone. So the slices of 1024 rows of a
// dW_e, and those of 128 of a db_e, are counted from the expert's first row.
//
// shapes: grouped_matmul     C (M,N), A (M,K), B (E,N,K) in nt, (E,K,N) in nn, bias (E,N)
//         grouped_matmul_tn  C (E,N,K), A (M,N), B (M,K)          grouped_bias_backward  db (E,N), dy (M,N)
//         row_start (E+1) int
//         all f32, but for the dy of grouped_bias_backward: f32 or bf16
// twins: kernels/cpu/grouped_matmul_cpu.cpp, kernels/bf16/grouped_matmul_bf16.cu
// --experts, --expert-hidden | tests/test_grouped_matmul.cpp
#include "kernels/grouped_matmul.h"

#include "core/launch.cuh"
#include "core/reduce.cuh"
#include "kernels/bias.h"
#include "kernels/grouped_rows.cuh"
#include "kernels/matmul_tile.cuh"

namespace gated {

// ---- reference: a loop over experts

template <class T>
void grouped_matmul_ref(T* C, const T* A, const T* B, const int* row_start, const GroupedShape& s, Layout layout,
                        Accumulate accumulate, const T* bias) {
  for_every_expert(row_start, s.E, [&](size_t e, size_t row, size_t rows) {
    matmul_ref(C + row * s.N, A + row * s.K, B + e * s.N * s.K, rows, s.N, s.K, layout, accumulate,
               bias ? bias + e * s.N : nullptr);
  });
}
IN_FLOAT_AND_DOUBLE(grouped_matmul_ref);

template <class T>
void grouped_matmul_tn_ref(T* C, const T* A, const T* B, const int* row_start, const GroupedShape& s) {
  for_every_expert(row_start, s.E, [&](size_t e, size_t row, size_t rows) {
    matmul_ref(C + e * s.N * s.K, A + row * s.N, B + row * s.K, s.N, s.K, rows, Layout::tn, Accumulate::yes);
  });
}
IN_FLOAT_AND_DOUBLE(grouped_matmul_tn_ref);

template <class T>
void grouped_bias_backward_ref(T* db, const T* dy, const int* row_start, size_t E, size_t N) {
  for_every_expert(row_start, E,
                   [&](size_t e, size_t row, size_t rows) { bias_backward_ref(db + e * N, dy + row * N, rows, N); });
}
IN_FLOAT_AND_DOUBLE(grouped_bias_backward_ref);

// ---- kernel of the products
//
// A block computes one tile, as in a product of two matrices (kernels/matmul_tile.cuh).
//   nt, nn   the tile's rows are a piece of an expert's rows (kernels/grouped_rows.cuh): blockIdx.x numbers the pieces,
//            blockIdx.y the tiles along N
//   tn       the tile lies in the C of expert blockIdx.z, and k runs over the expert's rows
//
// nt and nn have several slices where K > 1024, tn for the experts with more than 1024 rows: each of these has a matrix
// in scratch for their sum. The slices of an expert go one after the other: the experts together have tiles enough to
// fill a GPU.

struct GroupedJob {
  float *C, *sums;  // sums: in scratch
  const float *A, *B, *bias = nullptr;
  const int* row_start;
  size_t E, N, K;
  size_t tall = 0;  // tall_groups(), in tn
  bool accumulate, aligned;
};

template <Layout layout, int BM, int BN, int TM, int TN, bool aligned>
__global__ void __launch_bounds__(BM / TM * BN / TN, 2) grouped_matmul_kernel(GroupedJob job) {
  MatmulBlock block;
  block.n0 = size_t(blockIdx.y) * BN;
  block.accumulate = job.accumulate;
  block.aligned = job.aligned;
  if constexpr (layout == Layout::tn) {
    const size_t e = blockIdx.z, pitch = matmul_scratch_pitch(job.K);
    block.begin = size_t(job.row_start[e]), block.end = size_t(job.row_start[e + 1]);
    if (block.begin == block.end) return;
    block.m0 = size_t(blockIdx.x) * BM, block.m_end = job.N, block.n_end = job.K;
    block.A = {job.A, job.N}, block.B = {job.B, job.K};
    const size_t matrix = tall_group_place(job.tall, block.begin, e, job.E, matmul_slice);
    block.C = {job.C + (e * job.N + block.m0) * job.K + block.n0, job.K};
    block.sum = {job.sums + (matrix * job.N + block.m0) * pitch + block.n0, pitch};
  } else {
    const GroupRows rows = group_rows(job.row_start, job.E, BM, blockIdx.x);
    if (rows.begin >= rows.end) return;
    block.m0 = rows.begin, block.m_end = rows.end, block.n_end = job.N, block.begin = 0, block.end = job.K;
    block.A = {job.A, job.K}, block.B = {job.B + rows.expert * job.N * job.K, layout == Layout::nt ? job.K : job.N};
    block.bias = job.bias ? job.bias + rows.expert * job.N + block.n0 : nullptr;
    const size_t pitch = matmul_scratch_pitch(job.N);
    block.C = {job.C + block.m0 * job.N + block.n0, job.N};
    block.sum = {job.sums + block.m0 * pitch + block.n0, pitch};
  }
  matmul_tile<layout, BM, BN, TM, TN, aligned>(block);
}

// ---- kernels of the bias
//
// One thread a column of a piece of 128 rows, and then one a column of an expert, which adds the sums of its pieces:
// 128 make one, 128 of those one, and so on. It goes through the pieces once, and carries a chain for each of these
// levels. A chain starts at +0, so none is ever -0, and a level with a single sum may add it to 0 like any other.

constexpr unsigned grouped_bias_threads = 128;

template <class S>
__global__ void grouped_bias_pieces_kernel(float* sums, const S* dy, const int* row_start, size_t E, size_t N) {
  const GroupRows rows = group_rows(row_start, E, column_slice, blockIdx.x);
  const size_t c = threadIdx.x + size_t(blockDim.x) * blockIdx.y;
  if (rows.begin >= rows.end || c >= N) return;
  float sum = 0;
  for (size_t row = rows.begin; row < rows.end; row++) sum = sum + dy[row * N + c];
  sums[blockIdx.x * N + c] = sum;
}

__global__ void grouped_bias_add_kernel(float* db, const float* sums, const int* row_start, size_t E, size_t N) {
  const size_t i = threadIdx.x + size_t(blockDim.x) * blockIdx.x, e = i / N, c = i % N;
  if (e >= E) return;
  const size_t begin = size_t(row_start[e]), rows = size_t(row_start[e + 1]) - begin;
  if (rows == 0) return;
  const float* sum = sums + first_piece(row_start, e, column_slice) * N + c;
  const size_t pieces = ceil_div(rows, column_slice);
  constexpr int levels = 4;  // 128^4 pieces: 2^28 of them, of 2^35 rows
  float chain[levels] = {};
  for (size_t p = 0; p < pieces; p++) {
    chain[0] = chain[0] + sum[p * N];
#pragma unroll
    for (int level = 1, full = column_slice; level < levels; level++, full *= column_slice)
      if ((p + 1) % full == 0) {
        chain[level] = chain[level] + chain[level - 1];
        chain[level - 1] = 0;
      }
  }
  // What the last, unfinished chains hold goes up.
#pragma unroll
  for (int level = 1; level < levels; level++) chain[level] = chain[level] + chain[level - 1];
  db[i] += chain[levels - 1];
}

// ---- launchers

void require_groups(const char* name, size_t M, size_t E, const int* row_start, Context& ctx) {
  require(M <= 0x7fffffff, "%s: %zu rows are more than an int counts (2147483647): use a smaller batch", name, M);
  require(E > 0, "%s: no experts, expected at least one", name);
  if (ctx.device != Device::cpu) return;
  // Where the host can look:
  for (size_t e = 0; e < E; e++)
    require(row_start[e] <= row_start[e + 1], "%s: row_start[%zu] is %d and row_start[%zu] is %d, expected no less",
            name, e, row_start[e], e + 1, row_start[e + 1]);
  require(row_start[0] == 0 && size_t(row_start[E]) == M, "%s: row_start goes from %d to %d, expected 0 to %zu", name,
          row_start[0], row_start[E], M);
}

// The large tile wants blocks enough to fill a GPU, and pieces that are not mostly empty.
Tile grouped_matmul_tile(const GroupedShape& s) {
  const size_t blocks = s.M / 128 * ceil_div(s.N, 128);
  return blocks >= matmul_many_blocks && s.M >= 128 * s.E ? Tile::large : Tile::small;
}

Tile grouped_matmul_tn_tile(const GroupedShape& s) {
  const size_t blocks = s.E * ceil_div(s.N, 128) * ceil_div(s.K, 128);
  return blocks >= matmul_many_blocks ? Tile::large : Tile::small;
}

size_t grouped_matmul_scratch(const GroupedShape& s, Accumulate accumulate) {
  const bool waits = accumulate == Accumulate::yes && s.K > matmul_slice;
  return waits ? s.M * matmul_scratch_pitch(s.N) * sizeof(float) : 0;
}

size_t grouped_matmul_tn_scratch(const GroupedShape& s) {
  return tall_groups(s.M, s.E, matmul_slice) * s.N * matmul_scratch_pitch(s.K) * sizeof(float);
}

size_t grouped_bias_backward_scratch(size_t M, size_t E, size_t N) {
  return M == 0 ? 0 : (M / column_slice + E) * N * sizeof(float);
}

template <Layout layout, int BM, int BN, int TM, int TN>
static void grouped_launch(const GroupedJob& job, size_t M, bool aligned, Context& ctx) {
  auto* kernel = aligned ? grouped_matmul_kernel<layout, BM, BN, TM, TN, true>
                         : grouped_matmul_kernel<layout, BM, BN, TM, TN, false>;
  dim3 grid = layout == Layout::tn ? grid_of(ceil_div(job.N, BM)) : group_rows_grid(M, job.E, BM);
  const size_t columns = ceil_div(layout == Layout::tn ? job.K : job.N, BN), deep = layout == Layout::tn ? job.E : 1;
  require(columns <= 65535 && deep <= 65535, "grouped_matmul: %zu columns or %zu experts are too many for a grid",
          layout == Layout::tn ? job.K : job.N, job.E);
  grid.y = unsigned(columns), grid.z = unsigned(deep);
  launch(kernel, grid, BM / TM * BN / TN, 0, ctx, job);
}

template <Layout layout>
static void grouped_launch(const GroupedJob& job, size_t M, size_t lda, size_t ldb, Tile tile, Context& ctx) {
  const bool aligned = matmul_rows_aligned(job.A, lda) && matmul_rows_aligned(job.B, ldb);
  if (tile == Tile::large)
    grouped_launch<layout, 128, 128, 8, 8>(job, M, aligned, ctx);
  else
    grouped_launch<layout, 64, 64, 4, 4>(job, M, aligned, ctx);
}

void grouped_matmul_by_tile(float* C, const float* A, const float* B, const int* row_start, const GroupedShape& s,
                            Layout layout, Accumulate accumulate, Tile tile, Context& ctx, const float* bias) {
  const size_t scratch = grouped_matmul_scratch(s, accumulate);
  float* const sums = scratch ? ctx.scratch(scratch / sizeof(float)) : nullptr;
  GroupedJob job = {.C = C, .sums = sums, .A = A, .B = B, .row_start = row_start, .E = s.E, .N = s.N, .K = s.K};
  job.bias = bias, job.accumulate = accumulate == Accumulate::yes;
  job.aligned = matmul_rows_aligned(C, s.N) && matmul_rows_aligned(bias, s.N);
  if (layout == Layout::nt)
    grouped_launch<Layout::nt>(job, s.M, s.K, s.K, tile, ctx);
  else
    grouped_launch<Layout::nn>(job, s.M, s.K, s.N, tile, ctx);
}

void grouped_matmul(float* C, const float* A, const float* B, const int* row_start, const GroupedShape& s,
                    Layout layout, Accumulate accumulate, Context& ctx, const float* bias) {
  require(layout != Layout::tn, "grouped_matmul: expected layout nt or nn; grouped_matmul_tn() is the weight gradient");
  require(!bias || accumulate == Accumulate::no,
          "grouped_matmul: a bias is for a product that is written, not accumulated");
  require_groups("grouped_matmul", s.M, s.E, row_start, ctx);
  if (s.M == 0 || s.N == 0) return;
  if (ctx.device == Device::cpu) return grouped_matmul_cpu(C, A, B, row_start, s, layout, accumulate, bias);
  grouped_matmul_by_tile(C, A, B, row_start, s, layout, accumulate, grouped_matmul_tile(s), ctx, bias);
}

void grouped_matmul_tn_by_tile(float* C, const float* A, const float* B, const int* row_start, const GroupedShape& s,
                               Tile tile, Context& ctx) {
  const size_t scratch = grouped_matmul_tn_scratch(s);
  float* const sums = scratch ? ctx.scratch(scratch / sizeof(float)) : nullptr;
  GroupedJob job = {.C = C, .sums = sums, .A = A, .B = B, .row_start = row_start, .E = s.E, .N = s.N, .K = s.K};
  job.tall = tall_groups(s.M, s.E, matmul_slice), job.accumulate = true, job.aligned = matmul_rows_aligned(C, s.K);
  grouped_launch<Layout::tn>(job, s.M, s.N, s.K, tile, ctx);
}

void grouped_matmul_tn(float* C, const float* A, const float* B, const int* row_start, const GroupedShape& s,
                       Context& ctx) {
  require_groups("grouped_matmul_tn", s.M, s.E, row_start, ctx);
  if (s.M == 0 || s.N == 0 || s.K == 0) return;
  if (ctx.device == Device::cpu) return grouped_matmul_tn_cpu(C, A, B, row_start, s);
  grouped_matmul_tn_by_tile(C, A, B, row_start, s, grouped_matmul_tn_tile(s), ctx);
}

void grouped_bias_backward(float* db, ConstReals dy, const int* row_start, size_t M, size_t E, size_t N, Context& ctx) {
  require_groups("grouped_bias_backward", M, E, row_start, ctx);
  if (M == 0 || N == 0) return;
  with_storage(dy, [&](auto stored) {
    using S = decltype(stored);
    if (ctx.device == Device::cpu) return grouped_bias_backward_cpu(db, dy.as<S>(), row_start, M, E, N);
    const size_t columns = ceil_div(N, grouped_bias_threads);
    require(columns <= 65535, "grouped_bias_backward: %zu columns are too many for a grid", N);
    float* const sums = ctx.scratch(grouped_bias_backward_scratch(M, E, N) / sizeof(float));
    dim3 grid = group_rows_grid(M, E, column_slice);
    grid.y = unsigned(columns);
    launch(grouped_bias_pieces_kernel<S>, grid, grouped_bias_threads, 0, ctx, sums, dy.as<S>(), row_start, E, N);
    launch(grouped_bias_add_kernel, grid_of(ceil_div(E * N, grouped_bias_threads)), grouped_bias_threads, 0, ctx, db,
           sums, row_start, E, N);
  });
}

}  // namespace gated
