// grouped_rows: who works on which rows of a product whose rows belong to experts.
//
// Rows go in pieces of `piece` rows, cut from each expert's first row on, so that no piece has rows of two experts. How
// many pieces there are depends on row_start, which only the device knows: the grid must not. So expert e's pieces are
// numbered from
//
//   first(e) = row_start[e] / piece + e          (rounded down)
//
// With m rows it has at most m / piece + 1 pieces (m / piece rounded down), and first(e+1) leaves room for at least as
// many: pieces of two experts never have the same number, first() rises, and all numbers are below first(E) = M / piece
// + E. That is the grid. Some numbers belong to nobody, at most one an expert, and their blocks return at once.
//
//   piece = 4     rows    0 . . . | 4 . . . | 8 . . . | 12. . . | 16        M = 17, E = 4
//   expert        0 has 0..4        1 has 5..8         2 none    3 has 9..16
//   first                 0               5/4 + 1 = 2       9/4 + 2 = 4      9/4 + 3 = 5       grid 17/4 + 4 = 8
//
//   block         0       1      2      3      4      5       6        7
//   rows          0..3    4      5..8   -      -      9..12   13..16   -
//
// To find its expert a block looks for the last e with first(e) <= its number, by halving: 7 steps for 128 experts.
#pragma once
#include <algorithm>

#include "core/launch.cuh"

namespace gated {

struct GroupRows {
  size_t expert, begin, end;  // end <= begin: none
};

__device__ inline size_t first_piece(const int* row_start, size_t e, size_t piece) {
  return size_t(row_start[e]) / piece + e;
}

__device__ inline GroupRows group_rows(const int* row_start, size_t E, size_t piece, size_t number) {
  size_t e = 0;
  for (size_t above = E; above - e > 1;) {
    const size_t middle = e + (above - e) / 2;
    (first_piece(row_start, middle, piece) <= number ? e : above) = middle;
  }
  const size_t begin = size_t(row_start[e]) + (number - first_piece(row_start, e, piece)) * piece,
               end = size_t(row_start[e + 1]);
  return {e, begin, begin + piece < end ? begin + piece : end};
}

inline dim3 group_rows_grid(size_t M, size_t E, size_t piece) {
  return grid_of(M / piece + E);
}

// ---- a place for experts with many rows
//
// The weight gradient of an expert with more rows than a slice has to keep a matrix between slices, and there is room
// for as many as there can be such experts. The place of one is row_start[e] / (slice + 1): no two have the same, as
// each has at least slice + 1 rows, and all are below M / (slice + 1). Where E is less than that, the place is e.

inline size_t tall_groups(size_t M, size_t E, size_t slice) {
  return std::min(E, M / (slice + 1));
}
__device__ inline size_t tall_group_place(size_t tall, size_t first_row, size_t e, size_t E, size_t slice) {
  return tall < E ? first_row / (slice + 1) : e;
}

}  // namespace gated
