// philox: counter-based random numbers: a draw is a pure function of (seed, stream, index), on CPU and GPU
// Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3"). A round:
//   (c0,c1,c2,c3) <- (hi(M1 c2)^c1^k0, lo(M1 c2), hi(M0 c0)^c3^k1, lo(M0 c0)), then (k0,k1) += (W0,W1)
// key = seed; counter = (index, stream), 64 bits each, low word first. A block of 128 bits serves four 32-bit
// draws (also float), two 64-bit draws (also double) or two normals: a stream is for draws of one kind only.
// used by initialisation, dropout, shuffling, synthetic data and sampling | tests/test_philox.cpp
#pragma once
#include <cmath>
#include <cstdint>

#include "core/host_math.h"
#include "core/math.cuh"

namespace gated {

struct PhiloxBlock {
  uint32_t word[4];
};

HD PhiloxBlock philox4x32(PhiloxBlock c, uint32_t k0, uint32_t k1) {
  uint32_t a = c.word[0], b = c.word[1], d = c.word[2], e = c.word[3];
#pragma GCC unroll 10  // a loop over many draws becomes one over vectors only where it holds no other loop
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t(0xD2511F53u) * a;
    const uint64_t p1 = uint64_t(0xCD9E8D57u) * d;
    a = uint32_t(p1 >> 32) ^ b ^ k0;
    b = uint32_t(p1);
    d = uint32_t(p0 >> 32) ^ e ^ k1;
    e = uint32_t(p0);
    k0 += 0x9E3779B9u;  // the golden ratio and sqrt(3)-1: a Weyl sequence
    k1 += 0xBB67AE85u;
  }
  return {{a, b, d, e}};
}

// ---- streams

// Who draws. The values are part of what a seed means: append, never renumber.
enum class Purpose : uint64_t { init = 1, dropout = 2, shuffle = 3, synthetic = 4, sample = 5 };

// 48 bits tell draws of one purpose apart (a tensor, a layer and step, an epoch, a sequence); the purpose
// sits above them. The top eight bits stay zero: random_below counts its retries there.
HD constexpr uint64_t stream_of(Purpose purpose, uint64_t which) {
  return uint64_t(purpose) << 48 | (which & ((uint64_t(1) << 48) - 1));
}

// ---- draws

HD PhiloxBlock random_block(uint64_t seed, uint64_t stream, uint64_t index) {
  const PhiloxBlock counter = {{uint32_t(index), uint32_t(index >> 32), uint32_t(stream), uint32_t(stream >> 32)}};
  return philox4x32(counter, uint32_t(seed), uint32_t(seed >> 32));
}

// Draws 4i .. 4i+3 share block i: a loop over many draws takes the block once and these four words.
HD uint32_t random_u32(uint64_t seed, uint64_t stream, uint64_t index) {
  return random_block(seed, stream, index / 4).word[index % 4];
}

HD uint64_t random_u64(uint64_t seed, uint64_t stream, uint64_t index) {
  const PhiloxBlock b = random_block(seed, stream, index / 2);
  return index % 2 ? uint64_t(b.word[3]) << 32 | b.word[2] : uint64_t(b.word[1]) << 32 | b.word[0];
}

// Uniform on a grid the type holds exactly (24 or 53 bits), so the conversion never rounds up to 1.
HD float unit_float(uint32_t bits) {
  return float(bits >> 8) * 0x1p-24f;
}
// (Two conversions from 32 bits, which every vector unit has; their sum is exact.)
HD double unit_double(uint64_t bits) {
  return double(int32_t(bits >> 38)) * 0x1p-26 + double(int32_t(bits >> 11 & 0x7FFFFFF)) * 0x1p-53;
}

// [0,1)
HD float uniform_float(uint64_t seed, uint64_t stream, uint64_t index) {
  return unit_float(random_u32(seed, stream, index));
}
HD double uniform_double(uint64_t seed, uint64_t stream, uint64_t index) {
  return unit_double(random_u64(seed, stream, index));
}

// (0,1], where a logarithm follows: one grid step up; the largest value becomes exactly 1
HD double positive_uniform_double(uint64_t seed, uint64_t stream, uint64_t index) {
  return uniform_double(seed, stream, index) + 0x1p-53;
}

// An integer in [0,n), n >= 1, without modulo bias (Lemire 2019, "Fast random integer generation in an interval"): the
// high half of x*n for a 64-bit x. Of 2^64 values of x, 2^64 mod n too many would make some results likelier; they are
// those whose low half is below 2^64 mod n, and they are drawn again, with the retry number in the stream's top byte so
// that no other index is touched. A retry has a chance below n/2^64 and never above 1/2, so 256 in a row do not happen.
HD uint64_t random_below(uint64_t seed, uint64_t stream, uint64_t index, uint64_t n) {
  const uint64_t surplus = (0 - n) % n;
  for (uint64_t retry = 0;; ++retry) {
    const auto product = static_cast<unsigned __int128>(random_u64(seed, stream | retry << 56, index)) * n;
    if (uint64_t(product) >= surplus || retry == 255) return uint64_t(product >> 64);
  }
}

struct NormalPair {
  double z[2];
};

// N(0,1), host only (Box & Muller 1958): a pair of uniforms (u,v) gives sqrt(-2 ln u) times the cosine and the sine of
// 2 pi v. u >= 2^-53, so |z| <= 8.58. In double with this project's own log, cos and sin: initial weights have the same
// bits on every machine. Without a branch and compiled into its caller: a loop makes a vector of pairs at a time.
[[gnu::always_inline]] inline NormalPair normal_pair(uint64_t seed, uint64_t stream, uint64_t index) {
  const double log = host_detail::log_sum(positive_uniform_double(seed, stream, 2 * index)).high;
  const double radius = std::sqrt(-2.0 * log);
  const auto [sin, cos] = host_detail::sin_cos(6.283185307179586 * uniform_double(seed, stream, 2 * index + 1));
  return {{radius * cos, radius * sin}};
}

// Draws 2i and 2i+1 are pair i: a loop over many takes both at once.
inline double normal(uint64_t seed, uint64_t stream, uint64_t index) {
  return normal_pair(seed, stream, index / 2).z[index % 2];
}

}  // namespace gated
