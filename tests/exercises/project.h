// The project's operations that the exercises are exercises of.
#pragma once
#include "kernels/attention.h"
#include "kernels/bias.h"
#include "kernels/embedding.h"
#include "kernels/gated_delta.h"
#include "kernels/gated_norm.h"
#include "kernels/matmul.h"
#include "kernels/rmsnorm.h"
#include "kernels/rope.h"

namespace gated {
// (kernels/activation.h has references with an argument of this project's, which would be meant beside an exercise's)
void activation_backward(Reals dx, ConstReals dy, ConstReals x, size_t n, Activation act, Context& ctx);
}  // namespace gated
