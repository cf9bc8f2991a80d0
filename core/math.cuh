// math: exp, log, tanh, sigmoid, softplus, erf; the float results have the same bits on every CPU and GPU.
//
// libm and CUDA differ in the last bits, so float has its own polynomials, built from what IEEE 754 pins down: + - * /
// sqrt fmaf, comparisons and integer operations. No branches, so plain loops over them vectorise (AVX2, AVX-512; a CPU
// without FMA calls fmaf). No product feeds an addition, so a compiler finds nothing to fuse.
//
//   function         largest error, all floats   limits
//   exact_exp        0.892 ulp                   denormal below -87.3, 0 below -103.97, inf above 88.72
//   exp_to_40        exact_exp, for x <= 40 alone
//   short_exp2       2^-18.4 of 2^x           0 below -126.5; for x < 127 alone
//   exact_log        0.952 ulp                   log(+-0) = -inf, NaN below 0
//   exact_sigmoid    1.981 ulp                   towards -inf like exp: denormal, then 0
//   exact_tanh       1.363 ulp                   +-1 beyond 9.02; tanh(-0) = -0
//   exact_softplus   1.967 ulp                   towards -inf like exp: denormal, then 0
//   exact_erf        1.109 ulp                   +-1 beyond 3.92; erf(-0) = -0
//
// NaN goes in and out of each. Polynomials: Remez exchange on the relative error of the result, coefficients
// rounded to float, then a random walk over their last bits to lower the error measured in float. The 2^-n at
// each is the relative error of the result that the rounded coefficients leave in exact arithmetic.
// tests/test_math.cpp
#pragma once
#include <cfloat>
#include <cmath>
#include <cstdint>

#if defined(__FAST_MATH__) || defined(__USE_FAST_MATH__)
#error "exact results need IEEE arithmetic: build without -ffast-math and -use_fast_math"
#endif
static_assert(FLT_EVAL_METHOD == 0, "exact results need float arithmetic in float: on 32-bit x86 add -mfpmath=sse");

#ifdef __CUDACC__
#define HD __host__ __device__ __forceinline__
#else
#define HD inline __attribute__((always_inline))
#endif

namespace gated {

// ---- one spelling for float and double

HD float bits_float(uint32_t u) {
  return __builtin_bit_cast(float, u);
}
HD uint32_t float_bits(float f) {
  return __builtin_bit_cast(uint32_t, f);
}

// a*b + c, rounded once.
HD float fused(float a, float b, float c) {
  return fmaf(a, b, c);
}
HD double fused(double a, double b, double c) {
  return ::fma(a, b, c);
}

HD float exact_sqrt(float x) {
  return sqrtf(x);
}
HD double exact_sqrt(double x) {
  return sqrt(x);
}

// With a NaN, and of +0 and -0, it gives b.
template <class T>
HD T max_of(T a, T b) {
  return a > b ? a : b;
}
// PTX's max.f32, one instruction on a GPU: with one NaN the other number, and +0 is larger than -0. (fmaxf alone leaves
// open which of the two zeros is larger.)
HD float max_number(float a, float b) {
#ifdef __CUDA_ARCH__
  return fmaxf(a, b);
#else
  if (a != a || b != b) return a != a ? b : a;
  return a == b ? bits_float(float_bits(a) & float_bits(b)) : max_of(a, b);
#endif
}

// v cut to [-bound, bound]; a NaN stays.
template <class T>
HD T clip(T v, T bound) {
  return v > bound ? bound : v < -bound ? -bound : v;
}

// c0 + c1 x + c2 x^2 + ..., one fused step a coefficient, the highest first.
template <class T>
HD T horner(T, T c) {
  return c;
}
template <class T, class... C>
HD T horner(T x, T c, C... higher) {
  return fused(horner(x, higher...), x, c);
}

// ---- what the functions share

namespace detail {

// x < bound ? a : b, for x and bound without a sign; a NaN counts as above. The bits are in the order of the
// floats, so their difference is negative when x is below: a mask without a comparison. For `?:` with
// computed sides g++ branches, and does not vectorise the loop.
HD float choose_below(float x, float bound, float a, float b) {
  const uint32_t mask = uint32_t(int32_t(float_bits(x) - float_bits(bound)) >> 31);
  return bits_float((float_bits(a) & mask) | (float_bits(b) & ~mask));
}

// ln2 in two parts. The high one has 15 bits, so its product with an exponent (8 bits) is exact.
constexpr float ln2_high = 0x1.62e4p-1f, ln2_low = 0x1.7f7d1cp-20f;

// e^x as mantissa * 2^exponent, mantissa in [0.70, 1.42].
struct Exp {
  float mantissa;
  int32_t exponent;
};

// x = n ln2 + r, |r| <= ln2/2, for |x| < 2^20. Adding 1.5*2^23 rounds to an integer that then stands in the
// low bits: no conversion that a NaN could take out of range. e^r = 1 + r + r^2 P(r), to 2^-28.
HD Exp exp_parts(float x) {
  constexpr float shift = 0x1.8p+23f;
  const float t = fmaf(x, 0x1.715476p+0f, shift);
  const float n = t - shift;
  const float r = fmaf(n, -ln2_low, fmaf(n, -ln2_high, x));
  const float s = horner(r, 1.0f, 0x1.fffffcp-2f, 0x1.555492p-3f, 0x1.5558f2p-5f, 0x1.123a2p-7f, 0x1.6a23ccp-10f);
  return {fmaf(s, r, 1.0f), int32_t(float_bits(t) - float_bits(shift))};
}

// 2^n for a normal result; any n gives some float.
HD float power_of_two(int32_t n) {
  return bits_float((uint32_t(n) + 127u) << 23);
}

// 2/x, rounded to nearest, for 2 <= x < 2^33 and NaN, by sums and products alone. The difference of bits is 1/x to
// 12 %, three of Newton's steps make it all but the last bit. The rounding then needs a y that is not below 1/x: a
// trifle more than the fourth step. An exponent changes no step, and every mantissa was tried (tests/test_math.cpp).
HD float newton_two_over(float x) {
  float y = bits_float(0x7ef311c7u - float_bits(x));
  y = fmaf(y, fmaf(-x, y, 1.0f), y);
  y = fmaf(y, fmaf(-x, y, 1.0f), y);
  y = fmaf(y, fmaf(-x, y, 1.0f), y);
  const float above = fmaf(y, fmaf(-x, y, 1.0f) + 0x1p-24f, y), twice = above + above;
  return fmaf(fmaf(-x, twice, 2.0f), y, twice);
}

// The same bits by what is faster. A GPU's division ends in a branch, which keeps a thread's elements apart.
HD float two_over(float x) {
#ifdef __CUDA_ARCH__
  return newton_two_over(x);
#else
  return 2.0f / x;
#endif
}

// n/s, rounded to nearest, where a sigmoid divides: s = 1 + e and n = 1 or e, for 0 <= e <= 1 and NaN. 1.457 - s/2 is
// 1/s to 0.043, and again y must not be below it. Every e was tried (tests/test_math.cpp).
HD float newton_quotient(float n, float s) {
  float y = fmaf(s, -0.5f, 1.457f);
  y = fmaf(y, fmaf(-s, y, 1.0f), y);
  y = fmaf(y, fmaf(-s, y, 1.0f), y);
  y = fmaf(y, fmaf(-s, y, 1.0f) + 0x1p-25f, y);
  const float q = n * y;
  return fmaf(fmaf(-s, q, n), y, q);
}

// The same bits by what is faster.
HD float quotient(float n, float s) {
#ifdef __CUDA_ARCH__
  return newton_quotient(n, s);
#else
  return n / s;
#endif
}

// The k for which 2^-k x is in [3/4, 3/2), for a normal x. f = 2^-k x - 1 is then exact; k = 0 near x = 1.
HD int32_t log_exponent(float x) {
  return int32_t(float_bits(x) - float_bits(0.75f)) >> 23;
}

// log(1+f) - f = f^2 P(f) for f in [-1/4, 1/2], to 2^-26.8 of log(1+f).
HD float log1p_tail(float f) {
  return f * f *
         horner(f, -0.5f, 0x1.5555a6p-2f, -0x1.000024p-2f, 0x1.99685ap-3f, -0x1.54f23ep-3f, 0x1.2897b2p-3f,
                -0x1.0d9004p-3f, 0x1.abf6cap-4f, -0x1.6fe64cp-5f);
}

}  // namespace detail

// ---- float

// 2^n in two factors, as n reaches -150 and 128: the first product is exact, so a denormal result is rounded only once
// more.
HD float exact_exp(float x) {
  const float below = x > 89.0f ? 89.0f : x;  // a NaN passes both
  const detail::Exp e = detail::exp_parts(below < -104.0f ? -104.0f : below);
  const int32_t half = e.exponent >> 1;
  return e.mantissa * detail::power_of_two(half) * detail::power_of_two(e.exponent - half);
}

// exact_exp's bits for x <= 40 and NaN, in a third fewer instructions; above 40 the result means nothing. A softmax
// takes a score less the largest, or less the log of the sum of all, which is about 0 at most. As n <= 58, 2^(n+64) is
// one normal factor, and the product with it is exact.
HD float exp_to_40(float x) {
  const detail::Exp e = detail::exp_parts(x < -104.0f ? -104.0f : x);
  return e.mantissa * detail::power_of_two(e.exponent + 64) * 0x1p-64f;
}

// 2^x for x < 127 and NaN, for weights that are rounded to bf16: its half unit is 2^-9. x = n + f, |f| <= 1/2; the
// addition of exp_parts rounds, and 127 more makes its low bits an exponent's. 2^f = 1 + f P(f).
HD float short_exp2(float x) {
  constexpr float shift = 0x1.8p+23f + 127.0f;
  const float above = x < -127.0f ? -127.0f : x;
  const float t = above + shift;
  const float f = above - (t - shift);
  return horner(f, 1.0f, 0x1.62e12cp-1f, 0x1.ec037ap-3f, 0x1.c9fc74p-5f, 0x1.3a02b8p-7f) *
         bits_float(float_bits(t) << 23);
}

// x = 2^k (1+f): log x = k ln2 + f + f^2 P(f).
HD float exact_log(float x) {
  const float magnitude = fabsf(x);
  const float scale = detail::choose_below(magnitude, FLT_MIN, 0x1p+23f, 1.0f);
  const float scaled = x * scale;
  const int32_t k = detail::log_exponent(scaled);
  const float f = bits_float(float_bits(scaled) - (uint32_t(k) << 23)) - 1.0f;
  const float n = float(k - detail::log_exponent(scale));
  // n ln2_high + f may cancel, so its rounding error is kept. The product is exact; so is sum minus product.
  const float sum = fmaf(n, detail::ln2_high, f);
  const float lost = f - fmaf(n, -detail::ln2_high, sum);
  const float y = sum + (lost + fmaf(n, detail::ln2_low, detail::log1p_tail(f)));
  // y is finite whatever the bits of x. Now inf and NaN stay, a sign makes NaN, +-0 makes -inf.
  const float positive = detail::choose_below(magnitude, INFINITY, y, magnitude);
  const uint32_t negative = uint32_t(int32_t(float_bits(x)) >> 31);
  const float nonzero = bits_float(float_bits(positive) | (negative & float_bits(NAN)));
  return detail::choose_below(magnitude, FLT_TRUE_MIN, -INFINITY, nonzero);
}

// 1/(1+e^-x) = e^x/(e^x+1): with e = e^-|x| the numerator is 1 or e, and nothing cancels or overflows.
HD float exact_sigmoid(float x) {
  const float e = exp_to_40(-fabsf(x));
  const float numerator = x < 0.0f ? e : 1.0f;
  const float s = 1.0f + e;
  const float lost = e - (s - 1.0f);
  const float y = detail::quotient(numerator, s);
  // 1/(s + lost) is (1 - lost/s)/s; here 1/s ~ 1.457 - s/2, to 0.043 on [1,2], serves.
  return fmaf(y * lost, fmaf(s, 0.5f, -1.457f), y);
}

// Below 5/8 a + a^3 P(a^2), to 2^-26.8; above 1 - 2/(e^2a + 1), where little cancels.
HD float exact_tanh(float x) {
  const float a = fabsf(x), twice = a + a;
  const detail::Exp e = detail::exp_parts(twice > 20.0f ? 20.0f : twice);
  const float large = 1.0f - detail::two_over(fmaf(e.mantissa, detail::power_of_two(e.exponent), 1.0f));
  const float z = a * a;
  const float p = horner(z, -0x1.555532p-2f, 0x1.110728p-3f, -0x1.b83c64p-5f, 0x1.522684p-6f, -0x1.75e468p-8f);
  const float small = fmaf(p * z, a, a);
  return copysignf(detail::choose_below(a, 0.625f, small, large), x);
}

// log(1+e^x) = max(x,0) + log(1+e), e = e^-|x|. While 1+e < 3/2, f is e itself, so a small e keeps its bits;
// else f = (1+e)/2 - 1. Both are e*2^-k + (2^-k - 1).
HD float exact_softplus(float x) {
  const float e = exp_to_40(-fabsf(x));
  const int32_t k = detail::log_exponent(1.0f + e);
  const float scale = detail::power_of_two(-k);
  const float f = fmaf(e, scale, scale - 1.0f);
  const float log1p = fmaf(float(k), 0x1.62e43p-1f, detail::log1p_tail(f)) + f;
  return max_of(x, 0.0f) + log1p;
}

// Below 7/8 a + a P(a^2), to 2^-26; above 1 - e^Q(a), Q ~ log erfc a, to 2^-27.7.
HD float exact_erf(float x) {
  const float a = fabsf(x);
  const float c = a > 4.0f ? 4.0f : a;
  const float q = horner(c, -0x1.1821f8p-13f, -0x1.20c06cp+0f, -0x1.46026cp-1f, -0x1.ab534cp-4f, 0x1.6f5512p-6f,
                         -0x1.955p-9f, 0x1.a584e6p-13f);
  const detail::Exp e = detail::exp_parts(q);
  const float large = fmaf(-e.mantissa, detail::power_of_two(e.exponent), 1.0f);
  const float p =
      horner(a * a, 0x1.06eba8p-3f, -0x1.81270ep-2f, 0x1.ce215ap-4f, -0x1.b6f5fap-6f, 0x1.49d5dep-8f, -0x1.456a32p-11f);
  const float small = fmaf(p, a, a);
  return copysignf(detail::choose_below(a, 0.875f, small, large), x);
}

// ---- double: for finite-difference gradient checks on the host; HD because its callers are

HD double exact_exp(double x) {
  return std::exp(x);
}
HD double exp_to_40(double x) {
  return exact_exp(x);
}
HD double exact_log(double x) {
  return std::log(x);
}
HD double exact_tanh(double x) {
  return std::tanh(x);
}
HD double exact_erf(double x) {
  return std::erf(x);
}
HD double exact_sigmoid(double x) {
  const double e = std::exp(-std::fabs(x));
  return (x < 0.0 ? e : 1.0) / (1.0 + e);
}
HD double exact_softplus(double x) {
  return max_of(x, 0.0) + std::log1p(std::exp(-std::fabs(x)));
}

}  // namespace gated
