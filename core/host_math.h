// host_math: exp, log, pow, sin and cos in double with the same bits under every C library.
//
// libm's double functions differ in the last bit from library to library, and a last bit in a RoPE table, a
// learning rate or a Box-Muller draw changes a training run. These use only + - * / and std::fma, which IEEE
// 754 pins down. They fill tables and make initial weights on the host, so they are plain Taylor series, long
// enough that what remains is the rounding of the last few operations.
//
//   function          domain                     largest error found (against libquadmath)
//   host_exp(x)       all                        0.86 ulp
//   host_log(x)       all; NaN below 0           0.84 ulp
//   host_pow(x, y)    finite x > 0               0.87 ulp for |y| <= 1 (RoPE frequencies), 2.9 for |y| <= 15
//   host_sin, _cos    |x| <= 2^30                0.79 ulp
//   host_power(x, n)  all                        half an ulp a multiplication
//
// NaN goes in and out of each; what lies outside a domain is refused. tests/test_math.cpp
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "core/check.h"
#include "core/math.cuh"

namespace gated {
namespace host_detail {

inline double bits_double(uint64_t u) {
  return __builtin_bit_cast(double, u);
}
inline uint64_t double_bits(double d) {
  return __builtin_bit_cast(uint64_t, d);
}

// A number as the unevaluated sum of two doubles, |low| <= ulp(high)/2: some 106 bits.
struct DoubleDouble {
  double high, low;
};

// a + b without loss, for |a| >= |b| or a = 0 (Dekker 1971).
inline DoubleDouble fast_two_sum(double a, double b) {
  const double sum = a + b;
  return {sum, b - (sum - a)};
}

// Adding 1.5*2^52 rounds to an integer, which then stands in the low bits: no conversion that could overflow.
constexpr double round_shift = 0x1.8p+52;

constexpr double ln2_high = 0x1.62e42fefa39efp-1, ln2_low = 0x1.abc9e3b39803fp-56;

// e^(x + low), |low| <= ulp(x).
// x = n ln2 + r with |r| <= ln2/2: x - n ln2_high is exact, being a multiple of 2^-54 below 1/2. Then
// e^r = 1 + r + r^2 (1/2! + r/3! + ...), 14 terms: what is left out is below 2^-57.
inline double exp_sum(double x, double low) {
  const double above = x > 710.0 ? 710.0 : x;
  const double c = above < -746.0 ? -746.0 : above;
  const double t = std::fma(c, 1.4426950408889634, round_shift), n = t - round_shift;
  const double exact = std::fma(-n, ln2_high, c);
  const auto [r, rest] = fast_two_sum(exact, std::fma(-n, ln2_low, low));
  const double series = horner(r, 1.0 / 2, 1.0 / 6, 1.0 / 24, 1.0 / 120, 1.0 / 720, 1.0 / 5040, 1.0 / 40320,
                               1.0 / 362880, 1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800);
  const double p = 1.0 + (r + std::fma(r * r, series, rest));
  // 2^n in two factors: the first product is exact, so a denormal result is rounded once.
  const int64_t exponent = int64_t(double_bits(t) - double_bits(round_shift)), half = exponent >> 1;
  auto power_of_two = [](int64_t k) { return bits_double(uint64_t(k + 1023) << 52); };
  return p * power_of_two(half) * power_of_two(exponent - half);
}

// log x for finite x > 0, to a few bits more than a double holds.
// x = 2^k (1+f) with 1+f in [sqrt(1/2), sqrt(2)); s = f/(2+f) gives log(1+f) = 2 atanh(s) = 2s + s R(s^2),
// R(z) = 2z/3 + 2z^2/5 + ...; since 2s = f - s f and s f = f^2/2 - s f^2/2, it is f - f^2/2 + s (f^2/2 + R),
// where the only large term, f, carries no rounding error.
// (Compiled into its callers, as sin_cos() is: a loop over many, as of a model's first weights, then takes a vector of
// them at a time, and has std::fma as an instruction even if another file has it as a call of the C library.)
[[gnu::always_inline]] inline DoubleDouble log_sum(double x) {
  const bool tiny = x < 0x1p-1022;
  const uint64_t bits = double_bits(tiny ? x * 0x1p+54 : x);
  const int64_t k = int64_t(bits - double_bits(0x1.6a09e667f3bcdp-1)) >> 52;
  const double f = bits_double(bits - (uint64_t(k) << 52)) - 1.0;
  const double n = double(int32_t(k) - (tiny ? 54 : 0));
  const double s = f / (2.0 + f), z = s * s, half_square = 0.5 * f * f;
  const double series = horner(z, 2.0 / 3, 2.0 / 5, 2.0 / 7, 2.0 / 9, 2.0 / 11, 2.0 / 13, 2.0 / 15, 2.0 / 17, 2.0 / 19,
                               2.0 / 21, 2.0 / 23);
  const double tail = std::fma(s, std::fma(z, series, half_square), -half_square);
  // n ln2_high + f as a sum and what its rounding lost. |n ln2_high| > |f| or n = 0: no loss.
  const double sum = std::fma(n, ln2_high, f);
  const double lost = f - std::fma(-n, ln2_high, sum);
  return fast_two_sum(sum, lost + std::fma(n, ln2_low, tail));
}

// sin and cos of x + low for |x| <= pi/4 + 2^-22; Taylor to x^17 and x^18, the next term below 2^-58.
inline double sin_quarter(double x, double low) {
  const double z = x * x;
  const double series = horner(z, -1.0 / 6, 1.0 / 120, -1.0 / 5040, 1.0 / 362880, -1.0 / 39916800, 1.0 / 6227020800,
                               -1.0 / 1307674368000, 1.0 / 355687428096000);
  return x + std::fma(x * z, series, low * (1.0 - 0.5 * z));
}

inline double cos_quarter(double x, double low) {
  const double z = x * x, half = 0.5 * z;
  const auto [sum, lost] = fast_two_sum(1.0, -half);
  const double series = horner(z, 1.0 / 24, -1.0 / 720, 1.0 / 40320, -1.0 / 3628800, 1.0 / 479001600,
                               -1.0 / 87178291200, 1.0 / 20922789888000, -1.0 / 6402373705728000);
  return sum + (lost + std::fma(z * z, series, -x * low));
}

struct SinCos {
  double sin, cos;
};

// sin and cos of x for |x| <= 2^30.
// x - n pi/2 for the nearest integer n, as a sum of two doubles (Cody & Waite 1980, with fma): pi/2 is split into three
// doubles. x - n*first is exact, being below 1 and a multiple of 2^-53; n*second is taken exactly as a sum of two
// doubles; so some 100 bits stand, even where x is the double next to a multiple of pi/2. Each quarter turn, n mod 4,
// makes a sine of a cosine, and a cosine of a sine with the other sign.
[[gnu::always_inline]] inline SinCos sin_cos(double x) {
  constexpr double first = 0x1.921fb54442d18p+0, second = 0x1.1a62633145c07p-54, third = -0x1.f1976b7ed8fbcp-110;
  const double t = std::fma(x, 0.6366197723675814, round_shift), n = t - round_shift;
  const double exact = std::fma(-n, first, x);
  const double p = n * second, p_low = std::fma(n, second, -p);
  // exact - p without loss, whichever is larger (Knuth's two-sum).
  const double difference = exact - p, back = difference - exact;
  const double lost = (exact - (difference - back)) - (p + back);
  const auto [r, low] = fast_two_sum(difference, lost - std::fma(n, third, p_low));
  const double s = sin_quarter(r, low), c = cos_quarter(r, low);
  const uint64_t turns = double_bits(t);
  const double sin = turns & 1 ? c : s, cos = turns & 1 ? s : c;
  return {turns & 2 ? -sin : sin, (turns + 1) & 2 ? -cos : cos};
}

}  // namespace host_detail

inline double host_exp(double x) {
  return host_detail::exp_sum(x, 0.0);
}

inline double host_log(double x) {
  if (!(x > 0.0)) return x == 0.0 ? -INFINITY : NAN;
  return x < INFINITY ? host_detail::log_sum(x).high : x;
}

// x^y = e^(y log x). y log x takes two doubles, as its absolute error becomes a relative one.
inline double host_pow(double x, double y) {
  require(x > 0.0 && x < INFINITY, "pow: a base of %g, expected a positive finite number", x);
  const auto [high, low] = host_detail::log_sum(x);
  const double p = y * high;
  return host_detail::exp_sum(p, std::fma(y, high, -p) + y * low);
}

inline host_detail::SinCos host_sin_cos(double x) {
  require(!(std::fabs(x) > 0x1p30), "sin/cos: an angle of %g, expected at most 2^30", x);
  return host_detail::sin_cos(x);
}
inline double host_sin(double x) {
  return host_sin_cos(x).sin;
}
inline double host_cos(double x) {
  return host_sin_cos(x).cos;
}

// x^n by squaring.
inline double host_power(double x, size_t n) {
  double result = 1;
  for (; n; n /= 2) {
    if (n % 2) result *= x;
    x *= x;
  }
  return result;
}

}  // namespace gated
