// exchange: what ranks send each other while they compute: of each bucket (training/ranks/partition.h) the gradients to
// their owners, while the backward goes on, and the weights from them, while the next forward begins.
//
//   backward    | head, norm | layer 3 | layer 2 | layer 1 | layer 0 | embedding | update | forward: embedding |
//   gradients                | rest    | layer 3 | layer 2 | layer 1 | layer 0   | embedding
//   weights                                                                               | embedding | layer 0 ...
//
// Nobody but the thread that computes calls the transport. It polls between layers: what has come is added up, what
// is ready goes. What it waits for it waits for at the end of the backward, and in the forward for the weights of the
// layer that is next. A GPU's host is ahead of it, and waits for no layer: it puts the GPU's own waits between them.
// docs/ranks.md | tests/test_ranks.cpp
#pragma once
#include "training/ranks/partition.h"

namespace gated {

class Exchange {
 public:
  Exchange(const Parameters& weights, const Ranks& ranks, Context& ctx)
      : partition(weights, ranks.count()),
        ranks_(ranks),
        ctx_(ctx),
        received_(ctx.device, received_values(partition, ranks.count())),
        is_whole_(weights.masters() == Masters::whole),
        fp32_parts_(partition.buckets()),
        weights_(partition.buckets()) {
    for (size_t i = 0; i < partition.buckets() && !is_whole_; i++)
      for (const Parameter& p : weights.list())
        if (is_read_in_fp32(p.use) && common(partition.bucket(i), span_of(p)).size()) fp32_parts_[i].push_back(p);
  }

  const Partition partition;

  // Where masters are shared: what of a bucket is read in fp32.
  const std::vector<Parameter>& fp32_parts(size_t bucket) const { return fp32_parts_[bucket]; }

  // Elements that are received at a time: gradients of a few buckets from all ranks.
  static size_t received_values(const Partition& partition, size_t ranks) {
    return ranks > 1 ? std::min(slots, partition.buckets()) * ranks * partition.most_part() : 0;
  }

  // ---- gradients, from the last bucket to the first

  // grads: of this rank's slice, whole. From element `from` on they are what they will be. Sends what can go. Of each
  // bucket that has come it calls fold(bucket, pieces): of all ranks in their order, each as long as this rank's part.
  template <class Fold>
  void send_gradients(const float* grads, size_t from, Fold fold) {
    while (fold_next(from > 0 || ranks_.by_nccl(), fold) || send_next(grads, from)) continue;
  }
  // The backward has ended, on the device too. All of them, and waits for those of this rank's parts. (By NCCL the host
  // is ahead until here: what it sees now has come before.)
  template <class Fold>
  void finish_gradients(const float* grads, Fold fold) {
    while (fold_next(ranks_.by_nccl(), fold)) continue;
    while (folded_ < partition.buckets()) {
      while (fold_next(false, fold) || send_next(grads, 0)) continue;
      if (folded_ < sent_) ranks_.finish(*gradients_[folded_ % slots]);
    }
    sent_ = folded_ = 0;
  }
  // What share of the gradients since the last call had come before their backward ended.
  double early_share() {
    const double share = come_ ? double(early_) / double(come_) : 0;
    come_ = early_ = 0;
    return share;
  }

  // ---- weights, from the first bucket to the last

  // A call for each bucket, once all of the last update have come. Of the parameters' values and copies this rank's
  // part of the next bucket is new: it goes to the others, and theirs come. Where masters are shared the copies go, and
  // the values of what is read in fp32.
  void send_weights(float* values, bf16* copies) {
    if (weights_sent_ == partition.buckets()) weights_sent_ = weights_come_ = 0;
    const size_t bucket = weights_sent_++;
    std::vector<ranks::Message> out, in;
    const auto add = [&](std::vector<ranks::Message>& to, size_t rank, size_t owner) {
      const Span part = partition.part(bucket, owner);
      to.push_back(is_whole_ ? message(rank, values, part) : message(rank, copies, part));
      for (const Parameter& p : fp32_parts(bucket))
        if (const Span both = common(part, span_of(p)); both.size())
          to.push_back(message(rank, values + p.fp32_offset, {both.begin - p.offset, both.end - p.offset}));
    };
    ranks_.each_other([&](size_t i) {
      add(out, i, ranks_.rank());
      add(in, i, i);
    });
    weights_[bucket] = ranks_.begin(out, in, ctx_);
  }
  // Waits for those up to element `end`, as what is launched from here on does.
  void await_weights(size_t end) {
    for (; weights_come_ < weights_sent_; weights_come_++) {
      ranks::Request& request = *weights_[weights_come_];
      if (partition.bucket(weights_come_).begin >= end) {
        if (!ranks_.is_done(request)) return;
      } else if (!ranks_.is_done_for_gpu(request)) {
        ranks_.finish(request);
      }
    }
  }

 private:
  // Buckets of gradients that are on their way at a time.
  static constexpr size_t slots = 4;

  template <class T>
  static ranks::Message message(size_t rank, T* whole, Span part) {
    return {rank, whole + part.begin, part.size() * sizeof(T)};
  }
  float* slot(size_t i) { return received_.data() + i % slots * ranks_.count() * partition.most_part(); }

  // The i-th bucket in the order in which gradients are ready.
  size_t in_backward(size_t i) const { return partition.buckets() - 1 - i; }

  bool send_next(const float* grads, size_t from) {
    if (sent_ == partition.buckets() || sent_ - folded_ == slots) return false;
    const size_t bucket = in_backward(sent_);
    if (partition.bucket(bucket).begin < from) return false;
    float* const whole = const_cast<float*>(grads);  // (nobody writes what goes out)
    float* const pieces = slot(sent_);
    const Span own = partition.part(bucket, ranks_.rank());
    std::vector<ranks::Message> out, in;
    ranks_.each_other([&](size_t i) {
      out.push_back(message(i, whole, partition.part(bucket, i)));
      in.push_back(message(i, pieces + i * own.size(), {0, own.size()}));
    });
    copy_rows(pieces + ranks_.rank() * own.size(), 1, grads + own.begin, 1, 1, own.size(), ctx_);
    gradients_[sent_++ % slots] = ranks_.begin(out, in, ctx_);
    return true;
  }
  // (Where no other may be sent before this one is added, a GPU can wait for it.)
  template <class Fold>
  bool fold_next(bool early, Fold& fold) {
    if (folded_ == sent_) return false;
    ranks::Request& next = *gradients_[folded_ % slots];
    if (sent_ - folded_ == slots ? !ranks_.is_done_for_gpu(next) : !ranks_.is_done(next)) return false;
    const size_t bucket = in_backward(folded_), n = partition.part(bucket, ranks_.rank()).size();
    const float* const pieces = slot(folded_++);
    if (n > 0) fold(bucket, pieces);
    come_ += n;
    early_ += early ? n : 0;
    return true;
  }

  const Ranks ranks_;
  Context& ctx_;
  Buffer<float> received_;
  const bool is_whole_;  // what values holds
  std::vector<std::vector<Parameter>> fp32_parts_;
  // Of the gradients and the weights how many buckets are on their way or have come, and how many have.
  std::unique_ptr<ranks::Request> gradients_[slots];
  size_t sent_ = 0, folded_ = 0;
  std::vector<std::unique_ptr<ranks::Request>> weights_;
  size_t weights_sent_ = 0, weights_come_ = 0;
  size_t come_ = 0, early_ = 0;  // elements
};

}  // namespace gated
