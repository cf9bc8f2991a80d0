// gate_ops: the gates that the tests of gate, shared_gate and static_gate go through: every activation in
// both forms.
#pragma once
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

inline std::string describe(const GateOp& op) {
  return format("%s %s, scale %g", op.additive ? "+" : "*", name_of(op.act), double(op.scale));
}

}  // namespace gated
