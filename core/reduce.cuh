// reduce: the canonical orders of a sum over a row, of a sum down a column, and of a sum over a whole buffer.
//
// Floating-point addition is not associative: the order of a sum decides its last bits. Each order stands here
// once, for the reference and for the kernel. A "chain" is a running sum that takes one element after the other. The
// orders are cheap on a CPU (independent chains fill vector registers) and on a GPU (independent chains fill a warp).
//
// row     element i joins chain i mod 128, every chain starts at +0 and ascends; the 128 chains then combine:
//         lane l of 32 takes (c[4l] + c[4l+1]) + (c[4l+2] + c[4l+3]), and a butterfly adds lanes 16, 8, 4, 2
//         and 1 apart. On a GPU that is one warp with float4 loads, on a CPU eight AVX-512 registers.
// column  rows in slices of 128, one ascending chain from +0 a slice; the slice sums are reduced the same way
//         until one is left (up to 16384 rows: added in ascending order).
// buffer  chunks of 16384 elements, each summed as a row; the sums of the chunks are one more row.
//
// RowSum, ColumnSum and BufferSum are the plain statement of these orders (core/sums.h). The functions here give the
// same bits faster, on CPU cores (_cpu) and in kernels. Most take a "fold", which puts one element into its chain:
// acc -> fmaf(a, b, acc) for a dot product, acc + v for a sum.
// tests/test_reduce.cpp
#pragma once
#include <algorithm>
#include <array>

#include "core/launch_shape.cuh"
#include "core/quad.cuh"
#include "core/sums.h"

namespace gated {

// ---- row: on CPU cores

// Sum over i < n, where fold(acc, i) puts element i into its chain.
template <class T, class Fold>
T row_reduce_cpu(size_t n, Fold fold) {
  T chain[row_chains] = {};
  size_t i = 0;
  for (; i + row_chains <= n; i += row_chains)
    for (size_t j = 0; j < row_chains; j++) chain[j] = fold(chain[j], i + j);
  for (size_t j = 0; i + j < n; j++) chain[j] = fold(chain[j], i + j);
  return row_chains_total(chain);
}

// The largest of a row; -inf of an empty one. A NaN is passed over. A maximum has no order, but a compiler may not
// reorder one: so this too goes in chains.
inline float row_max_cpu(const float* x, size_t n) {
  float chain[row_chains];
  for (float& c : chain) c = -INFINITY;
  size_t i = 0;
  for (; i + row_chains <= n; i += row_chains)
    for (size_t j = 0; j < row_chains; j++) chain[j] = max_of(x[i + j], chain[j]);
  for (size_t j = 0; i + j < n; j++) chain[j] = max_of(x[i + j], chain[j]);
  for (size_t apart = row_chains / 2; apart > 0; apart /= 2)
    for (size_t j = 0; j < apart; j++) chain[j] = max_of(chain[j + apart], chain[j]);
  return chain[0];
}

// ---- row: one warp (kernels/rmsnorm.cu draws who holds what)

__device__ inline float warp_sum(float v) {
  for (int offset = 16; offset > 0; offset /= 2) v += __shfl_xor_sync(0xffffffffu, v, offset);
  return v;
}

__device__ inline float warp_max(float v) {
  for (int offset = 16; offset > 0; offset /= 2) v = max_of(v, __shfl_xor_sync(0xffffffffu, v, offset));
  return v;
}

// The sum of a row of whose chains lane l carries 4l to 4l+3, as the lane that owns columns 4l to 4l+3 of every 128
// does. Every lane returns it: the butterfly adds the same pairs in all of them.
__device__ inline float warp_chains_sum(const float (&chain)[4]) {
  return warp_sum((chain[0] + chain[1]) + (chain[2] + chain[3]));
}

// The sum of x (n), or of its squares, by a warp.
template <bool squares = false>
__device__ inline float warp_row_sum(const float* x, size_t n) {
  float chain[4] = {};
  for (size_t i = 4 * (threadIdx.x % 32); i < n; i += row_chains) {
    const Quad q = load_quad(x, i, n);
    for (int k = 0; k < 4; k++) chain[k] = squares ? fused(q.v[k], q.v[k], chain[k]) : chain[k] + q.v[k];
  }
  return warp_chains_sum(chain);
}

// ---- column: on CPU cores

// Several column sums may be made in one pass, so that what they share is read once. Their fold is a copyable struct
// with HD void operator()(T (&acc)[sums], size_t row, size_t c) const; that of a single sum may be written as
// HD T operator()(T acc, size_t row, size_t c) const.
template <class Fold>
struct OneSum {
  Fold fold;
  template <class T>
  HD void operator()(T (&acc)[1], size_t row, size_t c) const {
    acc[0] = fold(acc[0], row, c);
  }
};

// The fold of plain addition: x (rows, cols).
template <class T>
struct AddRows {
  const T* x;
  size_t cols;
  template <class Sum>
  HD Sum operator()(Sum acc, size_t row, size_t c) const {
    return acc + x[row * cols + c];
  }
};

// Columns whose sums a core keeps in registers.
constexpr size_t sums_width = 128;
// Columns whose sums fit its L1 cache, where memory is read along its rows.
constexpr size_t column_piece = 1024;

// partial[slice][k][c] = sum k of one slice of rows.
template <size_t sums, class T, class Fold>
void column_slices_cpu(T* partial, size_t rows, size_t cols, const Fold& fold) {
  const size_t pieces = ceil_div(cols, column_piece);
#pragma omp parallel for
  for (size_t n = 0; n < ceil_div(rows, column_slice) * pieces; n++) {
    const size_t slice = n / pieces, row0 = slice * column_slice, c0 = n % pieces * column_piece;
    const size_t row1 = row0 + column_slice < rows ? row0 + column_slice : rows;
    const size_t count = c0 + column_piece < cols ? column_piece : cols - c0;
    T sum[sums][column_piece];
    for (size_t k = 0; k < sums; k++)
      for (size_t c = 0; c < count; c++) sum[k][c] = T(0);
    for (size_t row = row0; row < row1; row++) {
#pragma omp simd
      for (size_t c = 0; c < count; c++) {
        T acc[sums];
        for (size_t k = 0; k < sums; k++) acc[k] = sum[k][c];
        fold(acc, row, c0 + c);
        for (size_t k = 0; k < sums; k++) sum[k][c] = acc[k];
      }
    }
    for (size_t k = 0; k < sums; k++)
      for (size_t c = 0; c < count; c++) partial[(slice * sums + k) * cols + c0 + c] = sum[k][c];
  }
}

// out[k][c] += the sum down a column whose slices have been summed: level (slices,sums,cols) holds their sums, and is
// overwritten. Slices are added as rows were, until one is left.
template <size_t sums, class T>
void column_add_slices_cpu(const std::array<T*, sums>& out, T* level, size_t slices, size_t cols) {
  const size_t width = sums * cols;
  for (; slices > 1; slices = ceil_div(slices, column_slice)) {
    std::vector<T> next(ceil_div(slices, column_slice) * width);
    column_slices_cpu<1>(next.data(), slices, width, OneSum<AddRows<T>>{{level, width}});
    std::copy(next.begin(), next.end(), level);
  }
  for (size_t k = 0; k < sums; k++)
    for (size_t c = 0; c < cols; c++) out[k][c] += level[k * cols + c];
}

// out[k][c] += sum k over rows of fold(acc, row, c).
template <size_t sums, class T, class Fold>
void column_reduce_add_cpu(const std::array<T*, sums>& out, size_t rows, size_t cols, Fold fold) {
  if (rows == 0 || cols == 0) return;
  const size_t slices = ceil_div(rows, column_slice);
  std::vector<T> level(slices * sums * cols);
  column_slices_cpu<sums>(level.data(), rows, cols, fold);
  column_add_slices_cpu(out, level.data(), slices, cols);
}

template <class T, class Fold>
void column_reduce_add_cpu(T* out, size_t rows, size_t cols, Fold fold) {
  column_reduce_add_cpu(std::array{out}, rows, cols, OneSum<Fold>{fold});
}

// ---- column: kernels
//
// A thread owns one column of one slice of 128 rows. It runs down the slice and carries one chain in a register for
// each of the sums. Neighbouring threads own neighbouring columns, so that a warp reads 128 neighbouring bytes of
// every row. The blocks of a slice lie side by side.
//
//                  columns 0..127       128..255
//     rows   0..127   block 0            block 1     ...   -> partial[0][k][c]
//     rows 128..255   block b            block b+1   ...   -> partial[1][k][c]        b = ceil(cols/128)
//
// No thread meets another, so there is no barrier. Memory is read once; the partial sums are sums/128 of what a fold
// reads. column_add_kernel adds them.

constexpr unsigned column_block = 128;

template <size_t sums, class Fold>
__global__ void column_slices_kernel(float* partial, size_t rows, size_t cols, Fold fold) {
  const size_t blocks = ceil_div(cols, blockDim.x);
  const size_t slice = blockIdx.x / blocks, c = blockIdx.x % blocks * blockDim.x + threadIdx.x;
  if (c >= cols) return;
  const size_t row0 = slice * column_slice, row1 = row0 + column_slice < rows ? row0 + column_slice : rows;
  float acc[sums] = {};
  for (size_t row = row0; row < row1; row++) fold(acc, row, c);
  for (size_t k = 0; k < sums; k++) partial[(slice * sums + k) * cols + c] = acc[k];
}

// The slices' sums, a level (slices,sums,cols), are added as rows were: in groups of 128, one chain a group; then the
// groups' sums. A block owns 32 columns of sum k (blockIdx.y), a warp of it a group, a lane a column. So a warp reads
// 128 neighbouring bytes of every slice.
//
//     slices   0..127   warp 0   -> group_sums[0][lane]
//     slices 128..255   warp 1   -> group_sums[1][lane]   ...   barrier, warp 0: their sum -> out[k][c]
//
// A chain takes as long as its loads wait. So a block may fill a multiprocessor, which leaves a thread 64 registers:
// the compiler then has 16 loads under way before it adds them, in order.
constexpr size_t add_columns = 32, add_groups = 32, add_most_slices = add_groups * column_slice;

template <size_t sums>
__global__ void __launch_bounds__(add_columns* add_groups, 1)
    column_add_kernel(std::array<float*, sums> out, const float* level, size_t slices, size_t cols) {
  STATIC_SHARED(float, group_sums, [add_groups][add_columns]);
  const size_t lane = threadIdx.x % add_columns, group = threadIdx.x / add_columns, slice0 = group * column_slice;
  const size_t slice1 = slice0 + column_slice < slices ? slice0 + column_slice : slices;
  const size_t c = lane + add_columns * blockIdx.x, k = blockIdx.y;
  const float start = slices == 1 ? -0.0f : 0.0f;  // a slice that is alone is the sum: v + -0 is v for every v
  float sum = start;
  if (c < cols)
    for (size_t slice = slice0; slice < slice1; slice++) sum = sum + level[(slice * sums + k) * cols + c];
  group_sums[group][lane] = sum;
  __syncthreads();  // warp 0 reads what every warp has written
  if (group > 0 || c >= cols) return;
  float total = start;
  for (size_t g = 0; g < blockDim.x / add_columns; g++) total = total + group_sums[g][lane];
  out[k][c] += total;
}

// ---- column: launchers

// Bytes of scratch that `sums` column sums over `rows` rows take.
inline size_t column_reduce_scratch(size_t rows, size_t cols, size_t sums = 1) {
  const size_t slices = ceil_div(rows, column_slice);
  return (slices + (slices > add_most_slices ? ceil_div(slices, column_slice) : 0)) * sums * cols * sizeof(float);
}

// column_add_slices_cpu on a device of kernels. level has column_reduce_scratch() bytes in all. Of more slices than
// column_add_kernel takes (524,288 rows) the groups are made by column_slices_kernel.
template <size_t sums>
void column_add_slices(const std::array<float*, sums>& out, float* level, size_t slices, size_t cols, Context& ctx) {
  if (slices == 0) return;  // no rows add nothing
  const size_t width = sums * cols;
  float* next = level + slices * width;  // a level and the one above it take turns
  using Add = OneSum<AddRows<float>>;
  for (; slices > add_most_slices; slices = ceil_div(slices, column_slice)) {
    launch(column_slices_kernel<1, Add>, grid_of(ceil_div(slices, column_slice) * ceil_div(width, column_block)),
           column_block, 0, ctx, next, slices, width, Add{{level, width}});
    std::swap(level, next);
  }
  launch(column_add_kernel<sums>, dim3(grid_of(ceil_div(cols, add_columns)).x, sums),
         unsigned(add_columns * ceil_div(slices, column_slice)), 0, ctx, out, level, slices, cols);
}

// The kernels of a column sum, in scratch memory of the caller's: column_reduce_scratch() bytes.
template <size_t sums, class Fold>
void column_reduce_add_in(float* scratch, const std::array<float*, sums>& out, size_t rows, size_t cols, Fold fold,
                          Context& ctx) {
  const size_t slices = ceil_div(rows, column_slice);
  launch(column_slices_kernel<sums, Fold>, grid_of(slices * ceil_div(cols, column_block)), column_block, 0, ctx,
         scratch, rows, cols, fold);
  column_add_slices(out, scratch, slices, cols, ctx);
}

// out[k][c] += sum k over rows of fold(acc, row, c), in the canonical order, on the device of the context.
template <size_t sums, class Fold>
void column_reduce_add(const std::array<float*, sums>& out, size_t rows, size_t cols, Fold fold, Context& ctx) {
  if (rows == 0 || cols == 0) return;
  if (ctx.device == Device::cpu) return column_reduce_add_cpu(out, rows, cols, fold);
  float* scratch = ctx.scratch(column_reduce_scratch(rows, cols, sums) / sizeof(float));
  column_reduce_add_in(scratch, out, rows, cols, fold, ctx);
}

template <class Fold>
void column_reduce_add(float* out, size_t rows, size_t cols, Fold fold, Context& ctx) {
  column_reduce_add(std::array{out}, rows, cols, OneSum<Fold>{fold}, ctx);
}

// ---- buffer: sums[chunk] = the sum of one chunk of x (n), or of its squares

template <bool squares>
float buffer_chunk_sum_cpu(const float* x, size_t n, size_t chunk) {
  const size_t begin = chunk * buffer_chunk;
  return row_reduce_cpu<float>(n - begin < buffer_chunk ? n - begin : buffer_chunk, [=](float acc, size_t i) {
    return squares ? fused(x[begin + i], x[begin + i], acc) : acc + x[begin + i];
  });
}

// A warp owns a chunk, as it owns a row in kernels/rmsnorm.cu; no warp waits for another. Every element is read once.
template <bool squares>
__global__ void __launch_bounds__(rows_block) buffer_chunks_kernel(float* sums, const float* x, size_t n) {
  const size_t chunk = warp_row(), begin = chunk * buffer_chunk;
  if (begin >= n) return;
  const float sum = warp_row_sum<squares>(x + begin, n - begin < buffer_chunk ? n - begin : buffer_chunk);
  if (threadIdx.x % 32 == 0) sums[chunk] = sum;
}

}  // namespace gated
