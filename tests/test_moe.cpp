// moe: the layer against its experts computed one by one; the losses of the router, what they count over micro-batches,
// and their gradient; the report. (The layer against transformers: tests/test_fixtures.cpp.)
#include "layers/moe.cuh"

#include <cmath>
#include <map>

#include "core/philox.cuh"
#include "core/sums.h"
#include "layers/ffn.cuh"
#include "tests/activations.h"
#include "tests/contents.h"
#include "tests/harness.h"
#include "tests/router_losses.h"
#include "tests/small_runs.h"

using namespace gated;

namespace {

using Floats = std::vector<float>;
using Named = std::map<std::string, Floats>;

// Sizes of the layers below: odd, and no multiples of a tile.
constexpr size_t C = 20, N = 23;

// A mixer alone, with weights and memory of its own, for one sequence of up to N tokens of C.
class Layer {
 public:
  Layer(std::unique_ptr<Mixer> mixer, Context& ctx)
      : ctx_(ctx),
        mixer_(std::move(mixer)),
        weights_(parameters()),
        kept_(
            [&](const TensorVisitor& visit) {
              mixer_->activations(visit, BatchShape{1, N});
            },
            ctx),
        temporaries_(
            [&](const TensorVisitor& visit) {
              mixer_->temporaries(visit, BatchShape{1, N});
            },
            ctx),
        report_(ctx.device, router_report_values) {
    weights_.allocate(parameters(), ctx.device, Storage::fp32);
  }
  static Layer moe(const MoeConfig& moe, FfnConfig expert, Context& ctx) {
    expert.F = moe.F;
    return Layer(std::make_unique<Moe>(moe, expert, C, 0), ctx);
  }
  static Layer dense(FfnConfig config, size_t F, Context& ctx) {
    config.F = F;
    return Layer(std::make_unique<Ffn>(config, C), ctx);
  }

  // Every weight by its name, the same numbers for a name and a size on every device.
  Named random_weights(float scale = 0.5f) const {
    Named values;
    for (const Parameter& p : weights_.list())
      values[p.name] = random_values<float>(p.size, std::hash<std::string>()(p.name) % 1000 + 1, scale);
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

  Floats forward(const Floats& x) {
    x_ = Buffer<float>(ctx_.device, x);
    pass_.emplace(1, x.size() / C, ctx_, nullptr);
    pass_->report_routing(report_.data());
    const float* y = mixer_->forward(x_.data(), *pass_).as<float>();
    ctx_.synchronize();
    Floats result(x.size());
    Buffer<float>::copy_to_host(ctx_.device, result.data(), y, result.size());
    return result;
  }
  // Of the last forward. Gradients of the weights begin at 0.
  Floats backward(const Floats& dy, MicroBatch micro_batch = {}) {
    set_zero(weights_.grads.data(), weights_.flat_size(), ctx_);
    pass_->micro_batch = micro_batch;
    const Buffer<float> gradient(ctx_.device, dy), dx(ctx_.device, dy.size());
    mixer_->backward(dx.data(), Accumulate::no, gradient.data(), *pass_);
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
    return [&](const ParameterVisitor& visit) { mixer_->parameters(visit); };
  }
  Context& ctx_;
  std::unique_ptr<Mixer> mixer_;
  Parameters weights_;
  Activations kept_, temporaries_;
  Buffer<float> report_, x_;
  std::optional<Pass> pass_;
};

Floats part(const Floats& v, size_t i, size_t of) {
  const size_t n = v.size() / of;
  return Floats(v.begin() + std::ptrdiff_t(i * n), v.begin() + std::ptrdiff_t((i + 1) * n));
}

// How many slots every expert has.
std::vector<size_t> counted(const std::vector<int>& experts, size_t E) {
  std::vector<size_t> counts(E, 0);
  for (const int e : experts) counts[size_t(e)]++;
  return counts;
}

// What the layer computes, put together by hand: an FFN with one expert's matrices, for one expert after the other.
struct Expected {
  Floats y, dx;
  Named gradients;
};

Expected one_by_one(const MoeConfig& moe, const FfnConfig& ffn, const Named& weights, const Floats& x,
                    const Floats& dy) {
  Context ctx(Device::cpu);
  const size_t E = moe.E, k = moe.k;
  const Floats& w_router = weights.at("gate.weight");
  Floats logits(N * E);
  matmul(logits.data(), x.data(), w_router.data(), N, E, C, Layout::nt, Accumulate::no, ctx,
         moe.router_bias ? weights.at("gate.bias").data() : nullptr);
  Floats p(N * E), lse(N), weight(N * k), dweight(N * k), rows(N * k * C), drows(N * k * C), dlogits(N * E);
  std::vector<int> expert(N * k);
  const RouterOut routed = {p.data(), lse.data(), expert.data(), weight.data()};
  const RouterShape shape = {N, E, k, moe.renormalise};
  router_forward_ref(routed, logits.data(), shape);

  Expected result = {Floats(N * C), Floats(N * C), {}};
  Named& gradients = result.gradients;
  for (size_t e = 0; e < E; e++) {
    Layer one = Layer::dense(ffn, moe.F, ctx);
    Named own;
    for (const auto& [name, all] : weights)
      if (name.starts_with("experts.")) own[name.substr(8)] = part(all, e, E);
    one.set(own);
    Floats mine, dmine;  // what this expert is given, in the order of the tokens
    for (size_t slot = 0; slot < N * k; slot++)
      for (size_t c = 0; c < C && size_t(expert[slot]) == e; c++) {
        mine.push_back(x[slot / k * C + c]);
        dmine.push_back(weight[slot] * dy[slot / k * C + c]);
      }
    Floats said, dx;
    if (!mine.empty()) said = one.forward(mine), dx = one.backward(dmine);
    for (size_t slot = 0, i = 0; slot < N * k; slot++)
      for (size_t c = 0; c < C && size_t(expert[slot]) == e; c++, i++)
        rows[slot * C + c] = said[i], drows[slot * C + c] = dx[i];
    for (auto& [name, values] : own) {
      const Floats g = mine.empty() ? Floats(values.size(), 0.0f) : one.gradients().at(name);
      Floats& all = gradients["experts." + name];
      all.insert(all.end(), g.begin(), g.end());
    }
  }

  Floats shared(N * C), gated;
  if (moe.shared) {
    Layer dense = Layer::dense(ffn, moe.shared_width(), ctx);
    Named own;
    for (const auto& [name, values] : weights)
      if (name.starts_with("shared_expert.")) own[name.substr(14)] = values;
    dense.set(own);
    gated = shared = dense.forward(x);
    Floats dshared = dy, z(N), dz(N);
    if (moe.shared_gate) {
      const Floats& w = weights.at("shared_expert_gate.weight");
      matmul(z.data(), x.data(), w.data(), N, 1, C, Layout::nt, Accumulate::no, ctx);
      gate_forward_ref(gated.data(), shared.data(), z.data(), N, C, C, GateOp{});
      gate_backward_ref(dshared.data(), dz.data(), dy.data(), shared.data(), z.data(), N, C, C, GateOp{});
    }
    result.dx = dense.backward(dshared);
    for (const auto& [name, g] : dense.gradients()) gradients["shared_expert." + name] = g;
    if (moe.shared_gate) {
      const Floats& w = weights.at("shared_expert_gate.weight");
      Floats& dw = gradients["shared_expert_gate.weight"] = Floats(C, 0.0f);
      matmul(dw.data(), dz.data(), x.data(), 1, C, N, Layout::tn, Accumulate::yes, ctx);
      matmul(result.dx.data(), dz.data(), w.data(), N, C, 1, Layout::nn, Accumulate::yes, ctx);
    }
  }

  for (size_t n = 0; n < N; n++)
    for (size_t c = 0; c < C; c++) {
      const auto at = [&](const Floats& v, size_t j) { return v[(n * k + j) * C + c]; };
      float y = weight[n * k] * at(rows, 0), dx = at(drows, 0);
      for (size_t j = 1; j < k; j++) y = fused(weight[n * k + j], at(rows, j), y), dx = dx + at(drows, j);
      result.y[n * C + c] = moe.shared ? y + gated[n * C + c] : y;
      result.dx[n * C + c] = moe.shared ? result.dx[n * C + c] + dx : dx;
    }
  for (size_t slot = 0; slot < N * k; slot++) {
    RowSum<float> sum;
    for (size_t c = 0; c < C; c++) sum.fma(dy[slot / k * C + c], rows[slot * C + c]);
    dweight[slot] = sum.total();
  }
  const std::vector<size_t> counts = counted(expert, E);
  router_backward_ref(dlogits.data(), dweight.data(), routed, {moe.balance, moe.z, counts.data()}, shape);
  Floats& dw = gradients["gate.weight"] = Floats(E * C, 0.0f);
  matmul(dw.data(), dlogits.data(), x.data(), E, C, N, Layout::tn, Accumulate::yes, ctx);
  if (moe.router_bias) {
    Floats& db = gradients["gate.bias"] = Floats(E, 0.0f);
    bias_backward_ref(db.data(), dlogits.data(), N, E);
  }
  matmul(result.dx.data(), dlogits.data(), w_router.data(), N, C, E, Layout::nn, Accumulate::yes, ctx);
  return result;
}

struct Case {
  const char* what;
  MoeConfig moe;
  FfnConfig ffn;
};

std::vector<Case> cases() {
  const MoeConfig few = {.E = 6, .k = 2, .F = 11, .balance = 0.3f, .z = 0.1f};
  MoeConfig all = few, shared = few, ungated = few, many = few, wider = few;
  all.k = all.E = 4, all.renormalise = false;
  shared.shared = 2, shared.router_bias = true;
  ungated.shared = 1, ungated.shared_gate = false, ungated.k = 1, ungated.renormalise = false;
  wider.shared = 17.0 / 11;
  many.E = 150, many.k = 3;  // most of them without a token
  const FfnConfig clamped = {.kind = FfnKind::swiglu_clamped, .bias = true},
                  gelu = {.kind = FfnKind::gelu, .bias = true};
  return {{"2 of 6", few, {}},
          {"all of 4, whose weights are not divided", all, {}},
          {"2 of 6 and a gated shared expert, clamped SwiGLU", shared, clamped},
          {"1 of 6 and a shared expert, GELU", ungated, gelu},
          {"2 of 6 and a shared expert of width 17, where one has 11", wider, {}},
          {"2 of 6, GEGLU", few, {.kind = FfnKind::geglu, .gelu = Activation::gelu_erf}},
          {"2 of 6, ReLU squared", few, {.kind = FfnKind::relu2}},
          {"3 of 150", many, {.kind = FfnKind::glu}}};
}

}  // namespace

TEST_CASE("moe: the layer is its experts computed one by one, to the last bit", "[bitwise]") {
  const Floats x = random_values<float>(N * C, 1), dy = random_values<float>(N * C, 2);
  Context cpu(Device::cpu);
  for (const Case& c : cases()) {
    INFO(c.what);
    const Named weights = Layer::moe(c.moe, c.ffn, cpu).random_weights();
    const Expected expected = one_by_one(c.moe, c.ffn, weights, x, dy);
    on_every_device([&](Context& ctx) {
      Layer layer = Layer::moe(c.moe, c.ffn, ctx);
      layer.set(weights);
      REQUIRE_BITWISE(expected.y, layer.forward(x));
      REQUIRE_BITWISE(expected.dx, layer.backward(dy));
      const Named gradients = layer.gradients();
      REQUIRE(gradients.size() == expected.gradients.size());
      for (const auto& [name, g] : gradients) {
        INFO(name);
        REQUIRE_BITWISE(expected.gradients.at(name), g);
      }
    });
  }
}

TEST_CASE("moe: the losses of the router have exact gradients for the slots of the slice so far",
          "[gradcheck][bitwise]") {
  constexpr size_t E = 6;
  for (const BalanceOver over : {BalanceOver::global, BalanceOver::micro_batch}) {
    const MoeConfig moe = {
        .E = E, .k = 2, .F = 11, .router_bias = true, .balance = 0.7f, .z = 0.2f, .balance_over = over};
    const Floats zero(N * C, 0.0f);
    on_every_device([&](Context& ctx) {
      Layer layer = Layer::moe(moe, {}, ctx);
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
    Context cpu(Device::cpu);
    Config c = small_run(small_model("--experts=5 --balance-loss=0.5 --balance-over=" + over), 4, micro_batches);
    c.slices = 1;
    Run run(c, cpu);
    run.steps(4);
    return run.trainer.fingerprint();
  };
  REQUIRE(fingerprint("global", 1) == fingerprint("micro-batch", 1));
  REQUIRE(fingerprint("global", 2) != fingerprint("micro-batch", 2));
}

TEST_CASE("moe: a backward reports how the slice was routed so far", "[moe][bitwise]") {
  constexpr size_t E = 7, k = 2;
  const MoeConfig moe = {.E = E, .k = k, .F = 11, .router_bias = true};
  const Floats zero(N * C, 0.0f);
  on_every_device([&](Context& ctx) {
    Layer layer = Layer::moe(moe, {}, ctx);
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
