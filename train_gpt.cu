// train_gpt: a step of training, and the run around it.
//
// What the lines below call: layers/model.cu (forward, backward), training/optimizer.cuh (update), training/trainer.cu
// (what a run has from step to step). main() and the choice of a device stand in training/main.cu.
#include <cstdio>

#include "dataloader/text.h"
#include "training/interrupt.h"
#include "training/match_params.h"
#include "training/matmul_peak.h"
#include "training/measures.h"
#include "training/progress.h"
#include "training/run_metadata.h"
#include "training/sampler.h"
#include "training/terminal.h"
#include "training/threads.h"
#include "training/trainer.h"

namespace gated {

// ---- one step

void training_step(Trainer& t) {
  Range range("step");
  const Config& c = t.config;
  t.optimizer.begin_step();
  for (size_t m = 0; m < c.micro_batches; m++) {
    const Batch batch = t.training_batch(m);
    t.optimizer.begin_micro_batch();  // its gradient starts from zero
    t.model.forward(batch, t.draw(m));
    t.model.backward(batch, {m, c.micro_batches}, t.loss(m));
    t.optimizer.end_micro_batch();  // and joins the step's
  }
  const size_t step = t.steps_done() + 1;
  t.optimizer.update(c.adamw, c.schedule.at(step), step, c.clip);
  t.end_step();
}

// ---- all steps

// Until --steps are done, or somebody interrupts.
void train_to_the_end(Trainer& trainer, const Data& data, const RunMetadata& metadata, Progress& progress,
                      Context& ctx) {
  const Config& c = trainer.config;
  for (bool last = trainer.steps_done() >= c.steps; !last;) {
    training_step(trainer);

    const size_t step = trainer.steps_done();
    const bool complete = step == c.steps;
    last = complete || interrupted();  // asked once: the step that is the last is the step that saves
    const bool validates = data.val && (complete || (c.val_every && step % c.val_every == 0));
    const bool measures = data.val && (complete || (c.measure_every && step % c.measure_every == 0));
    const bool saves = !c.out.empty() && (last || step % c.save_every == 0);
    // A GPU is given the next step before this one's result is read. Everything else waits for it.
    const size_t in_flight = ctx.device == Device::cuda && !validates && !measures && !saves && !last ? 1 : 0;
    for (const StepResult& result : trainer.results(in_flight)) progress.step(result);

    if (measures) {
      Meter meter(ctx.device);
      progress.validation(step, trainer.validate(c.val_batches, &meter));
      progress.measures(step, meter.result());
    } else if (validates) {
      progress.validation(step, trainer.validate(c.val_batches));
    }
    if (saves) {
      progress.flush();
      trainer.save(metadata);
      progress.saved();
    }
  }
}

// ---- what stands around the steps

// Loads the newest checkpoint of --out. Its path; nothing where there is none.
std::optional<std::string> load_newest(Trainer& trainer, const RunMetadata& metadata) {
  std::optional<Checkpoint> checkpoint = find_latest(trainer.config.out);
  if (!checkpoint) return {};
  require_same_run(checkpoint->path(), checkpoint->metadata(), metadata);
  trainer.load(*checkpoint);
  return checkpoint->path();
}

void resume(Trainer& trainer, const RunMetadata& metadata) {
  const Config& c = trainer.config;
  const auto path = load_newest(trainer, metadata);
  if (!path) {
    printf("resume: %s holds no checkpoint yet: starting at step 1\n", c.out.c_str());
    return;
  }
  printf("resume: step %zu of %s\n", trainer.steps_done(), path->c_str());
  keep_newest(c.out, trainer.steps_done(), c.keep);  // a run that was killed in a save has not deleted the oldest
}

// Looks at the newest checkpoint of --out, and leaves the folder as it is.
void evaluate(Trainer& trainer, const RunMetadata& metadata, Context& ctx) {
  const Config& c = trainer.config;
  const auto path = load_newest(trainer, metadata);
  require(path.has_value(), "--evaluate: %s holds no checkpoint: name the --out of a run that has saved one",
          c.out.c_str());
  Meter meter(ctx.device);
  const double loss = trainer.validate(c.val_batches, &meter);
  printf("%s\nvalidation loss %.4f\n\n%s", path->c_str(), loss,
         measures_text(meter.result(), terminal_width()).c_str());
}

void print_sample(Trainer& trainer, const Data& data) {
  const Config& c = trainer.config;
  if (c.sample_tokens == 0) return;
  const Sampler sampler = {c.temperature, c.top_k, c.seed};
  // The prompt: one token, the first of the validation data.
  std::vector<int> tokens(2);
  (data.val ? data.val : data.train)->sequence(0, 1, tokens.data());
  tokens.pop_back();
  while (tokens.size() < c.sample_tokens) {
    const size_t seen = std::min(tokens.size(), c.model.context);
    const std::vector<float> logits =
        trainer.model.next_token_logits({tokens.end() - std::ptrdiff_t(seen), tokens.end()});
    tokens.push_back(sampler.draw(logits, tokens.size()));
  }
  printf("\nsample (temperature %g, seed %llu):\n%s\n", c.temperature, (unsigned long long)c.seed,
         decode(tokens, data.train->is_text()).c_str());
}

int train(Config& config, Device device) {
  catch_interrupts();
  use_threads(config.threads);
  Context ctx(device);
  if (config.cublas) ctx.use_cublas(config.tf32);

  const Data data = open_data(config.data);
  config.model.vocab = data.train->vocab();
  choose_ffn_width(config);
  const TokenLoader loader(data, {config.batch, config.model.context, config.micro_batches}, config.seed);

  require(!config.evaluate || data.val,
          "--evaluate: there is no validation data: raise --val-fraction (now 0), or give --val-data");

  if (!config.out.empty() && !config.evaluate) prepare_checkpoint_folder(config.out);
  const double peak = config.evaluate ? 0 : measured_matmul_peak(ctx);  // before the model: its memory serves both
  Trainer trainer(config, loader, ctx);
  const auto metadata = run_metadata(config, data);
  if (config.evaluate) {
    evaluate(trainer, metadata, ctx);
    return 0;
  }
  require(config.out.empty() || config.resume || !find_latest(config.out),
          "--out=%s: holds a run's checkpoints already: add --resume to go on with it, or name another folder",
          config.out.c_str());
  if (config.resume) resume(trainer, metadata);

  Progress progress(config, data, trainer, peak, ctx);
  progress.header();
  train_to_the_end(trainer, data, metadata, progress, ctx);
  progress.finish();
  if (trainer.steps_done() < config.steps) {
    printf("interrupted behind step %zu of %zu: %s\n", trainer.steps_done(), config.steps,
           config.out.empty() ? "nothing is saved; with --out=FOLDER --resume a run can be taken up again"
                              : "the same command with --resume goes on bit for bit");
    return 128 + interrupted();
  }
  print_sample(trainer, data);
  printf("fingerprint of the weights: %s%s\n", trainer.fingerprint().c_str(),
         config.cublas ? " (products by cuBLAS: not the bits of the CPU)" : "");
  return 0;
}

}  // namespace gated
