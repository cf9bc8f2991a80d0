// router: which experts a token goes to, and with what weights      (Shazeer et al. 2017, arXiv 1701.06538)
//
// Of the logits l (E) of a token, one for every expert, softmax makes probabilities, and the k largest choose:
//     p_e = e^l_e / sum over i of e^l_i        lse = log(sum over i of e^l_i)
//     expert_j = the j-th largest p; of equal ones the lower expert comes first
//     weight_j = p of expert_j                 or, renormalised,  that p / S,  S = sum over the chosen of their p
// Renormalised, the softmax's own denominator cancels: weight_j = e^l_j / sum over the chosen i of e^l_i. That is a
// softmax over the chosen logits alone, the router of gpt-oss. HF calls the choice norm_topk_prob.
//
// 1. backward, of one token. What is chosen is a constant: it jumps, and a jump has no gradient. Let g_j be the
//    gradient of the p of the j-th chosen, dw_j that of its weight.
//      plain          g_j = dw_j
//      renormalised   w_i = p_i / S, and S contains every chosen p:   ∂w_i/∂p_j = [i = j]/S - p_i/S^2
//                     g_j = (dw_j - sum over the chosen i of dw_i*w_i) / S
//    dp_e is g_j for a chosen expert and 0 for the others, and the losses below add to it. Through softmax, where
//    ∂p_i/∂l_e = p_i*([i = e] - p_e), it becomes
//      dl_e = p_e * (dp_e - sum over i of p_i*dp_i)
// 2. The balance loss keeps experts from starving (Fedus et al. 2021, arXiv 2101.03961):
//      balance * E * sum over e of f_e*P_e        f_e = share of the slots that expert e got, P_e = mean over the
//                                                 tokens of p_ne
//    It is `balance` where all shares are 1/E, and more where experts that get much also have large p. f_e counts
//    choices, which have no gradient, so
//      dp_ne += balance * E * f_e / N             the same for all tokens of a batch
//    With the counts of all batches of a slice so far, not of each alone, an expert may be busy with one text and idle
//    with another: the loss then asks for balance over the slice (Qiu et al. 2025, arXiv 2501.11873). So the counts
//    come from outside.
// 3. The z-loss keeps logits small (Zoph et al. 2022, arXiv 2202.08906): z * mean over n of lse_n^2. With ∂lse/∂l_e =
//    p_e,
//      dl_ne += z * 2*lse_n / N * p_ne
//
// exactly: as everywhere e^(l - m), m the row's largest logit, with p = that / their sum and lse = m + log(sum). Sums
//   over experts have the row order (core/reduce.cuh); those over the k chosen, S and dw.w, are one chain from +0, in
//   slot order. A chosen dp is slope_e + g_j, slope_e = balance*E/N * f_e, and dl = p*((dp - inner) + 2*z/N*lse).
//   The report's sums over tokens have the column order, its sums over experts the row order.
//   A dl in bf16 is that, rounded.
// shapes: logits, p (N,E) f32; dlogits (N,E) f32 or bf16; lse (N); expert (N,k) int; weight, dweight (N,k); counts (E)
//   size_t | all outputs are written
// twins: kernels/cpu/router_cpu.cpp
// --experts, --experts-per-token, --router-renormalise, --balance-loss, --z-loss | tests/test_router.cpp
#include "kernels/router.h"

#include "core/launch_shape.cuh"
#include "core/reduce.cuh"
#include "kernels/router.cuh"

namespace gated {

// ---- reference

template <class T>
void router_forward_ref(const RouterOutOf<T>& out, const T* logits, const RouterShape& s) {
  for (size_t n = 0; n < s.N; n++) {
    const T* l = logits + n * s.E;
    T *p = out.p + n * s.E, *weight = out.weight + n * s.k;
    int* expert = out.expert + n * s.k;
    T max = -INFINITY;
    for (size_t e = 0; e < s.E; e++) max = max_of(l[e], max);
    RowSum<T> sum;
    for (size_t e = 0; e < s.E; e++) sum.add(exact_exp(l[e] - max));
    const T denominator = sum.total();
    for (size_t e = 0; e < s.E; e++) p[e] = exact_exp(l[e] - max) / denominator;
    out.lse[n] = max + exact_log(denominator);

    std::vector<bool> taken(s.E, false);
    T total = 0;
    for (size_t j = 0; j < s.k; j++) {
      size_t best = 0;
      while (taken[best]) best++;
      for (size_t e = best + 1; e < s.E; e++)
        if (!taken[e] && p[e] > p[best]) best = e;
      taken[best] = true;
      expert[j] = int(best);
      weight[j] = p[best];
      total = total + p[best];
    }
    for (size_t j = 0; s.renormalise && j < s.k; j++) weight[j] = weight[j] / total;
  }
}
IN_FLOAT_AND_DOUBLE(router_forward_ref);

template <class T>
void router_backward_ref(T* dlogits, const T* dweight, const RouterOutOf<T>& saved, const RouterLossesOf<T>& losses,
                         const RouterShape& s) {
  const size_t total = losses.counts ? router_total(losses.counts, s.E) : 0;
  for (size_t n = 0; n < s.N; n++) {
    const T *p = saved.p + n * s.E, *w = saved.weight + n * s.k, *dw = dweight + n * s.k;
    const int* expert = saved.expert + n * s.k;
    std::vector<T> dp(s.E, T(0));
    for (size_t e = 0; losses.counts && e < s.E; e++)
      dp[e] = router_balance_slope(losses.balance, losses.counts[e], total, s.N, s.E);

    T chosen = 0, inner = 0;
    for (size_t j = 0; j < s.k; j++) {
      chosen = chosen + p[expert[j]];
      inner = fused(dw[j], w[j], inner);
    }
    for (size_t j = 0; j < s.k; j++) dp[expert[j]] = dp[expert[j]] + (s.renormalise ? (dw[j] - inner) / chosen : dw[j]);

    RowSum<T> sum;
    for (size_t e = 0; e < s.E; e++) sum.fma(p[e], dp[e]);
    const T through_softmax = sum.total(), z_slope = T(2) * losses.z / T(s.N) * saved.lse[n];
    for (size_t e = 0; e < s.E; e++) dlogits[n * s.E + e] = router_dlogit(p[e], dp[e], through_softmax, z_slope);
  }
}
IN_FLOAT_AND_DOUBLE(router_backward_ref);

// sums (E+1), over the tokens: of p, for every expert, and of lse^2.
template <class T>
static void router_report_of_sums(T* report, const T* sums, const size_t* counts, const RouterShape& s) {
  const size_t total = router_total(counts, s.E);
  RowSum<T> balance, entropy;
  size_t most = 0, idle = 0;
  for (size_t e = 0; e < s.E; e++) {
    const T share = T(counts[e]) / T(total);
    balance.fma(share, sums[e] / T(s.N));
    entropy.add(router_entropy(share));
    most = std::max(most, counts[e]);
    idle += counts[e] == 0;
  }
  report[0] = T(s.E) * balance.total();
  report[1] = sums[s.E] / T(s.N);
  report[2] = T(most) / T(total);
  report[3] = entropy.total();
  report[4] = T(idle);
}

template <class T>
void router_report_ref(T* report, const T* p, const T* lse, const size_t* counts, const RouterShape& s) {
  std::vector<T> sums;
  for (size_t e = 0; e < s.E; e++) {
    ColumnSum<T> of_expert;
    for (size_t n = 0; n < s.N; n++) of_expert.add(p[n * s.E + e]);
    sums.push_back(of_expert.total());
  }
  ColumnSum<T> squares;
  for (size_t n = 0; n < s.N; n++) squares.fma(lse[n], lse[n]);
  sums.push_back(squares.total());
  router_report_of_sums(report, sums.data(), counts, s);
}
IN_FLOAT_AND_DOUBLE(router_report_ref);

// ---- kernels of a token: forward and backward
//
// A warp owns a token, and lane l the experts 4l to 4l+3 of every 128: the row order of rmsnorm.cu. With up to 128
// experts a lane meets a row's quad once in a pass; further passes find it in the first-level cache. The bus: forward 8
// bytes an expert (logits, p), backward 8 (p, dlogits), and 8 for every choice.
//
// The k largest. In round j every lane looks for the best of its experts that comes after the choice of round j-1, and
// a butterfly finds the best of the lanes. Better and later are one comparison of router_rank, an integer that holds p
// and, for ties, the expert: it orders all experts strictly, so that nobody has to remember which were taken.
//
//     p         0.1  0.3  0.2  0.3  0.1           bits of p in front, the complement of the expert after them
//     expert     0    1    2    3    4
//     order      4.   1.   3.   2.   5.           round 0 finds 1, round 1 the best below that: 3, then 2, 0, 4

namespace router {
__device__ inline uint64_t warp_largest(uint64_t v) {
  for (int apart = 16; apart > 0; apart /= 2) {
    const uint64_t other = __shfl_xor_sync(0xffffffffu, v, apart);
    v = other > v ? other : v;
  }
  return v;
}

__device__ inline size_t warp_sum(size_t v) {
  for (int apart = 16; apart > 0; apart /= 2) v += __shfl_xor_sync(0xffffffffu, v, apart);
  return v;
}
}  // namespace router

__global__ void __launch_bounds__(rows_block) router_forward_kernel(RouterOut out, const float* logits, RouterShape s) {
  const size_t n = warp_row(), lane = threadIdx.x % 32, E = s.E, k = s.k;
  if (n >= s.N) return;
  const float* l = logits + n * E;
  float* p = out.p + n * E;

  float max = -INFINITY;
  for (size_t e = 4 * lane; e < E; e += row_chains) {
    const Quad q = load_quad(l, e, E);
    for (int i = 0; i < 4; i++)
      if (e + i < E) max = max_of(q.v[i], max);
  }
  max = warp_max(max);

  float chain[4] = {};
  for (size_t e = 4 * lane; e < E; e += row_chains) {
    Quad q = load_quad(l, e, E);
    for (int i = 0; i < 4; i++) {
      q.v[i] = exact_exp(q.v[i] - max);
      if (e + i < E) chain[i] = chain[i] + q.v[i];
    }
    store_quad(p, e, E, q);
  }
  const float sum = warp_chains_sum(chain);
  if (lane == 0) out.lse[n] = max + exact_log(sum);
  for (size_t e = 4 * lane; e < E; e += row_chains) {
    Quad q = load_quad(p, e, E);
    for (int i = 0; i < 4; i++) q.v[i] = q.v[i] / sum;
    store_quad(p, e, E, q);
  }
  __syncwarp();  // every lane will read the p of what was chosen

  uint64_t last = ~uint64_t{0};
  float total = 0.0f;
  for (size_t j = 0; j < k; j++) {
    uint64_t best = 0;
    for (size_t e = 4 * lane; e < E; e += row_chains) {
      const Quad q = load_quad(p, e, E);
      for (int i = 0; i < 4; i++) {
        const uint64_t rank = router_rank(q.v[i], e + i);
        if (e + i < E && rank < last && rank > best) best = rank;
      }
    }
    last = router::warp_largest(best);
    const size_t chosen = router_ranked_expert(last);
    total = total + p[chosen];
    if (lane == j % 32) {
      out.expert[n * k + j] = int(chosen);
      out.weight[n * k + j] = p[chosen];
    }
  }
  // A lane divides the weights that it wrote itself.
  for (size_t j = lane; s.renormalise && j < k; j += 32) out.weight[n * k + j] = out.weight[n * k + j] / total;
}

// slope (E): what the balance loss adds to every p of an expert. One warp.
__global__ void __launch_bounds__(32)
    router_slopes_kernel(float* slope, float balance, const size_t* counts, size_t N, size_t E) {
  const size_t lane = threadIdx.x;
  size_t total = 0;
  for (size_t e = lane; e < E; e += 32) total += counts[e];
  total = router::warp_sum(total);
  for (size_t e = lane; e < E; e += 32) slope[e] = router_balance_slope(balance, counts[e], total, N, E);
}

// A row of dps (N,E) holds the slopes, to which the lanes add what comes through the weights, one chosen expert each.
// No two lanes meet there, as a token's experts are all different. dps may be dlogits. slope may be null: 0.
template <class S>
__global__ void __launch_bounds__(rows_block)
    router_backward_kernel(S* dlogits, float* dps, const float* dweight, RouterOut saved, const float* slope, float z,
                           RouterShape s) {
  const size_t n = warp_row(), lane = threadIdx.x % 32, E = s.E, k = s.k;
  if (n >= s.N) return;
  const float *p = saved.p + n * E, *w = saved.weight + n * k, *dw = dweight + n * k;
  const int* expert = saved.expert + n * k;
  float* dp = dps + n * E;

  for (size_t e = 4 * lane; e < E; e += row_chains) store_quad(dp, e, E, slope ? load_quad(slope, e, E) : Quad{});
  float chosen = 0.0f, inner = 0.0f;
  for (size_t j = 0; s.renormalise && j < k; j++) {  // every lane for itself: k is small
    chosen = chosen + p[expert[j]];
    inner = fused(dw[j], w[j], inner);
  }
  __syncwarp();  // every lane's stores of the slopes to dp are visible to the lanes that add to them
  for (size_t j = lane; j < k; j += 32)
    dp[expert[j]] = dp[expert[j]] + (s.renormalise ? (dw[j] - inner) / chosen : dw[j]);
  __syncwarp();  // dp is complete: slopes, and what came through the weights

  float chain[4] = {};
  for (size_t e = 4 * lane; e < E; e += row_chains) {
    const Quad q = load_quad(p, e, E), d = load_quad(dp, e, E);
    for (int i = 0; i < 4; i++)
      if (e + i < E) chain[i] = fused(q.v[i], d.v[i], chain[i]);
  }
  const float through_softmax = warp_chains_sum(chain), z_slope = 2.0f * z / float(s.N) * saved.lse[n];
  for (size_t e = 4 * lane; e < E; e += row_chains) {
    const Quad q = load_quad(p, e, E);
    Quad d = load_quad(dp, e, E);
    for (int i = 0; i < 4; i++) d.v[i] = router_dlogit(q.v[i], d.v[i], through_softmax, z_slope);
    store_quad(dlogits + n * E, e, E, d);
  }
}

// ---- the report
//
// E + 1 sums down the columns, over the tokens: of p, for every expert, and of lse^2. The kernels of a column sum
// (core/reduce.cuh) make them in one run, as if lse stood after the experts: RouterFold in router.cuh is what they do
// with an element. A warp then makes five numbers of E + 1 sums and E counts.

__global__ void __launch_bounds__(32)
    router_report_kernel(float* report, const float* sums, const size_t* counts, size_t N, size_t E) {
  const size_t lane = threadIdx.x;
  size_t total = 0, most = 0, idle = 0;
  for (size_t e = lane; e < E; e += 32) {
    const size_t count = counts[e];
    total += count;
    most = count > most ? count : most;
    idle += count == 0;
  }
  total = router::warp_sum(total);
  most = router::warp_largest(most);
  idle = router::warp_sum(idle);

  float balance[4] = {}, entropy[4] = {};
  for (size_t first = 4 * lane; first < E; first += row_chains)
    for (size_t i = 0; i < 4 && first + i < E; i++) {
      const float share = float(counts[first + i]) / float(total);
      balance[i] = fused(share, sums[first + i] / float(N), balance[i]);
      entropy[i] = entropy[i] + router_entropy(share);
    }
  const float balance_sum = warp_chains_sum(balance), entropy_sum = warp_chains_sum(entropy);
  if (lane != 0) return;
  report[0] = float(E) * balance_sum;
  report[1] = sums[E] / float(N);
  report[2] = float(most) / float(total);
  report[3] = entropy_sum;
  report[4] = float(idle);
}

// ---- launchers

static void require_router(const char* operation, const RouterShape& s) {
  require(s.E > 0 && s.E <= 0x7fffffff, "%s: %zu experts, expected 1 to 2147483647", operation, s.E);
  require(s.k > 0 && s.k <= s.E, "%s: %zu experts of a token, expected 1 to %zu, the number of experts", operation, s.k,
          s.E);
}

void router_forward(const RouterOut& out, const float* logits, const RouterShape& s, Context& ctx) {
  require_router("router_forward", s);
  if (ctx.device == Device::cpu) return router_forward_cpu(out, logits, s);
  launch(router_forward_kernel, rows_grid(s.N), rows_block, 0, ctx, out, logits, s);
}

// The slopes; in front of them the dp of all tokens, where dlogits in bf16 cannot hold them.
size_t router_backward_scratch(const RouterShape& s, Storage storage) {
  return ((storage == Storage::bf16 ? s.N * s.E : 0) + s.E) * sizeof(float);
}

void router_backward(Reals dlogits, const float* dweight, const RouterOut& saved, const RouterLosses& losses,
                     const RouterShape& s, Context& ctx) {
  require_router("router_backward", s);
  require(losses.counts || losses.balance == 0.0f, "router_backward: a balance loss needs the counts of the experts");
  with_storage(dlogits, [&](auto stored) {
    using S = decltype(stored);
    S* const dl = dlogits.as<S>();
    if (ctx.device == Device::cpu) return router_backward_cpu(dl, dweight, saved, losses, s);
    float *dps, *slope;
    if constexpr (std::is_same_v<S, float>) {
      dps = dl;
      slope = losses.counts ? ctx.scratch(s.E) : nullptr;
    } else {
      dps = ctx.scratch(router_backward_scratch(s, Storage::bf16) / sizeof(float));
      slope = losses.counts ? dps + s.N * s.E : nullptr;
    }
    if (slope) launch(router_slopes_kernel, 1, 32, 0, ctx, slope, losses.balance, losses.counts, s.N, s.E);
    launch(router_backward_kernel<S>, rows_grid(s.N), rows_block, 0, ctx, dl, dps, dweight, saved, slope, losses.z, s);
  });
}

size_t router_report_scratch(const RouterShape& s) {
  return (s.E + 1) * sizeof(float) + column_reduce_scratch(s.N, s.E + 1);
}

void router_report(float* report, const float* p, const float* lse, const size_t* counts, const RouterShape& s,
                   Context& ctx) {
  require_router("router_report", s);
  require(s.N > 0, "router_report: a mean over no tokens");
  if (ctx.device == Device::cpu) {
    std::vector<float> sums(s.E + 1, 0.0f);
    router_report_sums_cpu(sums.data(), p, lse, s);
    return router_report_of_sums(report, sums.data(), counts, s);
  }
  float* sums = ctx.scratch(router_report_scratch(s) / sizeof(float));
  set_zero(sums, s.E + 1, ctx);
  column_reduce_add_in(sums + s.E + 1, std::array{sums}, s.N, s.E + 1, OneSum<RouterFold>{{p, lse, s.E}}, ctx);
  launch(router_report_kernel, 1, 32, 0, ctx, report, sums, counts, s.N, s.E);
}

}  // namespace gated
