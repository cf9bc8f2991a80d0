// moe: the losses of the router, what they count over micro-batches, and their gradient; the report. (The layer against
// transformers: tests/test_fixtures.cpp; its bits: tests/test_golden.cpp.)
#include "layers/moe.cuh"

#include <cmath>
#include <map>

#include "tests/activations.h"
#include "tests/harness.h"
#include "tests/router_losses.h"
#include "tests/small_runs.h"

using namespace gated;

namespace {

using Floats = std::vector<float>;

constexpr size_t C = 20, N = 18;  // of small_model()

// A model of one block whose output matrix is 0: its routers' losses alone have a gradient.
struct Routers {
  const ModelConfig config;
  Context& ctx;
  Model model;
  const Activations left;
  Routers(const std::string& flags, Context& ctx)
      : config(small_model("--layers=1 --tied=off --router-bias " + flags)),
        ctx(ctx),
        model(config, 2, config.context, 3, ctx),
        left(model, ctx) {
    leave_symmetry(model);
    change_weights(model, [](const Parameter& p, float* w) {
      if (p.name == "lm_head.weight") std::fill_n(w, p.size, 0.0f);
    });
  }
  void run(size_t tokens, const MicroBatch& micro_batch) {
    const std::vector<int> ids = some_ids(N, config.vocab, tokens);
    forward_backward(model, {ids, ids, 2, config.context}, ctx, micro_batch);
  }
  template <class T>
  std::vector<T> get(const std::string& name) const {
    return left.get<T>(name).at(0);
  }
  // Of the gate, or of the norm before it.
  std::vector<double> numbers(const std::string& name, const Buffer<float>& of) const {
    const Floats found = by_name(model.weights, of).at("model.layers.0." + name);
    return {found.begin(), found.end()};
  }
};

// How many slots every expert has.
std::vector<size_t> counted(const std::vector<int>& experts, size_t E) {
  std::vector<size_t> counts(E, 0);
  for (const int e : experts) counts[size_t(e)]++;
  return counts;
}

}  // namespace

TEST_CASE("moe: the losses of the router have exact gradients for the slots of the slice so far",
          "[gradcheck][bitwise]") {
  constexpr size_t E = 6;
  for (const char* over : {"global", "micro-batch"})
    on_every_device([&](Context& ctx) {
      Routers r(std::string("--experts=6 --balance-loss=0.7 --z-loss=0.2 --balance-over=") + over, ctx);
      std::vector<size_t> so_far(E, 0);
      for (const size_t m : {0, 1, 2, 0}) {  // three micro-batches of a slice, and one of the next
        r.run(10 + m, {m, 3});
        if (m == 0 || over == std::string("micro-batch")) so_far.assign(E, 0);
        const std::vector<size_t> now = counted(r.get<int>("mlp: experts"), E);
        for (size_t e = 0; e < E; e++) so_far[e] += now[e];
        REQUIRE(r.get<size_t>("mlp: slots of an expert in the slice") == so_far);

        // Of the weight of the norm in front, by which its output is as large, of W and b in one list.
        std::vector<double> at, gradient;
        for (const char* name : {"post_attention_layernorm.weight", "mlp.gate.weight", "mlp.gate.bias"}) {
          const auto w = r.numbers(name, r.model.weights.values), g = r.numbers(name, r.model.weights.grads);
          at.insert(at.end(), w.begin(), w.end());
          gradient.insert(gradient.end(), g.begin(), g.end());
        }
        const Floats x = r.get<float>("second norm: output");
        const auto loss = [&](const std::vector<double>& v) {
          const double *norm = v.data(), *w = norm + C, *b = w + E * C;
          std::vector<double> logits(N * E);
          for (size_t i = 0; i < N * E; i++) {
            logits[i] = b[i % E];
            for (size_t c = 0; c < C; c++) logits[i] += double(x[i / E * C + c]) / at[c] * norm[c] * w[i % E * C + c];
          }
          const PlainRouterLosses losses = plain_router_losses(logits, so_far);
          return (double(r.config.moe.balance) * losses.balance + double(r.config.moe.z) * losses.z) / 3;
        };
        REQUIRE(gradient_error(loss, at, gradient) < 1e-5);
      }
    });
}

TEST_CASE("moe: a backward reports how the slice was routed so far", "[moe][bitwise]") {
  constexpr size_t E = 7;
  on_every_device([&](Context& ctx) {
    Routers r("--experts=7", ctx);
    change_weights(r.model, [](const Parameter& p, float* w) {
      if (p.name.ends_with("gate.bias")) w[2] = w[5] = -40;  // two that nobody takes
    });
    std::vector<int> step;
    for (const size_t m : {0, 1}) {
      r.run(20 + m, {m, 2});
      const std::vector<int> experts = r.get<int>("mlp: experts");
      step.insert(step.end(), experts.begin(), experts.end());
      const std::vector<size_t> counts = counted(step, E);
      const Floats logits = r.get<float>("mlp: router logits");
      const PlainRouterLosses losses = plain_router_losses({logits.begin(), logits.end()}, counts);
      double entropy = 0;
      for (const size_t count : counts) {
        const double share = double(count) / double(step.size());
        if (share > 0) entropy -= share * std::log(share);
      }
      Floats report(router_report_values);
      Buffer<float>::copy_to_host(ctx.device, report.data(), r.model.routing_reports(), report.size());
      REQUIRE(double(report[0]) == Approx(losses.balance).epsilon(1e-5));
      REQUIRE(double(report[1]) == Approx(losses.z).epsilon(1e-5));
      REQUIRE(report[2] == float(*std::max_element(counts.begin(), counts.end())) / float(step.size()));
      REQUIRE(double(report[3]) == Approx(entropy).epsilon(1e-5));
      REQUIRE(report[4] == float(std::count(counts.begin(), counts.end(), size_t{0})));
      REQUIRE(report[4] >= 2);
    }
  });
}

TEST_CASE("moe: a step's result is the mean of its layers' reports, the busiest expert and all idle ones", "[moe]") {
  Context cpu(Device::cpu);
  Run run(small_run(small_model("--experts=12 --layers=4 --dense-layers=1"), 2, 2), cpu);
  for (size_t step = 0; step < 2; step++) {
    training_step(run.trainer);
    const Routing routing = run.trainer.next_result()->routing.value();
    const float* report = run.trainer.model.routing_reports();  // (layers, 5), in the CPU's own memory
    double mean[5] = {};
    float busiest = 0;
    for (size_t layer = 1; layer < 4; layer++) {
      for (size_t i = 0; i < 5; i++) mean[i] += double(report[layer * 5 + i]) / 3;
      busiest = std::max(busiest, report[layer * 5 + 2]);
    }
    for (size_t i = 0; i < 5; i++) REQUIRE(report[i] == 0);  // of the layer without experts
    REQUIRE(double(routing.balance_loss) == Approx(mean[0]).epsilon(1e-6));
    REQUIRE(double(routing.z_loss) == Approx(mean[1]).epsilon(1e-6));
    REQUIRE(routing.busiest_share == busiest);
    REQUIRE(double(routing.entropy) == Approx(mean[3]).epsilon(1e-6));
    REQUIRE(double(routing.idle_experts) == Approx(3 * mean[4]));
    REQUIRE(routing.balance_loss >= 0.9f);
    REQUIRE(busiest > 1.0f / 12);
  }
  Run dense(small_run(small_model(), 1), cpu);
  training_step(dense.trainer);
  REQUIRE(!dense.trainer.next_result()->routing);
}
