#include "dataloader/recall.h"

#include "core/philox.cuh"

namespace gated {

namespace {

// Streams of random numbers. 0 to 2 are those of bigram_backcopy.
constexpr uint64_t first_split = 3, probes_split = 5;

uint64_t stream_of_sequence(uint64_t split, size_t i) {
  return stream_of(Purpose::synthetic, split << 40 | i);
}

// Of a stream, draws 2t and 2t+1 are token t's, and those from here on the keys' values.
constexpr uint64_t first_value = uint64_t(1) << 40;

}  // namespace

Recall::Recall(uint64_t seed, uint64_t split, size_t vocab) : seed_(seed), split_(split), vocab_(vocab) {
  require(vocab >= first_filler + 2,
          "--vocab=%zu: recall needs %zu or more: values, questions, statements, a filler, BOS", vocab,
          first_filler + 2);
}

std::string Recall::description() const {
  return format("recall: %zu keys, %zu values, %zu fillers, and BOS %zu", keys, values, vocab_ - 1 - first_filler,
                vocab_ - 1);
}

std::string Recall::content_hash() const {
  return Hash().text("recall").number(vocab_).number(seed_).number(split_).hex();
}

size_t Recall::value_of(uint64_t stream, size_t key) const {
  return size_t(random_below(seed_, stream, first_value + key, values));
}

// Token t after `before`. Key `never` is neither asked for nor stated; keys: there is none such.
int32_t Recall::next(uint64_t stream, size_t t, int32_t before, bool may_ask, size_t never) const {
  if (before >= question(0) && before < question(keys)) return value(value_of(stream, size_t(before) - values));
  const uint64_t kind = random_below(seed_, stream, 2 * t, 8);
  const auto draw = [&](size_t n) { return size_t(random_below(seed_, stream, 2 * t + 1, n)); };
  if (kind > 4 || (kind < 4 && !may_ask)) return int32_t(first_filler + draw(vocab_ - 1 - first_filler));
  size_t key = draw(never < keys ? keys - 1 : keys);
  key += key >= never;
  return kind < 4 ? question(key) : statement(key, value_of(stream, key));
}

void Recall::sequence(size_t i, size_t T, int32_t* out) const {
  require(i < sequences(T), "recall: sequence %zu asked of %zu", i, sequences(T));
  const uint64_t stream = stream_of_sequence(first_split + split_, i);
  out[0] = bos();
  for (size_t t = 1; t <= T; ++t) out[t] = next(stream, t, out[t - 1], true, keys);
}

Recall::Probe Recall::probe(size_t number, size_t length, double depth) const {
  require(length >= shortest_probe && depth >= 0 && depth <= 1,
          "recall: a probe of %zu tokens at depth %g, expected %zu or more and a depth of 0 to 1", length, depth,
          shortest_probe);
  const uint64_t stream = stream_of_sequence(probes_split, number);
  const auto asked = size_t(random_below(seed_, stream, 0, keys));
  const size_t last = length - 1, planted = 1 + size_t(depth * double(length - 3) + 0.5);
  std::vector<int32_t> tokens = {bos()};
  for (size_t t = 1; t < last; ++t) {
    const bool before_one = t + 1 == planted || t + 1 == last;  // where a question would get no answer
    tokens.push_back(t == planted ? statement(asked, value_of(stream, asked))
                                  : next(stream, t, tokens.back(), !before_one, asked));
  }
  tokens.push_back(question(asked));
  return {tokens, planted, value(value_of(stream, asked))};
}

}  // namespace gated
