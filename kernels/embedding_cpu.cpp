// embedding on the CPU: tokens, or blocks of columns of one group, are shared out among threads, and columns are vectorised.
// The bits are those of the reference (kernels/embedding.cu): every element of an output is computed by one thread, in the
// same order.
#include <algorithm>

#include "core/reduce.cuh"
#include "kernels/embedding.h"

namespace gated {

void embedding_forward_cpu(float* h, const int* ids, const float* weight, const EmbeddingExtras& extras, size_t N,
                           size_t C, size_t V) {
#pragma omp parallel for if (worth_waking(N * C))
  for (size_t n = 0; n < N; n++) {
    float* hn = h + n * C;
    const size_t id = ids[n];
    if (id < V)
      std::copy_n(weight + id * C, C, hn);
    else
      std::fill_n(hn, C, float(NAN));
    if (extras.scale) {
      const float s = *extras.scale;
      for (size_t c = 0; c < C; c++) hn[c] = hn[c] * s;
    }
    if (extras.positions) {
      const float* p = extras.positions + n % extras.T * C;
      for (size_t c = 0; c < C; c++) hn[c] = hn[c] + p[c];
    }
  }
}

void embedding_backward_cpu(float* dweight, const float* dh, const TokenGroups& groups, const float* scale, size_t C) {
  const float s = scale ? *scale : 1.0f;
  const int *id = groups.id(), *start = groups.start(), *token = groups.token();
  const size_t blocks = ceil_div(C, sums_width), units = size_t(*groups.count()) * blocks;
#pragma omp parallel for schedule(dynamic, 64)
  for (size_t unit = 0; unit < units; unit++) {
    const size_t g = unit / blocks, c0 = unit % blocks * sums_width;
    const size_t columns = std::min(sums_width, C - c0);
    float total[sums_width] = {};
    for (int t = start[g]; t < start[g + 1]; t++) {
      const float* row = dh + token[t] * C + c0;
      for (size_t c = 0; c < columns; c++) total[c] += row[c];
    }
    float* out = dweight + id[g] * C + c0;
    for (size_t c = 0; c < columns; c++) out[c] += s * total[c];
  }
}

void embedding_row_sums_cpu(float* row_sums, const float* dh, const int* ids, const float* weight, size_t N, size_t C,
                            size_t V) {
#pragma omp parallel for
  for (size_t n = 0; n < N; n++) {
    const size_t id = ids[n];
    row_sums[n] = NAN;
    if (id >= V) continue;
    const float *d = dh + n * C, *w = weight + id * C;
    row_sums[n] = row_reduce_cpu<float>(C, [=](float acc, size_t c) { return fused(d[c], w[c], acc); });
  }
}

}  // namespace gated
