// optimizer: AdamW over every parameter, with the gradient of a step summed over its micro-batches.
//
// A step is G slices (--slices) of as many consecutive micro-batches each. A slice starts from zero, and its
// micro-batches add to it in place, as a backward does. Slices add up in ascending order, eight to a group, and groups
// in ascending order:
//
//   total = ((s_0 + s_1) + ... + s_7)  +  ((s_8 + s_9) + ... + s_15)  +  ...
//
// So a slice has the same bits wherever and whenever it is computed, and so has their sum. R ranks compute R slices
// side by side; each owns a part of the parameters (training/ranks/partition.h), and adds, keeps and moves that part
// alone. What they send each other travels while they compute (training/ranks/exchange.cuh).
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
#include "training/ranks/exchange.cuh"

namespace gated {

class Optimizer {
 public:
  static constexpr const char* name = "AdamW";
  // What it keeps from step to step: of every parameter an array of the same shape, which starts at 0. Together they
  // are a flat buffer, as the weights are; one of several ranks has what it owns, piece after piece. A checkpoint names
  // them by prefix and parameter.
  struct State {
    std::string prefix;
    Buffer<float> values;
  };
  static constexpr const char* state_prefixes[] = {"optimizer.m.", "optimizer.v."};  // the first and the second moment
  static size_t state_bytes(const Parameters& weights, size_t ranks) {
    return std::size(state_prefixes) * Partition(weights, ranks).most_owned() * sizeof(float);
  }

  // In a model of bf16 several ranks share the fp32 masters as they share the states: nobody else reads them.
  static Masters masters(Storage storage, size_t ranks) {
    return storage == Storage::bf16 && ranks > 1 ? Masters::shared : Masters::whole;
  }
  // Of the weights in every form: what a forward reads, and of shared masters what a rank owns.
  static size_t weight_bytes(const Parameters& weights, Storage storage, size_t ranks) {
    const Masters m = masters(storage, ranks);
    return weights.bytes_of_values(storage, m) +
           (m == Masters::shared ? Partition(weights, ranks).most_owned() * sizeof(float) : 0);
  }

  static constexpr size_t group = 8;
  // Elements of all buffers of gradients: that of a slice is whole; the sum of slices and, of more than one group, the
  // group are of what a rank owns.
  static size_t gradient_values(const Parameters& weights, size_t slices, size_t ranks) {
    const Partition partition(weights, ranks);
    return weights.flat_size() + ((slices > 1) + (slices > group)) * partition.most_owned() +
           Exchange::received_values(partition, ranks);
  }

  Optimizer(Parameters& weights, size_t slices, Context& ctx, const Ranks& ranks = {})
      : weights_(weights),
        ctx_(ctx),
        ranks_(ranks),
        slices_(slices),
        chunks_(buffer_chunks(weights.flat_size())),
        exchange_(weights, ranks, ctx),
        own_(pieces_of(exchange_.partition, weights, ranks.rank())),
        plan_(tensors_of(own_), ctx),
        norm_(ctx.device, 1),
        part_norm_(ctx.device, 1),
        sums_(ctx.device, chunks_ + 1) {
    const size_t owned = exchange_.partition.owned(ranks.rank());
    for (const char* prefix : state_prefixes) {
      states.push_back({prefix, Buffer<float>(ctx.device, owned)});
      set_zero(states.back().values.data(), owned, ctx_);
    }
    if (weights.masters() == Masters::shared) masters_ = Buffer<float>(ctx.device, owned);
    weights_changed();
    if (slices > 1) total_ = Buffer<float>(ctx.device, owned);
    if (slices > group) group_ = Buffer<float>(ctx.device, owned);
  }

  // Of a parameter what this rank owns: f(begin, n, at), n elements from its element `begin` on, which the states have
  // from their element `at` on.
  template <class F>
  void each_owned(const Parameter& p, F f) const {
    for (const Piece& piece : own_)
      if (const Span both = common(piece.elements, span_of(p)); both.size())
        f(both.begin - p.offset, both.size(), piece.at + both.begin - piece.elements.begin);
  }
  // After weights.whole() has changed, other than by an update.
  void weights_changed() {
    if (weights_.masters() == Masters::shared)
      for (const Piece& p : own_)
        if (p.elements.size())
          copy_rows(masters_.data() + p.at, 1, weights_.grads.data() + p.elements.begin, 1, 1, p.elements.size(), ctx_);
  }
  // All weights in fp32, until the next step: a call of all ranks. Where masters are shared they take the place of the
  // last slice's gradient.
  const Buffer<float>& whole_weights() {
    await_weights();
    ctx_.synchronize();
    if (weights_.masters() == Masters::shared)
      fill_from_host(weights_.grads, [&](float* host) {
        for (size_t i = 0; i < own_.size(); i++) {
          const auto& [elements, at] = std::tie(own_[i].elements, own_[i].at);
          Buffer<float>::copy_to_host(ctx_.device, host + elements.begin, masters_.data() + at, elements.size());
          ranks_.all_gather(host, [&](size_t rank) { return exchange_.partition.part(i, rank); });
        }
      });
    return weights_.whole();
  }
  // On the host of the leading rank, of a parameter what state i has, from all its owners: a call of all ranks.
  void gather_state(float* to, size_t i, const Parameter& p) const {
    std::vector<ranks::Message> out, in;
    each_owned(p, [&](size_t begin, size_t n, size_t at) {
      Buffer<float>::copy_to_host(ctx_.device, to + begin, states[i].values.data() + at, n);
      if (!ranks_.leads()) out.push_back({0, to + begin, n * sizeof(float)});
    });
    if (ranks_.leads())
      ranks_.each_other([&](size_t rank) {
        for (size_t bucket = 0; bucket < own_.size(); bucket++)
          if (const Span both = common(exchange_.partition.part(bucket, rank), span_of(p)); both.size())
            in.push_back({rank, to + (both.begin - p.offset), both.size() * sizeof(float)});
      });
    if (!ranks_.alone()) ranks_.exchange(out, in);
  }

  void begin_slice() { set_zero(weights_.grads.data(), weights_.grads.size(), ctx_); }
  // In ascending order. What the slice's micro-batches left joins its group, and a group that is whole the sum. Of R
  // ranks each calls it for its own slice of R consecutive ones; all of them are added here, each part by its owner.
  void end_slice(size_t slice) {
    if (ranks_.alone()) {
      if (slices_ > 1) add(slice, weights_.grads.data(), 1, 0, own_[0]);
      return;
    }
    ctx_.synchronize();
    exchange_.finish_gradients(weights_.grads.data(),
                               [&](size_t bucket, const float* pieces) { fold(slice, bucket, pieces); });
  }

  // Of several ranks a backward and a forward call what follows. Of this slice the gradients from element `from` on are
  // there, once what was launched is done.
  void gradients_ready(size_t slice, size_t from) {
    exchange_.send_gradients(weights_.grads.data(), from,
                             [&](size_t bucket, const float* pieces) { fold(slice, bucket, pieces); });
  }
  // The weights up to element `end`, all where none is said, are those of the last update when this returns. A call
  // after every update before anything reads them.
  void await_weights(size_t end = SIZE_MAX) { exchange_.await_weights(end); }
  // Of the gradients that other ranks sent in this step, what share had come before their backward ended.
  double early_share() { return exchange_.early_share(); }

  // What the updates from here on are told goes up to the device. The gradient is scaled down to a norm of `clip` where
  // its norm is larger.
  void set_step(AdamWHyperparameters settings, float learning_rate, size_t step, float clip) {
    settings.learning_rate = learning_rate;
    plan_.set_step(adamw_at_step(settings, step, clip), ctx_);
  }
  // Moves every parameter: each rank those that it owns, which it then hands to the others.
  void update() {
    Range range("optimizer");
    for (const Piece& p : own_)
      if (const size_t n = p.elements.size())
        gradient_squares(sums_.data() + p.elements.begin / buffer_chunk, gradient() + p.at, n, ctx_);
    gather_sums(0, chunks_);
    gradient_root(norm_.data(), sums_.data(), chunks_, ctx_);
    for (size_t i = 0; i < own_.size(); i++) {
      if (own_[i].elements.size()) move(own_[i], exchange_.fp32_parts(i));
      if (!ranks_.alone()) exchange_.send_weights(weights_.values.data(), weights_.copies.data());
    }
  }
  // The norm of a part of that gradient, before clipping: n elements of the flat buffer from `begin` on, by the chunks
  // of the whole. A call of all ranks, which waits for the device.
  float norm_of(size_t begin, size_t n) {
    const size_t end = begin + n, first = begin / buffer_chunk;
    for (const Piece& p : own_) {
      const size_t last = std::min(end, p.elements.end);
      // Up to the end of its chunk, then what is left.
      for (size_t at = std::max(begin, p.elements.begin); at < last;) {
        const size_t next = at % buffer_chunk ? std::min(last, round_up(at, buffer_chunk)) : last;
        const float* const here = gradient() + p.at + (at - p.elements.begin);
        gradient_squares(sums_.data() + at / buffer_chunk - first, here, next - at, ctx_);
        at = next;
      }
    }
    const size_t chunks = ceil_div(end, buffer_chunk) - first;
    gather_sums(first, chunks);
    gradient_root(part_norm_.data(), sums_.data(), chunks, ctx_);
    ctx_.synchronize();
    return part_norm_.download()[0];
  }
  static size_t table_bytes(const Parameters& weights) {
    return AdamWPlan::bytes(tensors_of(pieces_of(Partition(weights, 1), weights, 0))) +
           (buffer_chunks(weights.flat_size()) + 1) * sizeof(float);
  }

  // The norm of the gradient of the last update, before clipping: one float on the device.
  const float* norm() const { return norm_.data(); }

 private:
  // What a rank owns of a bucket, which may be nothing: elements of the flat buffers, and of the own ones those from
  // `at` on; what AdamW makes of them.
  struct Piece {
    Span elements;
    size_t at;
    std::vector<AdamWTensor> tensors;
    AdamWBlocks blocks;
  };
  static std::vector<Piece> pieces_of(const Partition& partition, const Parameters& weights, size_t rank) {
    std::vector<Piece> pieces;
    size_t at = 0, block = 0;
    for (size_t i = 0; i < partition.buckets(); i++) {
      Piece piece = {partition.part(i, rank), at, {}, {}};
      for (const Parameter& p : weights.list())
        if (const Span both = common(piece.elements, span_of(p)); both.size())
          piece.tensors.push_back({at + both.begin - piece.elements.begin, both.size(), p.decay == Decay::yes});
      piece.blocks = {block, AdamWPlan::block_count(piece.tensors)};
      at += piece.elements.size();
      block += piece.blocks.count;
      pieces.push_back(std::move(piece));
    }
    return pieces;
  }
  static std::vector<AdamWTensor> tensors_of(const std::vector<Piece>& pieces) {
    std::vector<AdamWTensor> all;
    for (const Piece& p : pieces) all.insert(all.end(), p.tensors.begin(), p.tensors.end());
    return all;
  }

  // The update of a piece. Of shared masters what is read in fp32 moves, too.
  void move(const Piece& p, const std::vector<Parameter>& fp32_parts) {
    const size_t shift = p.elements.begin - p.at;  // from the own buffers to the flat ones
    bf16* const copies = weights_.copies.size() ? weights_.copies.data() + shift : nullptr;
    float *const m = states[0].values.data(), *const v = states[1].values.data();
    float* const w = weights_.masters() == Masters::shared ? masters_.data() : weights_.values.data() + shift;
    adamw_update(w, m, v, copies, gradient(), norm_.data(), plan_, p.blocks, ctx_);
    for (const Parameter& read : fp32_parts)
      if (const Span both = common(p.elements, span_of(read)); both.size())
        copy_rows(weights_.values.data() + read.fp32_offset + (both.begin - read.offset), 1, w + (both.begin - shift),
                  1, 1, both.size(), ctx_);
  }
  // Adds `count` slices, from the first on, to the sum of a piece. The slices' pieces lie `step` apart.
  void add(size_t first, const float* pieces, size_t count, size_t step, const Piece& piece) {
    const size_t n = piece.elements.size();
    for (size_t slice = first; slice < first + count;) {
      const size_t end = std::min(first + count, round_up(slice + 1, group));  // of its group
      float* const total = total_.data() + piece.at;
      float* const sum =
          slice < group ? total : group_.data() + piece.at;  // the first group is what others are added to
      add_slices(sum, slice % group == 0, pieces + (slice - first) * step, end - slice, step, n, ctx_);
      const bool whole = end % group == 0 || end == slices_;
      if (slice >= group && whole) accumulate_gradient(total, sum, n, ctx_);
      slice = end;
    }
  }
  // Adds a bucket of the slices that the ranks compute side by side with this one.
  void fold(size_t slice, size_t bucket, const float* pieces) {
    add(slice - ranks_.rank(), pieces, ranks_.count(), own_[bucket].elements.size(), own_[bucket]);
  }
  // The sums of the squares of so many chunks, from the `first` on: of those that others own, too.
  void gather_sums(size_t first, size_t chunks) {
    if (ranks_.alone()) return;
    std::vector<size_t> by_owner, begins(1, 0);
    for (size_t rank = 0; rank < ranks_.count(); rank++) {
      for (size_t bucket = 0; bucket < own_.size(); bucket++) {
        const Span part = exchange_.partition.chunks(bucket, rank);
        for (size_t i = std::max(first, part.begin); i < std::min(first + chunks, part.end); i++)
          by_owner.push_back(i - first);
      }
      begins.push_back(by_owner.size());
    }
    ctx_.synchronize();
    edit_on_host(ctx_.device, sums_.data(), chunks, [&](float* sums) {
      std::vector<float> values(chunks);
      for (size_t i = begins[ranks_.rank()]; i < begins[ranks_.rank() + 1]; i++) values[i] = sums[by_owner[i]];
      ranks_.all_gather(values.data(), [&](size_t rank) { return Span{begins[rank], begins[rank + 1]}; });
      for (size_t i = 0; i < chunks; i++) sums[by_owner[i]] = values[i];
    });
  }
  const float* gradient() const { return slices_ > 1 ? total_.data() : weights_.grads.data(); }

  Parameters& weights_;
  Context& ctx_;
  const Ranks ranks_;
  const size_t slices_;
  const size_t chunks_;
  Exchange exchange_;
  const std::vector<Piece> own_;  // one of each bucket
  AdamWPlan plan_;
  Buffer<float> norm_, part_norm_;
  Buffer<float> sums_;     // of chunks, of the norm. (A part of the chunks may begin and end inside of one.)
  Buffer<float> masters_;  // of what it owns, where they are shared
  Buffer<float> total_, group_;

 public:
  std::vector<State> states;  // in the order of their prefixes
};

}  // namespace gated
