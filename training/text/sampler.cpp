#include "training/text/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "core/math.cuh"
#include "core/philox.cuh"

namespace gated {

namespace {

// The tokens that are left, the likeliest first. They are sorted as far as they are asked for: a draw seldom looks far
// down a large vocabulary.
class Ranking {
 public:
  Ranking(const std::vector<float>& logits, size_t kept) : logits_(logits), kept_(kept), order_(logits.size()) {
    std::iota(order_.begin(), order_.end(), 0);
  }
  int operator[](size_t rank) {
    while (rank >= sorted_) {
      const size_t end = std::min(kept_, std::max<size_t>(32, 8 * sorted_));
      std::partial_sort(
          order_.begin() + ptrdiff_t(sorted_), order_.begin() + ptrdiff_t(end), order_.end(), [&](int a, int b) {
            return logits_[size_t(a)] != logits_[size_t(b)] ? logits_[size_t(a)] > logits_[size_t(b)] : a < b;
          });
      sorted_ = end;
    }
    return order_[rank];
  }

 private:
  const std::vector<float>& logits_;
  size_t kept_, sorted_ = 0;
  std::vector<int> order_;
};

}  // namespace

int Sampler::draw(const std::vector<float>& logits, uint64_t index, uint64_t stream) const {
  // (A logit of -inf is that of a token which cannot come.)
  for (size_t id = 0; id < logits.size(); id++)
    require(logits[id] < INFINITY, "the logit of token %zu is %g: what the model computes overflows", id,
            double(logits[id]));
  size_t kept = temperature == 0 ? 1 : top_k == 0 ? logits.size() : std::min(top_k, logits.size());
  Ranking likeliest(logits, kept);
  if (kept == 1) return likeliest[0];
  const double top = logits[size_t(likeliest[0])];
  const auto weight = [&](int id) {
    return double(exact_exp(float((double(logits[size_t(id)]) - top) / temperature)));
  };
  double total = 0;
  if (kept == logits.size())
    for (size_t id = 0; id < logits.size(); id++) total += weight(int(id));
  else
    for (size_t rank = 0; rank < kept; rank++) total += weight(likeliest[rank]);
  if (top_p < 1) {
    double sum = weight(likeliest[0]);
    size_t enough = 1;
    for (; enough < kept && sum < top_p * total; enough++) sum += weight(likeliest[enough]);
    kept = enough;
    total = sum;
  }
  const double u = uniform_double(seed, stream_of(Purpose::sample, stream), index) * total;
  size_t rank = 0;
  for (double sum = weight(likeliest[0]); sum <= u && rank + 1 < kept; sum += weight(likeliest[rank])) rank++;
  return likeliest[rank];
}

}  // namespace gated
