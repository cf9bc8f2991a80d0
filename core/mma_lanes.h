// mma_lanes: the arithmetic of core/mma.h for `lanes` outputs side by side, with the same bits.
//
// A term that is cut to a multiple of 2^(E-F) is an integer below 2^27, times 2^(E-F). So each output gets its E first,
// by integer additions and maxima, and then the terms: a_k b_k 2^(F-E) as a float, whose conversion to an integer cuts
// it towards zero. The integers are added in 32 bits.
//
// E from -101 to 126 is the plain case:
//   a_k b_k      is below 2^(E+2), a float; and exact as one, where it is not so small that it is cut to 0: above
//                2^(E-25), at least 2^-126, its 14 bits behind the point fit into a subnormal
//   2^(F-E)      and 2^(E-F) are floats
// All else goes to the definition, lane by lane: zeros alone, infinities, NaN, and the sum of sixteen largest products
// and c, which leaves 32 bits.
// tests/test_mma.cpp
#pragma once
#include "core/mma.h"
#include "core/simd.h"

namespace gated {

using ivec = int __attribute__((vector_size(lanes * sizeof(int))));
using uvec = unsigned __attribute__((vector_size(lanes * sizeof(unsigned))));

// The exponent of a zero here: no product with it is the largest in the plain case.
constexpr int mma_exponent_of_zero = -512;

// 16 elements of a row of A.
struct MmaRow {
  float value[mma_depth];
  int exponent[mma_depth];
  bool finite;
};

// 16 elements of `lanes` columns of B.
struct MmaPanel {
  vec value[mma_depth];
  ivec exponent[mma_depth];
  bool finite;
};

// Sets one number; clears `finite` where it is not.
inline void mma_put(float& value, int& exponent, bool& finite, bf16 x) {
  value = float(x);
  exponent = value == 0 ? mma_exponent_of_zero : FloatParts(value).exponent;
  finite = finite && exponent < 128;
}

namespace detail {

inline bool any(ivec mask) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0;
#elif defined(__AVX2__) && defined(__FMA__)
  return !_mm256_testz_si256((__m256i)mask, (__m256i)mask);
#elif defined(__ARM_NEON)
  return vmaxvq_u32((uint32x4_t)mask) != 0;
#else
  int all = 0;
  for (size_t l = 0; l < lanes; l++) all |= mask[l];
  return all != 0;
#endif
}

// The exponents of `lanes` numbers, 128 where one is not finite.
inline ivec mma_exponents(vec x) {
  const ivec field = ((ivec)x >> 23) & 255;
  return x == 0 ? mma_exponent_of_zero + ivec{} : (field > 0 ? field : 1) - 127;
}

}  // namespace detail

// a (16) of bf16 numbers as floats.
inline MmaRow mma_row_of(const float* a) {
  MmaRow row;
  ivec largest{};
  for (size_t k = 0; k < mma_depth; k += lanes) {
    const vec value = load(a + k);
    const ivec exponent = detail::mma_exponents(value);
    largest |= exponent >= 128;
    store(row.value + k, value);
    memcpy(row.exponent + k, &exponent, sizeof exponent);
  }
  row.finite = !detail::any(largest);
  return row;
}

// Element k of a panel's columns, of bf16 numbers as floats; clears `finite` where one is not.
inline void mma_put(MmaPanel& panel, size_t k, vec value) {
  panel.value[k] = value;
  panel.exponent[k] = detail::mma_exponents(value);
  panel.finite = panel.finite && !detail::any(panel.exponent[k] >= 128);
}

// a (16), `stride` elements from one to the next; those from n on are 0.
inline MmaRow mma_row(const bf16* a, size_t stride, size_t n) {
  MmaRow row;
  row.finite = true;
  for (size_t k = 0; k < mma_depth; k++)
    mma_put(row.value[k], row.exponent[k], row.finite, k < n ? a[k * stride] : bf16());
  return row;
}

// b (16,lanes), with these strides; what is behind k = n or the first `columns` is 0.
inline MmaPanel mma_panel(const bf16* b, size_t k_stride, size_t column_stride, size_t n, size_t columns) {
  MmaPanel panel;
  panel.finite = true;
  for (size_t k = 0; k < mma_depth; k++)
    for (size_t l = 0; l < lanes; l++) {
      float value;
      int exponent;
      mma_put(value, exponent, panel.finite, k < n && l < columns ? b[k * k_stride + l * column_stride] : bf16());
      panel.value[k][l] = value;
      panel.exponent[k][l] = exponent;
    }
  return panel;
}

namespace detail {

// 2^n, for n from -126 to 127.
inline vec power_of_two(ivec n) {
  return (vec)((n + 127) << 23);
}

// Products from k = first on, for `rows` rows. Returns which lanes are not plain in some row: their c is anything.
template <size_t first, size_t depth, int F, size_t rows>
inline ivec mma_sum_lanes(vec (&c)[rows], const MmaRow* a, const MmaPanel& b) {
  ivec E[rows];
  uvec sum[rows];
  vec scale[rows];
  for (size_t r = 0; r < rows; r++) {
    E[r] = (((ivec)c[r] >> 23) & 255) - 127;  // -127 for 0 and what is subnormal: not plain
    sum[r] = uvec{};
  }
#pragma GCC unroll 16
  for (size_t k = first; k < first + depth; k++)
    for (size_t r = 0; r < rows; r++) {
      const ivec e = b.exponent[k] + a[r].exponent[k];
      E[r] = e > E[r] ? e : E[r];
    }
  for (size_t r = 0; r < rows; r++) scale[r] = power_of_two(F - E[r]);
#pragma GCC unroll 16
  for (size_t k = first; k < first + depth; k++)
    for (size_t r = 0; r < rows; r++)
      sum[r] += (uvec) __builtin_convertvector(b.value[k] * a[r].value[k] * scale[r], ivec);

  ivec odd{};
  for (size_t r = 0; r < rows; r++) {
    // (Unsigned: a lane that is not plain may hold any bits.)
    const uvec rest = (uvec) __builtin_convertvector(c[r] * scale[r], ivec), total = sum[r] + rest;
    const uvec beyond_31_bits =
        (sum[r] ^ total) & (rest ^ total);  // both of one sign, their sum of the other: the highest bit
    odd |= (E[r] < -101) | (E[r] > 126) | (ivec)(beyond_31_bits & 0x80000000u);
    // To a float, towards zero. A conversion rounds to nearest. It cuts the last n bits of a magnitude of 24 + n bits
    // where the highest of them is 0, for then they are less than half: bit n-1, which is the leading bit of magnitude
    // >> 24.
    const uvec sign = (uvec)((ivec)total >> 31), magnitude = (total ^ sign) - sign;
    const uvec below_half = magnitude & ~(magnitude >> 24);
    c[r] = __builtin_convertvector((ivec)((below_half ^ sign) - sign), vec) * power_of_two(E[r] - F);
  }
  return odd;
}

template <MmaArithmetic arithmetic, size_t rows>
inline ivec mma_rows(vec (&c)[rows], const MmaRow* a, const MmaPanel& b) {
  constexpr int F = mma_fraction(arithmetic);
  bool finite = b.finite;
  for (size_t r = 0; r < rows; r++) finite = finite && a[r].finite;
  if (!finite) return ~ivec{};
  if constexpr (arithmetic == MmaArithmetic::hopper) return mma_sum_lanes<0, 16, F>(c, a, b);
  const ivec odd = mma_sum_lanes<0, 8, F>(c, a, b);
  return odd | mma_sum_lanes<8, 8, F>(c, a, b);
}

// The same for one row, whatever is in it. A sum of zeros is +0: they are common, as weights of what is not seen.
template <MmaArithmetic arithmetic>
[[gnu::noinline]] vec mma_any_row(vec c, const MmaRow& a, const MmaPanel& b) {
  vec sum[1] = {c};
  const ivec odd = mma_rows<arithmetic>(sum, &a, b);
  ivec live = c != 0;
  for (size_t k = 0; k < mma_depth; k++)
    if (a.value[k] != 0 || !b.finite) live |= b.value[k] != 0;
  bf16 row[mma_depth], column[mma_depth];
  for (size_t k = 0; k < mma_depth; k++) row[k] = bf16::from_bits(uint16_t(float_bits(a.value[k]) >> 16));
  for (size_t l = 0; l < lanes; l++) {
    if (!odd[l]) continue;
    sum[0][l] = 0;
    if (!live[l] && a.finite) continue;
    for (size_t k = 0; k < mma_depth; k++) column[k] = bf16::from_bits(uint16_t(float_bits(b.value[k][l]) >> 16));
    sum[0][l] = mma_ref(c[l], row, column, arithmetic);
  }
  return sum[0];
}

}  // namespace detail

// c + a . b for `rows` rows of A.
template <MmaArithmetic arithmetic, size_t rows>
inline void mma_lanes(vec (&c)[rows], const MmaRow* a, const MmaPanel& b) {
  vec sums[rows];
  for (size_t r = 0; r < rows; r++) sums[r] = c[r];
  if (detail::any(detail::mma_rows<arithmetic>(sums, a, b)))
    for (size_t r = 0; r < rows; r++) sums[r] = detail::mma_any_row<arithmetic>(c[r], a[r], b);
  for (size_t r = 0; r < rows; r++) c[r] = sums[r];
}

// c + A B for 16 rows of A and `columns` columns of B, 16 k of each in a row; c[column] has the sums of the 16 rows.
template <MmaArithmetic arithmetic>
inline void mma_sixteen_rows(float (*c)[16], const bf16 (*A)[mma_depth], const bf16 (*B)[mma_depth], size_t columns) {
  for (size_t row = 0; row < 16; row += lanes) {
    const MmaPanel panel = mma_panel(A[row], 1, mma_depth, mma_depth, lanes);
    for (size_t column = 0; column < columns; column++) {
      const MmaRow b = mma_row(B[column], 1, mma_depth);
      vec sum[1] = {load(c[column] + row)};
      mma_lanes<arithmetic>(sum, &b, panel);
      store(c[column] + row, sum[0]);
    }
  }
}

}  // namespace gated
