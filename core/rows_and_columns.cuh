// rows_and_columns: a kernel's work along the rows of (N,C), and sums down the columns of the same numbers, in one pass
// over memory.
//
// The backward of a norm reads x and dy in two directions: along the rows, which become dx, and down the columns, which
// become dw. A kernel for each would bring x and dy from memory twice, 8 bytes an element more. Here a block of 16
// warps owns 128 rows, a slice of the canonical order of a column sum (core/reduce.cuh), and goes down it 16 rows at
// a time. It looks at these 16 rows in both directions, and where they fit into a cache only the first look brings them
// from memory:
//
//              columns 0..511    columns 512..
//             +----------------+----------------
//     row  0  | thread 0 1 2 ..| thread 0 1 2 ..      down the columns: thread t adds the 16 rows of
//      ..     |        | | |   |        | | |         columns t, t+512, ... to their chains
//     row 15  |        v v v   |        v v v
//             +----------------+----------------
//                       a barrier
//             +----------------+----------------
//     row  0  | warp  0 ----------------------->      along the rows: warp w does row w,
//      ..     |  ..                                   which it finds in a cache, L1 or L2
//     row 15  | warp 15 ----------------------->
//             +----------------+----------------
//
// 16 rows of x and dy with C columns of floats are 128*C bytes: 96 KiB for 768 columns, 256 KiB for 2048. Two or three
// blocks run on a multiprocessor. Where the rows of all of them do not fit into L2, the second look goes to memory too.
// What one pass gains is unmeasured.
//
// From 16 rows to the next the chains wait where the
// sums of the slice shall stand in the end, in partial[slice][k][c]. That takes no barrier: a column's chain is one
// thread's from the first row of the slice to the last. They are a few KiB, written eight times, and stay in L2.
// column_add_slices of core/reduce.cuh adds the slices.
//
// A slice is the work of one block. A GPU with more multiprocessors than there are slices would be idle in part. It
// runs a kernel for each direction instead, of the same Rows and Fold:
//
//   Rows   what a row is for: a copyable struct with __device__ void operator()(size_t row) const, which a whole warp
//          calls, and with void on_cpu(size_t N) const, which does all rows on the CPU
//   Fold   what an element is for in the sums of its column: see column_reduce_add in core/reduce.cuh
// tests/test_rmsnorm.cpp, tests/test_layernorm.cpp, tests/test_dyt.cpp
#pragma once
#include "core/launch_shape.cuh"
#include "core/reduce.cuh"

namespace gated {

// Which direction comes first. After the columns, the rows may write over what the columns read: dx may be dy. After
// the rows, the columns may read what the rows have left.
enum class First { columns, rows };

template <class Rows>
__global__ void __launch_bounds__(rows_block) rows_kernel(size_t N, Rows rows) {
  const size_t row = warp_row();
  if (row < N) rows(row);
}

constexpr unsigned rows_at_a_time = 16;  // a warp each

template <First first, size_t sums, class Rows, class Fold>
__global__ void __launch_bounds__(32 * rows_at_a_time)
    rows_and_columns_kernel(float* partial, size_t N, size_t C, Rows rows, Fold fold) {
  const size_t slice = blockIdx.x * column_slice, slice_end = slice + column_slice < N ? slice + column_slice : N;
  float* const chains = partial + blockIdx.x * sums * C;
  for (size_t begin = slice; begin < slice_end; begin += rows_at_a_time) {
    const size_t end = begin + rows_at_a_time < slice_end ? begin + rows_at_a_time : slice_end;
    const auto down_the_columns = [&] {
      for (size_t c = threadIdx.x; c < C; c += blockDim.x) {
        float acc[sums];
        for (size_t k = 0; k < sums; k++) acc[k] = begin == slice ? 0.0f : chains[k * C + c];
#pragma unroll 8  // so that the loads of eight rows can be under way together
        for (size_t row = begin; row < end; row++) fold(acc, row, c);
        for (size_t k = 0; k < sums; k++) chains[k * C + c] = acc[k];
      }
    };
    const auto along_the_rows = [&] {
      const size_t row = begin + threadIdx.x / 32;
      if (row < end) rows(row);
    };
    if constexpr (first == First::columns) {
      down_the_columns();
      __syncthreads();  // all threads have read these rows, which dx may replace
      along_the_rows();
    } else {
      along_the_rows();
      __syncthreads();  // what the rows have left for the columns is there
      down_the_columns();
    }
    // No barrier here: of the next 16 rows nothing has been touched, and a chain is one thread's.
  }
}

// Is it one kernel for so many rows? The bits are the same. The bound is a guess: 16384 rows are 128 slices, too few for the
// 132 multiprocessors of an H100. With rows as narrow as a head (QK-norm, C = 64) 14 of the 16 warps have no column.
inline bool one_pass(size_t N) {
  return ceil_div(N, column_slice) >= multiprocessors();
}

// The rows' work, and out[k][c] += sum k over rows of fold(acc, row, c), on the device of the context. Takes
// column_reduce_scratch() bytes of scratch.
template <First first, size_t sums, class Rows, class Fold>
void rows_and_columns(const std::array<float*, sums>& out, size_t N, size_t C, Rows rows, Fold fold, Context& ctx) {
  if (ctx.device != Device::cpu && one_pass(N)) {
    const size_t slices = ceil_div(N, column_slice);
    float* partial = ctx.scratch(column_reduce_scratch(N, C, sums) / sizeof(float));
    launch(rows_and_columns_kernel<first, sums, Rows, Fold>, grid_of(slices), 32 * rows_at_a_time, 0, ctx, partial, N,
           C, rows, fold);
    return column_add_slices(out, partial, slices, C, ctx);
  }
  if constexpr (first == First::columns) column_reduce_add(out, N, C, fold, ctx);
  if (ctx.device == Device::cpu)
    rows.on_cpu(N);
  else
    launch(rows_kernel<Rows>, rows_grid(N), rows_block, 0, ctx, N, rows);
  if constexpr (first == First::rows) column_reduce_add(out, N, C, fold, ctx);
}

}  // namespace gated
