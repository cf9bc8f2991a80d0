// recall: a made-up language in which words must be looked up far back, and questions about it
//   x_0 = BOS;  then x_{t+1} = the value of k                  if x_t asks for key k
//                              a question, for any key         otherwise, four times in eight
//                              a statement "k = v", one token  once in eight
//                              a filler                        else
// A sequence gives every key a value of its own, which its statements and its answers name. Keys, values and fillers
// are drawn evenly. So no statistics of the language tell an answer: attention has to find a statement of the key, by
// its content, from whatever distance. A question that comes before any statement of its key can only be guessed.
// Bigram-backcopy (bigram_backcopy.h) needs nothing but the token before; here the distance is the point.
//
// A probe is a sequence that ends in a question and holds one statement of its key, planted at a depth. To answer by
// chance is to hit one of all values. (After the needle tests of long contexts: RULER, arXiv 2404.06654.)
//   --data=recall, --probe=retrieval
// A sequence depends on (seed, split, sequence index) only, and all sampling is in integers.
// tests/test_recall.cpp
#pragma once
#include <string>
#include <vector>

#include "dataloader/token_stream.h"

namespace gated {

class Recall : public TokenStream {
 public:
  static constexpr size_t keys = 8, values = 8, default_vocab = 128, shortest_probe = 3;

  // split: 0 training, 1 validation.
  Recall(uint64_t seed, uint64_t split, size_t vocab = default_vocab);

  size_t vocab() const override { return vocab_; }
  // There is no end of sequences; the numbers keep an epoch and a validation pass finite.
  size_t sequences(size_t) const override { return split_ == 0 ? size_t(1) << 40 : 1024; }
  bool is_text() const override { return false; }
  std::string description() const override;
  std::string content_hash() const override;
  void sequence(size_t i, size_t T, int32_t* out) const override;

  // Ids: values, questions, statements, fillers, BOS.
  static int32_t value(size_t v) { return int32_t(v); }
  static int32_t question(size_t k) { return int32_t(values + k); }
  static int32_t statement(size_t k, size_t v) { return int32_t(values + keys + k * values + v); }
  static constexpr size_t first_filler = values + keys + keys * values;
  int32_t bos() const { return int32_t(vocab_ - 1); }

  struct Probe {
    std::vector<int32_t> tokens;  // the last is the question
    size_t planted;               // where the statement stands
    int32_t answer;
  };
  // Probe `number`, of `length` tokens. depth: 0 plants the statement after BOS, 1 right before the question.
  // Probes of one number ask for the same key.
  Probe probe(size_t number, size_t length, double depth) const;

 private:
  size_t value_of(uint64_t stream, size_t key) const;
  int32_t next(uint64_t stream, size_t t, int32_t before, bool may_ask, size_t never) const;

  uint64_t seed_, split_;
  size_t vocab_;
};

}  // namespace gated
