#include "dataloader/shuffle.h"

#include "core/philox.cuh"

namespace gated {

uint64_t shuffled(uint64_t position, uint64_t n, uint64_t seed, uint64_t epoch) {
  unsigned h = 1;
  while (h < 32 && uint64_t(1) << 2 * h < n) ++h;
  const uint64_t mask = (uint64_t(1) << h) - 1, stream = stream_of(Purpose::shuffle, epoch);
  uint64_t x = position;
  do {
    uint64_t left = x >> h, right = x & mask;
    for (uint64_t round = 0; round < 8; ++round) {
      const uint64_t mixed = left ^ (random_block(seed, stream, round << 32 | right).word[0] & mask);
      left = right;
      right = mixed;
    }
    x = left << h | right;
  } while (x >= n);
  return x;
}

}  // namespace gated
