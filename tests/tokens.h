// tokens: what a source of data gives.
#pragma once
#include <vector>

#include "dataloader/loader.h"

namespace gated {

// Those of a text or of shards from `begin` on.
inline std::vector<int32_t> copied(const TokenStream& stream, size_t begin, size_t count) {
  std::vector<int32_t> tokens(count);
  dynamic_cast<const Corpus&>(stream).copy(begin, count, tokens.data());
  return tokens;
}
inline std::vector<int32_t> all_of(const TokenStream& stream) {
  return copied(stream, 0, dynamic_cast<const Corpus&>(stream).size());
}

// Sequence i: T tokens and the one after them.
inline std::vector<int32_t> sequence_of(const TokenStream& stream, size_t i, size_t T) {
  std::vector<int32_t> tokens(T + 1);
  stream.sequence(i, T, tokens.data());
  return tokens;
}

}  // namespace gated
