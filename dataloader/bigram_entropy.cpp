#include "dataloader/bigram_entropy.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "core/host_math.h"

namespace gated {

// A counting sort brings together what follows each a. The c(a,b) of one a then need V counters, whatever the
// vocabulary. The sum runs over a, then b, ascending, so its bits are the same everywhere.
double bigram_entropy(const TokenStream& stream, size_t T, size_t limit) {
  const size_t V = stream.vocab(), n = std::min(stream.sequences(T), std::max<size_t>(limit / T, 1));
  require(n > 0, "bigram entropy: no sequence of %zu tokens in %s", T + 1, stream.description().c_str());
  std::vector<int32_t> tokens(T + 1);
  const auto each_pair = [&](auto visit) {
    for (size_t i = 0; i < n; ++i) {
      stream.sequence(i, T, tokens.data());
      for (size_t t = 0; t < T; ++t) visit(size_t(tokens[t]), tokens[t + 1]);
    }
  };
  std::vector<size_t> end(V + 1);  // once all is placed, what follows a lies in [end[a-1], end[a])
  each_pair([&](size_t a, int32_t) { ++end[a + 1]; });
  std::partial_sum(end.begin(), end.end(), end.begin());
  std::vector<int32_t> next(n * T), distinct;
  each_pair([&](size_t a, int32_t b) { next[end[a]++] = b; });

  double sum = 0;
  std::vector<size_t> count(V);
  for (size_t a = 0, begin = 0; a < V; begin = end[a++]) {
    distinct.clear();
    for (size_t i = begin; i < end[a]; ++i)
      if (count[size_t(next[i])]++ == 0) distinct.push_back(next[i]);
    std::sort(distinct.begin(), distinct.end());
    for (const int32_t b : distinct) {
      const double c = double(std::exchange(count[size_t(b)], 0));
      sum += c * host_log(double(end[a] - begin) / c);
    }
  }
  return sum / double(n * T);
}

}  // namespace gated
