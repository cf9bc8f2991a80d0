// memory: what training a model takes, by kind; known before the first byte is asked for. tests/test_describe.cpp
#pragma once
#include "layers/model.cuh"

namespace gated {

// In floats.
struct TrainingMemory {
  size_t weights, gradients, optimizer, activations, between;  // between: gradients that are no parameter's

  size_t total() const { return weights + gradients + optimizer + activations + between; }
};

// For batches of B sequences of T tokens.
inline TrainingMemory training_memory(const ModelConfig& config, size_t B, size_t T, size_t micro_batches) {
  Model model(config);
  model.plan(B, T);
  const size_t flat = model.weights.flat_size(), sums = micro_batches > 1 ? flat : 0;
  return {flat, flat + sums, 2 * flat, model.activation_floats(), model.gradient_floats()};
}

}  // namespace gated
