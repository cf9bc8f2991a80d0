// ranks: which part of a run this process has, and what ranks tell each other. A run that is alone is rank 0 of 1, and
// then nothing here moves a byte. What is shared out, and in which order it comes together: docs/ranks.md
// tests/test_ranks.cpp
#pragma once
#include <algorithm>
#include <string>
#include <vector>

#include "core/check.h"
#include "core/clock.h"
#include "core/context.cuh"
#include "training/ranks/transport.h"

namespace gated {

// From begin up to end.
struct Span {
  size_t begin, end;
  size_t size() const { return end - begin; }
};

// What both have.
inline Span common(Span a, Span b) {
  const size_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

// Of n things in their order, those that one of `count` owners has: they differ by one at most, and may be none.
inline Span share_of(size_t n, size_t owner, size_t count) {
  return {n * owner / count, n * (owner + 1) / count};
}

// Messages of a GPU's memory that go by way of the host's.
class Staged final : public ranks::Request {
  using Messages = std::vector<ranks::Message>;

 public:
  // What goes out is there: the host has waited for the GPU.
  Staged(Messages out, Messages in, Device device, ranks::Transport& transport) : device_(device), in_(std::move(in)) {
    Messages arriving = in_;
    for (Messages* all : {&out, &arriving})
      for (ranks::Message& m : *all) {
        std::vector<char>& host = host_.emplace_back(m.bytes);
        if (all == &out) Buffer<char>::copy_to_host(device, host.data(), static_cast<char*>(m.at), m.bytes);
        m.at = host.data();
      }
    request_ = transport.begin(out, arriving);
  }
  bool is_done() override { return landed_ || (request_->is_done() && land()); }
  void finish() override {
    request_->finish();
    if (!landed_) land();
  }

 private:
  bool land() {
    for (size_t i = 0; i < in_.size(); i++)
      Buffer<char>::copy_to_device(device_, static_cast<char*>(in_[i].at), host_[host_.size() - in_.size() + i].data(),
                                   in_[i].bytes);
    host_.clear();
    return landed_ = true;
  }

  const Device device_;
  const Messages in_;
  std::vector<std::vector<char>> host_;  // of what goes out, then of what comes in
  std::unique_ptr<ranks::Request> request_;
  bool landed_ = false;
};

class Ranks {
 public:
  // gpus: what moves bytes between their GPUs; without it these go through the hosts' memory.
  Ranks(ranks::Transport* transport = nullptr, ranks::GpuTransport* gpus = nullptr)
      : transport_(transport), gpus_(gpus) {}

  size_t rank() const { return transport_ ? transport_->rank() : 0; }
  size_t count() const { return transport_ ? transport_->count() : 1; }
  size_t on_this_host() const { return transport_ ? transport_->on_this_host() : 1; }
  // How many ranks have this rank's memory: by its name (core/device.cuh).
  size_t on_this_memory(const std::string& name) const {
    const std::vector<std::string> all = all_texts(name);
    return size_t(std::count(all.begin(), all.end(), name));
  }
  bool by_nccl() const { return gpus_; }
  size_t nccl_bytes() const { return gpus_ ? gpus_->bytes : 0; }
  bool alone() const { return count() == 1; }
  bool leads() const { return rank() == 0; }  // it prints, and writes files

  // As Transport and Request have them; the time that they take is counted.
  std::unique_ptr<ranks::Request> begin(const std::vector<ranks::Message>& out,
                                        const std::vector<ranks::Message>& in) const {
    const Counted time(*transport_);
    return transport_->begin(out, in);
  }
  // The same of memory of a device, behind what it was given so far.
  std::unique_ptr<ranks::Request> begin(const std::vector<ranks::Message>& out, const std::vector<ranks::Message>& in,
                                        Context& ctx) const {
    if (ctx.device != Device::cuda) return begin(out, in);
    if (!gpus_) ctx.synchronize();
    const Counted time(*transport_);
    if (gpus_) return gpus_->begin(out, in, ctx.stream);
    return std::make_unique<Staged>(out, in, ctx.device, *transport_);
  }
  bool is_done(ranks::Request& request) const {
    const Counted time(*transport_);
    return request.is_done();
  }
  bool is_done_for_gpu(ranks::Request& request) const {
    const Counted time(*transport_);
    return request.is_done_for_gpu();
  }
  void finish(ranks::Request& request) const {
    const Counted time(*transport_);
    request.finish();
  }
  void exchange(const std::vector<ranks::Message>& out, const std::vector<ranks::Message>& in) const {
    finish(*begin(out, in));
  }
  // Where the GPU may wait for a rank that is lost, whoever waits for the GPU hears of it.
  void watch(Context& ctx) const {
    if (gpus_) ctx.while_waiting = [gpus = gpus_] { gpus->check(); };
  }
  // (While a GPU waits its host is ahead, and seldom waits, too: then a second counts twice.)
  double exchange_seconds() const { return (transport_ ? transport_->seconds : 0) + (gpus_ ? gpus_->waited() : 0); }

  // f(rank) of every other rank. Each begins with its neighbour, so that not all send to one.
  template <class F>
  void each_other(F f) const {
    for (size_t i = 1; i < count(); i++) f((rank() + i) % count());
  }

  // whole (n): every rank has written the elements of its own spans, spans(i) for rank i, and gets the others'. In host
  // memory.
  template <class T, class SpanOf>
  void all_gather(T* whole, SpanOf span_of) const {
    if (alone()) return;
    std::vector<ranks::Message> out, in;
    const Span own = span_of(rank());
    each_other([&](size_t i) {
      const Span theirs = span_of(i);
      out.push_back({i, whole + own.begin, own.size() * sizeof(T)});
      in.push_back({i, whole + theirs.begin, theirs.size() * sizeof(T)});
    });
    exchange(out, in);
  }

  // The values that all ranks have given, in the order of the ranks.
  template <class T>
  std::vector<T> all(const T& value) const {
    std::vector<T> values(count(), value);
    all_gather(values.data(), [](size_t i) { return Span{i, i + 1}; });
    return values;
  }
  // What each rank says, as text.
  std::vector<std::string> all_texts(const std::string& text) const {
    const std::vector<size_t> sizes = all(text.size());
    std::vector<size_t> begins(1, 0);
    for (const size_t size : sizes) begins.push_back(begins.back() + size);
    std::string joined(begins.back(), ' ');
    std::copy(text.begin(), text.end(), joined.begin() + long(begins[rank()]));
    all_gather(joined.data(), [&](size_t i) { return Span{begins[i], begins[i + 1]}; });
    std::vector<std::string> texts;
    for (size_t i = 0; i < count(); i++) texts.push_back(joined.substr(begins[i], sizes[i]));
    return texts;
  }

 private:
  struct Counted {
    explicit Counted(ranks::Transport& t) : transport(t) {}
    ~Counted() { transport.seconds += seconds_now() - begin; }
    ranks::Transport& transport;
    const double begin = seconds_now();
  };

  ranks::Transport* transport_;
  ranks::GpuTransport* gpus_;
};

}  // namespace gated
