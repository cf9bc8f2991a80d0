// Exercise 6, cross_entropy: the loss of a token, and the gradient of its logits.
//
//     lse = m + log(sum over v of e^(l_v - m)),   m = max over v of l_v
//     loss = lse - l_target          dl_v = (e^(l_v - lse) - [v = target]) * dloss
//
// The sum is in the order of a row, as in softmax_row. exact_exp, exact_log, max_of, warp_max, warp_sum are as there.
// The chapter: kernels/linear_cross_entropy.cu. The launch: a block of 128 threads for each row.
//
// hint 1: All but the last step is softmax_row: a maximum, a barrier, a sum.
//
// hint 2: Who writes the loss? One thread, once. Who reads l_target? It need not be the thread that owns that column.
//
// hint 3: Nothing of a row is kept for its gradient but lse, which every thread has.
//
// A wrong answer usually lets a thread overwrite shared memory that others still read.
#include "tests/exercises/try.h"

#include "kernels/linear_cross_entropy.cuh"

using namespace gated;

// ---- reference
// <<< from kernels/linear_cross_entropy.cu: cross_entropy_ref

// ---- yours: losses (N) and dlogits (N,V) are written; logits (N,V), targets (N)

__global__ void cross_entropy_kernel(float* losses, float* dlogits, const float* logits, const int* targets,
                                     float dloss, size_t V) {
  // <<< solution
  STATIC_SHARED(float, shared, [128]);
  const size_t row = blockIdx.x, j = threadIdx.x;
  const float *l = logits + row * V, *four = shared + 4 * (j % 32);
  float* dl = dlogits + row * V;
  const int target = targets[row];
  float m = -INFINITY;
  for (size_t v = j; v < V; v += 128) m = max_of(l[v], m);
  shared[j] = m;
  __syncthreads();
  m = warp_max(max_of(max_of(four[0], four[1]), max_of(four[2], four[3])));
  __syncthreads();
  float chain = 0;
  for (size_t v = j; v < V; v += 128) chain += exact_exp(l[v] - m);
  shared[j] = chain;
  __syncthreads();
  const float lse = m + exact_log(warp_sum((four[0] + four[1]) + (four[2] + four[3])));
  if (j == 0) losses[row] = lse - l[target];
  for (size_t v = j; v < V; v += 128) dl[v] = (exact_exp(l[v] - lse) - (v == size_t(target) ? 1.0f : 0.0f)) * dloss;
  // >>>
}

// ---- how it is judged

void exercise(Try& t) {
  t.cases({"N", "V"}, {{4, 7}, {3, 128}, {4, 384}}, [&](size_t N, size_t V) {
    const char* const order = "core/reduce.cuh: row, of the sum of exponentials";
    Tried& losses = t.out("losses", N, 1).sums(V).ordered_by(order);
    Tried& dlogits = t.out("dlogits", N, V).sums(V).ordered_by(order);
    Tried& logits = t.in("logits", N, V, 4);
    std::vector<int> ids(N);
    for (size_t n = 0; n < N; n++) ids[n] = int((n * 37 + V - 1) % V);
    Tried& targets = t.in_as("targets", N, 1, ids);
    t.reference([&](auto real) {
      std::copy(logits(real), logits(real) + N * V, dlogits(real));
      cross_entropy_ref(losses(real), dlogits(real), ids.data(), decltype(real)(0.25), true, N, V);
    });
    if (V == 7)
      t.differences(dlogits, logits, [&](const double* at) {
        std::vector<double> l(at, at + N * V), each(N);
        cross_entropy_ref(each.data(), l.data(), ids.data(), 1.0, false, N, V);
        double loss = 0;
        for (double one : each) loss += 0.25 * one;
        return loss;
      });
    t.judge([&] { t.launch(cross_entropy_kernel, N, 128, 0, losses, dlogits, logits, targets, 0.25f, V); });
  });
}
