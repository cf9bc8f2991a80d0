// rope: rotary position embedding of queries and keys. What it computes, and how: kernels/rope.cu
#pragma once
#include <vector>

#include "core/context.cuh"
#include "core/storage.h"

namespace gated {

// How points are slowed down, so that a model that was trained with `trained` tokens reads `scale` times as many.
struct RopeScaling {
  enum class Kind { none, linear, llama3, yarn };
  Kind kind = Kind::none;
  double scale = 1;
  size_t trained = 0;
  // A point that goes round fewer than `slow` times in `trained` tokens is slowed whole, one of more than `fast` not.
  double slow = 1, fast = 32;
  bool whole_points = true;  // YaRN: these two bounds are rounded outwards to points

  bool on() const { return kind != Kind::none; }
  double factor() const;  // of cos and sin
  bool operator==(const RopeScaling&) const = default;
};
// YaRN as its authors have it. A scale of 1 changes nothing.
inline RopeScaling yarn(double scale, size_t trained) {
  return {scale == 1 ? RopeScaling::Kind::none : RopeScaling::Kind::yarn, scale, trained};
}

// The angle that each point of R elements turns by from one position to the next.
std::vector<double> rope_frequencies(size_t R, double theta, const RopeScaling& scaling = {});

// cos and sin of the angles of positions 0 .. rows-1, for heads whose first R = 2*half elements turn.
struct RopeTables {
  Buffer<float> cos, sin;  // (rows, half)
  size_t rows = 0, half = 0;
};

// Refuses an odd R.
RopeTables make_rope_tables(size_t rows, size_t R, double theta, Device device, const RopeScaling& scaling = {});

// x (B,T,H,D) turned by the angles of positions first_position .. first_position + T - 1. y is written; y may be x.
// Refuses positions that the tables do not have, and heads shorter than R.
void rope_forward(Reals y, ConstReals x, const RopeTables& tables, size_t first_position, size_t B, size_t T, size_t H,
                  size_t D, Context& ctx);
// The gradient of x from that of y. dx is written; dx may be dy.
void rope_backward(Reals dx, ConstReals dy, const RopeTables& tables, size_t first_position, size_t B, size_t T,
                   size_t H, size_t D, Context& ctx);

// cos and sin (T, R/2) begin at the row of the first token.
template <class Real>
void rope_forward_ref(Real* y, const Real* x, const Real* cos, const Real* sin, size_t B, size_t T, size_t H, size_t D,
                      size_t R);
template <class Real>
void rope_backward_ref(Real* dx, const Real* dy, const Real* cos, const Real* sin, size_t B, size_t T, size_t H,
                       size_t D, size_t R);

// The references' bits, on all cores: kernels/cpu/rope_cpu.cpp
template <class S>
void rope_forward_cpu(S* y, const S* x, const float* cos, const float* sin, size_t B, size_t T, size_t H, size_t D,
                      size_t R);
template <class S>
void rope_backward_cpu(S* dx, const S* dy, const float* cos, const float* sin, size_t B, size_t T, size_t H, size_t D,
                       size_t R);

}  // namespace gated
