#include "training/memory.h"

#include "training/optimizer.cuh"

namespace gated {

TrainingMemory training_memory(const ModelConfig& config, size_t B, size_t T, size_t micro_batches, Device device) {
  Model model(config);
  model.plan(B, T);
  const size_t flat = model.weights.flat_size(), sums = micro_batches > 1 ? flat : 0;
  constexpr size_t f = sizeof(float);
  return {f * flat,
          f * (flat + sums),
          f * 2 * flat,
          model.activation_bytes(),
          model.gradient_bytes(),
          training_scratch(model, device),
          model.table_bytes() + Optimizer::table_bytes(model.weights)};
}

size_t training_scratch(const Model& model, Device device) {
  ScratchPlan plan(device);
  model.scratch(plan);
  Optimizer::scratch(plan, model.weights);
  return plan.bytes();
}

}  // namespace gated
