// shuffle: a random order of n things, one at a time: the p-th of an epoch, with no array of n indices
// A Feistel network turns any function F into a permutation of 2h-bit numbers: (L,R) <- (R, L ^ F(R)), here
// with Philox as F and eight rounds (Luby & Rackoff 1988). To stay below n, follow the permutation from p
// until it lands there ("cycle walking", Black & Rogaway 2002): the walk from p ends at the next number below
// n on p's cycle, so it is a permutation of [0,n). 4^h <= 4n, so the mean walk is at most four steps.
// tests/test_dataloader.cpp
#pragma once
#include <cstdint>

namespace gated {

uint64_t shuffled(uint64_t position, uint64_t n, uint64_t seed, uint64_t epoch);

}  // namespace gated
