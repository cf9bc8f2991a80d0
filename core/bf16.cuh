// bf16: the upper half of a float: its sign, its 8 bits of exponent, 7 bits behind the point.
// tests/test_mma.cpp
#pragma once
#include "core/math.cuh"

namespace gated {

struct bf16 {
  uint16_t bits;
};

HD float widen(bf16 x) {
  return bits_float(uint32_t(x.bits) << 16);
}

// To nearest, ties to even; beyond the largest number infinity; a NaN stays one. Adding 0x7fff carries into the upper half
// where the lower half is above one half of its range; adding one more where the upper half is odd does so at a tie too.
HD bf16 nearest_bf16(float x) {
  const uint32_t u = float_bits(x);
  if (x != x) return {uint16_t((u >> 16) | 0x40u)};
  return {uint16_t((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

}  // namespace gated
