// gate_ops: the gates that the tests of gate, shared_gate and static_gate go through: every activation in
// both forms.
#pragma once
#include <vector>

#include "kernels/gate.h"

namespace gated {

inline const GateOp gate_ops[] = {{},
                                  {Activation::ns_sigmoid},
                                  {Activation::silu, false, 2.0f},
                                  {Activation::tanh},
                                  {Activation::identity, false, 0.75f},
                                  {Activation::sigmoid, true},
                                  {Activation::ns_sigmoid, true},
                                  {Activation::silu, true},
                                  {Activation::tanh, true, 0.3f},
                                  {Activation::identity, true}};

// Far out, and both zeros, in the first four places that are `apart`.
inline std::vector<float> with_extremes(std::vector<float> values, size_t apart) {
  const float extremes[] = {100.0f, -100.0f, 0.0f, -0.0f};
  for (size_t i = 0; i < 4 && apart * i < values.size(); i++) values[apart * i] = extremes[i];
  return values;
}

inline std::string describe(const GateOp& op) {
  return format("%s %s, scale %g", op.additive ? "+" : "*", name_of(op.act), double(op.scale));
}

}  // namespace gated
