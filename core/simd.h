// simd: one vector type, as wide as the widest registers of the build's instruction set.
//
// A lane of fma() rounds once, as fmaf does, and nothing here adds across lanes: code that gives every output
// a lane of its own has the same bits at every width. tests/test_matmul.cpp
#pragma once
#include <cmath>
#include <cstddef>
#include <cstring>
#if defined(__AVX512F__) || (defined(__AVX2__) && defined(__FMA__))
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace gated {

#if defined(__AVX512F__)
constexpr size_t lanes = 16;
#elif defined(__AVX2__) && defined(__FMA__)
constexpr size_t lanes = 8;
#else
constexpr size_t lanes = 4;
#endif

#if defined(__AVX512F__) || defined(__ARM_NEON)
constexpr size_t vector_registers = 32;
#else
constexpr size_t vector_registers = 16;
#endif

using vec = float __attribute__((vector_size(lanes * sizeof(float))));

inline vec load(const float* p) {
  vec v;
  memcpy(&v, p, sizeof v);
  return v;
}

// Into a register that is used several times. After load(), g++ 12 for an AMD Zen 2 or 3 (-march=znver3) reads memory
// again in each instruction that can, and then loads are what a loop waits for.
inline vec load_once(const float* p) {
  vec v = load(p);
#if defined(__x86_64__)
  asm("" : "+v"(v));
#endif
  return v;
}

inline void store(float* p, vec v) {
  memcpy(p, &v, sizeof v);
}

// The first n elements, or all lanes where n is more; lanes from n on are 0, and p[n...] is not touched.
inline vec load_first(const float* p, size_t n) {
#if defined(__AVX512F__)
  return (vec)_mm512_maskz_loadu_ps(n < lanes ? __mmask16((1u << n) - 1) : __mmask16(-1), p);
#elif defined(__ARM_NEON)
  if (n >= lanes) return load(p);
  vec v{};  // (a loop of n rounds has g++ 12 keep in memory what its callers sum up in registers)
  if (n > 0) v[0] = p[0];
  if (n > 1) v[1] = p[1];
  if (n > 2) v[2] = p[2];
  return v;
#else
  if (n >= lanes) return load(p);
  vec v{};
  for (size_t l = 0; l < n; l++) v[l] = p[l];
  return v;
#endif
}

inline void store_first(float* p, vec v, size_t n) {
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(p, n < lanes ? __mmask16((1u << n) - 1) : __mmask16(-1), (__m512)v);
#else
  if (n >= lanes) return store(p, v);
  for (size_t l = 0; l < n; l++) p[l] = v[l];
#endif
}

// x - 0 is x for every x, -0 too (x + 0 would not be).
inline vec broadcast(float x) {
  return x - vec{};
}

// The numbers x[0], x[1], ... of a row, one after the other in all lanes. Where a loop over j is unrolled and x has
// whole vectors, NEON, which multiplies by any one element of a register, loads four at once.
template <bool unrolled = true>
struct Broadcasts {
  const float* x;
#if defined(__ARM_NEON)
  vec four{};
  vec operator()(size_t j) {
    if constexpr (!unrolled) return broadcast(x[j]);
    if (j % lanes == 0) four = (vec)vld1q_f32(x + j);  // (g++ 12 moves what load() has read through other registers)
    return broadcast(four[j % lanes]);
  }
#else
  vec operator()(size_t j) const { return broadcast(x[j]); }
#endif
};

// a*b + c
inline vec fma(vec a, vec b, vec c) {
#if defined(__AVX512F__)
  return (vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__) && defined(__FMA__)
  return (vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__ARM_NEON)
  return (vec)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  for (size_t l = 0; l < lanes; l++) c[l] = fmaf(a[l], b[l], c[l]);
  return c;
#endif
}

// One step of the transpose: `a` is some row i of a matrix with bit `s` of i clear, `b` is row i + s.
// Exchanges the off-diagonal entries of the 2x2 blocks that bit s of the row and bit s of the column make.
template <int s>
void exchange(vec& a, vec& b) {
  // Lane l of the new a and of the new b, where lanes... count on into the second operand.
#define A(l) ((l)&s ? int(lanes) + (l)-s : (l))
#define B(l) ((l)&s ? int(lanes) + (l) : (l) + s)
#define FOUR(F, l) F(l), F(l + 1), F(l + 2), F(l + 3)
#if defined(__AVX512F__)
#define ALL(F) FOUR(F, 0), FOUR(F, 4), FOUR(F, 8), FOUR(F, 12)
#elif defined(__AVX2__) && defined(__FMA__)
#define ALL(F) FOUR(F, 0), FOUR(F, 4)
#else
#define ALL(F) FOUR(F, 0)
#endif
  const vec old = a;
  a = __builtin_shufflevector(old, b, ALL(A));
  b = __builtin_shufflevector(old, b, ALL(B));
#undef A
#undef B
#undef FOUR
#undef ALL
}

template <int s = lanes / 2>
[[gnu::always_inline]] inline void transpose(vec (&row)[lanes]) {
#pragma GCC unroll 16
  for (size_t i = 0; i < lanes; i++)
    if (!(i & s)) exchange<s>(row[i], row[i + s]);
  if constexpr (s > 1) transpose<s / 2>(row);
}
// to (columns,rows) is from (rows,columns) transposed. Both are multiples of `lanes`.
inline void transpose(float* to, const float* from, size_t rows, size_t columns) {
  for (size_t i = 0; i < rows; i += lanes)
    for (size_t j = 0; j < columns; j += lanes) {
      vec square[lanes];
      for (size_t l = 0; l < lanes; l++) square[l] = load(from + (i + l) * columns + j);
      transpose(square);
      for (size_t l = 0; l < lanes; l++) store(to + (j + l) * rows + i, square[l]);
    }
}

// Asks for a row (n) that will be written: it comes from memory while something else is computed.
template <class S>
void prefetch_row(const S* row, size_t n) {
  constexpr size_t cache_line = 64 / sizeof(S);
  for (size_t i = 0; i < n; i += cache_line) __builtin_prefetch(row + i, 1, 2);
}

}  // namespace gated
