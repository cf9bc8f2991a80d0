// optimizer: AdamW over every parameter, with the gradient of a step summed over its micro-batches.
//
// A step is G slices (--slices) of as many consecutive micro-batches each. A slice starts from zero, and its
// micro-batches add to it in place, as a backward does. Slices add up in ascending order, eight to a group, and groups
// in ascending order:
//
//   total = ((s_0 + s_1) + ... + s_7)  +  ((s_8 + s_9) + ... + s_15)  +  ...
//
// So a slice has the same bits wherever and whenever it is computed, and so has their sum. R ranks compute R slices side
// by side; each owns a part of the parameters, whole chunks of the norm's sum, and adds, keeps and moves that part
// alone (docs/ranks.md).
//
// What is AdamW's stands here and nowhere else: the states that it keeps, the tables that it reads, its update.
// Checkpoints, memory and the run's header ask for them by name or in bytes. Its settings are flags
// (training/flags/flags.cpp).
// tests/test_trainer.cpp
#pragma once
#include "kernels/adamw.h"
#include "kernels/gradient.h"
#include "layers/parameters.h"
#include "layers/pass.h"
#include "training/ranks/ranks.h"

namespace gated {

class Optimizer {
 public:
  static constexpr const char* name = "AdamW";
  // What it keeps from step to step: of every parameter an array of the same shape, which starts at 0. Together they
  // are a flat buffer, as the weights are. A checkpoint names them by prefix and parameter.
  struct State {
    std::string prefix;
    Buffer<float> values;
  };
  static constexpr const char* state_prefixes[] = {"optimizer.m.", "optimizer.v."};  // the first and the second moment
  static size_t state_bytes(const Parameters& weights, size_t ranks) {
    return std::size(state_prefixes) * most_owned(weights, ranks) * sizeof(float);
  }

  static constexpr size_t group = 8;
  // Elements of a rank's own part, and of all its buffers of gradients: that of a slice is whole, the sum of slices and,
  // of more than one group, the group are of the own part.
  static size_t most_owned(const Parameters& weights, size_t ranks) {
    const size_t chunks = ceil_div(gradient_chunks(weights.flat_size()), ranks);
    return std::min(weights.flat_size(), chunks * buffer_chunk);
  }
  static size_t gradient_values(const Parameters& weights, size_t slices, size_t ranks) {
    const size_t owned = most_owned(weights, ranks);
    return weights.flat_size() + ((slices > 1) + (slices > group)) * owned + (ranks > 1) * std::min(owned, window) * ranks;
  }

  Optimizer(Parameters& weights, size_t slices, Context& ctx, const Ranks& ranks = {})
      : weights_(weights),
        ctx_(ctx),
        ranks_(ranks),
        slices_(slices),
        chunks_(gradient_chunks(weights.flat_size())),
        own_(elements_of(ranks.rank())),
        plan_(tensors(weights, own_), ctx),
        norm_(ctx.device, 1),
        part_norm_(ctx.device, 1),
        sums_(ctx.device, chunks_ + 1) {
    for (const char* prefix : state_prefixes) {
      states.push_back({prefix, Buffer<float>(ctx.device, own_.size())});
      set_zero(states.back().values.data(), own_.size(), ctx_);
    }
    if (slices > 1) total_ = Buffer<float>(ctx.device, own_.size());
    if (slices > group) group_ = Buffer<float>(ctx.device, own_.size());
    if (!ranks.alone()) {
      const size_t most = std::min(most_owned(weights, ranks.count()), window);
      pieces_ = Buffer<float>(ctx.device, most * ranks.count());
    }
  }

  // The elements of the flat buffers that this rank owns: their sum of gradients, their moments and their update.
  Span own() const { return own_; }
  Span elements_of(size_t rank) const {
    const Span chunks = share_of(chunks_, rank, ranks_.count());
    const size_t n = weights_.flat_size();
    return {std::min(n, chunks.begin * buffer_chunk), std::min(n, chunks.end * buffer_chunk)};
  }

  // On the host of the leading rank, of a parameter what state i has, from all its owners: a call of all ranks.
  void gather_state(float* to, size_t i, const Parameter& p) const {
    const size_t R = ranks_.count();
    const auto part = [&](size_t rank) {
      const Span all = elements_of(rank);
      return Span{std::clamp(all.begin, p.offset, p.offset + p.size), std::clamp(all.end, p.offset, p.offset + p.size)};
    };
    const Span own = part(ranks_.rank());
    float* const here = to + (own.begin - p.offset);
    if (own.size())
      Buffer<float>::copy_to_host(ctx_.device, here, states[i].values.data() + (own.begin - own_.begin), own.size());
    if (ranks_.alone()) return;
    std::vector<ranks::Part> out(R), in(R);
    out[0] = {here, own.size() * sizeof(float)};
    for (size_t rank = 0; rank < R && ranks_.leads(); rank++)
      in[rank] = {to + (part(rank).begin - p.offset), part(rank).size() * sizeof(float)};
    ranks_.exchange(out, in);
  }

  void begin_slice() { set_zero(weights_.grads.data(), weights_.grads.size(), ctx_); }
  // In ascending order. What the slice's micro-batches left joins its group, and a group that is whole the sum. Of R
  // ranks each calls it for its own slice of R consecutive ones; all of them are added here, each part by its owner.
  void end_slice(size_t slice) {
    if (!ranks_.alone())
      exchange(slice - ranks_.rank());
    else if (slices_ > 1)
      add(slice, weights_.grads.data(), 1, 0, 0, own_.size());
  }

  // What the updates from here on are told goes up to the device. The gradient is scaled down to a norm of `clip` where
  // its norm is larger.
  void set_step(AdamWHyperparameters settings, float learning_rate, size_t step, float clip) {
    settings.learning_rate = learning_rate;
    plan_.set_step(adamw_at_step(settings, step, clip), ctx_);
  }
  // Moves every parameter: each rank its own part, which it then hands to the others.
  void update() {
    Range range("optimizer");
    gradient_squares(sums_.data() + own_.begin / buffer_chunk, gradient(), own_.size(), ctx_);
    ranks_.all_gather(sums_.data(), [&](size_t i) { return share_of(chunks_, i, ranks_.count()); }, ctx_);
    gradient_root(norm_.data(), sums_.data(), chunks_, ctx_);
    const size_t begin = own_.begin;
    bf16* const copies = weights_.copies.size() ? weights_.copies.data() + begin : nullptr;
    float *const m = states[0].values.data(), *const v = states[1].values.data();
    adamw_update(weights_.values.data() + begin, m, v, copies, gradient(), norm_.data(), plan_, ctx_);
    if (ranks_.alone()) return;
    ranks_.all_gather(weights_.values.data(), [&](size_t i) { return elements_of(i); }, ctx_);
    weights_.round_copies(ctx_);
  }
  // The norm of a part of that gradient, before clipping: n elements of the flat buffer from `begin` on, by the chunks
  // of the whole. A call of all ranks, which waits for the device.
  float norm_of(size_t begin, size_t n) {
    const size_t end = begin + n, first = begin / buffer_chunk;
    const Span own = {std::max(begin, own_.begin), std::min(end, own_.end)};
    // Up to the end of its chunk, then what is left.
    for (size_t at = own.begin; at < own.end;) {
      const size_t next = at % buffer_chunk ? std::min(own.end, round_up(at, buffer_chunk)) : own.end;
      gradient_squares(sums_.data() + at / buffer_chunk - first, gradient() + (at - own_.begin), next - at, ctx_);
      at = next;
    }
    const size_t chunks = ceil_div(end, buffer_chunk) - first;
    const auto chunks_of = [&](size_t rank) {
      const Span all = share_of(chunks_, rank, ranks_.count());
      return Span{std::clamp(all.begin, first, first + chunks) - first, std::clamp(all.end, first, first + chunks) - first};
    };
    ranks_.all_gather(sums_.data(), chunks_of, ctx_);
    gradient_root(part_norm_.data(), sums_.data(), chunks, ctx_);
    ctx_.synchronize();
    return part_norm_.download()[0];
  }
  static size_t table_bytes(const Parameters& weights) {
    return AdamWPlan::bytes(tensors(weights, {0, weights.flat_size()})) +
           (gradient_chunks(weights.flat_size()) + 1) * sizeof(float);
  }

  // The norm of the gradient of the last update, before clipping: one float on the device.
  const float* norm() const { return norm_.data(); }

 private:
  // A rank's part is exchanged in so many elements at a time: what is received takes no more memory than that of each.
  static constexpr size_t window = 64 * buffer_chunk;

  // Those that lie in a part, from its beginning.
  static std::vector<AdamWTensor> tensors(const Parameters& weights, Span part) {
    std::vector<AdamWTensor> list;
    for (const Parameter& p : weights.list()) {
      const size_t begin = std::max(p.offset, part.begin), end = std::min(p.offset + p.size, part.end);
      if (begin < end) list.push_back({begin - part.begin, end - begin, p.decay == Decay::yes});
    }
    return list;
  }
  // Adds `count` slices, from the first on, to n elements of the own part from `begin` on. The slices' pieces lie `step`
  // apart.
  void add(size_t first, const float* pieces, size_t count, size_t step, size_t begin, size_t n) {
    for (size_t slice = first; slice < first + count;) {
      const size_t end = std::min(first + count, round_up(slice + 1, group));  // of its group
      float* const total = total_.data() + begin;
      float* const sum = slice < group ? total : group_.data() + begin;  // the first group is what others are added to
      add_slices(sum, slice % group == 0, pieces + (slice - first) * step, end - slice, step, n, ctx_);
      const bool whole = end % group == 0 || end == slices_;
      if (slice >= group && whole) accumulate_gradient(total, sum, n, ctx_);
      slice = end;
    }
  }
  // The round of slices from `first` on, one of each rank: every owner gets its part of them, window by window.
  void exchange(size_t first) {
    const size_t R = ranks_.count();
    ctx_.synchronize();
    const HostView<float> grads(weights_.grads);
    std::vector<float> host(ctx_.device == Device::cuda ? pieces_.size() : 0);
    float* const received = host.empty() ? pieces_.data() : host.data();
    for (size_t at = 0; at < most_owned(weights_, R); at += window) {
      const auto in_window = [&](Span part) {
        return Span{std::min(part.end, part.begin + at), std::min(part.end, part.begin + at + window)};
      };
      const Span own = in_window(own_);
      std::vector<ranks::Part> out(R), in(R);
      for (size_t i = 0; i < R; i++) {
        const Span theirs = in_window(elements_of(i));
        out[i] = {const_cast<float*>(grads.data()) + theirs.begin, theirs.size() * sizeof(float)};
        in[i] = {received + i * own.size(), own.size() * sizeof(float)};
      }
      ranks_.exchange(out, in);
      if (!host.empty()) Buffer<float>::copy_to_device(ctx_.device, pieces_.data(), received, R * own.size());
      add(first, pieces_.data(), R, own.size(), own.begin - own_.begin, own.size());
      ctx_.synchronize();
    }
  }
  const float* gradient() const { return slices_ > 1 ? total_.data() : weights_.grads.data(); }

  Parameters& weights_;
  Context& ctx_;
  const Ranks ranks_;
  const size_t slices_;
  const size_t chunks_;
  const Span own_;
  AdamWPlan plan_;
  Buffer<float> norm_, part_norm_;
  Buffer<float> sums_;  // of chunks, of the norm. (A part of the chunks may begin and end inside of one.)
  Buffer<float> total_, group_, pieces_;

 public:
  std::vector<State> states;  // in the order of their prefixes
};

}  // namespace gated
