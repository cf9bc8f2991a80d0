// small_runs: a few steps of a small model, as the tests of whole runs take them.
#pragma once
#include "tests/small_models.h"
#include "training/engines.h"
#include "training/trainer.h"

namespace gated {

inline Config small_run(const ModelConfig& model, size_t steps = 20, size_t micro_batches = 1) {
  Config c;
  c.model = model;
  c.data.data = "bigram-backcopy";
  c.data.vocab = c.vocab = model.vocab;
  c.seed = c.data.seed = 5;
  c.batch = 2, c.micro_batches = micro_batches, c.steps = steps;
  c.schedule = {1e-2f, 1e-3f, std::min<size_t>(4, steps), steps};
  return c;
}

struct Run {
  Config config;
  TokenLoader loader;
  Trainer trainer;
  Run(const Config& c, Context& ctx, const Ranks& ranks = {})
      : config(c),
        loader(open_data(config.data), {config.batch, config.model.context, config.micro_batches}, config.seed),
        trainer(config, loader, ctx, ranks) {}
  std::vector<float> steps(size_t n) {
    std::vector<float> trace;
    for (size_t i = 0; i < n; i++) {
      training_step(trainer);
      const StepResult r = trainer.next_result().value();
      trace.insert(trace.end(), {r.loss, r.gradient_norm, r.learning_rate});
    }
    return trace;
  }
};

// Of the weights in which a run ends.
inline std::string fingerprint_of_run(const Config& config, Device device = Device::cpu) {
  Context ctx(device);
  use_engines(ctx, config);
  Run run(config, ctx);
  run.steps(config.steps);
  return run.trainer.fingerprint();
}

}  // namespace gated
