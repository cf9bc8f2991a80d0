// mma: what a tensor core computes, to the bit: one step of a product of bf16 matrices, c + a . b over a short depth.
//   (MMA-Sim, arXiv 2511.10909, version 2.1.1 of its package; Accurate Models of NVIDIA Tensor Cores, arXiv 2512.07004)
//
// A tensor core does not round after each product. It aligns all terms to the largest exponent, cuts what falls off the
// end, and adds the rest exactly:
//
//   term       significand, an integer     exponent e             value
//   a_k b_k    sa sb, at most 16 bits      e(a_k) + e(b_k)        sa sb 2^(e - 14)
//   c          24 bits                     e(c)                   s 2^(e - 23)
//
// The exponent of a product is that sum, whether its significand is below 2 or not; a subnormal number has e = -126.
// With E, the largest e of the terms that are not zero, but at least -108 - F, each term is cut towards zero to a
// multiple of 2^(E - F):
//
//      binary place   E+1   E   E-1   ...   E-F | E-F-1  ...
//      of a term       x    x    x    ...    x  |   cut
//
// The integers that are left are added without an error, and the sum is cut towards zero to a float. A sum of 0, or of
// which nothing is left, is +0. So a term that is zero changes no bit.
//
//   Hopper, Blackwell   a step of 16 products, F = 25
//   Ampere, Ada         two steps of 8 products, one after the other, F = 24
//
// A NaN among the terms (0 times infinity is one), or infinities of both signs, give the NaN 0x7fffffff. Infinities of
// one sign give that infinity; so does a sum beyond the largest float.
// tests/test_mma.cpp
#pragma once
#include <cstddef>
#include <cstdint>

#include "core/bf16.cuh"

namespace gated {

enum class MmaArithmetic { hopper, ampere };

inline const char* name_of(MmaArithmetic arithmetic) {
  return arithmetic == MmaArithmetic::hopper ? "hopper" : "ampere";
}

constexpr size_t mma_depth = 16;  // products of one instruction

constexpr int mma_fraction(MmaArithmetic arithmetic) {  // F
  return arithmetic == MmaArithmetic::hopper ? 25 : 24;
}

// ---- the definition

// A finite number is significand * 2^(exponent - 23): the bits of a float, taken apart.
struct FloatParts {
  bool negative;
  int exponent;
  int64_t significand;

  explicit FloatParts(float x) {
    const uint32_t u = float_bits(x), field = u >> 23 & 255;
    negative = u >> 31;
    exponent = (field ? int(field) : 1) - 127;
    significand = (u & 0x7fffffu) | (field ? 0x800000u : 0);
  }
};

// sum * 2^exponent, cut towards zero to a float; never -0.
inline float cut_to_float(int64_t sum, int exponent) {
  const uint32_t sign = sum < 0 ? 0x80000000u : 0;
  uint64_t magnitude = uint64_t(sum < 0 ? -sum : sum);
  if (magnitude == 0) return 0;
  while (magnitude >= 1u << 24) {
    magnitude >>= 1;
    exponent++;
  }
  while (magnitude < 1u << 23 && exponent > -149) {
    magnitude <<= 1;
    exponent--;
  }
  while (exponent < -149) {
    magnitude >>= 1;
    exponent++;
  }
  if (exponent > 127 - 23) return bits_float(sign | 0x7f800000u);
  // A significand without its leading bit is subnormal: field 0, at the exponent of field 1.
  const uint32_t field = magnitude < 1u << 23 ? 0 : uint32_t(exponent + 23 + 127);
  return magnitude == 0 ? 0 : bits_float(sign | field << 23 | (uint32_t(magnitude) & 0x7fffffu));
}

// c + a_0 b_0 + ... over `depth` products, F bits kept.
inline float mma_sum_ref(float c, const bf16* a, const bf16* b, size_t depth, int F) {
  float special = 0;  // a sum of infinities and NaN, which floats add as they should
  int E = -108 - F;
  for (size_t k = 0; k < depth; k++) {
    const float x = a[k], y = b[k];
    if (!(fabsf(x) < INFINITY && fabsf(y) < INFINITY)) special += x * y;
    const int e = FloatParts(x).exponent + FloatParts(y).exponent;
    if (x != 0 && y != 0 && e > E) E = e;
  }
  if (!(fabsf(c) < INFINITY)) special += c;
  if (special != 0) return special == special ? special : bits_float(0x7fffffffu);
  if (c != 0 && FloatParts(c).exponent > E) E = FloatParts(c).exponent;

  int64_t sum = 0;
  const auto add = [&](bool negative, int64_t significand, int places, int e) {  // places: those behind the point
    if (significand == 0) return;
    const int shift = E - e + places - F;  // to the right
    const int64_t cut = shift <= 0 ? significand << -shift : shift < 63 ? significand >> shift : 0;
    sum += negative ? -cut : cut;
  };
  for (size_t k = 0; k < depth; k++) {
    const FloatParts x{float(a[k])}, y{float(b[k])};
    add(x.negative != y.negative, (x.significand >> 16) * (y.significand >> 16), 14, x.exponent + y.exponent);
  }
  const FloatParts z(c);
  add(z.negative, z.significand, 23, z.exponent);
  return cut_to_float(sum, E - F);
}

// c + a_0 b_0 + ... + a_15 b_15, one instruction.
inline float mma_ref(float c, const bf16* a, const bf16* b, MmaArithmetic arithmetic) {
  const int F = mma_fraction(arithmetic);
  if (arithmetic == MmaArithmetic::hopper) return mma_sum_ref(c, a, b, 16, F);
  return mma_sum_ref(mma_sum_ref(c, a, b, 8, F), a + 8, b + 8, 8, F);
}

}  // namespace gated
