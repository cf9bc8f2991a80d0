// router on the CPU: tokens are shared out among threads. The bits are those of the references (kernels/router.cu):
//   - the 128 chains of a sum over experts fill vector registers (row_reduce_cpu), and a maximum has no order
//   - the k largest are found by router_rank, as in the kernel: a maximum over integers vectorises
#include <algorithm>

#include "core/reduce.cuh"
#include "kernels/router.cuh"
#include "kernels/router.h"

namespace gated {

// expert (k) = the k best of ranks (E), and weight (k) what p (E) says of them. A rank that is taken becomes 0.
static void choose(int* expert, float* weight, const float* p, uint64_t* ranks, const RouterShape& s) {
  float total = 0.0f;
  for (size_t j = 0; j < s.k; j++) {
    uint64_t best = 0;
    for (size_t e = 0; e < s.E; e++) best = max_of(ranks[e], best);
    const size_t chosen = router_ranked_expert(best);
    ranks[chosen] = 0;
    expert[j] = int(chosen);
    weight[j] = p[chosen];
    total = total + p[chosen];
  }
  for (size_t j = 0; s.renormalise && j < s.k; j++) weight[j] = weight[j] / total;
}

void router_forward_cpu(const RouterOut& out, const float* logits, const RouterShape& s) {
#pragma omp parallel if (worth_waking(s.N * s.E))
  {
    std::vector<uint64_t> ranks(s.E);
#pragma omp for
    for (size_t n = 0; n < s.N; n++) {
      const float* l = logits + n * s.E;
      float* p = out.p + n * s.E;
      const float max = row_max_cpu(l, s.E);
      for (size_t e = 0; e < s.E; e++) p[e] = exact_exp(l[e] - max);
      const float sum = row_reduce_cpu<float>(s.E, [=](float acc, size_t e) { return acc + p[e]; });
      out.lse[n] = max + exact_log(sum);
      for (size_t e = 0; e < s.E; e++) {
        p[e] = p[e] / sum;
        ranks[e] = router_rank(p[e], e);
      }
      choose(out.expert + n * s.k, out.weight + n * s.k, p, ranks.data(), s);
    }
  }
}

template <class S>
void router_backward_cpu(S* dlogits, const float* dweight, const RouterOut& saved, const RouterLosses& losses,
                         const RouterShape& s) {
  std::vector<float> slope(s.E, 0.0f);
  const size_t total = losses.counts ? router_total(losses.counts, s.E) : 0;
  for (size_t e = 0; losses.counts && e < s.E; e++)
    slope[e] = router_balance_slope(losses.balance, losses.counts[e], total, s.N, s.E);
#pragma omp parallel
  {
    std::vector<float> dps(s.E);
    float* const dp = dps.data();
#pragma omp for
    for (size_t n = 0; n < s.N; n++) {
      const float *p = saved.p + n * s.E, *w = saved.weight + n * s.k, *dw = dweight + n * s.k;
      const int* expert = saved.expert + n * s.k;
      float chosen = 0.0f, inner = 0.0f;
      std::copy(slope.begin(), slope.end(), dp);
      for (size_t j = 0; j < s.k; j++) {
        chosen = chosen + p[expert[j]];
        inner = fused(dw[j], w[j], inner);
      }
      for (size_t j = 0; j < s.k; j++)
        dp[expert[j]] = dp[expert[j]] + (s.renormalise ? (dw[j] - inner) / chosen : dw[j]);
      const float through_softmax =
          row_reduce_cpu<float>(s.E, [=](float acc, size_t e) { return fused(p[e], dp[e], acc); });
      const float z_slope = 2.0f * losses.z / float(s.N) * saved.lse[n];
      S* dl = dlogits + n * s.E;
#pragma omp simd
      for (size_t e = 0; e < s.E; e++) store(dl[e], router_dlogit(p[e], dp[e], through_softmax, z_slope));
    }
  }
}
IN_FLOAT_AND_BF16(router_backward_cpu);

// (Not in router.cu, where the loop is compiled without the flags of fast code and takes 1.6 times as long.)
void router_report_sums_cpu(float* sums, const float* p, const float* lse, const RouterShape& s) {
  column_reduce_add_cpu(sums, s.N, s.E + 1, RouterFold{p, lse, s.E});
}

}  // namespace gated
