// bf16: the upper half of a float: its sign, its 8 bits of exponent, 7 bits after the point.
// tests/test_number_formats.cpp
#pragma once
#include "core/math.cuh"

namespace gated {

// Widening to a float is exact and happens by itself. Rounding is written: bf16(x).
struct bf16 {
  uint16_t bits;

  bf16() = default;
  // To nearest, ties to even; beyond the largest number infinity; a NaN stays one. Adding 0x7fff carries into the upper
  // half where the lower half is above one half of its range; adding one more where the upper half is odd does so at a
  // tie too. A GPU has one instruction for these seven.
  HD explicit bf16(float x) {
#ifdef __CUDA_ARCH__
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
#else
    const uint32_t u = float_bits(x);
    bits = uint16_t(x != x ? (u >> 16) | 0x40u : (u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
#endif
  }
  HD static bf16 from_bits(uint16_t bits) {
    bf16 x;
    x.bits = bits;
    return x;
  }
  HD operator float() const {
    return bits_float(uint32_t(bits) << 16);
  }
};

// Two numbers rounded, in the halves of a register: on a GPU one instruction, too.
HD uint32_t two_bf16(float low, float high) {
#ifdef __CUDA_ARCH__
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return bf16(low).bits | uint32_t(bf16(high).bits) << 16;
#endif
}

// The two of such a pair.
HD float low_bf16(uint32_t pair) {
  return bits_float(pair << 16);
}
HD float high_bf16(uint32_t pair) {
  return bits_float(pair & 0xffff0000u);
}

}  // namespace gated
