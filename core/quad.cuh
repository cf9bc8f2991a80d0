// quad: four neighbouring elements of a row, as one thread holds them.
//
// What it is for: kernels/activation.cu, with a drawing. `load_quad(row, i, n)` reads elements i to i+3 at once where
// the rows of an array stand on 16-byte boundaries (n a multiple of 4), and one by one where they do not. Four bf16 are
// 8 bytes. A Quad holds them widened, and store_quad rounds them to nearest even.
#pragma once
#include <initializer_list>

#include "core/bf16.cuh"
#include "core/context.cuh"
#include "core/storage.h"

namespace gated {

struct Quad {
  float v[4];
};

// Does every array begin on a boundary of four elements?
inline bool begin_on_quads(std::initializer_list<ConstReals> arrays) {
  for (ConstReals p : arrays)
    if (reinterpret_cast<uintptr_t>(p.at()) % (4 * bytes_of(p.storage())) != 0) return false;
  return true;
}

// Four neighbours, at once.
__device__ inline Quad load_four(const float* p) {
  const float4 f = *reinterpret_cast<const float4*>(p);
  return {{f.x, f.y, f.z, f.w}};
}
struct alignas(8) FourBf16 {
  bf16 v[4];
};
__device__ inline Quad load_four(const bf16* p) {
  const FourBf16 f = *reinterpret_cast<const FourBf16*>(p);
  return {{f.v[0], f.v[1], f.v[2], f.v[3]}};
}
__device__ inline void store_four(float* p, Quad q) {
  *reinterpret_cast<float4*>(p) = make_float4(q.v[0], q.v[1], q.v[2], q.v[3]);
}
// (One word: of a struct nvcc may make a store a field. Floats it would first move into pairs of registers.)
typedef uint64_t __attribute__((may_alias)) EightBytes;
__device__ inline void store_four(bf16* p, Quad q) {
  *reinterpret_cast<EightBytes*>(p) = two_bf16(q.v[0], q.v[1]) | uint64_t{two_bf16(q.v[2], q.v[3])} << 32;
}

// Elements i..i+3 of a row of n. `aligned` (n a multiple of 4, row on a boundary of four elements) loads them at once;
// otherwise elements past the end read as 0. They may join a plain sum, or a sum of squares, that began at +0: such a
// chain is never -0. They join nothing else: a chain of products may underflow to -0, which a zero would make +0.
template <bool aligned, class S>
__device__ inline Quad load_quad(const S* row, size_t i, size_t n) {
  if constexpr (aligned) return load_four(row + i);
  Quad q;
  for (int k = 0; k < 4; k++) q.v[k] = i + k < n ? float(row[i + k]) : 0.0f;
  return q;
}

template <bool aligned, class S>
__device__ inline void store_quad(S* row, size_t i, size_t n, Quad q) {
  if constexpr (aligned) {
    store_four(row + i, q);
  } else {
    for (int k = 0; k < 4; k++)
      if (i + k < n) row[i + k] = S(q.v[k]);
  }
}

// The same, choosing at run time: every thread of a launch takes the same side, so the choice costs next to nothing.
template <class S>
__device__ inline Quad load_quad(const S* row, size_t i, size_t n) {
  return n % 4 == 0 ? load_quad<true>(row, i, n) : load_quad<false>(row, i, n);
}
template <class S>
__device__ inline void store_quad(S* row, size_t i, size_t n, Quad q) {
  if (n % 4 == 0)
    store_quad<true>(row, i, n, q);
  else
    store_quad<false>(row, i, n, q);
}

// An array (N,C) as a kernel along its rows reads and writes it: columns i to i+3 of a row. Kernels of norms are
// templates of what stands here. first() is the pass that brings a row from memory, again() every later one, which
// finds it in a cache.
template <class S>
struct PlainRows {
  S* p;
  __device__ Quad first(size_t row, size_t i, size_t C) const { return load_quad(p + row * C, i, C); }
  __device__ Quad again(size_t row, size_t i, size_t C) const { return first(row, i, C); }
  __device__ void store(size_t row, size_t i, size_t C, Quad q) const { store_quad(p + row * C, i, C, q); }
};

// Calls body(aligned). The compiler makes it twice: in the one it knows that rows of n elements stand on boundaries of
// four, where loads need no branch, go out together, and a loop is unrolled.
template <class Body>
__device__ inline void by_alignment(size_t n, Body body) {
  if (n % 4 == 0)
    body(std::true_type());
  else
    body(std::false_type());
}

// What is read of q once it is stored. (Rounded in pairs, as store_four() does: nvcc then rounds once for both.)
template <class S>
__device__ inline Quad stored_quad(Quad q) {
  if constexpr (std::is_same_v<S, bf16>)
    for (int k = 0; k < 4; k += 2) {
      const uint32_t pair = two_bf16(q.v[k], q.v[k + 1]);
      q.v[k] = low_bf16(pair);
      q.v[k + 1] = high_bf16(pair);
    }
  return q;
}

// A row of n elements inside wider rows that begin on boundaries of four elements (`aligned`): whole quads at once,
// whatever n is, and the last few elements one by one. What lies past the row is neither read nor written.
template <class S>
__device__ inline Quad load_quad_inside(const S* row, size_t i, size_t n, bool aligned) {
  return aligned && i + 4 <= n ? load_quad<true>(row, i, n) : load_quad<false>(row, i, n);
}
template <class S>
__device__ inline void store_quad_inside(S* row, size_t i, size_t n, Quad q, bool aligned) {
  if (aligned && i + 4 <= n)
    store_quad<true>(row, i, n, q);
  else
    store_quad<false>(row, i, n, q);
}

}  // namespace gated
