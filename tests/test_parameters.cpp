// parameters: which of them a line of flags makes, of what shape, what they start at, and which of them decay.
//
// The table (tests/fixtures/parameters.json) is the expectation. It knows a parameter by the end of its name and
// nothing of the layer that lists it.
#include <cmath>

#include "core/philox.cuh"
#include "tests/fixtures.h"
#include "tests/small_models.h"
#include "training/optimizer.cuh"

using namespace gated;

namespace {

// "starts": the end of a name, whether it decays, and how it starts. `normal`: N(0, std), and a matrix of products with
// --init=fan-in N(0, 1 / sqrt(inputs)). `flat`: N(0, std) always. `embedding`: `normal` where it is the head too.
// `scaled`: `normal`, with --init=depth-scaled divided by sqrt(2 layers).
// `log of uniform`, `time step`: see layers/parameters.h, Init.
// `norm weight`: 1, or 0 where the norm computes 1 + w. `up`: `normal`, or 0 with --norm-gate-init=zero.
// The first row that fits counts. Matrices and embeddings decay, vectors and scalars do not.
// "shapes": flags, the end of a name, its shape, [] where there is none. Hidden 20, 4 query heads and 2 key/value heads
// of 6, an FFN of 28, experts of 11; gates have the scores that their paper gives them (arXiv 2505.06708).
// "lines": flags about starting values and decay that meet.
const json table = read_fixtures("parameters.json");

const json& row_of(const std::string& name) {
  for (const auto& row : table["starts"])
    if (name.ends_with(std::string(row[0]))) return row;
  fail("%s is not in the table", name.c_str());
}

// The value that all elements start at, or NaN where they are random; the standard deviation of those.
struct Expected {
  double value, deviation;
};

Expected expected_start(const Parameter& p, const ModelConfig& c) {
  const double usual = c.init.std,
               matrix = c.init.kind == InitRule::Kind::fan_in ? 1 / std::sqrt(double(p.shape.back())) : usual;
  const bool shrinks = c.init.kind == InitRule::Kind::depth_scaled;
  // Attention reads the first norm of a block. With --norm-placement=post it reads the stream as the second norm of the
  // block before it left it.
  const bool read_by_attention = p.name.ends_with(c.placement == NormPlacement::post ? ".post_attention_layernorm.alpha"
                                                                                     : ".input_layernorm.alpha");
  return std::map<std::string, Expected>{
      {"zero", {0, 0}},
      {"one", {1, 0}},
      {"third", {1.0 / 3, 0}},
      {"root of hidden", {std::sqrt(double(c.hidden)), 0}},
      {"norm weight", {c.norm.zero_centred ? 0.0 : 1.0, 0}},
      {"log of uniform", {NAN, usual}},
      {"time step", {NAN, usual}},
      {"flat", {NAN, usual}},
      {"embedding", {NAN, c.tied ? matrix : usual}},
      {"normal", {NAN, matrix}},
      {"scaled", {NAN, shrinks ? usual / std::sqrt(2.0 * double(c.layers)) : matrix}},
      {"up", c.norm.gate.zero_init ? Expected{0, 0} : Expected{NAN, matrix}},
      {"alpha", {read_by_attention ? 0.8 : 0.2, 0}}}
      .at(row_of(p.name)[2]);
}

// Every variant, and those of the table.
std::vector<std::string> lines() {
  std::vector<std::string> all = small_models();
  for (std::string& line : all)
    if (line.find("dyt") != std::string::npos && line.find("--dyt-alpha") == std::string::npos)
      line += " --dyt-alpha=0.2,0.8";
  for (const auto& line : table["lines"]) all.push_back(line);
  return all;
}

}  // namespace

TEST_CASE("parameters: every one starts where the table says", "[parameters]") {
  const uint64_t seed = 12;
  for (const std::string& flags : lines()) {
    INFO(flags);
    Context ctx(Device::cpu);
    Model model(small_model(flags), 1, 9, seed, ctx);
    const std::vector<float> values = model.weights.values.download();
    std::vector<float> rest = values;  // what no parameter has is padding, and 0
    for (const Parameter& p : model.weights.list()) {
      INFO(p.name);
      const Expected start = expected_start(p, model.config);
      const std::string kind = row_of(p.name)[2];
      // Draw i of a parameter is normal number i of the stream of its name (RFC 9923), whatever else the model has.
      const uint64_t stream = uint64_t(1) << 48 | (fnv1a(p.name) & 0xffffffffffff);
      std::vector<float> expected(p.size, float(start.value)), got(p.size);
      for (size_t i = 0; i < p.size; i++) {
        if (std::isnan(start.value)) expected[i] = float(start.deviation * normal(seed, stream, i));
        const double u = uniform_double(seed, stream, i);
        if (kind == "log of uniform") expected[i] = float(std::log(0.01 + 15.99 * u));
        if (kind == "time step") expected[i] = float(std::log(std::expm1(0.001 * std::pow(100, u))));
        got[i] = values[p.offset + i];
        rest[p.offset + i] = 0;
      }
      REQUIRE_BITWISE(expected, got);
    }
    REQUIRE_BITWISE(std::vector<float>(values.size(), 0.0f), rest);
  }
}

TEST_CASE("parameters: a step without gradient moves those that decay and no other", "[parameters]") {
  // Without a gradient AdamW is w - lr * decay * w = w / 2 here, exactly.
  const AdamWHyperparameters settings = {0, 0.9f, 0.95f, 1e-8f, 0.25f};
  for (const std::string& flags : lines()) {
    INFO(flags);
    Context ctx(Device::cpu);
    Model model(small_model(flags), 1, 9, 12, ctx);
    Optimizer optimizer(model.weights, 1, ctx);
    const std::vector<float> ones(model.weights.flat_size(), 1.0f);
    model.weights.values.upload(ones);
    optimizer.begin_slice();
    optimizer.end_slice(0);
    optimizer.set_step(settings, 2.0f, 1, 1.0f);
    optimizer.update();
    const std::vector<float> after = model.weights.values.download();
    for (const Parameter& p : model.weights.list()) {
      INFO(p.name);
      // The weight of a norm that computes 1 + w decays, towards 1.
      const auto& row = row_of(p.name);
      const bool decays = row[1] || (row[2] == "norm weight" && model.config.norm.zero_centred);
      const float* const values = after.data() + p.offset;
      REQUIRE_BITWISE(std::vector<float>(p.size, decays ? 0.5f : 1.0f), std::vector<float>(values, values + p.size));
    }
  }
}

TEST_CASE("parameters: each has its shape, and is there where a flag says so, and there alone", "[parameters]") {
  for (const auto& row : table["shapes"]) {
    INFO(row);
    const Model model(small_model(row[0]));
    Shape shape;
    for (const Parameter& p : model.weights.list())
      if (shape.empty() && p.name.ends_with(std::string(row[1]))) shape = p.shape;
    REQUIRE(shape == row[2].get<Shape>());
  }
}

TEST_CASE("parameters: the epsilon of a norm is its authors', or the one that is named", "[parameters]") {
  for (auto [flags, norm, qk_norm] : {std::tuple{"", 1e-6f, 1e-6f},
                                      {"--norm=gated", 1e-6f, 1e-6f},
                                      {"--norm=preaffine", 1e-6f, 1e-6f},
                                      {"--norm=layernorm", 1e-5f, 1e-6f},
                                      {"--norm=layernorm --norm-eps=0.25", 0.25f, 0.25f},
                                      {"--norm=dyt --norm-eps=0.25", 0.25f, 0.25f}}) {
    INFO(flags);
    const NormConfig config = small_model(flags).norm;
    REQUIRE(config.epsilon() == norm);
    REQUIRE(config.rms_epsilon() == qk_norm);
  }
}
