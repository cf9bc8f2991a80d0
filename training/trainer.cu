#include "training/trainer.h"

#if __has_include(<malloc.h>)
#include <malloc.h>
#endif

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "core/hash.h"
#include "training/memory.h"

namespace gated {

namespace {

// What the process holds, once what was freed has gone back to the system.
size_t memory_of_program() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
  return host_memory_held();
}

// Before minutes go into weights that would find no room.
const ModelConfig& that_fits(const Config& c, const Context& ctx, const Ranks& ranks) {
  const Device device = ctx.device;
  const TrainingMemory m = training_memory(c.model, c.batch, c.model.context, c.slice_count(), device, ranks.count());
  const double rank = double(m.total()) + double(ctx.matmul_engine_bytes());
  require_memory(device, double(ranks.on_this_memory(memory_name(device))) * rank);
  // What takes seconds is not done in silence.
  const size_t weights = Model(c.model).weights.total();
  if (weights >= 100'000'000 && ranks.leads())
    fprintf(stderr, "note: %.2g billion weights are made\n", double(weights) * 1e-9);
  return c.model;
}

}  // namespace

Trainer::Trainer(const Config& c, const TokenLoader& loader, Context& ctx, const Ranks& among)
    : config(c),
      ranks(among),
      program_bytes(ctx.device == Device::cuda ? 0 : memory_of_program()),
      model(that_fits(c, ctx, among), c.batch, c.model.context, c.seed, ctx,
            Optimizer::masters(c.model.storage, among.count())),
      optimizer(model.weights, c.slice_count(), ctx, among),
      loader_(loader),
      ctx_(ctx),
      ids_(c.batch * c.model.context),
      targets_(ids_.size()),
      graphs_{LaunchGraph(ctx), LaunchGraph(ctx), LaunchGraph(ctx), LaunchGraph(ctx)},
      update_graph_(ctx),
      loss_(ctx.device, 1),
      losses_(ctx.device, c.micro_batches),
      sent_losses_{{c.micro_batches, ctx}, {c.micro_batches, ctx}},
      sent_norm_{{1, ctx}, {1, ctx}},
      sent_routing_{{model.routing_values(), ctx}, {model.routing_values(), ctx}} {
  ctx.reserve_scratch(training_scratch(model, ctx.device));
  ctx.reserve_staging(model.table_bytes());  // no batch, and no list that is made of one, is larger
  if (ranks.alone()) return;
  ranks.watch(ctx);
  model.before_weights = [this](size_t end) { ctx_.between_launches([=, this] { optimizer.await_weights(end); }); };
  model.after_gradients = [this](const MicroBatch& m, size_t from) {
    if (m.ends_slice()) ctx_.between_launches([=, this] { optimizer.gradients_ready(slice_, from); });
  };
}

double Trainer::steps_per_epoch() const {
  return double(loader_.epoch_sequences()) / double(config.batch * config.micro_batches);
}

// ---- a step

Batch Trainer::training_batch(size_t m) {
  loader_.training_batch(steps_done_, m, ids_.data(), targets_.data());
  return {ids_, targets_, config.batch, config.model.context};
}

void Trainer::require_equal_weights() {
  ctx_.synchronize();
  const HostView<float> values(model.weights.values);
  const HostView<bf16> copies(model.weights.copies);
  const bool whole = model.weights.masters() == Masters::whole;
  Hash hash;
  for (const Parameter& p : model.weights.list()) {  // (not what lies between them)
    if (whole || is_read_in_fp32(p.use))
      hash.bytes(values.data() + (whole ? p.offset : p.fp32_offset), p.size * sizeof(float));
    if (model.weights.copies.size()) hash.bytes(copies.data() + p.offset, p.size * sizeof(bf16));
  }
  const std::vector<std::string> all = ranks.all_texts(hash.hex());
  const auto times = [&](const std::string& one) { return std::count(all.begin(), all.end(), one); };
  const auto most = std::max_element(all.begin(), all.end(), [&](auto& a, auto& b) { return times(a) < times(b); });
  for (size_t i = 0; i < all.size(); i++)
    require(
        all[i] == *most,
        "step %zu: rank %zu has other weights than rank %td: a bit has changed in its memory or on the way; --resume "
        "goes on from the last checkpoint",
        steps_done_ + 1, i, most - all.begin());
}

void Trainer::end_step() {
  require(steps_done_ - results_given_ < 2, "trainer: the results of the last two steps were not taken");
  if (!ranks.alone()) {
    gather_reports();
    const double seconds = seconds_now() - step_begin_;
    const double exchange = std::min(seconds, ranks.exchange_seconds() - exchanged_before_);
    by_rank_[steps_done_ % 2] = ranks.all(RankStep{seconds - exchange, exchange, optimizer.early_share()});
  }
  sent_losses_[steps_done_ % 2].start(losses_.data());
  sent_norm_[steps_done_ % 2].start(optimizer.norm());
  sent_routing_[steps_done_ % 2].start(model.routing_reports());
  steps_done_++;
}

// The losses of all micro-batches, by their number, and the routing of the last one, from the rank that has it.
void Trainer::gather_reports() {
  ctx_.synchronize();
  const size_t R = ranks.count(), G = config.slice_count(), in_slice = config.micro_batches / G;
  edit_on_host(ctx_.device, losses_.data(), losses_.size(), [&](float* losses) {
    std::vector<float> by_rank(losses_.size());
    const auto place = [&](size_t slice) { return &by_rank[(slice % R * (G / R) + slice / R) * in_slice]; };
    for (size_t slice = ranks.rank(); slice < G; slice += R)
      std::copy_n(losses + slice * in_slice, in_slice, place(slice));
    ranks.all_gather(by_rank.data(), [&](size_t i) { return share_of(by_rank.size(), i, R); });
    for (size_t slice = 0; slice < G; slice++) std::copy_n(place(slice), in_slice, losses + slice * in_slice);
  });
  const size_t values = model.routing_values();
  if (values == 0) return;
  edit_on_host(ctx_.device, model.routing_reports(), values, [&](float* reports) {
    ranks.all_gather(reports, [&](size_t i) { return i + 1 == R ? Span{0, values} : Span{0, 0}; });
  });
}

std::optional<StepResult> Trainer::next_result(size_t in_flight) {
  if (results_given_ + in_flight >= steps_done_) return {};
  const size_t slot = results_given_ % 2, step = ++results_given_;
  const float* losses = sent_losses_[slot].wait();
  double loss = 0;  // every micro-batch has as many targets: the mean of the means is the mean
  for (size_t m = 0; m < config.micro_batches; m++) loss += losses[m];
  const StepResult r = {step,
                        float(loss / double(config.micro_batches)),
                        *sent_norm_[slot].wait(),
                        config.schedule.at(step),
                        routing(sent_routing_[slot].wait()),
                        by_rank_[slot]};
  const std::string best =
      lowest_ ? format("the loss was lowest, %.4f, in step %zu at a rate of %.2g: ", double(lowest_->loss),
                       lowest_->step, double(lowest_->learning_rate))
              : "";
  require(std::isfinite(r.loss) && std::isfinite(r.gradient_norm),
          "step %zu: the loss is %g and the gradient norm %g: training has diverged; %slower --lr (now %g at its peak) "
          "or lengthen --warmup. Step %zu is the last that moved the weights",
          step, double(r.loss), double(std::fabs(r.gradient_norm)), best.c_str(), double(config.schedule.peak),
          step - 1);
  if (!lowest_ || r.loss < lowest_->loss) lowest_ = r;
  return r;
}

std::optional<Routing> Trainer::routing(const float* reports) const {
  const ModelConfig& c = config.model;
  if (!c.has_experts()) return {};
  double balance = 0, z = 0, entropy = 0;
  Routing r = {};
  for (size_t layer = c.dense_layers; layer < c.layers; layer++) {
    const float* report = reports + layer * router_report_values;
    balance += double(report[0]);
    z += double(report[1]);
    r.busiest_share = std::max(r.busiest_share, report[2]);
    entropy += double(report[3]);
    r.idle_experts += size_t(report[4]);
  }
  const double layers = double(c.layers - c.dense_layers);
  r.balance_loss = float(balance / layers);
  r.z_loss = float(z / layers);
  r.entropy = float(entropy / layers);
  return r;
}

// ---- between steps

// (The padding between parameters is 0.)
std::vector<float> Trainer::gradient_norm_by_layer() {
  const std::vector<size_t> begins = model.weights.layer_begins();
  std::vector<float> norms;
  for (size_t layer = 0; layer < config.model.layers; layer++)
    norms.push_back(optimizer.norm_of(begins[layer], begins[layer + 1] - begins[layer]));
  return norms;
}

double Trainer::validate(size_t batches, const std::vector<Inspector*>& inspectors) {
  batches = std::min(batches, loader_.validation_batches());
  std::vector<float> losses(batches);
  const auto share = [&](size_t rank) { return share_of(batches, rank, ranks.count()); };
  const Span mine = inspectors.empty() ? share(ranks.rank()) : Span{0, batches};
  for (size_t i = mine.begin; i < mine.end; i++) {
    loader_.validation_batch(i, ids_.data(), targets_.data());
    losses[i] = model.loss({ids_, targets_, config.batch, config.model.context});
    if (!inspectors.empty()) model.inspect(inspectors);
  }
  if (inspectors.empty()) ranks.all_gather(losses.data(), share);
  double loss = 0;
  for (const float l : losses) loss += l;
  return loss / double(batches);
}

void Trainer::look_at_training(size_t count, const std::function<void()>& look) {
  for (size_t i = 0; i < count; i++) {
    loader_.training_batch(i / config.micro_batches, i % config.micro_batches, ids_.data(), targets_.data());
    model.upload({ids_, targets_, config.batch, config.model.context});
    model.forward();
    look();
  }
}

std::string Trainer::fingerprint() {
  const HostView<float> weights(optimizer.whole_weights());
  std::vector<TensorView> tensors;
  for (const Parameter& p : model.weights.list()) tensors.push_back({p.name, p.shape, weights.data() + p.offset});
  return gated::fingerprint(tensors);
}

// Weights, then each state: of every parameter one tensor.
std::vector<TensorForm> Trainer::saved_tensors() const {
  std::vector<TensorForm> tensors;
  for (const Parameter& p : model.weights.list()) tensors.push_back({p.name, "F32", p.shape});
  for (const Optimizer::State& state : optimizer.states)
    for (const Parameter& p : model.weights.list()) tensors.push_back({state.prefix + p.name, "F32", p.shape});
  return tensors;
}

void Trainer::save(std::map<std::string, std::string> metadata) {
  const Buffer<float>& weights = optimizer.whole_weights();
  const std::vector<TensorForm> tensors = saved_tensors();
  const bool in_place = ctx_.device != Device::cuda;  // does the host read the device's memory?
  std::vector<float> host;                            // else one tensor
  const ValuesOf values = [&](size_t i) -> const float* {
    const size_t parameters = model.weights.list().size();
    const Parameter& p = model.weights.list()[i % parameters];
    const bool is_weight = i < parameters;
    if (in_place && (is_weight || ranks.alone()))
      return (is_weight ? weights : optimizer.states[i / parameters - 1].values).data() + p.offset;
    if (!in_place) host.resize(p.size);
    // (A parameter's states are asked for after its weights, whose place this may be.)
    float* const to = in_place ? model.weights.grads.data() + p.offset : host.data();
    if (is_weight)
      Buffer<float>::copy_to_host(ctx_.device, to, weights.data() + p.offset, p.size);
    else
      optimizer.gather_state(to, i / parameters - 1, p);
    return to;
  };
  if (ranks.leads()) {
    save_step(config.out, steps_done_, tensors, values, std::move(metadata), config.keep,
              config.schedule.stable_until());
    return;
  }
  for (const size_t i : order_of_saving(tensors)) values(i);
}

size_t Trainer::checkpoint_bytes(const std::map<std::string, std::string>& metadata) const {
  return gated::checkpoint_bytes(saved_tensors(), metadata, config.steps);
}

void Trainer::load(const Checkpoint& checkpoint) {
  set_weights([&](float* host) {
    for (const Parameter& p : model.weights.list()) checkpoint.read_numbers(p.name, p.shape, host + p.offset);
  });
  for (Optimizer::State& state : optimizer.states)
    fill_from_host(state.values, [&](float* host) {
      for (const Parameter& p : model.weights.list())
        optimizer.each_owned(p, [&](size_t begin, size_t n, size_t at) {
          checkpoint.read_numbers(state.prefix + p.name, p.shape, host + at, begin, n);
        });
    });
  steps_done_ = results_given_ = checkpoint.step();
}

void Trainer::start_from(const ModelSource& source) {
  set_weights([&](float* host) { source.read(model.config, model.weights.list(), host); });
}

void Trainer::set_weights(const std::function<void(float*)>& fill) {
  fill_from_host(model.weights.whole(), fill);
  model.weights_changed();
  optimizer.weights_changed();
}

}  // namespace gated
