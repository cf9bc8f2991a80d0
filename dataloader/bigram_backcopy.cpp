#include "dataloader/bigram_backcopy.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "core/philox.cuh"

namespace gated {

BigramWeights random_bigrams(size_t n, uint64_t seed) {
  const uint64_t stream = stream_of(Purpose::synthetic, uint64_t(2) << 40);  // splits 0 and 1 are below
  BigramWeights bigrams{n, std::vector<uint64_t>(n * n)};
  for (size_t i = 0; i < n * n; ++i) {
    const double u = uniform_double(seed, stream, i);
    bigrams.w[i] = 1 + uint64_t(0x1p20 * (u * u) * (u * u) / double(1 + i % n));
  }
  return bigrams;
}

BigramWeights text_bigrams(const std::string& text) {
  std::array<size_t, 256> id{};
  for (const char c : text) id[static_cast<unsigned char>(c)] = 1;
  const size_t n = std::accumulate(id.begin(), id.end(), size_t(0));
  for (size_t byte = 0, next = 0; byte < 256; ++byte)
    if (id[byte]) id[byte] = next++;
  BigramWeights bigrams{n, std::vector<uint64_t>(n * n)};
  for (size_t i = 0; i < text.size(); ++i) {
    const size_t a = id[static_cast<unsigned char>(text[i])];
    const size_t b = id[static_cast<unsigned char>(text[i + 1 < text.size() ? i + 1 : 0])];
    ++bigrams.w[a * n + b];
  }
  return bigrams;
}

BigramBackcopy::BigramBackcopy(const BigramWeights& bigrams, uint64_t seed, uint64_t split, size_t vocab)
    : n_(bigrams.n), seed_(seed), split_(split), vocab_(vocab ? vocab : n_ + 1) {
  require(n_ > triggers, "bigram-backcopy: %zu tokens, expected more than the %zu triggers", n_, triggers);
  require(vocab_ > n_, "--vocab=%zu: bigram-backcopy needs %zu, one for each token and BOS", vocab_, n_ + 1);
  std::vector<uint64_t> marginal(n_);
  for (size_t i = 0; i < n_ * n_; ++i) marginal[i % n_] += bigrams.w[i];
  std::vector<size_t> order(n_);
  std::iota(order.begin(), order.end(), size_t(0));
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return marginal[a] > marginal[b]; });
  is_trigger_.resize(n_ + 1);
  for (size_t i = 0; i < triggers; ++i) is_trigger_[order[i]] = true, marginal[order[i]] = 0;
  // BOS is row n: the marginal without triggers. So no trigger ever follows BOS or another trigger, and
  // what a trigger copies is never one.
  cumulative_.resize((n_ + 1) * n_);
  for (size_t a = 0; a <= n_; ++a) {
    const uint64_t* row = a < n_ ? &bigrams.w[a * n_] : marginal.data();
    std::partial_sum(row, row + n_, &cumulative_[a * n_]);
    require(total(a) > 0, "bigram-backcopy: nothing follows token %zu", a);
  }
}

std::string BigramBackcopy::description() const {
  return format("bigram-backcopy: %zu tokens, %zu of them triggers, and BOS %zu", n_, triggers, n_);
}

// Of all that a sequence is drawn from.
std::string BigramBackcopy::content_hash() const {
  Hash hash;
  hash.text("bigram-backcopy").number(n_).number(seed_).number(split_);
  for (const uint64_t sum : cumulative_) hash.number(sum);
  return hash.hex();
}

void BigramBackcopy::sequence(size_t i, size_t T, int32_t* out) const {
  require(i < sequences(T), "bigram-backcopy: sequence %zu asked of %zu", i, sequences(T));
  const uint64_t stream = stream_of(Purpose::synthetic, split_ << 40 | i);
  out[0] = bos();
  for (size_t t = 1; t <= T; ++t) {
    const size_t current = size_t(out[t - 1]);
    if (is_trigger_[current]) {
      out[t] = out[t - 2];
    } else {
      const uint64_t* row = &cumulative_[current * n_];
      out[t] = int32_t(std::upper_bound(row, row + n_, random_below(seed_, stream, t, total(current))) - row);
    }
  }
}

uint64_t BigramBackcopy::total(size_t a) const {
  return cumulative_[a * n_ + n_ - 1];
}

}  // namespace gated
