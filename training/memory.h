// memory: what training a model takes, by kind; known before the first byte is asked for. tests/test_describe.cpp
#pragma once
#include "layers/model.h"

namespace gated {

// In bytes.
struct TrainingMemory {
  size_t weights, gradients, optimizer, activations;
  size_t between;  // gradients that are no parameter's
  size_t scratch;  // what an operation uses until it returns, and what the CPU's threads keep for matrix products
  size_t tables;   // tokens, positions, lists that the embedding's backward and the optimizer read

  size_t total() const { return weights + gradients + optimizer + activations + between + scratch + tables; }
};

// For batches of B sequences of T tokens, and steps of so many slices, on a device: what one of so many ranks takes,
// the one that takes most.
TrainingMemory training_memory(const ModelConfig& config, size_t B, size_t T, size_t slices, Device device,
                               size_t ranks = 1);

// The scratch that the operations of training take from a Context: forward, backward and update of `model`, planned for
// its batch.
size_t training_scratch(const Model& model, Device device);

}  // namespace gated
