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
using Named = std::map<std::string, Floats>;

// Sizes of the layers below: odd, and no multiples of a tile.
constexpr size_t C = 20, N = 23;

// The layer alone, with weights and memory of its own, for one sequence of N tokens of C.
class Layer {
 public:
  Layer(const MoeConfig& moe, Context& ctx)
      : ctx_(ctx),
        mixer_(moe, {.F = moe.F}, C, 0),
        weights_(parameters()),
        kept_(
            [&](const TensorVisitor& visit) {
              mixer_.activations(visit, BatchShape{1, N});
            },
            ctx),
        temporaries_(
            [&](const TensorVisitor& visit) {
              mixer_.temporaries(visit, BatchShape{1, N});
            },
            ctx),
        report_(ctx.device, router_report_values) {
    weights_.allocate(parameters(), ctx.device, Storage::fp32);
  }

  // Every weight by its name, the same numbers for a name and a size on every device.
  Named random_weights() const {
    Named values;
    for (const Parameter& p : weights_.list())
      values[p.name] = random_values<float>(p.size, std::hash<std::string>()(p.name) % 1000 + 1, 0.5f);
    return values;
  }
  void set(const Named& values) {
    Floats flat(weights_.flat_size(), 0.0f);
    for (const Parameter& p : weights_.list()) {
      REQUIRE(values.at(p.name).size() == p.size);
      std::copy(values.at(p.name).begin(), values.at(p.name).end(), &flat[p.offset]);
    }
    weights_.values.upload(flat);
  }

  void forward(const Floats& x) {
    x_ = Buffer<float>(ctx_.device, x);
    pass_.emplace(1, N, ctx_, nullptr);
    pass_->report_routing(report_.data());
    mixer_.forward(x_.data(), *pass_);
  }
  // Of the last forward. Gradients of the weights begin at 0.
  Floats backward(const Floats& dy, MicroBatch micro_batch = {}) {
    set_zero(weights_.grads.data(), weights_.flat_size(), ctx_);
    pass_->micro_batch = micro_batch;
    const Buffer<float> gradient(ctx_.device, dy), dx(ctx_.device, dy.size());
    mixer_.backward(dx.data(), Accumulate::no, gradient.data(), *pass_);
    ctx_.synchronize();
    return dx.download();
  }
  Named gradients() const { return by_name(weights_, weights_.grads); }
  Floats report() const { return report_.download(); }
  template <class T = float>
  std::vector<T> kept(const std::string& name) const {
    return kept_.get<T>(name).at(0);
  }

 private:
  Parameters::List parameters() {
    return [&](const ParameterVisitor& visit) { mixer_.parameters(visit); };
  }
  Context& ctx_;
  Moe mixer_;
  Parameters weights_;
  Activations kept_, temporaries_;
  Buffer<float> report_, x_;
  std::optional<Pass> pass_;
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
  for (const BalanceOver over : {BalanceOver::global, BalanceOver::micro_batch}) {
    const MoeConfig moe = {
        .E = E, .k = 2, .F = 11, .router_bias = true, .balance = 0.7f, .z = 0.2f, .balance_over = over};
    const Floats zero(N * C, 0.0f);
    on_every_device([&](Context& ctx) {
      Layer layer(moe, ctx);
      const Named weights = layer.random_weights();
      layer.set(weights);
      std::vector<size_t> so_far(E, 0);
      for (const size_t m : {0, 1, 2, 0}) {  // three micro-batches of a slice, and one of the next
        const Floats x = random_values<float>(N * C, 10 + m);
        layer.forward(x);
        const Floats dx = layer.backward(zero, {m, 3});
        if (m == 0 || over == BalanceOver::micro_batch) so_far.assign(E, 0);
        const std::vector<size_t> now = counted(layer.kept<int>("experts"), E);
        for (size_t e = 0; e < E; e++) so_far[e] += now[e];
        REQUIRE(layer.kept<size_t>("slots of an expert in the slice") == so_far);

        // Of x, W and b in one list.
        const auto loss = [&](const std::vector<double>& v) {
          const double *vx = v.data(), *w = vx + N * C, *b = w + E * C;
          std::vector<double> logits(N * E);
          for (size_t i = 0; i < N * E; i++) {
            logits[i] = b[i % E];
            for (size_t c = 0; c < C; c++) logits[i] += vx[i / E * C + c] * w[i % E * C + c];
          }
          const PlainRouterLosses losses = plain_router_losses(logits, so_far);
          return (double(moe.balance) * losses.balance + double(moe.z) * losses.z) / 3;  // a third of the step
        };
        std::vector<double> at(x.begin(), x.end()), gradient(dx.begin(), dx.end());
        for (const char* name : {"gate.weight", "gate.bias"}) {
          const Floats w = weights.at(name), g = layer.gradients().at(name);
          at.insert(at.end(), w.begin(), w.end());
          gradient.insert(gradient.end(), g.begin(), g.end());
        }
        REQUIRE(gradient_error(loss, at, gradient) < 1e-5);
      }
    });
  }
}

TEST_CASE("moe: --balance-over says something where a slice has several micro-batches, and there alone", "[bitwise]") {
  const auto fingerprint = [&](const std::string& over, size_t micro_batches) {
    Config c = small_run(small_model("--experts=5 --balance-loss=0.5 --balance-over=" + over), 4, micro_batches);
    c.slices = 1;
    return fingerprint_of_run(c);
  };
  REQUIRE(fingerprint("global", 1) == fingerprint("micro-batch", 1));
  REQUIRE(fingerprint("global", 2) != fingerprint("micro-batch", 2));
}

TEST_CASE("moe: a backward reports how the slice was routed so far", "[moe][bitwise]") {
  constexpr size_t E = 7, k = 2;
  const MoeConfig moe = {.E = E, .k = k, .F = 11, .router_bias = true};
  const Floats zero(N * C, 0.0f);
  on_every_device([&](Context& ctx) {
    Layer layer(moe, ctx);
    Named weights = layer.random_weights();
    weights.at("gate.bias") = {0, 0, -40, 1, 0, -40, 0};  // two that nobody takes
    layer.set(weights);
    std::vector<int> step;
    for (const size_t m : {0, 1}) {
      layer.forward(random_values<float>(N * C, 20 + m));
      layer.backward(zero, {m, 2});
      const std::vector<int> experts = layer.kept<int>("experts");
      step.insert(step.end(), experts.begin(), experts.end());
      const std::vector<size_t> counts = counted(step, E);
      const Floats logits = layer.kept("router logits");
      const PlainRouterLosses losses = plain_router_losses({logits.begin(), logits.end()}, counts);
      double entropy = 0;
      for (const size_t count : counts) {
        const double share = double(count) / double(step.size());
        if (share > 0) entropy -= share * std::log(share);
      }
      const Floats report = layer.report();
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
