// rmsnorm: the formulas that kernels/rmsnorm.cu, its CPU twin and gated_norm share, one element each.
#pragma once
#include "core/math.cuh"

namespace gated {

// offset + w. Without an offset w keeps its bits: w - 0 is w, and 0 + -0 would not be -0.
template <class T>
HD T rmsnorm_weight(T w, T offset) {
  return w - (T(0) - offset);
}

// The gradient of z in y = z*r*w, of g = dy*w, xh = z*r, and the row's mean(g*xh).
template <class T>
HD T rmsnorm_dz(T g, T xh, T mean, T r) {
  return r * fused(-xh, mean, g);
}

}  // namespace gated
