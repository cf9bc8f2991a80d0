// number_formats: numbers of two bytes, as files store them, and fp32.
//
//   BF16   1 sign, 8 exponent, 7 fraction bits: the upper half of an fp32, so every one of them is an fp32
//   F16    1 sign, 5 exponent, 10 fraction bits (IEEE 754 binary16): every one of them is an fp32 too
//
// Widening is exact. fp32 to BF16 rounds to the nearest, ties to the even one; what lies above the largest becomes infinite, and
// a NaN stays one. tests/test_number_formats.cpp
#pragma once
#include <bit>
#include <cstdint>

namespace gated {

inline float widen_bf16(uint16_t bits) {
  return std::bit_cast<float>(uint32_t(bits) << 16);
}

inline float widen_f16(uint16_t bits) {
  const uint32_t sign = uint32_t(bits & 0x8000) << 16, exponent = (bits >> 10) & 31, fraction = bits & 1023;
  if (exponent == 0) {  // zero, or a subnormal: fraction * 2^-24
    const float magnitude = float(fraction) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  const uint32_t widened = exponent == 31 ? 255 : exponent + 112;  // infinite and NaN; else the bias 15 becomes 127
  return std::bit_cast<float>(sign | widened << 23 | fraction << 13);
}

inline uint16_t round_to_bf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7fffffff) > 0x7f800000)
    return uint16_t(bits >> 16 | 0x40);  // NaN, made quiet: its upper half may be infinite
  // Half of the last bit that stays, less one where that bit is even: a tie then rounds up only to an even one.
  return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace gated
