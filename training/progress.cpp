#include "training/progress.h"

#include <omp.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/clock.h"
#include "dataloader/bigram_entropy.h"
#include "training/checkpoint/checkpoint.h"
#include "training/flags/flags.h"
#include "training/inspect/measures.h"
#include "training/memory.h"
#include "training/flags/model_source.h"
#include "training/process/terminal.h"
#include "training/process/version.h"
#include "training/trainer.h"

namespace gated {

static std::string duration(double seconds) {
  if (!(seconds < 1e8)) return "years";
  const size_t s = seconds < 0 ? 0 : size_t(seconds + 0.5);
  return s < 3600 ? format("%zu:%02zu", s / 60, s % 60) : format("%zu:%02zu:%02zu", s / 3600, s / 60 % 60, s % 60);
}

Progress::Progress(Config& config, const Data& data, const RunMetadata& metadata, const Trainer& trainer, double peak,
                   Context& ctx)
    : config_(config),
      data_(data),
      metadata_(metadata),
      trainer_(trainer),
      ctx_(ctx),
      terminal_(isatty(fileno(stdout)) && trainer.ranks.alone()),  // (mpirun passes on what a terminal of its own got)
      peak_(peak) {
  if (!config.out.empty() && trainer.ranks.leads()) open_log(config.out + "/log.jsonl", trainer.steps_done());
  lowest_ = trainer.ranks.all(lowest_)[0];  // all ranks save together, those that have no log too
}

// Neither a time nor a name of the machine stands in it: two runs differ in it where they are not the same.
std::string Progress::run_entry() const {
  nlohmann::ordered_json run = {{"command", config_.typed}, {"flags", nlohmann::ordered_json::object()}};
  for (const Flag& f : list_flags(config_)) run["flags"][f.name] = f.get();
  for (const auto& [key, value] : metadata_)
    if (!key.starts_with("flag")) run[key] = value;
  for (const auto& [key, value] : config_.program_version) run[key] = value;
  run["cpu"] = cpu_model();
  run["threads"] = omp_get_max_threads();
  run["device"] = name_of(ctx_.device);
#ifdef __CUDACC__
  int id = 0;
  cudaDeviceProp gpu = {};
  if (cudaGetDevice(&id) == cudaSuccess && cudaGetDeviceProperties(&gpu, id) == cudaSuccess) run["gpu"] = gpu.name;
#endif
  return nlohmann::ordered_json({{"step", trainer_.steps_done()}, {"run", run}})
      .dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);  // what was typed may be no UTF-8
}

void Progress::header(const std::optional<DiskUse>& disk) {
  if (trainer_.steps_done() < config_.steps) write(run_entry());
  const Model& m = trainer_.model;
  const TrainingMemory memory =
      training_memory(m.config, config_.batch, m.context(), config_.slice_count(), ctx_.device, trainer_.ranks.count());
  const auto print = [width = terminal_width()](const char* name, const std::string& text) {
    fputs(wrapped(format("%-11s", name), text, 11, width).c_str(), stdout);
  };
  if (config_.source) {
    const float rate = config_.schedule.peak;
    const bool chosen = rate == rate_of_trained(m.config.hidden);
    print("from", config_.source->path() +
                      (chosen ? format(", at a peak rate of %.2g: what has learned already takes at most 3e-4 and "
                                       "0.04 / --hidden; --lr names another",
                                       double(rate))
                              : ""));
  }
  print("flags", changed_flags_text(config_));
  print("device",
        name_of(ctx_.device) +
            (ctx_.device == Device::cpu
                 ? format(", %d thread%s", omp_get_max_threads(), omp_get_max_threads() == 1 ? "" : "s")
                 : "") +
            (peak_ > 0 ? format(", %s matmul peak %.0f GFLOP/s (measured)", name_of(m.config.storage), peak_ * 1e-9)
                       : ""));
  if (const Ranks& r = trainer_.ranks; !r.alone())
    print("ranks",
          format("%zu, %zu on this host, by %s, %zu of %zu slices each; what follows is of one", r.count(),
                 r.on_this_host(),
                 r.by_nccl() ? format("NCCL, which took %zu MiB of its GPU", r.nccl_bytes() >> 20).c_str() : "MPI",
                 config_.slice_count() / r.count(), config_.slice_count()));
  if (!config_.gpu_left_out.empty())
    print("", format("the half for GPUs was left out of this build: %s adds it", config_.gpu_left_out.c_str()));
  print("data", data_.train->description());
  print("", format("%zu tokens a step, epoch of %.1f steps", trainer_.tokens_per_step(), trainer_.steps_per_epoch()));
  print("model",
        format("%zu parameters%s, %.2f MFLOP a token, %.0f MiB (weights, gradients, %s, activations, scratch%s)",
               m.weights.total(),
               m.config.has_experts() ? format(", %zu of them active", m.weights.active()).c_str() : "",
               m.flops_per_token(m.context()) * 1e-6, double(memory.total() + trainer_.program_bytes) / 1048576,
               Optimizer::name, trainer_.program_bytes ? ", program" : ""));
  if (disk) print("disk", disk_text(config_, *disk));
  if (data_.val && data_.train->is_text()) {
    const double entropy = bigram_entropy(*data_.val, config_.model.context);
    print("bigrams",
          format("entropy %.4f nats: what knowing the last token alone can reach on the validation data", entropy));
    if (trainer_.steps_done() == 0) write(nlohmann::ordered_json({{"step", 0}, {"bigram_entropy", entropy}}).dump());
  }
  printf("\n");
  fflush(stdout);
  begin_ = last_ = seconds_now();
  first_step_ = trainer_.steps_done();
}

// "step  12/600", numbers below one another.
std::string Progress::place(size_t step) const {
  const std::string steps = std::to_string(config_.steps);
  return format("step %*zu/%s", int(steps.size()), step, steps.c_str());
}

void Progress::step(const StepResult& r) {
  const size_t step = r.step;
  const double now = seconds_now(), seconds = now - last_;
  last_ = now;
  const double tokens_per_second = double(trainer_.tokens_per_step()) / seconds;
  const std::string left = duration((now - begin_) / double(step - first_step_) * double(config_.steps - step));
  const double norm = double(r.gradient_norm), rate = double(r.learning_rate);
  std::vector<Column> columns = {{place(step)},
                                 {format("loss %.4f", double(r.loss))},
                                 {format("norm %7.4f", norm), format("norm %6.3f", norm)},
                                 {format("lr %.2e", rate), format("lr %.1e", rate)},
                                 {format("%8.0f tok/s", tokens_per_second), format("%6.0f tok/s", tokens_per_second),
                                  format("%5.1fk/s", tokens_per_second * 1e-3)}};
  if (peak_ > 0) {
    const double share = 100 * tokens_per_second * trainer_.model.flops_per_token(trainer_.model.context()) / peak_;
    columns.push_back({format("%4.1f%% of peak", share), format("%2.0f%% peak", share), format("%2.0f%%", share)});
  }
  if (r.routing) {
    const Routing& e = *r.routing;
    const double busiest = 100 * double(e.busiest_share);
    columns.push_back(
        {format("balance %.3f, busiest %.0f%%, idle %zu", double(e.balance_loss), busiest, e.idle_experts),
         format("balance %.2f", double(e.balance_loss)), format("bal %.2f", double(e.balance_loss))});
  }
  columns.push_back({left + " left", left});
  const size_t width = terminal_width();  // now, not before: a window may change at any time
  clear_bar();
  if (step % config_.log_every == 0 || step == first_step_ + 1 || step == config_.steps)
    printf("%s\n", fitted(columns, width).c_str());
  draw_bar(step, left, width);
  fflush(stdout);
  nlohmann::ordered_json entry = {{"step", step},
                                  {"loss", r.loss},
                                  {"gradient_norm", r.gradient_norm},
                                  {"learning_rate", r.learning_rate},
                                  {"seconds", seconds}};
  if (r.routing) {
    entry["balance_loss"] = r.routing->balance_loss;
    entry["z_loss"] = r.routing->z_loss;
    entry["busiest_expert"] = r.routing->busiest_share;
    entry["routing_entropy"] = r.routing->entropy;
    entry["idle_experts"] = r.routing->idle_experts;
  }
  for (const RankStep& rank : r.ranks) {
    entry["compute_seconds_by_rank"].push_back(rank.compute);
    entry["exchange_seconds_by_rank"].push_back(rank.exchange);
    entry["early_share_by_rank"].push_back(rank.early_share);
  }
  write(entry.dump());
}

bool Progress::validation(size_t step, double loss) {
  clear_bar();
  printf("%s  validation loss %.4f\n", place(step).c_str(), loss);
  fflush(stdout);
  write(nlohmann::ordered_json({{"step", step}, {"validation_loss", loss}}).dump());
  last_ = seconds_now();
  return is_lowest(step, loss);
}

bool Progress::is_lowest(size_t step, double loss) {
  if (!(loss < lowest_)) return false;
  lowest_ = loss;
  lowest_step_ = step;
  return true;
}

void Progress::measures(size_t step, Measures m) {
  clear_bar();
  if (!first_outlier_step_ && m.has_outlier()) first_outlier_step_ = step;
  m.first_outlier_step = first_outlier_step_;
  if (step == config_.steps) printf("\n%s", measures_text(m, terminal_width()).c_str());
  fflush(stdout);
  write(measures_entry(step, m));
  last_ = seconds_now();
}

void Progress::saved(size_t asked_for) {
  if (asked_for) {
    clear_bar();
    printf("%s  saved, as SIGUSR1 asks\n", place(asked_for).c_str());
    fflush(stdout);
  }
  last_ = seconds_now();
  if (write_rest()) return;  // the checkpoint has taken the place of an older one: there may be room
  fprintf(stderr, "warning: %s: cannot write: %s: its last %zd lines are missing, and are tried again with the next\n",
          log_->path().c_str(), strerror(log_error_), std::count(unwritten_.begin(), unwritten_.end(), '\n'));
}

void Progress::finish() {
  clear_bar();
  printf("\n%zu steps in %s\n", trainer_.steps_done() - first_step_, duration(seconds_now() - begin_).c_str());
  const std::string best = best_checkpoint(config_.out);
  if (lowest_step_ > 0 && lowest_step_ < trainer_.steps_done() && !config_.out.empty() && is_there(best))
    printf("lowest validation loss %.4f, of step %zu: %s\n", lowest_, lowest_step_, best.c_str());
  fflush(stdout);
}

// A resumed run has the log that an uninterrupted one would have: lines after its checkpoint go. The shortened log
// takes the place of the old one in one step, so that a kill in between loses neither.
void Progress::open_log(const std::string& named, size_t steps_done) {
  std::error_code error;
  const bool is_file = std::filesystem::is_regular_file(named, error);
  const std::string path = is_file ? std::filesystem::canonical(named).native() : named;  // a link stays one
  const bool there = std::filesystem::exists(std::filesystem::symlink_status(path, error));
  std::istringstream old(there ? read_file(path)
                               : "");  // one that cannot be read is not replaced by one without its lines
  AtomicFile shortened(path);
  for (std::string line; steps_done > 0 && std::getline(old, line);) {
    const auto entry = nlohmann::json::parse(line, nullptr, false);
    if (!entry.is_object() || !entry.contains("step") || !entry["step"].is_number_unsigned()) continue;
    // (The steps of a run that was resumed at this one are gone: this one computes them.)
    if (const size_t step = entry["step"]; step > steps_done || (step == steps_done && entry.contains("run"))) continue;
    if (const auto loss = entry.find("validation_loss"); loss != entry.end() && loss->is_number())
      is_lowest(entry["step"], *loss);
    if (const auto first = entry.find("first_outlier_step"); first != entry.end() && first->is_number_unsigned())
      first_outlier_step_ = first->get<size_t>();
    line += '\n';
    shortened.write(line.data(), line.size());
  }
  shortened.commit();
  log_.emplace(path, O_WRONLY | O_APPEND);
}

// At once, so that the log is on its way to the disk before the weights that stand on it. A disk that is full for a
// while costs no line: what a write leaves over, be it half a line, waits for the next.
void Progress::write(const std::string& line) {
  if (!log_) return;
  unwritten_ += line + "\n";
  write_rest();
}

bool Progress::write_rest() {
  while (!unwritten_.empty()) {
    const ssize_t put = ::write(log_->descriptor(), unwritten_.data(), unwritten_.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return log_error_ = errno, false;
    unwritten_.erase(0, size_t(put));
  }
  return true;
}

// The cursor waits at the bar's first column. A terminal that is made narrower breaks the bar into rows below the
// cursor, and clearing from there to the end of the screen takes all of them.
void Progress::clear_bar() const {
  if (terminal_) printf("\r\033[J");
}

void Progress::draw_bar(size_t step, const std::string& left, size_t width) const {
  if (!terminal_) return;
  const std::string text = format(" %zu%%, %s left", 100 * step / config_.steps, left.c_str());
  const size_t room = width > text.size() + 2 ? width - text.size() - 2 : 0, length = std::min<size_t>(room, 50);
  const size_t filled = length * step / config_.steps;
  printf("[%s%s]%s\r", std::string(filled, '#').c_str(), std::string(length - filled, '.').c_str(), text.c_str());
}

}  // namespace gated
