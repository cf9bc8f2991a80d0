// trainer: what a run has from step to step: the model, the optimizer, the place in the data; what of it a checkpoint
// holds; and what a step reports.
//
// The state of a run is the step, the weights and the optimizer's states; which tokens a step sees and which learning
// rate it has are functions of the step. So a run that is resumed cannot differ from one that was not.
//
// The host does not wait for the device inside a step. Loss and gradient norm of a step travel while the next one runs:
// next_result() gives those that are due. tests/test_trainer.cpp
#pragma once
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/graph.cuh"
#include "dataloader/loader.h"
#include "layers/model.h"
#include "training/checkpoint/checkpoint.h"
#include "training/flags/config.h"
#include "training/flags/model_source.h"
#include "training/optimizer.cuh"

namespace gated {

// How the last micro-batch of a step was routed, over all layers with experts. kernels/router.h
struct Routing {
  float balance_loss, z_loss;  // means, without their factors
  float busiest_share;         // of a layer's slots, the largest of any expert
  float entropy;               // of the shares of a layer's experts, in nats; the mean
  size_t idle_experts;         // experts without a token, added up
};

// A step on one of several ranks: seconds in exchanges, the waiting for other ranks included, and in all else; of the
// gradients that others sent, the share that had come before this rank's backward ended.
struct RankStep {
  double compute, exchange, early_share;
};

struct StepResult {
  size_t step;
  float loss;           // mean over the step's targets, before the update
  float gradient_norm;  // before clipping
  float learning_rate;
  std::optional<Routing> routing;  // where there are experts
  std::vector<RankStep> ranks;     // by rank, where there are several
};

class Trainer {
 public:
  // Refuses before anything is allocated what the device has no memory for.
  Trainer(const Config& config, const TokenLoader& loader, Context& ctx, const Ranks& ranks = {});

  const Config& config;
  const Ranks ranks;
  const size_t program_bytes;  // that the process held before the model came; 0 on a GPU, whose memory is another
  Model model;
  Optimizer optimizer;

  size_t steps_done() const { return steps_done_; }
  size_t tokens_per_step() const { return ids_.size() * config.micro_batches; }
  double steps_per_epoch() const;

  // ---- for training_step()

  void begin_step() { step_begin_ = seconds_now(), exchanged_before_ = ranks.exchange_seconds(); }
  // The tokens of micro-batch m of the step after those that are done. They stay until the next call.
  Batch training_batch(size_t m);
  // The number of that micro-batch in the run.
  uint64_t micro_batch_number(size_t m) const { return steps_done_ * config.micro_batches + m; }
  // Where its mean loss goes, on the device, and from there among those of the step.
  float* loss() { return loss_.data(); }
  void keep_loss(size_t m) { copy_rows(losses() + m, 1, loss(), 1, 1, 1, ctx_); }
  float* losses() { return losses_.data(); }
  // The launches of its forward and backward, which differ between the first of a slice and the others, and between the
  // last, whose gradients travel meanwhile, and the others; and those of the step's update. With --graph=on they are
  // recorded.
  LaunchGraph& graph(const MicroBatch& micro_batch) {
    slice_ = micro_batch.slice();
    return graphs_[micro_batch.begins_slice() + 2 * (micro_batch.ends_slice() && !ranks.alone())];
  }
  LaunchGraph& update_graph() { return update_graph_; }
  // Refuses weights that are not those of the other ranks, before they move: where a bit has changed in memory or on
  // the way. An owner's update would hide that, or hand it to all. It waits for the device.
  void require_equal_weights();
  // The step is launched: its loss and norm start on their way to the host. Of several ranks each gets what the others'
  // micro-batches left.
  void end_step();

  // The first result that has not been given yet; it waits for that step and for no later one. Nothing where only the
  // newest `in_flight` steps are left. Refuses a step whose loss or norm is not finite: training has diverged.
  std::optional<StepResult> next_result(size_t in_flight = 0);

  // ---- between steps

  // The norm of the gradient of each layer's parameters in the last step, before clipping. (layers)
  std::vector<float> gradient_norm_by_layer();
  // Mean loss over the first `batches` validation batches, or over all where there are fewer. The inspectors see what
  // each of them leaves in the model; without inspectors the batches are shared out among the ranks.
  double validate(size_t batches, const std::vector<Inspector*>& inspectors = {});
  // Forwards alone, over the first `count` micro-batches of the run; look() is called after each.
  void look_at_training(size_t count, const std::function<void()>& look);
  // 16 hex digits over every weight's name, shape and bits.
  std::string fingerprint();
  // A call of all ranks; the leading one writes.
  void save(std::map<std::string, std::string> metadata);
  // How large what it saves is.
  size_t checkpoint_bytes(const std::map<std::string, std::string>& metadata) const;
  void load(const Checkpoint& checkpoint);
  // The weights alone, at step 0.
  void start_from(const ModelSource& source);

 private:
  void set_weights(const std::function<void(float* whole)>& fill);
  void gather_reports();
  std::optional<Routing> routing(const float* reports) const;
  std::vector<TensorForm> saved_tensors() const;

  const TokenLoader& loader_;
  Context& ctx_;
  size_t steps_done_ = 0, results_given_ = 0;
  std::optional<StepResult> lowest_;  // of those that were given, by its loss
  std::vector<int> ids_, targets_;
  LaunchGraph graphs_[4], update_graph_;
  size_t slice_ = 0;                                                 // that is computed
  Buffer<float> loss_, losses_;                                      // of a micro-batch; of all of a step
  Readback<float> sent_losses_[2], sent_norm_[2], sent_routing_[2];  // of the last two steps, in turns
  std::vector<RankStep> by_rank_[2];                                 // likewise
  double step_begin_ = 0, exchanged_before_ = 0;
};

// One step of training: forward and backward of every micro-batch, then the update. Stands in train_gpt.cu.
void training_step(Trainer& trainer);

// A whole run, as the flags say, on one device, or this rank's part of one on several. Returns the program's exit code:
// 0, or 128 + n where signal n interrupted it. Stands in train_gpt.cu.
int train(Config& config, Device device, const Ranks& ranks = {});

}  // namespace gated
