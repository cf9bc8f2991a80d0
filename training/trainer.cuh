// trainer: what one step of training does, what a checkpoint holds, and how a validation is taken.
//
// The state of a run is the step, the weights and AdamW's two moments; which tokens a step sees and which learning
// rate it has are functions of the step. So a run that is resumed cannot differ from one that was not.
// tests/test_trainer.cpp
#pragma once
#include <map>
#include <string>
#include <vector>

#include "dataloader/loader.h"
#include "layers/model.cuh"
#include "training/checkpoint.h"
#include "training/config.h"
#include "training/memory.h"
#include "training/optimizer.cuh"

namespace gated {

struct StepResult {
  float loss;           // mean over the step's targets, before the update
  float gradient_norm;  // before clipping
  float learning_rate;
};

class Trainer {
 public:
  Trainer(const Config& config, const TokenLoader& loader, Context& ctx)
      : config_(config),
        loader_(loader),
        model(that_fits(config, ctx.device), config.batch, config.model.context, config.seed, ctx),
        optimizer_(model.weights, config.micro_batches, ctx),
        ids_(config.batch * config.model.context),
        targets_(ids_.size()) {}

  size_t steps_done() const { return steps_done_; }
  size_t tokens_per_step() const { return ids_.size() * config_.micro_batches; }

  double steps_per_epoch() const {
    return double(loader_.epoch_sequences()) / double(config_.batch * config_.micro_batches);
  }

  StepResult step() {
    Range range("step");
    const size_t B = config_.batch, T = config_.model.context, M = config_.micro_batches;
    double loss = 0;  // of the micro-batches, added in ascending order
    optimizer_.begin_step();
    for (size_t m = 0; m < M; m++) {
      loader_.training_batch(steps_done_, m, 0, ids_.data(), targets_.data());
      optimizer_.begin_micro_batch();
      // every micro-batch has the same number of targets: the mean of the means is the mean
      loss += model.forward_backward(ids_, targets_, B, T, 1.0f / float(M), steps_done_ * M + m);
      optimizer_.end_micro_batch();
    }
    const size_t step = steps_done_ + 1;
    const StepResult r = {float(loss / double(M)), optimizer_.gradient_norm(), config_.schedule.at(step)};
    require(std::isfinite(r.loss) && std::isfinite(r.gradient_norm),
            "step %zu: the loss is %g and the gradient norm %g: training has diverged; lower --lr (now %g at its peak) "
            "or lengthen --warmup. The weights are those of step %zu",
            step, double(r.loss), double(r.gradient_norm), double(config_.schedule.peak), steps_done_);
    optimizer_.update(config_.adamw, r.learning_rate, step, config_.clip);
    steps_done_ = step;
    return r;
  }

  // Mean loss over the first `batches` validation batches, or over all where there are fewer.
  double validate(size_t batches) {
    batches = std::min(batches, loader_.validation_batches());
    double loss = 0;
    for (size_t i = 0; i < batches; i++) {
      loader_.validation_batch(i, ids_.data(), targets_.data());
      loss += model.loss(ids_, targets_, config_.batch, config_.model.context);
    }
    return loss / double(batches);
  }

  // 16 hex digits over every weight's name, shape and bits.
  std::string fingerprint() const {
    const std::vector<float> weights = model.weights.values.download();
    return gated::fingerprint(views("", weights));
  }

  void save(std::map<std::string, std::string> metadata) const {
    const std::vector<float> weights = model.weights.values.download(), m = optimizer_.m.download(),
                             v = optimizer_.v.download();
    std::vector<TensorView> tensors = views("", weights);
    for (auto& t : views("optimizer.m.", m)) tensors.push_back(t);
    for (auto& t : views("optimizer.v.", v)) tensors.push_back(t);
    save_step(config_.out, steps_done_, tensors, std::move(metadata), config_.keep);
  }
  void load(const Checkpoint& checkpoint) {
    auto read = [&](const std::string& prefix, Buffer<float>& to) {
      std::vector<float> host(to.size(), 0.0f);
      for (const Parameter& p : model.weights.list()) checkpoint.read(prefix + p.name, p.shape, host.data() + p.offset);
      to.upload(host);
    };
    read("", model.weights.values);
    read("optimizer.m.", optimizer_.m);
    read("optimizer.v.", optimizer_.v);
    steps_done_ = checkpoint.step();
  }

 private:
  // Before minutes go into weights that would find no room. One more copy of them passes through host memory.
  static const ModelConfig& that_fits(const Config& c, Device device) {
    const TrainingMemory m = training_memory(c.model, c.batch, c.model.context, c.micro_batches);
    require_memory(device, sizeof(float) * (double(m.total()) + (device == Device::cuda ? 0 : double(m.weights))));
    return c.model;
  }
  std::vector<TensorView> views(const std::string& prefix, const std::vector<float>& flat) const {
    std::vector<TensorView> tensors;
    for (const Parameter& p : model.weights.list())
      tensors.push_back({prefix + p.name, p.shape, flat.data() + p.offset});
    return tensors;
  }

  const Config& config_;
  const TokenLoader& loader_;
  size_t steps_done_ = 0;

 public:
  Model model;

 private:
  Optimizer optimizer_;
  std::vector<int> ids_, targets_;
};

}  // namespace gated
