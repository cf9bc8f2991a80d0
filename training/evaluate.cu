#include "training/evaluate.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "layers/smoothquant.h"
#include "training/inspect/arrays.h"
#include "training/inspect/choose.h"
#include "training/inspect/measures.h"
#include "training/inspect/retrieval.h"
#include "training/process/terminal.h"
#include "training/trainer.h"

namespace gated {

namespace {

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
  require(std::isfinite(loss), "%s: the validation loss is %g: what the model computes overflows", path.c_str(), loss);
  const Arrays arrays = array_meter.result();
  const size_t width = terminal_width();
  printf("%s\nvalidation loss %.4f%s\n\n%s%s", path.c_str(), loss, other_context(c.model).c_str(),
         measures_text(meter.result(), width).c_str(), loss_by_position_text(arrays, width).c_str());
  fflush(stdout);
  if (!c.out.empty() && trainer.ranks.leads()) save_arrays(c.out, arrays, trainer.steps_done(), loss, metadata);
  if (!questions.empty()) printf("%s", choices_of(trainer, questions, ctx).c_str());
  if (!c.quantize) return;
  const double quantized = quantized_loss(trainer, ctx);
  require(std::isfinite(quantized), "%s: the validation loss in the numbers of --quantize is %g: they overflow",
          path.c_str(), quantized);
  printf("quantized  validation loss %.4f, %+.4f\n", quantized, quantized - loss);
  if (!questions.empty()) printf("%s", choices_of(trainer, questions, ctx).c_str());
}

// What stands after a key that a sequence holds once before.
std::string retrieval_of(Trainer& trainer) {
  const Config& c = trainer.config;
  const Recall task(c.seed, 1, c.model.vocab);
  return retrieval_text(retrieval(task, c.model.trained_context, c.model.context, [&](const std::vector<int>& tokens) {
    const std::vector<float> logits = trainer.model.next_token_logits(tokens);
    return int(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }));
}

}  // namespace

void evaluate(Config& config, const RunMetadata& metadata, const TokenLoader& loader, Context& ctx,
              const Ranks& ranks) {
  std::optional<Checkpoint> checkpoint;
  if (config.source) {
    set_trained_context(config.model, config.source->context(), config.source->path(),
                        config.source->gives_first_positions());
    config.source->require_fit(config.model);
  } else {
    checkpoint = newest_checkpoint(config, needed_by_evaluation(metadata));
    require(checkpoint.has_value(), "--evaluate: %s holds no checkpoint: name the --out of a run that has saved one%s",
            config.out.c_str(), hint_at_best(config.out).c_str());
    if (ranks.leads()) as_flag_names("--out", config.out, [&] { prepare_checkpoint_folder(config.out); });
    set_trained_context(config.model, trained_context(checkpoint->metadata()), checkpoint->path(), false);
  }
  std::vector<ChoiceQuestion> questions;
  if (!config.choices.empty())
    questions =
        as_flag_names("--choices", config.choices, [&] { return read_choices(config.choices, config.model.vocab); });
  const size_t batches = std::min(config.val_batches, loader.validation_batches());
  const std::string data = format("%s: %zu batches of it, %zu tokens", loader.validation_description().c_str(), batches,
                                  batches * config.batch * config.model.context);
  fputs(wrapped("data       ", data, 11, terminal_width()).c_str(), stdout);
  fflush(stdout);
  Trainer trainer(config, loader, ctx, ranks);
  if (checkpoint) {
    trainer.load(*checkpoint);
    look_at(trainer, checkpoint->path(), checkpoint->metadata(), questions, ctx);
  } else {
    trainer.start_from(*config.source);
    look_at(trainer, config.source->path(), metadata, questions, ctx);
  }
  if (config.probe == Probe::retrieval) printf("\n%s", retrieval_of(trainer).c_str());
}

}  // namespace gated
