// cross_entropy_cpu: the row pass of kernels/linear_cross_entropy.cu on CPU cores.
//
// It differs from the reference in that the 128 chains of a row advance together: the loops over j are independent of
// each other and fill vector registers, where RowSum puts one element at a time into the next chain. Chain j takes the
// same elements in the same order, so the bits are the same. The maximum goes in chains as well: a compiler may not
// reorder a single one, and a maximum has no order. Rows are shared out among threads.
#include "kernels/linear_cross_entropy.h"

#include "core/reduce.cuh"
#include "kernels/linear_cross_entropy.cuh"

namespace gated {

template <class S>
void cross_entropy_cpu(float* losses, S* dlogits, const float* logits, const int* targets, float dloss, size_t rows,
                       size_t V) {
#pragma omp parallel for
  for (size_t row = 0; row < rows; row++) {
    const float* l = logits + row * padded_vocab(V);
    S* dl = dlogits ? dlogits + row * padded_vocab(V) : nullptr;
    const int target = targets[row];
    const bool known = target_is_known(target, V);
    const float at_target = l[known ? target : 0], max = row_max_cpu(l, V);
    const float sum = row_reduce_cpu<float>(V, [=](float acc, size_t v) { return acc + exp_to_40(l[v] - max); });
    const float lse = log_sum_exp(max, sum, known);
    losses[row] = lse - at_target;
    if (!dl) continue;
#pragma omp simd
    for (size_t v = 0; v < V; v++) store(dl[v], dlogit(l[v], lse, 0.0f, dloss));
    if (known) dl[target] = S(dlogit(at_target, lse, 1.0f, dloss));
  }
}
IN_FLOAT_AND_BF16(cross_entropy_cpu);

}  // namespace gated
