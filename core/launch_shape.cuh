// launch_shape: how many blocks an operation is launched with, and which elements a thread of them owns.
//
//   elementwise   elements do not meet: a thread owns four neighbouring ones
//   row quads     the same for an array whose rows are looked at one by one: no thread straddles two rows
//   rows          a row is reduced: a warp owns a row, a lane every 32nd quad of it
#pragma once
#include "core/launch.cuh"
#include "core/quad.cuh"

namespace gated {

constexpr unsigned elementwise_block = 256;

inline dim3 elementwise_grid(size_t n) {
  return grid_of(ceil_div(n, 4 * elementwise_block));
}

// The first of this thread's four elements.
__device__ inline size_t elementwise_index() {
  return 4 * (threadIdx.x + size_t(blockDim.x) * blockIdx.x);
}

// Rows that end inside a quad: every row is rounded up to whole quads, so that a thread stays in one row.
struct RowQuad {
  size_t row, column;
};

inline dim3 row_quads_grid(size_t rows, size_t columns) {
  return elementwise_grid(4 * ceil_div(columns, 4) * rows);
}

__device__ inline RowQuad row_quad(size_t columns) {
  const size_t quad = elementwise_index() / 4, quads = ceil_div(columns, 4);
  return {quad / quads, 4 * (quad % quads)};
}

constexpr unsigned warps_per_block = 8;

// The row of this warp; the kernel returns when it is past the last.
__device__ inline size_t warp_row() {
  return (size_t(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
}

inline dim3 rows_grid(size_t rows) {
  return grid_of(ceil_div(rows, warps_per_block));
}
constexpr unsigned rows_block = 32 * warps_per_block;

}  // namespace gated
