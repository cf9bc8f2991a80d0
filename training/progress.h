// progress: what a run prints and logs: a header, a line a step, validations, and log.jsonl for plots.
//
// Where a terminal listens, a bar with the time left stands below the lines; elsewhere there are only lines. Both fit
// the terminal's width, which may change while the run goes on.
// log.jsonl (with --out) holds one object a line: {"step","loss","gradient_norm","learning_rate","seconds"} for a
// step and {"step","validation_loss"} for a validation. A step with experts has
// {"balance_loss","z_loss","busiest_expert", "routing_entropy","idle_experts"} too, one of several ranks
// {"compute_seconds_by_rank":[..],"exchange_seconds_by_rank":[..],"early_share_by_rank":[..]}. Measures are
// {"step","first_token_attention","largest_activation",...}. It begins with {"step":0,"run":{...}}: the command, every
// flag's value, what the data is, and which program computed, on what; a run that is resumed adds one at its step. So
// the steps behind such a line, up to the next, are its. Of text {"step":0,"bigram_entropy"} comes next.
// scripts/report.py draws it. tests/test_cli.cpp
#pragma once
#include <cmath>
#include <optional>

#include "dataloader/loader.h"
#include "training/disk.h"
#include "training/flags/config.h"
#include "training/flags/run_metadata.h"
#include "training/checkpoint/safetensors.h"

namespace gated {

class Context;
class Trainer;
struct Measures;
struct StepResult;

class Progress {
 public:
  // peak: operations a second that a matrix product reaches here; 0: not known
  Progress(Config& config, const Data& data, const RunMetadata& metadata, const Trainer& trainer, double peak,
           Context& ctx);

  void header(const std::optional<DiskUse>& disk);
  void step(const StepResult& result);
  // Whether the loss is lower than those of all validations before.
  bool validation(size_t step, double loss);
  // The step of the lowest; 0: there was none.
  size_t lowest_step() const { return lowest_step_; }
  // Printed after the last step, else logged alone.
  void measures(size_t step, Measures measures);
  // Behind a checkpoint: warns where lines could not be written to the log. The time that saving takes is not the next
  // step's. Somebody waits for the one of step `asked_for`: it is printed; 0: nobody does.
  void saved(size_t asked_for);
  void finish();

 private:
  void open_log(const std::string& named, size_t steps_done);
  std::string run_entry() const;
  bool is_lowest(size_t step, double validation_loss);
  void write(const std::string& line);  // to the log
  bool write_rest();                    // what the last tries left over; whether that is nothing now
  std::string place(size_t step) const;
  void clear_bar() const;
  void draw_bar(size_t step, const std::string& left, size_t width) const;

  Config& config_;
  const Data& data_;
  const RunMetadata& metadata_;
  const Trainer& trainer_;
  Context& ctx_;
  bool terminal_;
  std::optional<File> log_;
  std::string unwritten_;  // lines of the log that wait for the next try
  int log_error_ = 0;      // the errno of the last one
  const double peak_;
  double begin_ = 0, last_ = 0;
  size_t first_step_ = 0;
  std::optional<size_t> first_outlier_step_;
  double lowest_ = INFINITY;  // of the validation losses
  size_t lowest_step_ = 0;
};

}  // namespace gated
