#include "training/sampler.h"

#include <algorithm>
#include <numeric>

#include "core/math.cuh"
#include "core/philox.cuh"

namespace gated {

int Sampler::draw(const std::vector<float>& logits, uint64_t index) const {
  std::vector<int> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const size_t kept = temperature == 0 ? 1 : top_k == 0 ? order.size() : std::min(top_k, order.size());
  std::partial_sort(order.begin(), order.begin() + std::ptrdiff_t(kept), order.end(),
                    [&](int a, int b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; });
  if (kept == 1) return order[0];
  const double top = logits[order[0]];
  std::vector<double> cumulative(kept);
  double total = 0;
  for (size_t i = 0; i < kept; i++)
    cumulative[i] = total += double(exact_exp(float((double(logits[order[i]]) - top) / temperature)));
  const double u = uniform_double(seed, stream_of(Purpose::sample, 0), index) * total;
  const size_t at = size_t(std::upper_bound(cumulative.begin(), cumulative.end(), u) - cumulative.begin());
  return order[std::min(at, kept - 1)];
}

}  // namespace gated
