// Exercise 5, softmax_row: a maximum and a sum of one row, one after the other, through the same shared memory.
//
//     m = max over c of x_c          l = sum over c of e^(x_c - m)          p_c = e^(x_c - m) / l
//
// Without m e^x overflows above 88. A maximum has no order; the sum has that of a row: element i in chain i mod 128,
// and the chains added as in rmsnorm_forward. exact_exp is e^x. max_of(a, b) is the larger; warp_max(v) is to it what
// warp_sum is to a sum.
// The chapter: kernels/linear_cross_entropy.cu, kernels/attention.cu. The launch: a block of 128 threads for each row.
//
// hint 1: As in rmsnorm_forward, thread j takes columns j, j+128, ...: first for the maximum, then for the sum.
//
// hint 2: Between threads both go through shared memory. If they use the same array, a quick thread may write its chain
// where a slow one still reads maxima: that takes a barrier, too.
//
// hint 3: Store the maximum, meet, read four and warp_max; meet again, store the chain, meet, read four and warp_sum.
//
// A wrong answer usually lacks the second barrier, or begins the maximum at 0 where all x are below 0.
#include "tests/exercises/try.h"

using namespace gated;

// ---- reference

template <class T>
void softmax_ref(T* p, const T* x, size_t N, size_t C) {
  for (size_t n = 0; n < N; n++) {
    const T* x_n = x + n * C;
    T m = -INFINITY;
    for (size_t c = 0; c < C; c++) m = max_of(x_n[c], m);
    RowSum<T> l;
    for (size_t c = 0; c < C; c++) l.add(exact_exp(x_n[c] - m));
    for (size_t c = 0; c < C; c++) p[n * C + c] = exact_exp(x_n[c] - m) / l.total();
  }
}

// ---- yours: p (N,C) is written; x (N,C)

__global__ void softmax_kernel(float* p, const float* x, size_t C) {
  // <<< solution
  STATIC_SHARED(float, shared, [128]);
  const size_t row = blockIdx.x, j = threadIdx.x;
  const float *x_row = x + row * C, *four = shared + 4 * (j % 32);
  float m = -INFINITY;
  for (size_t c = j; c < C; c += 128) m = max_of(x_row[c], m);
  shared[j] = m;
  __syncthreads();
  m = warp_max(max_of(max_of(four[0], four[1]), max_of(four[2], four[3])));
  __syncthreads();
  float chain = 0;
  for (size_t c = j; c < C; c += 128) chain += exact_exp(x_row[c] - m);
  shared[j] = chain;
  __syncthreads();
  const float l = warp_sum((four[0] + four[1]) + (four[2] + four[3]));
  for (size_t c = j; c < C; c += 128) p[row * C + c] = exact_exp(x_row[c] - m) / l;
  // >>>
}

// ---- how it is judged

void exercise(Try& t) {
  t.cases({"N", "C"}, {{3, 100}, {2, 128}, {3, 300}}, [&](size_t N, size_t C) {
    Tried& p = t.out("p", N, C).sums(C).ordered_by("core/reduce.cuh: row, of the sum of exponentials");
    std::vector<float> values = random_values<float>(N * C, 1, 4);
    for (float& v : values) v -= 100;
    Tried& x = t.in("x", N, C, values);
    t.reference([&](auto real) { softmax_ref(p(real), x(real), N, C); });
    t.judge([&] { t.launch(softmax_kernel, N, 128, 0, p, x, C); });
  });
}
