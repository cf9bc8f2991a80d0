// combine on the CPU: tokens are shared out among threads, and columns are vectorised. The bits are those of the
// references (kernels/combine.cu):
//   - forward: the sums of 128 columns stay in registers while the k rows pass, each element's in slot order
//   - backward: the 128 chains of a dot product fill vector registers (row_reduce_cpu), and the row is then in a core's
//     cache, where the gradient takes its place
#include <algorithm>

#include "core/reduce.cuh"
#include "kernels/combine.h"

namespace gated {

template <class S>
void combine_forward_cpu(S* y, const S* rows, const float* weight, const S* plus, const Dispatch& d,
                         const DispatchShape& s, size_t C) {
#pragma omp parallel for if (worth_waking(s.M() * C))
  for (size_t n = 0; n < s.N; n++)
    for (size_t c0 = 0; c0 < C; c0 += sums_width) {
      const size_t columns = std::min(sums_width, C - c0);
      float sum[sums_width];
      for (size_t j = 0; j < s.k; j++) {
        const float w = weight[n * s.k + j];
        const S* row = rows + d.row_of_slot[n * s.k + j] * C + c0;
        if (j == 0)
          for (size_t c = 0; c < columns; c++) sum[c] = w * row[c];
        else
          for (size_t c = 0; c < columns; c++) sum[c] = fused(w, float(row[c]), sum[c]);
      }
      S* out = y + n * C + c0;
      if (plus)
        for (size_t c = 0; c < columns; c++) store(out[c], sum[c] + plus[n * C + c0 + c]);
      else
        for (size_t c = 0; c < columns; c++) store(out[c], sum[c]);
    }
}
IN_FLOAT_AND_BF16(combine_forward_cpu);

template <class S>
void combine_backward_cpu(S* drows, float* dweight, const S* dy, const S* rows, const float* weight, const Dispatch& d,
                          const DispatchShape& s, size_t C) {
#pragma omp parallel for
  for (size_t slot = 0; slot < s.M(); slot++) {
    const S* g = dy + slot / s.k * C;
    const size_t at = d.row_of_slot[slot] * C;
    const S* row = rows + at;
    dweight[slot] =
        row_reduce_cpu<float>(C, [=](float acc, size_t c) { return fused(float(g[c]), float(row[c]), acc); });
    const float w = weight[slot];
    for (size_t c = 0; c < C; c++) store(drows[at + c], w * g[c]);
  }
}
IN_FLOAT_AND_BF16(combine_backward_cpu);

}  // namespace gated
