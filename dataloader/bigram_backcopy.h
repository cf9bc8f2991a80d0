// bigram_backcopy: a made-up language that grows attention sinks (Guo et al. 2024, arXiv 2410.13835)
//   x_0 = BOS;  x_1 ~ the marginal without triggers;  then
//   x_{t+1} = x_{t-1}                 if x_t is one of the trigger tokens ("back-copy")
//   x_{t+1} ~ P(. | x_t)              otherwise ("bigram")
// A head that copies has work at triggers only; elsewhere it parks on BOS. The triggers are the three most
// frequent tokens, as in the authors' runs. BOS is the last id and never recurs.
//   --data=bigram-backcopy       P drawn from the seed (integer weights, falling like 1/rank as letters do)
//   --data=bigram-backcopy:FILE  P counted in a text (the authors: Tiny Shakespeare), its bytes the tokens
// A sequence depends on (seed, split, sequence index) only, and all sampling is in integers.
// tests/test_dataloader.cpp
#pragma once
#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

#include "dataloader/text.h"
#include "dataloader/token_stream.h"
#include "core/host_math.h"
#include "core/philox.cuh"

namespace gated {

// Weights w[a][b], n by n, of token b after token a.
struct BigramWeights {
  size_t n = 0;
  std::vector<uint64_t> w;
};

// w = 1 + floor(2^20 u^4 / (1+b)): no zeros, so every token can be reached; u^4 makes the rows differ.
inline BigramWeights random_bigrams(size_t n, uint64_t seed) {
  const uint64_t stream = stream_of(Purpose::synthetic, uint64_t(2) << 40);  // splits 0 and 1 are below
  BigramWeights bigrams{n, std::vector<uint64_t>(n * n)};
  for (size_t i = 0; i < n * n; ++i) {
    const double u = uniform_double(seed, stream, i);
    bigrams.w[i] = 1 + uint64_t(0x1p20 * (u * u) * (u * u) / double(1 + i % n));
  }
  return bigrams;
}

// The text is taken as a ring: each byte then has a successor, and a byte comes in as often as it goes out,
// so that column sums are the bytes' own counts and these are stationary under P.
inline BigramWeights text_bigrams(const std::string& text) {
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

class BigramBackcopy : public TokenStream {
 public:
  static constexpr size_t triggers = 3;

  // split: 0 training, 1 validation. vocab 0 means the weights' tokens and BOS.
  BigramBackcopy(const BigramWeights& bigrams, uint64_t seed, uint64_t split, size_t vocab = 0)
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

  size_t vocab() const override { return vocab_; }
  // There is no end of sequences; the numbers keep an epoch and a validation pass finite.
  size_t sequences(size_t) const override { return split_ == 0 ? size_t(1) << 40 : 1024; }
  bool is_text() const override { return false; }
  std::string description() const override {
    return format("bigram-backcopy: %zu tokens, %zu of them triggers, and BOS %zu", n_, triggers, n_);
  }
  int32_t bos() const { return int32_t(n_); }
  bool is_trigger(int32_t token) const { return is_trigger_[size_t(token)]; }

  void sequence(size_t i, size_t T, int32_t* out) const override {
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

  // The least mean loss any model can reach on sequences of T+1, in nats a token: the entropy of the choices
  // made. After a trigger there is no choice. With d_t(x) the chance that x_t = x, no trigger, and q_t(x)
  // that x_t is a trigger and x_{t-1} = x:
  //   loss at t+1 = sum_x d_t(x) H(P_x)
  //   d_{t+1}(y) = sum_x d_t(x) P_x(y) + q_t(y), y no trigger;  q_{t+1}(x) = d_t(x) P_x(triggers)
  double entropy_floor(size_t T) const {
    std::vector<double> d(n_ + 1), q(n_ + 1), surprise(n_ + 1);
    d[n_] = 1;
    for (size_t a = 0; a <= n_; ++a)
      for (size_t b = 0; b < n_; ++b)
        if (const double p = probability(a, b); p > 0) surprise[a] -= p * host_log(p);
    double sum = 0;
    for (size_t t = 1; t <= T; ++t) {
      std::vector<double> next_d = std::move(q), next_q(n_ + 1);
      for (size_t a = 0; a <= n_; ++a) {
        sum += d[a] * surprise[a];
        for (size_t b = 0; b < n_; ++b) (is_trigger_[b] ? next_q[a] : next_d[b]) += d[a] * probability(a, b);
      }
      d = std::move(next_d), q = std::move(next_q);
    }
    return sum / double(T);
  }

 private:
  uint64_t total(size_t a) const { return cumulative_[a * n_ + n_ - 1]; }
  double probability(size_t a, size_t b) const {
    const uint64_t* row = &cumulative_[a * n_];
    return double(row[b] - (b ? row[b - 1] : 0)) / double(total(a));
  }

  size_t n_;
  uint64_t seed_, split_;
  size_t vocab_;
  std::vector<char> is_trigger_;      // (n+1)
  std::vector<uint64_t> cumulative_;  // (n+1, n): running sums of each row's weights, row n being BOS
};

}  // namespace gated
