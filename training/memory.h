// memory: what training a model takes, by kind; known before the first byte is asked for. tests/test_describe.cpp
#pragma once
#include "layers/model_config.cuh"

namespace gated {

// In bytes.
struct TrainingMemory {
  size_t weights, gradients, optimizer, activations, between;  // between: gradients that are no parameter's

  size_t total() const { return weights + gradients + optimizer + activations + between; }
};

// For batches of B sequences of T tokens.
TrainingMemory training_memory(const ModelConfig& config, size_t B, size_t T, size_t micro_batches);

}  // namespace gated
