// matmul on a CPU: what kernels/cpu/matmul_cpu.cpp and kernels/cpu/grouped_matmul_cpu.cpp share.
#pragma once
#include "kernels/matmul.h"

namespace gated::tuned_matmul {

// A, or B transposed: a matrix of `count` rows and K columns, whichever way it lies in memory.
struct Operand {
  const float* data;
  size_t ld, count;
  bool k_contiguous;  // element (i, k) at data[i*ld + k], else at data[k*ld + i]
};

struct Interval {
  size_t begin, end;
  size_t size() const { return end - begin; }
};

// The whole product in C[rows][cols], by the thread that calls.
void compute_part(float* C, size_t ldc, const Operand& A, const Operand& B, const float* bias, Interval rows,
                  Interval cols, size_t K, bool accumulate);

// The most memory that compute_part() takes for any rows and cols of a C (M,N) and any K up to this one.
size_t workspace_floats(size_t M, size_t N, size_t K, bool accumulate);
// Gives this thread that memory. Where it is not called, compute_part() takes what it needs, and keeps it.
void reserve_workspace(size_t M, size_t N, size_t K, bool accumulate);

// What a part costs, in multiply-adds: packing a number of A or B takes as long as about 16 of them.
constexpr size_t part_work(size_t rows, size_t cols, size_t K) {
  return K * (rows * cols + 16 * (rows + cols));
}

// The size of the parts when C (M,N) is cut into at most `parts` equal ones: of the possible cuts, the one with the
// least work in a part.
struct Cut {
  size_t rows, cols;
};
Cut least_work_cut(size_t M, size_t N, size_t parts);

}  // namespace gated::tuned_matmul
