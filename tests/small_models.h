// small_models: every variant of the model, small enough for the emulator, odd enough to find a wrong edge. Each is the
// line of flags that a user would type.
#pragma once

#include "layers/model.h"
#include "tests/fixture_lines.h"
#include "training/flags/command_line.h"

namespace gated {

// The flags' model at small, odd sizes. A width that no layer has is not named, as it would be refused.
inline ModelConfig small_model(const std::string& flags = "") {
  const bool experts = flags.find("--experts=") != std::string::npos;
  const bool dense = !experts || flags.find("--dense-layers=") != std::string::npos;
  const std::string widths = std::string(dense ? "--ffn-hidden=28 " : "") + (experts ? "--expert-hidden=11 " : "");
  return model_of_flags("--vocab=37 --context=9 --layers=2 --hidden=20 --heads=4 --kv-heads=2 --head-dim=6 " + widths +
                        flags);
}

// The base model, and those of tests/fixtures/small_models.txt.
inline const std::vector<std::string>& small_models() {
  static const std::vector<std::string> lines = fixture_lines("small_models.txt", {""});
  return lines;
}

// Loss and gradient of a batch: adds to model.weights.grads.
inline float forward_backward(Model& model, const std::vector<int>& ids, const std::vector<int>& targets, size_t B,
                              size_t T, Context& ctx, MicroBatch micro_batch = {}, uint64_t draw = 0) {
  Buffer<float> loss(ctx.device, 1);
  model.upload({ids, targets, B, T}, draw);
  model.forward();
  model.backward(micro_batch, loss.data());
  ctx.synchronize();
  return loss.download()[0];
}

}  // namespace gated
