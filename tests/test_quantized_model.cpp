// quantized_model: which weights of a model are rounded, what its linear layers then compute, and SmoothQuant, which
// before that must change nothing.
#include <cmath>
#include <map>
#include <set>

#include "core/philox.cuh"
#include "kernels/matmul.h"
#include "layers/smoothquant.h"
#include "tests/activations.h"
#include "tests/contents.h"
#include "tests/harness.h"
#include "tests/small_models.h"

using namespace gated;

namespace {

using Floats = std::vector<float>;
using Format = QuantizedFormat;
constexpr Format formats[] = {Format::fp8, Format::nvfp4};

// A small model off its symmetric start, and a batch for it.
struct Fixture {
  ModelConfig config;
  RandomBatch batch;
  Context& ctx;
  Model model;

  Fixture(const std::string& flags, Context& ctx)
      : config(small_model(flags)), batch(config), ctx(ctx), model(config, batch.B, batch.T, 3, ctx) {
    leave_symmetry(model);
  }
  float loss() { return model.loss(batch); }
  void smooth() {
    SmoothQuant smooth(model, ctx);
    smooth.see(batch.B * batch.T);
    smooth.fold(0.5);
  }
  std::map<std::string, Floats> weights() const { return by_name(model.weights, model.weights.values); }
  Floats weight(const std::string& name) const { return weights().at(name); }
};

// The linear layers of blocks, as a checkpoint names them. Those of experts are (E,out,in).
const std::string rounded_names =
    "model\\.layers\\.\\d+\\.(self_attn\\.[qkvog]_proj|linear_attn\\.(in_proj_(qkv|z|ba)|out_proj)|"
    "mlp\\.((experts|shared_expert)\\.)?(gate|up|down)_proj)\\.weight";

// Have the norms of this model mixers of their own?
bool can_be_smoothed(const std::string& flags) {
  return !contains(flags, "--norm=none") && !contains(flags, "--norm-placement=post");
}

}  // namespace

TEST_CASE("quantized_model: the linear layers of blocks are rounded, and nothing else") {
  std::set<std::string> rounded, kept;
  for (const std::string& flags : small_models())
    for (Format format : formats) {
      INFO(flags);
      Context ctx(Device::cpu);
      Fixture f(flags, ctx);
      std::map<std::string, Floats> expected = f.weights();
      for (const Parameter& p : f.model.weights.list()) {
        const bool linear = fits(p.name, rounded_names);
        (linear ? rounded : kept).insert(replaced(p.name, "\\.\\d+\\.", ".N."));
        if (!linear) continue;
        float* const w = expected.at(p.name).data();
        const size_t columns = p.shape.back(), rows = p.shape[p.shape.size() - 2];
        quantize_weight_ref(w, w, {p.size / rows / columns, rows, columns}, format);
      }
      f.model.quantize(format);
      for (const auto& [name, w] : f.weights()) {
        INFO(name);
        REQUIRE_BITWISE(expected.at(name), w);
      }
    }
  REQUIRE(rounded.size() == 18);
  for (const char* name : {"model.embed_tokens.weight", "lm_head.weight", "model.layers.N.mlp.gate.weight",
                           "model.layers.N.mlp.shared_expert_gate.weight", "model.layers.N.self_attn.v_select.weight",
                           "model.layers.N.input_layernorm.gate_down.weight"})
    REQUIRE(kept.count(name) == 1);
}

TEST_CASE("quantized_model: a linear layer and an expert multiply rounded rows by rounded weights, others as they did",
          "[bitwise]") {
  const std::string flags =
      "--layers=1 --attn=g1 --gate=headwise --head-experts=2 --norm=gated --norm-rank=3 --experts=3 "
      "--shared-experts=1 --expert-hidden=18";
  const std::string linear = "--layers=1 --mixer=gated-delta --linear-key-dim=4 --linear-value-dim=6";
  for (Format format : formats) {
    Context ctx(Device::cpu);
    const auto check = [&](const std::string& flags, auto products) {
      Fixture f(flags, ctx);
      const Activations left(f.model, ctx);
      f.model.quantize(format);
      f.loss();
      const auto tensor = [&](const std::string& name) {
        INFO(name);
        const auto layers = left.get<float>(name);
        REQUIRE(layers.size() == 1);
        return layers[0];
      };
      products([&](const std::string& y, const std::string& x, const std::string& weight, bool rounds) {
        INFO(y << " from " << x);
        const Floats w = f.weight("model.layers.0." + weight + ".weight"), x_values = tensor(x), got = tensor(y);
        // An expert has rows and a matrix of its own; N in * E in out / (N out) = E in^2.
        const bool of_experts = contains(y, ", experts");
        const auto starts = of_experts ? left.get<int>("mlp: first row of an expert")[0] : std::vector<int>{0};
        const size_t E = of_experts ? starts.size() - 1 : 1, in = x_values.size() * w.size() / got.size() / E;
        const size_t C = size_t(std::sqrt(double(in)) + 0.5), N = x_values.size() / C, out = got.size() / N;
        Floats rows = x_values, expected(got.size());
        if (rounds) quantize_rows_ref(rows.data(), x_values.data(), N, C, format);
        for (size_t e = 0; e < E; e++) {
          const size_t first = size_t(starts[e]), end = of_experts ? size_t(starts[e + 1]) : N;
          matmul_nt_ref(&expected[first * out], &rows[first * C], &w[e * out * C], end - first, out, C);
        }
        REQUIRE_BITWISE(expected, got);
      });
    };
    check(flags, [](auto product) {
      const std::string attention = "input norm: output", ffn = "second norm: output";
      for (const char* name : {"q", "k", "v"})
        product(std::string("self_attn: ") + name, attention, std::string("self_attn.") + name + "_proj", true);
      product("self_attn: gate logit", attention, "self_attn.g_proj", true);
      product("self_attn: output", "self_attn: gate output", "self_attn.o_proj", true);
      product("mlp: router logits", ffn, "mlp.gate", false);
      product("mlp: gate of the shared expert", ffn, "mlp.shared_expert_gate", false);
      product("mlp, experts: up", "mlp: x, sorted by expert", "mlp.experts.up_proj", true);
      product("mlp, experts: output", "mlp, experts: activation", "mlp.experts.down_proj", true);
      product("mlp, shared expert: gate", ffn, "mlp.shared_expert.gate_proj", true);
      product("mlp, shared expert: up", ffn, "mlp.shared_expert.up_proj", true);
      product("mlp, shared expert: output", "mlp, shared expert: activation", "mlp.shared_expert.down_proj", true);
    });
    check(linear, [](auto product) {
      product("linear_attn: q, k, v projected", "input norm: output", "linear_attn.in_proj_qkv", true);
      product("linear_attn: z", "input norm: output", "linear_attn.in_proj_z", true);
      product("linear_attn: b, a", "input norm: output", "linear_attn.in_proj_ba", true);
      product("linear_attn: output", "linear_attn: gated", "linear_attn.out_proj", true);
      product("mlp: output", "mlp: activation", "mlp.down_proj", true);
    });
  }
}

TEST_CASE("quantized_model: the loss has the same bits on cpu and kernels, smoothed or not", "[bitwise]") {
  size_t line = 0;
  for (const std::string& flags : small_models()) {
    INFO(flags);
    const Format format = formats[line++ % 2];
    const auto loss_on = [&](Device device) {
      Context ctx(device);
      Fixture f(flags, ctx);
      const float plain = f.loss();
      if (can_be_smoothed(flags)) f.smooth();
      f.model.quantize(format);
      return Floats{plain, f.loss()};
    };
    const Floats on_cpu = loss_on(Device::cpu);
    REQUIRE_BITWISE(on_cpu, loss_on(kernel_device));
    REQUIRE(on_cpu[0] != on_cpu[1]);
  }
}

TEST_CASE("smoothquant: powers of two leave every bit of the loss", "[bitwise]") {
  for (const std::string& flags : small_models()) {
    if (!can_be_smoothed(flags)) continue;
    INFO(flags);
    Context ctx(Device::cpu);
    Fixture f(flags, ctx);
    const float before = f.loss();
    size_t norms = 0;
    f.model.norms_of_mixers([&](Norm& norm, Mixer& mixer) {
      Floats s;
      for (size_t c = 0; c < f.config.hidden; c++) s.push_back(std::exp2(float(random_below(9, norms, c, 13)) - 6));
      fold_scales(norm, mixer, s, ctx);
      norms++;
    });
    REQUIRE(norms == 2 * f.config.layers);
    if (contains(flags, "zero-centred"))  // where 1 + w is rounded
      REQUIRE(f.loss() == Approx(before).epsilon(1e-5));
    else
      REQUIRE_BITWISE(Floats{before}, Floats{f.loss()});
  }
}

TEST_CASE("smoothquant: the scales are max|x|^alpha / max|W|^(1-alpha)") {
  for (double alpha : {0.3, 1.0}) {
    Context ctx(Device::cpu);
    Fixture f("--layers=1 --norm=layernorm --experts=3 --shared-experts=1 --attn=g1", ctx);
    const Activations left(f.model, ctx);
    // The larger of two batches counts.
    SmoothQuant smooth(f.model, ctx);
    std::map<std::string, Floats> largest = {{"input norm", Floats(20)}, {"second norm", Floats(20)}};
    for (int batch = 0; batch < 2; batch++) {
      f.loss();
      smooth.see(f.batch.B * f.batch.T);
      for (auto& [norm, most] : largest) {
        const Floats y = left.get<float>(norm + ": output").at(0);
        for (size_t i = 0; i < y.size(); i++) most[i % 20] = std::max(most[i % 20], std::fabs(y[i]));
      }
      std::rotate(f.batch.ids.begin(), f.batch.ids.begin() + 5, f.batch.ids.end());
    }
    std::map<std::string, Floats> before = f.weights();
    smooth.fold(alpha);
    // A norm, its weights, and the matrices that read it: those that are rounded, and the others.
    for (const auto& [norm, weights, rounded, kept] : std::vector<std::array<std::string, 4>>{
             {"input norm", "input_layernorm", "self_attn.q_proj self_attn.k_proj self_attn.v_proj self_attn.g_proj"},
             {"second norm", "post_attention_layernorm",
              "mlp.experts.gate_proj mlp.experts.up_proj mlp.shared_expert.gate_proj mlp.shared_expert.up_proj",
              "mlp.gate mlp.shared_expert_gate"}}) {
      std::vector<double> of_weights(20), s(20);
      for (const std::string& name : words_of(rounded)) {
        const Floats& w = before.at("model.layers.0." + name + ".weight");
        for (size_t i = 0; i < w.size(); i++)
          of_weights[i % 20] = std::max(of_weights[i % 20], std::fabs(double(w[i])));
      }
      for (size_t i = 0; i < 20; i++)
        s[i] = std::pow(double(largest.at(norm)[i]), alpha) / std::pow(of_weights[i], 1 - alpha);
      const auto scaled = [&](const std::string& name, bool divides) {
        INFO(name);
        Floats expected = before.at("model.layers.0." + name);
        for (size_t i = 0; i < expected.size(); i++)
          expected[i] = float(divides ? double(expected[i]) / s[i % 20] : double(expected[i]) * s[i % 20]);
        REQUIRE(relative_error(expected, f.weight("model.layers.0." + name)) < 1e-6);
        before.at("model.layers.0." + name) = f.weight("model.layers.0." + name);
      };
      for (const char* part : {".weight", ".bias"}) scaled(weights + part, true);
      for (const std::string& name : words_of(rounded + " " + kept)) scaled(name + ".weight", false);
    }
    for (const auto& [name, w] : f.weights()) REQUIRE_BITWISE(before.at(name), w);  // and no other changes
  }
}

TEST_CASE("smoothquant: a column that is 0 on one side stays as it is") {
  Context ctx(Device::cpu);
  Fixture f("--layers=1", ctx);
  change_weights(f.model, [](const Parameter& p, float* w) {
    if (p.name == "model.layers.0.input_layernorm.weight") w[4] = 0;
    if (fits(p.name, ".*\\.(gate|up)_proj\\.weight"))
      for (size_t row = 0; row < p.shape[0]; row++) w[row * 20 + 7] = 0;
  });
  const float before = f.loss();
  const Floats q = f.weight("model.layers.0.self_attn.q_proj.weight");
  const Floats norm = f.weight("model.layers.0.post_attention_layernorm.weight");
  f.smooth();
  REQUIRE(f.weight("model.layers.0.input_layernorm.weight")[4] == 0);
  REQUIRE(f.weight("model.layers.0.self_attn.q_proj.weight")[4] == q[4]);
  REQUIRE(f.weight("model.layers.0.self_attn.q_proj.weight")[5] != q[5]);
  REQUIRE(f.weight("model.layers.0.post_attention_layernorm.weight")[7] == norm[7]);
  REQUIRE(f.weight("model.layers.0.post_attention_layernorm.weight")[8] != norm[8]);
  REQUIRE(f.loss() == Approx(before).epsilon(1e-6));
}

TEST_CASE("quantized_model: a backward is refused, and SmoothQuant of a model whose norms it cannot scale") {
  Context ctx(Device::cpu);
  Fixture rounded("", ctx), none("--norm=none", ctx), post("--norm-placement=post", ctx);
  rounded.model.quantize(Format::fp8);
  REQUIRE_THROWS_WITH(forward_backward(rounded.model, rounded.batch, ctx), "model: a backward of a quantized model");
  REQUIRE_THROWS_WITH(SmoothQuant(none.model, ctx), "SmoothQuant: there are no norms to fold its scales into");
  REQUIRE_THROWS_WITH(SmoothQuant(post.model, ctx),
                      "SmoothQuant: norms write the residual stream, which is not theirs to scale");
}
