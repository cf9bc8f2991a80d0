// small_ranks: ranks that are threads of one process, and runs of a few steps on them.
#pragma once
#include <omp.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <random>
#include <thread>

#include "tests/compare.h"
#include "tests/contents.h"
#include "tests/small_runs.h"

namespace gated {

// Ranks that are threads of this process. A message has gone once it was taken; it is taken late, by chance. Whoever
// writes to what goes out or comes in meanwhile, or expects another size, is found out.
struct Hub {
  explicit Hub(size_t n) : ranks(n), sent(n * n), taken(n * n), expected(n * n) {}
  const size_t ranks;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::vector<std::vector<char>>> sent;  // from one to another, in their order
  std::vector<std::vector<bool>> taken;
  std::vector<size_t> expected;  // how many the receiver has asked for
};

class ThreadRequest : public ranks::Request {
 public:
  using Messages = std::vector<ranks::Message>;
  ThreadRequest(Hub& hub, size_t me, size_t patience, const Messages& out, const Messages& in)
      : hub_(hub), patience_(patience) {
    const std::lock_guard lock(hub.mutex);
    for (const ranks::Message& m : out)
      if (m.bytes) {
        const char* const from = static_cast<const char*>(m.at);
        const size_t pipe = me * hub.ranks + m.rank;
        out_.push_back({m, pipe, hub.sent[pipe].size()});
        hub.sent[pipe].push_back({from, from + m.bytes});
        hub.taken[pipe].push_back(false);
      }
    for (const ranks::Message& m : in)
      if (m.bytes) {
        const size_t pipe = m.rank * hub.ranks + me;
        in_.push_back({m, pipe, hub.expected[pipe]++});
        memset(m.at, 0xFF, m.bytes);
      }
    hub.changed.notify_all();
  }
  bool is_done() override {
    const std::lock_guard lock(hub_.mutex);
    return done_ || (patience_ == 0 ? try_now() : patience_-- == 0);
  }
  void finish() override {
    std::unique_lock lock(hub_.mutex);
    require(hub_.changed.wait_for(lock, std::chrono::seconds(60), [&] { return done_ || try_now(); }),
            "a message that nobody sends or takes");
  }

 private:
  struct Place {
    ranks::Message message;
    size_t pipe, number;
  };
  bool try_now() {
    for (; !in_.empty(); in_.pop_back()) {
      const auto& [m, pipe, number] = in_.back();
      if (number >= hub_.sent[pipe].size()) return false;
      const std::vector<char>& bytes = hub_.sent[pipe][number];
      char* const at = static_cast<char*>(m.at);
      require(bytes.size() == m.bytes, "a message of %zu bytes, expected %zu", bytes.size(), m.bytes);
      require(std::all_of(at, at + m.bytes, [](char c) { return c == char(0xFF); }), "what comes in was written to");
      std::copy(bytes.begin(), bytes.end(), at);
      hub_.taken[pipe][number] = true;
      hub_.changed.notify_all();
    }
    for (const auto& [m, pipe, number] : out_) {
      if (!hub_.taken[pipe][number]) return false;
      require(memcmp(m.at, hub_.sent[pipe][number].data(), m.bytes) == 0, "what goes out was written to");
    }
    return done_ = true;
  }

  Hub& hub_;
  size_t patience_;  // calls of is_done() that it says no to
  std::vector<Place> out_, in_;
  bool done_ = false;
};

class ThreadTransport : public ranks::Transport {
 public:
  ThreadTransport(Hub& hub, size_t rank, size_t patience = 4)
      : hub_(hub), rank_(rank), patience_(patience), chance_(rank) {}
  size_t rank() const override { return rank_; }
  size_t count() const override { return hub_.ranks; }
  size_t on_this_host() const override { return hub_.ranks; }
  size_t place_on_host() const override { return rank_; }
  std::unique_ptr<ranks::Request> begin(const std::vector<ranks::Message>& out,
                                        const std::vector<ranks::Message>& in) override {
    return std::make_unique<ThreadRequest>(hub_, rank_, chance_() % patience_, out, in);
  }
  [[noreturn]] void abort(int) override { std::abort(); }

 private:
  Hub& hub_;
  size_t rank_, patience_;
  std::minstd_rand chance_;
};

// What each of R ranks has to say that calls f(ranks): nothing where all went well.
template <class F>
std::vector<std::string> on_ranks(size_t R, F f) {
  Hub hub(R);
  std::vector<std::string> trouble(R);
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < R; rank++)
    threads.emplace_back([&, rank] {
      omp_set_num_threads(1);
      ThreadTransport transport(hub, rank);
      try {
        f(Ranks(&transport));
      } catch (const std::exception& e) {
        trouble[rank] = e.what();
      }
    });
  for (std::thread& t : threads) t.join();
  return trouble;
}

// What a run says, and the checkpoint that it leaves in its --out.
inline std::string told(const Config& config, const Ranks& ranks) {
  Context ctx(Device::cpu);
  Run run(config, ctx, ranks);
  std::string text;
  const auto say = [&](double number) { text += format("%a ", number); };
  for (size_t step = 0; step < config.steps; step++) {
    training_step(run.trainer);
    const StepResult r = run.trainer.next_result().value();
    for (const float number : {r.loss, r.gradient_norm, r.learning_rate}) say(double(number));
    if (r.routing)
      for (const float number : {r.routing->balance_loss, r.routing->z_loss, r.routing->busiest_share,
                                 r.routing->entropy, float(r.routing->idle_experts)})
        say(double(number));
  }
  for (const float norm : run.trainer.gradient_norm_by_layer()) say(double(norm));
  say(run.trainer.validate(3));
  run.trainer.save({});
  return text + run.trainer.fingerprint();
}

// They are those of one rank. `folder` is there, and empty.
inline void require_same_on_ranks(Config config, size_t R, const std::string& folder) {
  config.out = folder;
  const std::string file = folder + "/" + checkpoint_name(config.steps), one = told(config, {}), saved = contents(file);
  std::vector<std::string> got(R);
  REQUIRE(on_ranks(R, [&](const Ranks& r) { got[r.rank()] = told(config, r); }) == std::vector<std::string>(R));
  for (const std::string& text : got) REQUIRE(text == one);
  REQUIRE(contents(file) == saved);
}

}  // namespace gated
