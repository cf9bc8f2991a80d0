// Exercise 4, rmsnorm_backward: a sum along the row for dx, a sum down the column for dw: two kernels.
//
// With xh = x*r and g = dy*w (kernels/rmsnorm.cu derives it):
//     dx_c  = r * (g_c - xh_c * mean(g*xh))            exactly r * fused(-xh, mean, g)
//     dw_c += sum over the rows of dy_c*xh_c
// The mean's sum is in the order of a row: element i in chain i mod 128, and the chains added as in rmsnorm_forward; a
// link is fused(dy*w, x*r, chain). dw's is in the order of a column: slices of 128 rows, as in bias_gradient; a link is
// fused(dy, x*r, slice).
// The chapter: kernels/rmsnorm.cu. The launches: a block of 128 threads for each row; then 64 threads a block, a
// thread for a column.
//
// hint 1: Both kernels are ones that you have: rmsnorm_forward with another sum, bias_gradient with another link.
//
// hint 2: r is given for every row: the rows' kernel has one sum, and so one barrier.
//
// hint 3: chain = fused(dy[c] * w[c], x[c] * r, chain); the sum divided by C is the mean; then dx[c] = r * fused(-(x[c]
// * r), mean, dy[c] * w[c]).
//
// A wrong answer usually forgets that r depends on x too: dx = r*g alone. Finite differences would tell.
#include "tests/exercises/try.h"

using namespace gated;

// ---- reference
// <<< from kernels/rmsnorm.cu: rmsnorm_forward_ref
// <<< from kernels/rmsnorm.cu: rmsnorm_backward_ref

// ---- yours: dx (N,C) is written, dw (C) added to; dy, x (N,C), w (C), r (N)

__global__ void dx_kernel(float* dx, const float* dy, const float* x, const float* w, const float* r, size_t C) {
  // <<< solution
  STATIC_SHARED(float, chains, [128]);
  const size_t row = blockIdx.x, j = threadIdx.x;
  const float *x_row = x + row * C, *dy_row = dy + row * C, r_row = r[row];
  float chain = 0;
  for (size_t c = j; c < C; c += 128) chain = fused(dy_row[c] * w[c], x_row[c] * r_row, chain);
  chains[j] = chain;
  __syncthreads();
  const float* four = chains + 4 * (j % 32);
  const float mean = warp_sum((four[0] + four[1]) + (four[2] + four[3])) / float(C);
  for (size_t c = j; c < C; c += 128) dx[row * C + c] = r_row * fused(-(x_row[c] * r_row), mean, dy_row[c] * w[c]);
  // >>>
}

__global__ void dw_kernel(float* dw, const float* dy, const float* x, const float* r, size_t N, size_t C) {
  // <<< solution
  const size_t c = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (c >= C) return;
  float total = 0;
  for (size_t n0 = 0; n0 < N; n0 += column_slice) {
    float slice = 0;
    for (size_t n = n0; n < N && n < n0 + column_slice; n++) slice = fused(dy[n * C + c], x[n * C + c] * r[n], slice);
    total = n0 == 0 ? slice : total + slice;
  }
  dw[c] += total;
  // >>>
}

// ---- how it is judged

void exercise(Try& t) {
  t.cases({"N", "C"}, {{3, 7}, {2, 128}, {150, 200}}, [&](size_t N, size_t C) {
    Tried& dx = t.out("dx", N, C).sums(C).ordered_by("core/reduce.cuh: row, of the mean");
    Tried& dw = t.sum("dw", 1, C).sums(N).ordered_by("core/reduce.cuh: column");
    Tried &dy = t.in("dy", N, C), &x = t.in("x", N, C), &w = t.in("w", 1, C);
    std::vector<float> y(N * C), roots(N);
    rmsnorm_forward_ref(y.data(), roots.data(), x(1.0f), w(1.0f), N, C, 1e-5f);
    Tried& r = t.in("r", N, 1, roots);
    std::vector<double> y_at(N * C);
    const auto loss = [&](const double* x_at, const double* w_at, double* r_at) {
      double sum = 0;
      rmsnorm_forward_ref(y_at.data(), r_at, x_at, w_at, N, C, 1e-5);
      for (size_t i = 0; i < N * C; i++) sum += dy(1.0)[i] * y_at[i];
      return sum;
    };
    loss(x(1.0), w(1.0), r(1.0));
    t.reference(
        [&](auto real) { rmsnorm_backward_ref(dx(real), dw(real), dy(real), x(real), w(real), r(real), N, C); });
    if (C == 7) {
      std::vector<double> r_at(N);
      t.differences(dx, x, [&](const double* at) { return loss(at, w(1.0), r_at.data()); });
      t.differences(dw, w, [&](const double* at) { return loss(x(1.0), at, r_at.data()); });
    }
    t.judge([&] {
      t.launch(dx_kernel, N, 128, 0, dx, dy, x, w, r, C);
      t.launch(dw_kernel, ceil_div(C, 64), 64, 0, dw, dy, x, r, N, C);
    });
    PROJECT(t, rmsnorm_backward(dx.floats(), dw, dy.floats(), x.floats(), w, r, N, C, ctx));
  });
}
