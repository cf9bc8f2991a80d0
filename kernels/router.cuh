// router: what the kernels, the references and the CPU's twin have in common. kernels/router.cu
#pragma once
#include "core/math.cuh"

namespace gated {

// One number that ranks an expert among those of a token: larger for a larger p, and of equal ones for the lower
// expert. No two experts have the same. A float that is not negative is ordered as its bits are; a NaN counts as 0.
HD uint64_t router_rank(float p, size_t e) {
  return uint64_t(p > 0.0f ? float_bits(p) : 0u) << 32 | (0xffffffffu - uint32_t(e));
}
HD size_t router_ranked_expert(uint64_t rank) {
  return 0xffffffffu - uint32_t(rank);
}

inline size_t router_total(const size_t* counts, size_t E) {
  size_t total = 0;
  for (size_t e = 0; e < E; e++) total += counts[e];
  return total;
}

// What the balance loss adds to the gradient of every p of an expert.
template <class T>
HD T router_balance_slope(T balance, size_t count, size_t total, size_t N, size_t E) {
  return balance * T(E) / T(N) * (T(count) / T(total));
}

// dlogit of p, which has the gradient dp; inner = sum of p*dp over the experts.
template <class T>
HD T router_dlogit(T p, T dp, T inner, T z_slope) {
  return p * (dp - inner + z_slope);
}

// What a share of the slots adds to the entropy of the shares.
template <class T>
HD T router_entropy(T share) {
  return share > T(0) ? -(share * exact_log(share)) : share;
}

// Column c of the report's sums: p of expert c, and after the experts lse^2.
struct RouterFold {
  const float *p, *lse;
  size_t E;
  HD float operator()(float acc, size_t row, size_t c) const {
    return c < E ? acc + p[row * E + c] : fused(lse[row], lse[row], acc);
  }
};

}  // namespace gated
