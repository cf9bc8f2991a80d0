// router_losses: the losses of a router as papers write them, in double.
#pragma once
#include <cmath>
#include <numeric>
#include <vector>

namespace gated {

struct PlainRouterLosses {
  double balance = 0, z = 0;
};

// Of the logits (N,E) of tokens, where each expert has so many slots.
inline PlainRouterLosses plain_router_losses(const std::vector<double>& logits, const std::vector<size_t>& slots) {
  const size_t E = slots.size(), N = logits.size() / E;
  const double all = double(std::accumulate(slots.begin(), slots.end(), size_t{0}));
  PlainRouterLosses losses;
  for (size_t n = 0; n < N; n++) {
    const double* const at = &logits[n * E];
    double sum = 0;
    for (size_t e = 0; e < E; e++) sum += std::exp(at[e]);
    for (size_t e = 0; e < E; e++)
      losses.balance += double(E) * double(slots[e]) / all * std::exp(at[e]) / sum / double(N);
    losses.z += std::log(sum) * std::log(sum) / double(N);
  }
  return losses;
}

}  // namespace gated
