#include "training/memory.h"

#include <omp.h>

#include "training/optimizer.cuh"

namespace gated {

static ScratchPlan scratch_plan(const Model& model, Device device) {
  ScratchPlan plan(device, model.config.storage);
  model.scratch(plan);
  return plan;
}

TrainingMemory training_memory(const ModelConfig& config, size_t B, size_t T, size_t slices, Device device,
                               size_t ranks) {
  Model model(config);
  model.plan(B, T);
  const ScratchPlan scratch = scratch_plan(model, device);
  constexpr size_t f = sizeof(float);
  return {Optimizer::weight_bytes(model.weights, config.storage, ranks),
          f * Optimizer::gradient_values(model.weights, slices, ranks),
          Optimizer::state_bytes(model.weights, ranks),
          model.activation_bytes(),
          model.gradient_bytes(),
          scratch.bytes() + omp_get_max_threads() * scratch.thread_bytes(),
          model.table_bytes() + Optimizer::table_bytes(model.weights)};
}

size_t training_scratch(const Model& model, Device device) {
  return scratch_plan(model, device).bytes();
}

}  // namespace gated
