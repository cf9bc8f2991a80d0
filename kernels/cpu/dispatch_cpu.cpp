// dispatch on the CPU: tokens are shared out among threads, and columns are vectorised. A token's x is read once and
// copied to its k rows while it is in a core's cache; a sum over the rows of a token goes row by row, so that each is
// read along. The bits are those of the references (kernels/dispatch.cu): every element of an output is computed by one
// thread, in the same order.
#include <algorithm>

#include "core/reduce.cuh"
#include "kernels/dispatch.h"

namespace gated {

template <class S>
void dispatch_gather_cpu(S* rows, const S* x, const Dispatch& d, const DispatchShape& s, size_t C) {
#pragma omp parallel for if (worth_waking(s.M() * C))
  for (size_t n = 0; n < s.N; n++)
    for (size_t j = 0; j < s.k; j++) std::copy_n(x + n * C, C, rows + d.row_of_slot[n * s.k + j] * C);
}
IN_FLOAT_AND_BF16(dispatch_gather_cpu);

template <class S>
void dispatch_gather_backward_cpu(S* dx, Accumulate accumulate, const S* drows, const Dispatch& d,
                                  const DispatchShape& s, size_t C) {
#pragma omp parallel for
  for (size_t n = 0; n < s.N; n++)
    for (size_t c0 = 0; c0 < C; c0 += sums_width) {
      const size_t columns = std::min(sums_width, C - c0);
      float sum[sums_width];
      std::copy_n(drows + d.row_of_slot[n * s.k] * C + c0, columns, sum);
      for (size_t j = 1; j < s.k; j++) {
        const S* row = drows + d.row_of_slot[n * s.k + j] * C + c0;
        for (size_t c = 0; c < columns; c++) sum[c] += row[c];
      }
      S* out = dx + n * C + c0;
      if (accumulate == Accumulate::yes)
        for (size_t c = 0; c < columns; c++) store(out[c], out[c] + sum[c]);
      else
        for (size_t c = 0; c < columns; c++) store(out[c], sum[c]);
    }
}
IN_FLOAT_AND_BF16(dispatch_gather_backward_cpu);

}  // namespace gated
