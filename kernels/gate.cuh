// gate: the formulas of kernels/gate.cu as its kernels use them, and those of the other operations that gate.
#pragma once
#include "core/quad.cuh"
#include "kernels/gate.h"

namespace gated {

// s = scale*act(z) and ∂s/∂z
__device__ inline float gate_score(const GateOp& op, float z) {
  return op.scale * activation_value(op.act, z);
}
__device__ inline float gate_slope(const GateOp& op, float z) {
  return op.scale * activation_slope(op.act, z);
}

// y(x, s), ∂y/∂x and ∂y/∂s. A product with 1 changes no bit, so a kernel multiplies in both forms.
HD float gate_y(const GateOp& op, float x, float s) {
  return op.additive ? x + s : x * s;
}
HD float gate_dy_dx(const GateOp& op, float s) {
  return op.additive ? 1.0f : s;
}
HD float gate_dy_ds(const GateOp& op, float x) {
  return op.additive ? 1.0f : x;
}

}  // namespace gated
