// model: each layer's backward composes its operations rightly. (On every device alike: tests/test_matrix.cpp.)
#include "layers/model.h"

#include "tests/activations.h"
#include "tests/harness.h"
#include "tests/refusal.h"
#include "tests/small_models.h"

using namespace gated;

TEST_CASE("model: the gradient of every parameter points where the loss falls", "[gradcheck]") {
  const Threads one(1);  // thousands of passes over next to nothing: waking a second thread costs more than it does
  for (const std::string& flags : small_models()) {
    INFO(flags);
    Context ctx(Device::cpu);
    ModelConfig config = small_model(flags);
    config.moe.balance = config.moe.z = 0;  // which are not in the loss that is seen: tests/test_moe.cpp
    const RandomBatch b(config);
    Model model(config, b.B, b.T, 3, ctx);
    const Activations activations(model, ctx);
    leave_symmetry(model);
    const float loss = forward_backward(model, b, ctx);
    if (config.dropout == 0) REQUIRE(model.loss(b) == loss);  // the loss alone is the loss of training
    const std::vector<float> w = model.weights.values.download(), g = model.weights.grads.download();
    const auto experts = activations.get<int>("mlp: experts");

    // Along its own gradient g/|g| a parameter's loss has slope |g|. In fp32 a central difference of fourth order
    // finds the slope to a few parts in a thousand; a term left out of a backward is off by far more.
    for (const Parameter& p : model.weights.list()) {
      double squares = 0;
      for (size_t i = 0; i < p.size; i++) squares += double(g[p.offset + i]) * g[p.offset + i];
      const double length = std::sqrt(squares);
      INFO(p.name << ", gradient norm " << length);
      // Where keys do not turn, their bias adds the same to every score of a query: softmax does not see it.
      if (config.position != Position::rope && p.name.find("k_proj.bias") != std::string::npos) {
        REQUIRE(length < 1e-6);
        continue;
      }
      REQUIRE(length > 1e-4);
      auto loss_at = [&](double step) {
        std::vector<float> moved = w;
        for (size_t i = 0; i < p.size; i++) moved[p.offset + i] += float(step * g[p.offset + i] / length);
        model.weights.values.upload(moved);
        const float loss = forward_backward(model, b, ctx);  // loss() has no dropout
        return activations.get<int>("mlp: experts") == experts ? double(loss) : NAN;
      };
      // Where the loss bends much, a smaller step sees the slope better; a wrong gradient agrees with neither.
      // At a clip's bounds the loss has corners. Where a token goes to another expert it jumps: there no slope is seen.
      const double tolerance = config.clip_residual > 0 || config.clip_output > 0 ? 0.1 : 0.01;
      double error = INFINITY;
      for (double h : {0.02, 0.005, 0.001, 0.0003}) {
        h = std::min(h, 0.01 / length);
        const double slope = (8 * (loss_at(h) - loss_at(-h)) - (loss_at(2 * h) - loss_at(-2 * h))) / (12 * h);
        if (!std::isnan(slope)) error = std::min(error, std::fabs(slope - length) / (tolerance * length + 2e-7 / h));
        if (error <= 1) break;
      }
      REQUIRE(error <= 1);
      model.weights.values.upload(w);
    }
  }
}

TEST_CASE("model: a future token changes no earlier loss", "[model]") {
  const Threads one(1);
  for (const std::string& flags : small_models()) {
    INFO(flags);
    Context ctx(Device::cpu);
    const ModelConfig config = small_model(flags);
    RandomBatch b(config, 1);
    Model model(config, b.B, b.T, 3, ctx);
    const Activations activations(model, ctx);
    leave_symmetry(model);
    const auto losses = [&] { return model.loss(b), activations.get<float>("losses").at(0); };
    const std::vector<float> before = losses();
    const size_t seen = b.T / 2;
    for (size_t t = seen; t < b.T; t++) b.ids[t] = (b.ids[t] + 1) % int(config.vocab);
    const std::vector<float> after = losses();
    for (size_t t = 0; t < b.T; t++) REQUIRE((before[t] == after[t]) == (t < seen));
  }
}

TEST_CASE("model: shorter batches fit, and a longer one leaves nothing behind", "[model]") {
  Context ctx(Device::cpu);
  Model model(small_model("--norm=gated --norm-rank=3 --attn=g1"), 2, 9, 3, ctx);
  const std::vector<float> a = model.next_token_logits({4, 5, 6});
  model.next_token_logits({4, 5, 6, 7, 8, 9});
  REQUIRE_BITWISE(a, model.next_token_logits({4, 5, 6}));
  REQUIRE_THROWS_AS(model.next_token_logits(std::vector<int>(10, 1)), Error);
  REQUIRE_THROWS_AS(model.next_token_logits({37}), Error);
}

TEST_CASE("model: a forward needs a batch, and a backward the forward of that batch", "[model]") {
  Context ctx(Device::cpu);
  const ModelConfig config = small_model();
  const RandomBatch b(config);
  Model model(config, b.B, b.T, 3, ctx);
  Buffer<float> loss(ctx.device, 1);
  const auto backward = [&] { return refusal([&] { model.backward({}, loss.data()); }); };
  REQUIRE(refusal([&] { model.forward(); }) == "model: a forward without a batch");
  model.upload(b);
  REQUIRE(backward() == "model: a backward without its forward");
  model.forward();
  model.upload(b);
  REQUIRE(backward() == "model: a backward without its forward");
}

TEST_CASE("model: evaluated in a longer context it reads short sequences as it did in training, but for YaRN",
          "[model]") {
  Context ctx(Device::cpu);
  for (const std::string flags : {"--rope-theta=20", "--attn-score=sigmoid --rope-theta=20"}) {
    auto logits = [&](size_t context, size_t trained, double yarn) {
      ModelConfig c = small_model(flags + format(" --context=%zu", context));
      c.trained_context = trained, c.yarn = yarn;
      return Model(c, 1, context, 3, ctx).next_token_logits({4, 5, 6, 7, 8, 9});
    };
    INFO(flags);
    const std::vector<float> trained = logits(9, 0, 1);
    REQUIRE_BITWISE(trained, logits(90, 9, 1));
    REQUIRE(trained != logits(90, 9, 2));
    REQUIRE(logits(90, 9, 2) != logits(90, 9, 4));
    REQUIRE(logits(90, 9, 2) != logits(90, 40, 2));  // of which YaRN stretches other points
    REQUIRE_BITWISE(logits(40, 0, 2), logits(90, 40, 2));
  }
}
