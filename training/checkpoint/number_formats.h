// number_formats: F16, a number of two bytes that files store. BF16 is in core/bf16.cuh.
//
//   F16    1 sign, 5 exponent, 10 fraction bits (IEEE 754 binary16): every one of them is an fp32, so widening is exact
//
// tests/test_number_formats.cpp
#pragma once
#include <bit>
#include <cstdint>

namespace gated {

inline float widen_f16(uint16_t bits) {
  const uint32_t sign = uint32_t(bits & 0x8000) << 16, exponent = (bits >> 10) & 31, fraction = bits & 1023;
  if (exponent == 0) {  // zero, or a subnormal: fraction * 2^-24
    const float magnitude = float(fraction) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  const uint32_t widened = exponent == 31 ? 255 : exponent + 112;  // infinite and NaN; else the bias 15 becomes 127
  return std::bit_cast<float>(sign | widened << 23 | fraction << 13);
}

}  // namespace gated
