// sums_along_rows: what norms add down their columns in the backward, made beside what they do along their rows.
//
// dw and db need what dx reads. So a thread that has a slice of a column sum, 128 rows (core/reduce.cuh), makes their
// dx beside its chains, and memory is read once.
#pragma once
#include <omp.h>

#include "core/reduce.cuh"

namespace gated {

// Are there enough slices to share out? (With four or more a thread, none works alone for long.)
inline bool enough_slices(size_t rows) {
  return ceil_div(rows, column_slice) >= 4 * size_t(omp_get_max_threads());
}

// out[k][c] += sum k of column c: along(row, chains) does a row, and puts what it has into the chains (sums,cols) of
// its slice. False, and nothing is done, where there are too few slices.
template <size_t sums, class Along>
bool sums_along_rows_cpu(const std::array<float*, sums>& out, size_t rows, size_t cols, const Along& along) {
  if (!enough_slices(rows)) return false;
  const size_t slices = ceil_div(rows, column_slice);
  std::vector<float> level(slices * sums * cols);
#pragma omp parallel for
  for (size_t slice = 0; slice < slices; slice++)
    for (size_t row = slice * column_slice; row < rows && row < (slice + 1) * column_slice; row++)
      along(row, &level[slice * sums * cols]);
  column_add_slices_cpu(out, level.data(), slices, cols);
  return true;
}

}  // namespace gated
