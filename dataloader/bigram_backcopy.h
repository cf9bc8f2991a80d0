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
#include <string>
#include <vector>

#include "dataloader/token_stream.h"

namespace gated {

// Weights w[a][b], n by n, of token b after token a.
struct BigramWeights {
  size_t n = 0;
  std::vector<uint64_t> w;
};

// w = 1 + floor(2^20 u^4 / (1+b)): no zeros, so every token can be reached; u^4 makes the rows differ.
BigramWeights random_bigrams(size_t n, uint64_t seed);

// The text is taken as a ring: each byte then has a successor, and a byte comes in as often as it goes out,
// so that column sums are the bytes' own counts and these are stationary under P.
BigramWeights text_bigrams(const std::string& text);

class BigramBackcopy : public TokenStream {
 public:
  static constexpr size_t triggers = 3;

  // split: 0 training, 1 validation. vocab 0 means the weights' tokens and BOS.
  BigramBackcopy(const BigramWeights& bigrams, uint64_t seed, uint64_t split, size_t vocab = 0);

  size_t vocab() const override { return vocab_; }
  // There is no end of sequences; the numbers keep an epoch and a validation pass finite.
  size_t sequences(size_t) const override { return split_ == 0 ? size_t(1) << 40 : 1024; }
  bool is_text() const override { return false; }
  std::string description() const override;
  std::string content_hash() const override;
  int32_t bos() const { return int32_t(n_); }
  bool is_trigger(int32_t token) const { return is_trigger_[size_t(token)]; }

  void sequence(size_t i, size_t T, int32_t* out) const override;

 private:
  uint64_t total(size_t a) const;

  size_t n_;
  uint64_t seed_, split_;
  size_t vocab_;
  std::vector<char> is_trigger_;      // (n+1)
  std::vector<uint64_t> cumulative_;  // (n+1, n): running sums of each row's weights, row n being BOS
};

}  // namespace gated
