// one_pass_rows: for how many rows rows_and_columns (core/rows_and_columns.cuh) has one kernel.
#pragma once
#include "core/rows_and_columns.cuh"
#include "tests/harness.h"

namespace gated {

// One slice more than whole ones that are too few. Neither that slice is full, nor its last 16 rows.
inline size_t one_pass_rows() {
  const size_t slices = kernels_can_run() ? multiprocessors() : 2, rows = (slices - 1) * column_slice;
  require(!kernels_can_run() || (one_pass(rows + 45) && !one_pass(rows)), "one_pass_rows: expected a change at %zu",
          rows);
  return rows + 45;
}

}  // namespace gated
