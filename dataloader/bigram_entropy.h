// bigram_entropy: H(next | current) in nats, from the pair counts of a stream itself
//   H = (1/N) sum_ab c(a,b) ln(c(a) / c(a,b)),  c(a) = sum_b c(a,b),  N = sum_a c(a)
// It is the loss of the best predictor that sees one token only, fitted to these very pairs: a model whose
// validation loss is below it has learned to look further back. Counted on few tokens it is too low, as every
// unseen pair counts as impossible (N should be many times the number of distinct pairs).
// tests/test_dataloader.cpp
#pragma once
#include "dataloader/token_stream.h"

namespace gated {

// Over the stream's first sequences of T+1 tokens, about `limit` pairs (4 bytes a pair).
double bigram_entropy(const TokenStream& stream, size_t T, size_t limit = 20'000'000);

}  // namespace gated
