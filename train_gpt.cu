// train_gpt: a step of training, and the run around it.
//
// What the lines below call: layers/model.cu (forward, backward), training/optimizer.cuh (update), training/trainer.cu
// (what a run has from step to step), training/evaluate.cu (a look at a run that is trained). main() and the choice of
// a device stand in training/main.cu.
#include <cmath>
#include <csignal>
#include <cstdio>
#include <exception>
#include <set>
#include <sstream>

#include "core/clock.h"
#include "training/inspect/arrays.h"
#include "training/disk.h"
#include "training/engines.h"
#include "training/evaluate.h"
#include "training/text/find_tokenizer.h"
#include "training/text/generate.h"
#include "training/process/interrupt.h"
#include "training/flags/flags.h"
#include "training/flags/match_params.h"
#include "training/matmul_peak.h"
#include "training/inspect/measures.h"
#include "training/progress.h"
#include "training/flags/run_metadata.h"
#include "training/process/threads.h"
#include "training/trainer.h"

namespace gated {

// ---- one step

void training_step(Trainer& t) {
  Range range("step");
  const Config& c = t.config;
  const size_t step = t.steps_done() + 1;
  t.begin_step();
  // What differs from step to step goes up to the device first; what then runs is the same launches in every step.
  // graph(..).run(f) calls f; with --graph=on it records f's launches once and then repeats them (core/graph.cuh).
  const size_t in_slice = c.micro_batches / c.slice_count();
  for (size_t slice = t.ranks.rank(); slice < c.slice_count(); slice += t.ranks.count()) {
    for (size_t m = slice * in_slice; m < (slice + 1) * in_slice; m++) {
      const MicroBatch micro_batch = {m, c.micro_batches, in_slice};
      t.model.upload(t.training_batch(m), t.micro_batch_number(m));
      t.graph(micro_batch).run([&] {
        if (micro_batch.begins_slice()) t.optimizer.begin_slice();
        t.model.forward();
        t.model.backward(micro_batch, t.loss());
      });
      t.keep_loss(m);
    }
    t.optimizer.end_slice(slice);
  }
  if (c.check_ranks_every && step % c.check_ranks_every == 0) t.require_equal_weights();
  t.optimizer.set_step(c.adamw, c.schedule.at(step), step, c.clip);
  if (t.ranks.alone())
    t.update_graph().run([&] { t.optimizer.update(); });
  else
    t.optimizer.update();  // between its launches the ranks talk
  t.end_step();
}

// ---- all steps

// A loss of validation that is no number says that training has diverged, though the last step's own loss may be one.
double finite_loss(size_t step, double loss) {
  require(std::isfinite(loss), "step %zu: the validation loss is %g: training has diverged; lower --lr", step, loss);
  return loss;
}

// A validation that looks into the model. With `arrays`, --out gets them. Whether its loss is the lowest so far.
bool measure(Trainer& trainer, bool arrays, const RunMetadata& metadata, Progress& progress, Context& ctx) {
  const Config& c = trainer.config;
  const size_t step = trainer.steps_done();
  Meter meter(ctx.device);
  std::vector<Inspector*> inspectors = {&meter};
  std::optional<ArrayMeter> array_meter;
  if (arrays) inspectors.push_back(&array_meter.emplace(c.model, ctx.device));
  const double loss = finite_loss(step, trainer.validate(c.val_batches, inspectors));
  const bool best = progress.validation(step, loss);
  Measures seen = meter.result();
  seen.gradient_norm_by_layer = trainer.gradient_norm_by_layer();
  progress.measures(step, std::move(seen));
  if (arrays && trainer.ranks.leads()) save_arrays(c.out, array_meter->result(), step, loss, metadata);
  return best;
}

[[noreturn]] void fail_after_step(size_t step, bool saved, const std::exception_ptr& trouble) {
  try {
    std::rethrow_exception(trouble);
  } catch (const Error& e) {
    const bool lacks_data = dynamic_cast<const UnreadableData*>(&e);
    fail("%s%s", e.what(),
         saved ? format("; the checkpoint of step %zu is saved: %s", step,
                        lacks_data ? "with the data whole again, --resume goes on from it"
                                   : "--evaluate looks at it again")
                     .c_str()
               : "");
  }
}

// What was caught just now, which ends the run behind a checkpoint. But data that one of several ranks cannot read ends
// it at once: the others wait for that rank.
std::exception_ptr trouble_of(const Ranks& ranks) {
  try {
    throw;
  } catch (const UnreadableData&) {
    if (!ranks.alone()) throw;
  } catch (...) {
  }
  return std::current_exception();
}

// What somebody, or the clock, wants of the run after a step: of one rank is of all.
struct Asked {
  bool stop, save, due;
};
Asked asked_of(const Ranks& ranks, double saved_at, const Config& c) {
  const Asked mine = {interrupted() != 0, save_requested(), seconds_now() - saved_at >= double(c.save_every.seconds)};
  Asked all = {false, false, false};
  for (const Asked& theirs : ranks.all(mine))
    all = {all.stop || theirs.stop, all.save || theirs.save, all.due || theirs.due};
  return all;
}

// Until --steps are done, or somebody interrupts.
void train_to_the_end(Trainer& trainer, const Data& data, const RunMetadata& metadata, Progress& progress,
                      Context& ctx) {
  const Config& c = trainer.config;
  const size_t first = trainer.steps_done();
  const CatchInterrupts catching;
  double saved_at = seconds_now();
  for (bool last = first >= c.steps; !last;) {
    std::exception_ptr trouble;  // of this step. It ends the run, behind a checkpoint: steps that are done are not lost
    try {
      training_step(trainer);
    } catch (const UnreadableData&) {
      trouble = trouble_of(trainer.ranks);
    }

    const size_t step = trainer.steps_done();
    const bool complete = step == c.steps;
    // Asked once, and told to all ranks: the step that is the last is the step that saves.
    const Asked asked = asked_of(trainer.ranks, saved_at, c);
    last = trouble || complete || asked.stop;
    const bool looks = data.val && !trouble;
    const bool validates = looks && (complete || (c.val_every && step % c.val_every == 0));
    const bool measures = looks && (complete || (c.measure_every && step % c.measure_every == 0));
    if (asked.save && c.out.empty())
      fprintf(stderr, "warning: SIGUSR1 asks for a checkpoint, and nothing is saved without --out=FOLDER\n");
    const bool due = c.save_every.steps ? step % c.save_every.steps == 0 : asked.due;
    bool saves = !c.out.empty() && step > first && (last || asked.save || due || step == c.schedule.stable_until());
    // A GPU may run one step ahead: it is given the next step before this one's result is read. Before a validation, a
    // measure, a checkpoint or the end all results are read.
    const size_t in_flight = ctx.device == Device::cuda && !validates && !measures && !saves && !last ? 1 : 0;
    while (const auto result = trainer.next_result(in_flight)) progress.step(*result);

    // The checkpoint comes last, so that a run that has its last checkpoint has its arrays too.
    bool best = false;
    try {
      if (measures)
        best = measure(trainer, complete && saves, metadata, progress, ctx);
      else if (validates)
        best = progress.validation(step, finite_loss(step, trainer.validate(c.val_batches)));
    } catch (...) {
      trouble = trouble_of(trainer.ranks);
    }
    saves |= (best || trouble) && !c.out.empty();
    if (saves) {
      trainer.save(metadata);
      if (best && trainer.ranks.leads()) name_best(c.out, step);
      saved_at = seconds_now();
      progress.saved(asked.save ? step : 0);
    }
    if (trouble) fail_after_step(step, saves, trouble);
  }
  trainer.optimizer.await_weights();
}

// ---- what stands around the steps

// False where there is nothing to go on with. Refuses a folder of which the best alone is left: a run that begins would
// write over it.
bool resume(Trainer& trainer, const RunMetadata& metadata) {
  const Config& c = trainer.config;
  const std::optional<Checkpoint> checkpoint = newest_checkpoint(c, metadata);
  if (!checkpoint) {
    require(!is_there(best_checkpoint(c.out)), "--resume: %s holds no checkpoint to go on from: name another folder%s",
            c.out.c_str(), hint_at_best(c.out).c_str());
    printf("resume: %s holds no checkpoint yet: starting at step 1\n", c.out.c_str());
    return false;
  }
  try {
    for (const Parameter& p : trainer.model.weights.list()) checkpoint->entry(p.name, p.shape);
  } catch (const Error& e) {  // --vocab came from the data, or the checkpoint is too old to know all flags
    fail("%s: give the same --vocab and other flags that the run began with, or name another --out", e.what());
  }
  trainer.load(*checkpoint);
  printf("resume: step %zu of %s\n", trainer.steps_done(), checkpoint->path().c_str());
  return true;
}

void print_sample(Trainer& trainer, const Data& data, const std::optional<Tokenizer>& tokenizer) {
  const Config& c = trainer.config;
  if (c.sample_tokens == 0 || interrupted()) return;
  // The prompt is one token, the first of the validation data. sequence() also writes the token that follows it.
  std::vector<int> tokens(2);
  (data.val ? data.val : data.train)->sequence(0, 1, tokens.data());
  std::vector<std::vector<int>> sequences = {{tokens[0]}};
  continue_sequences(sequences, c.sample_tokens - 1, trainer.model, {c.temperature, c.top_k, c.seed, c.top_p},
                     [] { return true; });
  printf("\nsample (temperature %g, seed %llu):\n%s\n", c.temperature, (unsigned long long)c.seed,
         text_of(sequences[0], data.train->is_text(), tokenizer ? &*tokenizer : nullptr).c_str());
}

// Where --out may be written to: by a run that goes on, or one that begins.
void require_no_other_run(const Config& c) {
  const bool own = c.resume || (c.evaluate && !c.source);
  require(c.out.empty() || own || (!find_latest(c.out) && !is_there(best_checkpoint(c.out))),
          "--out=%s: holds a run's checkpoints already: %sname another folder", c.out.c_str(),
          c.evaluate ? "" : "add --resume to go on with it, or ");
}

// What all ranks must agree on: the program, the flags, the data, the step to go on from.
std::string identity(Config& c, const RunMetadata& metadata, size_t step) {
  const std::set<std::string> of_each = {"--device", "--threads", "--recompute", "--graph"};
  std::string text = format("step=%zu\n", step);
  for (const Flag& f : list_flags(c))  // those that are no metadata say when ranks meet
    if (f.kind >= Flag::Kind::run && !of_each.contains(f.name)) text += f.name + "=" + f.get() + "\n";
  for (const auto& all : {c.program_version, metadata})
    for (const auto& [key, value] : all) text += (key.starts_with("flag") ? key.substr(4) : key) + "=" + value + "\n";
  return text;
}

// The first line of a text that is another in `expected`, and that one.
std::pair<std::string, std::string> difference(const std::string& text, const std::string& expected) {
  std::istringstream a(text), b(expected);
  std::string x, y;
  while (true) {
    const bool more = bool(std::getline(a, x));
    if (!std::getline(b, y) && !more) return {};
    if (x != y) return {x, y};
  }
}

void require_one_run(const Ranks& ranks, const std::string& identity) {
  if (ranks.alone()) return;
  const std::vector<std::string> all = ranks.all_texts(identity);
  for (size_t i = 1; i < all.size(); i++) {
    const auto [theirs, ours] = difference(all[i], all[0]);
    require(all[i] == all[0], "rank %zu has %s, rank 0 has %s: all ranks take the same program, flags and data", i,
            theirs.c_str(), ours.c_str());
  }
}

// As many slices for every rank; else what makes the same tokens a step with ranks that divide it.
void require_ranks_divide(const Config& c, const Ranks& ranks) {
  const size_t R = ranks.count(), G = c.slice_count(), sequences = c.batch * c.micro_batches;
  if (G % R == 0) return;
  size_t M = round_up(c.micro_batches, R);
  while (M <= sequences && sequences % M) M += R;
  const std::string remedy =
      M <= sequences ? format("--batch=%zu --micro-batches=%zu%s makes the same tokens a step; or ", sequences / M, M,
                              usual_slices(M) % R ? format(" --slices=%zu", M).c_str() : "")
                     : "";
  fail(
      "%zu ranks and %zu slices of a step (--slices, --micro-batches=%zu): every rank takes as many: %sstart a number "
      "of ranks that divides %zu",
      R, G, c.micro_batches, remedy.c_str(), G);
}

int train(Config& config, Device device, const Ranks& ranks) {
  use_threads(config.threads);
  Context ctx(device);
  use_engines(ctx, config);
  require(ranks.alone() || !config.generate,
          "--generate on %zu ranks: a text is written token by token, which one rank does; start one", ranks.count());
  if (config.generate) return generate(config, ctx);
  if (!config.evaluate) hear_save_requests();

  const Data data = open_data(config.data);
  config.model.vocab = data.train->vocab();
  if (config.source || !config.tokenizer.empty()) {
    if (data.train->is_text()) require_no_tokenizer(config, "--data", config.data.data);
    if (data.val && data.val->is_text()) require_no_tokenizer(config, "--val-data", config.data.val_data);
  }
  std::optional<Tokenizer> tokenizer;  // without one a text's bytes are themselves
  if (!config.tokenizer.empty() || (!config.evaluate && !data.train->is_text())) tokenizer = find_tokenizer(config);
  choose_ffn_width(config);
  if (!config.evaluate) require_ranks_divide(config, ranks);
  if (config.source && !config.evaluate && !(config.resume && !list_checkpoints(config.out).empty()))
    config.source->require_fit(config.model);
  const TokenLoader loader(data, {config.batch, config.model.context, config.micro_batches}, config.seed);

  require(!config.evaluate || data.val,
          "--evaluate: there is no validation data: raise --val-fraction (now 0), or give --val-data");

  const bool evaluates_own = config.evaluate && !config.source;  // of --out, where nothing is written before it is read
  const bool writes = !config.out.empty() && ranks.leads();
  if (writes && !evaluates_own) as_flag_names("--out", config.out, [&] { prepare_checkpoint_folder(config.out); });
  std::optional<File> held;  // two runs in one folder would overwrite each other's log
  if (writes && !config.evaluate) held.emplace(hold_folder(config.out));
  // Measured before the model is allocated: the matrices of the measurement are freed by then.
  const double peak = config.evaluate ? 0 : measured_matmul_peak(config.model.storage, ctx);
  const auto metadata = run_metadata(config, data);
  if (!config.out.empty()) require_utf8(metadata);
  require_no_other_run(config);
  if (config.evaluate) {
    require_one_run(ranks, identity(config, metadata, 0));
    evaluate(config, metadata, loader, ctx, ranks);
    return 0;
  }
  Trainer trainer(config, loader, ctx, ranks);
  const bool resumed = config.resume && resume(trainer, metadata);
  if (config.source && !resumed) trainer.start_from(*config.source);
  require_one_run(ranks, identity(config, metadata, trainer.steps_done()));
  if (writes) keep_tokenizer(config, config.out);

  std::optional<DiskUse> disk;
  if (writes && trainer.steps_done() < config.steps) {
    disk = disk_use(config, trainer.checkpoint_bytes(metadata));
    require_disk(config, *disk);
  }
  // What may be refused has been: from here on files are deleted.
  Progress progress(config, data, metadata, trainer, peak, ctx);
  if (resumed && writes) {  // one killed in a save has not
    name_best(config.out, progress.lowest_step());
    keep_newest(config.out, trainer.steps_done(), config.keep, config.schedule.stable_until());
  }
  progress.header(disk);
  train_to_the_end(trainer, data, metadata, progress, ctx);
  progress.finish();
  if (trainer.steps_done() < config.steps) {
    fprintf(interrupted() == SIGPIPE ? stderr : stdout, "interrupted after step %zu of %zu: %s\n", trainer.steps_done(),
            config.steps,
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
