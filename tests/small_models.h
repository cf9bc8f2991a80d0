// small_models: every variant of the model, small enough for the emulator, odd enough to find a wrong edge. Each is the
// line of flags that a user would type.
#pragma once
#include <map>

#include "core/philox.cuh"

#include "layers/model.h"
#include "tests/contents.h"
#include "tests/fixture_lines.h"
#include "tests/numbers.h"
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

// A flag of the model and values of it: its choices, the usual one first; of a number, what `numbers` has.
struct FlagChoices {
  std::string flag;
  std::vector<std::string> values;
};
inline std::vector<FlagChoices> flags_of_the_model(const FlagValues& numbers) {
  std::vector<FlagChoices> all;
  Config defaults;
  for (const Flag& f : list_flags(defaults)) {
    const auto known = numbers.find(f.name);
    FlagChoices flag = {f.name, known == numbers.end() ? std::vector{f.get()} : known->second};
    for (const Flag::Choice& c : f.choices)
      if (c.value != f.get() && known == numbers.end()) flag.values.push_back(c.value);
    if (f.shapes_the_model() || known != numbers.end()) all.push_back(flag);
  }
  return all;
}

// B sequences of random tokens, and random targets.
struct RandomBatch {
  size_t B, T;
  std::vector<int> ids, targets;
  explicit RandomBatch(const ModelConfig& c, size_t B = 2) : B(B), T(c.context) {
    for (size_t i = 0; i < B * T; i++) {
      ids.push_back(int(random_below(1, 1, i, c.vocab)));
      targets.push_back(int(random_below(1, 2, i, c.vocab)));
    }
  }
  operator Batch() const { return {ids, targets, B, T}; }
};

// change(a parameter, its numbers), of all.
template <class Change>
void change_weights(Model& model, Change change) {
  std::vector<float> w = model.weights.values.download();
  for (const Parameter& p : model.weights.list()) change(p, &w[p.offset]);
  model.weights.values.upload(w);
}

// Starting weights are near a symmetric point: gates of exactly one half, norms of exactly one. Moving them off it lets
// no term of a gradient hide.
inline void leave_symmetry(Model& model) {
  change_weights(model, [](const Parameter& p, float* w) {
    for (size_t i = 0; i < p.size; i++) w[i] += 0.3f * float(normal(7, p.offset, i));
  });
}

// Numbers of all weights by the names of these.
inline std::map<std::string, std::vector<float>> by_name(const Parameters& weights, const Buffer<float>& numbers) {
  const std::vector<float> all = numbers.download();
  std::map<std::string, std::vector<float>> named;
  for (const Parameter& p : weights.list()) named[p.name] = {&all[p.offset], &all[p.offset] + p.size};
  return named;
}

// Loss of a batch, and its gradient in model.weights.grads.
inline float forward_backward(Model& model, const Batch& batch, Context& ctx, MicroBatch micro_batch = {},
                              uint64_t draw = 0) {
  set_zero(model.weights.grads.data(), model.weights.flat_size(), ctx);
  Buffer<float> loss(ctx.device, 1);
  model.upload(batch, draw);
  model.forward();
  model.backward(micro_batch, loss.data());
  ctx.synchronize();
  return loss.download()[0];
}

}  // namespace gated
