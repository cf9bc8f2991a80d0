// train_gpt: a step of training, and the run around it.
//
// What the lines below call: layers/model.cu (forward, backward), training/optimizer.cuh (update), training/trainer.cu
// (what a run has from step to step). main() and the choice of a device stand in training/main.cu.
#include <algorithm>
#include <cstdio>

#include "layers/smoothquant.h"
#include "training/arrays.h"
#include "training/choose.h"
#include "training/find_tokenizer.h"
#include "training/generate.h"
#include "training/interrupt.h"
#include "training/match_params.h"
#include "training/matmul_peak.h"
#include "training/measures.h"
#include "training/progress.h"
#include "training/retrieval.h"
#include "training/run_metadata.h"
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
      std::vector<Inspector*> inspectors = {&meter};
      std::optional<ArrayMeter> arrays;
      if (complete && saves) inspectors.push_back(&arrays.emplace(c.model, ctx.device));
      const double loss = trainer.validate(c.val_batches, inspectors);
      progress.validation(step, loss);
      Measures seen = meter.result();
      seen.gradient_norm_by_layer = trainer.gradient_norm_by_layer();
      progress.measures(step, std::move(seen));
      if (arrays)
        save_arrays(c.out, arrays->result(), step, loss, metadata);  // a run with its last checkpoint has them
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

// The newest checkpoint of --out, which is of a run with this metadata. Nothing where there is none.
std::optional<Checkpoint> newest_checkpoint(const Config& c, const RunMetadata& metadata) {
  std::optional<Checkpoint> checkpoint = find_latest(c.out);
  if (checkpoint) require_same_run(checkpoint->path(), checkpoint->metadata(), metadata);
  return checkpoint;
}

// False where there is nothing to go on with.
bool resume(Trainer& trainer, const RunMetadata& metadata) {
  const Config& c = trainer.config;
  const std::optional<Checkpoint> checkpoint = newest_checkpoint(c, metadata);
  if (!checkpoint) {
    printf("resume: %s holds no checkpoint yet: starting at step 1\n", c.out.c_str());
    return false;
  }
  trainer.load(*checkpoint);
  printf("resume: step %zu of %s\n", trainer.steps_done(), checkpoint->path().c_str());
  keep_newest(c.out, trainer.steps_done(), c.keep);  // a run that was killed in a save has not deleted the oldest
  return true;
}

// The newest checkpoint of --out, for --evaluate.
Checkpoint checkpoint_to_evaluate(const Config& c, const RunMetadata& metadata) {
  std::optional<Checkpoint> checkpoint = newest_checkpoint(c, needed_by_evaluation(metadata));
  require(checkpoint.has_value(), "--evaluate: %s holds no checkpoint: name the --out of a run that has saved one",
          c.out.c_str());
  return std::move(*checkpoint);
}

// What is said of a context that is not the one of training.
std::string other_context(const ModelConfig& m) {
  if (m.context == m.trained_context && m.yarn == 1) return "";
  return format(" in sequences of %zu tokens; trained with %zu%s", m.context, m.trained_context,
                m.yarn == 1 ? "" : format(", YaRN %g", m.yarn).c_str());
}

// The validation loss in the numbers of --quantize, which the model computes with from here on.
double quantized_loss(Trainer& trainer, Context& ctx) {
  const Config& c = trainer.config;
  if (c.smoothquant > 0) {
    SmoothQuant smooth(trainer.model, ctx);
    trainer.look_at_training(c.val_batches, [&] { smooth.see(c.batch * c.model.context); });
    smooth.fold(c.smoothquant);
  }
  trainer.model.quantize(*c.quantize);
  return trainer.validate(c.val_batches);
}

// How many questions the model gets right.
std::string choices_of(Trainer& trainer, const std::vector<ChoiceQuestion>& questions, Context& ctx) {
  const Config& c = trainer.config;
  return choices_text(choose(questions, ending_losses(questions, trainer.model, c.batch, c.model.context, ctx.device)));
}

// Looks at the model whose weights the trainer has, from the file at `path`, and writes the arrays of --out anew.
void look_at(Trainer& trainer, const std::string& path, const RunMetadata& metadata,
             const std::vector<ChoiceQuestion>& questions, Context& ctx) {
  const Config& c = trainer.config;
  Meter meter(ctx.device);
  ArrayMeter array_meter(c.model, ctx.device);
  const double loss = trainer.validate(c.val_batches, {&meter, &array_meter});
  const Arrays arrays = array_meter.result();
  const size_t width = terminal_width();
  printf("%s\nvalidation loss %.4f%s\n\n%s%s", path.c_str(), loss, other_context(c.model).c_str(),
         measures_text(meter.result(), width).c_str(), loss_by_position_text(arrays, width).c_str());
  fflush(stdout);
  if (!c.out.empty()) save_arrays(c.out, arrays, trainer.steps_done(), loss, metadata);
  if (!questions.empty()) printf("%s", choices_of(trainer, questions, ctx).c_str());
  if (!c.quantize) return;
  const double quantized = quantized_loss(trainer, ctx);
  printf("quantized  validation loss %.4f, %+.4f\n", quantized, quantized - loss);
  if (!questions.empty()) printf("%s", choices_of(trainer, questions, ctx).c_str());
}

// What stands behind a key that a sequence holds once before.
std::string retrieval_of(Trainer& trainer) {
  const Config& c = trainer.config;
  const Recall task(c.seed, 1, c.model.vocab);
  return retrieval_text(retrieval(task, c.model.trained_context, c.model.context, [&](const std::vector<int>& tokens) {
    const std::vector<float> logits = trainer.model.next_token_logits(tokens);
    return int(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }));
}

void print_sample(Trainer& trainer, const Data& data, const std::optional<Tokenizer>& tokenizer) {
  const Config& c = trainer.config;
  if (c.sample_tokens == 0) return;
  // The prompt: one token, the first of the validation data.
  std::vector<int> tokens(2);
  (data.val ? data.val : data.train)->sequence(0, 1, tokens.data());
  std::vector<std::vector<int>> sequences = {{tokens[0]}};
  write_behind(sequences, c.sample_tokens - 1, trainer.model, {c.temperature, c.top_k, c.seed, c.top_p},
               [] { return true; });
  printf("\nsample (temperature %g, seed %llu):\n%s\n", c.temperature, (unsigned long long)c.seed,
         text_of(sequences[0], data.train->is_text(), tokenizer ? &*tokenizer : nullptr).c_str());
}

// --evaluate: of the model that --from names, or of the newest checkpoint of --out.
void evaluate(Config& config, const RunMetadata& metadata, const TokenLoader& loader, Context& ctx) {
  std::optional<Checkpoint> checkpoint;
  if (config.source) {
    set_trained_context(config.model, config.source->context(), config.source->path());
  } else {
    checkpoint.emplace(checkpoint_to_evaluate(config, metadata));
    set_trained_context(config.model, trained_context(checkpoint->metadata()), checkpoint->path());
  }
  std::vector<ChoiceQuestion> questions;
  if (!config.choices.empty()) questions = read_choices(config.choices, config.model.vocab);
  Trainer trainer(config, loader, ctx);
  if (checkpoint) {
    trainer.load(*checkpoint);
    look_at(trainer, checkpoint->path(), checkpoint->metadata(), questions, ctx);
  } else {
    trainer.start_from(*config.source);
    look_at(trainer, config.source->path(), metadata, questions, ctx);
  }
  if (config.probe == Probe::retrieval) printf("\n%s", retrieval_of(trainer).c_str());
}

// Where --out may be written to: by a run that goes on, or one that begins.
void require_no_other_run(const Config& c) {
  const bool own = c.resume || (c.evaluate && !c.source);
  require(c.out.empty() || own || !find_latest(c.out),
          "--out=%s: holds a run's checkpoints already: %sname another folder", c.out.c_str(),
          c.evaluate ? "" : "add --resume to go on with it, or ");
}

int train(Config& config, Device device) {
  if (config.generate) return generate(config, device);
  catch_interrupts();
  use_threads(config.threads);
  Context ctx(device);
  if (config.cublas) ctx.use_cublas(config.tf32);

  const Data data = open_data(config.data);
  config.model.vocab = data.train->vocab();
  std::optional<Tokenizer> tokenizer;  // without one a text's bytes are themselves
  if (!config.tokenizer.empty() || (!config.evaluate && !data.train->is_text())) tokenizer = find_tokenizer(config);
  choose_ffn_width(config);
  const TokenLoader loader(data, {config.batch, config.model.context, config.micro_batches}, config.seed);

  require(!config.evaluate || data.val,
          "--evaluate: there is no validation data: raise --val-fraction (now 0), or give --val-data");

  const bool evaluates_own = config.evaluate && !config.source;  // of --out, where nothing is written before it is read
  if (!config.out.empty() && !evaluates_own) prepare_checkpoint_folder(config.out);
  const double peak = config.evaluate ? 0 : measured_matmul_peak(ctx);  // before the model: its memory serves both
  const auto metadata = run_metadata(config, data);
  require_no_other_run(config);
  if (config.evaluate) {
    evaluate(config, metadata, loader, ctx);
    return 0;
  }
  Trainer trainer(config, loader, ctx);
  const bool resumed = config.resume && resume(trainer, metadata);
  if (config.source && !resumed) trainer.start_from(*config.source);
  if (!config.out.empty()) keep_tokenizer(config, config.out);

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
  print_sample(trainer, data, tokenizer);
  printf("fingerprint of the weights: %s%s\n", trainer.fingerprint().c_str(),
         config.cublas ? " (products by cuBLAS: not the bits of the CPU)" : "");
  return 0;
}

}  // namespace gated
