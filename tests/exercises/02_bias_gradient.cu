// Exercise 2, bias_gradient: the sum down each column of dy, added to db.
//
//     db_c += sum over n of dy_nc
//
// A sum of floats has an order. That of a column (core/reduce.cuh): rows in slices of 128; a slice is one chain from +0
// in ascending n; then ((slice 0 + slice 1) + slice 2) + ... Slices are what lets a GPU work on one column in many
// places; here a thread may do them one after the other.
// The chapter: kernels/bias.cu, kernels/matmul.cu. The launch: 64 threads a block, a thread for a column. N is at most
// 16384, so the sums of the slices are one chain.
//
// hint 1: A thread owns column c. Neighbouring threads then read neighbouring floats: why is that good?
//
// hint 2: Two sums are carried: of the slice, and of the slices that are done. Both begin anew at the right row.
//
// hint 3: for n0 in steps of 128: slice = 0; for n from n0 to n0+127 and below N: slice += dy[n*C + c]; total += slice,
// but the first slice is the total. At the end db[c] += total.
//
// A wrong answer usually writes db where it should add, or makes one chain of all rows: right, but in another order.
#include "tests/exercises/try.h"

using namespace gated;

// ---- reference
// <<< from kernels/bias.cu: bias_backward_ref

// ---- yours: db (C) is added to; dy (N,C)

__global__ void bias_kernel(float* db, const float* dy, size_t N, size_t C) {
  // <<< solution
  const size_t c = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (c >= C) return;
  float total = 0;
  for (size_t n0 = 0; n0 < N; n0 += column_slice) {
    float slice = 0;
    for (size_t n = n0; n < N && n < n0 + column_slice; n++) slice += dy[n * C + c];
    total = n0 == 0 ? slice : total + slice;
  }
  db[c] += total;
  // >>>
}

// ---- how it is judged

void exercise(Try& t) {
  t.cases({"N", "C"}, {{3, 5}, {128, 64}, {300, 100}}, [&](size_t N, size_t C) {
    Tried &db = t.sum("db", 1, C).sums(N).ordered_by("core/reduce.cuh: column"), &dy = t.in("dy", N, C);
    t.reference([&](auto real) { bias_backward_ref(db(real), dy(real), N, C); });
    t.judge([&] { t.launch(bias_kernel, ceil_div(C, 64), 64, 0, db, dy, N, C); });
    PROJECT(t, bias_backward(db, dy.floats(), N, C, ctx));
  });
}
