// embedding on the CPU: tokens, or blocks of columns of one id, are shared out among threads, and columns are
// vectorised. The bits are those of the reference (kernels/embedding.cu): every element of an output is computed by one
// thread, in the same order.
#include <algorithm>

#include "core/reduce.cuh"
#include "kernels/embedding.h"

namespace gated {

template <class S>
void embedding_forward_cpu(S* h, const int* ids, const S* weight, const EmbeddingExtras& extras, size_t N, size_t C,
                           size_t V) {
  const float scale = extras.scale ? *extras.scale : 1.0f;
  const S* const positions = extras.positions.as<S>();
#pragma omp parallel for if (worth_waking(N * C))
  for (size_t n = 0; n < N; n++) {
    S* hn = h + n * C;
    const size_t id = ids[n];
    if (id >= V) {
      std::fill_n(hn, C, S(NAN));
      continue;
    }
    const S *w = weight + id * C, *p = positions ? positions + n % extras.T * C : nullptr;
    for (size_t c = 0; c < C; c++) {
      const float row = w[c] * scale;
      hn[c] = S(p ? row + float(p[c]) : row);
    }
  }
}
IN_FLOAT_AND_BF16(embedding_forward_cpu);

template <class S>
void embedding_backward_cpu(float* dweight, const S* dh, const TokenGroups& groups, const float* scale, size_t C) {
  const float s = scale ? *scale : 1.0f;
  const int *id = groups.id(), *start = groups.start(), *token = groups.token();
  const size_t count = size_t(*groups.count()), blocks = ceil_div(C, sums_width), units = count * blocks;
#pragma omp parallel for schedule(dynamic, 64)
  for (size_t unit = 0; unit < units; unit++) {
    const size_t g = unit / blocks, c0 = unit % blocks * sums_width;
    const size_t columns = std::min(sums_width, C - c0);
    if (g > 0 && id[g - 1] == id[g]) continue;  // another unit has all groups of this id
    float total[sums_width];
    for (size_t piece = g; piece < count && id[piece] == id[g]; piece++) {
      float sum[sums_width] = {};
      for (int t = start[piece]; t < start[piece + 1]; t++) {
        const S* row = dh + token[t] * C + c0;
        for (size_t c = 0; c < columns; c++) sum[c] += row[c];
      }
      for (size_t c = 0; c < columns; c++) total[c] = piece == g ? sum[c] : total[c] + sum[c];
    }
    float* out = dweight + id[g] * C + c0;
    for (size_t c = 0; c < columns; c++) out[c] += s * total[c];
  }
}
IN_FLOAT_AND_BF16(embedding_backward_cpu);

template <class S>
void embedding_row_sums_cpu(float* row_sums, const S* dh, const int* ids, const S* weight, size_t N, size_t C,
                            size_t V) {
#pragma omp parallel for
  for (size_t n = 0; n < N; n++) {
    const size_t id = ids[n];
    row_sums[n] = NAN;
    if (id >= V) continue;
    const S *d = dh + n * C, *w = weight + id * C;
    row_sums[n] = row_reduce_cpu<float>(C, [=](float acc, size_t c) { return fused(float(d[c]), float(w[c]), acc); });
  }
}
IN_FLOAT_AND_BF16(embedding_row_sums_cpu);

}  // namespace gated
