// parameters: which of them a line of flags makes, of what shape, what they start at, and which of them decay.
//
// The table is the expectation. It knows a parameter by the end of its name and nothing of the layer that lists it.
#include <cmath>

#include "core/philox.cuh"
#include "tests/compare.h"
#include "tests/small_models.h"
#include "training/optimizer.cuh"

using namespace gated;

namespace {

// How a parameter starts. `normal`: N(0, std), and a matrix of products with --init=fan-in N(0, 1 / sqrt(inputs)). `flat`:
// N(0, std) always. `embedding`: `normal` where it is the head too. `scaled`: `normal`, with --init=depth-scaled divided
// by sqrt(2 layers).
// `log_of_uniform`, `time_step`: see layers/parameters.h, Init.
// `norm_weight`: 1, or 0 where the norm computes 1 + w. `up`: `normal`, or 0 with --norm-gate-init=zero.
enum class Start {
  log_of_uniform,
  time_step,
  normal,
  flat,
  embedding,
  scaled,
  zero,
  one,
  third,
  norm_weight,
  up,
  alpha,
  root_of_hidden
};

struct Row {
  const char* ending;
  bool decays;
  Start start;
};

// The first row that fits counts. Matrices and embeddings decay, vectors and scalars do not.
const Row rows[] = {
    {"model.embed_tokens.weight", true, Start::embedding},
    {"model.embed_positions.weight", true, Start::flat},
    {"model.embed_scale", false, Start::root_of_hidden},
    {"lm_head.weight", true, Start::normal},

    {"self_attn.q_proj.weight", true, Start::normal},
    {"self_attn.k_proj.weight", true, Start::normal},
    {"self_attn.v_proj.weight", true, Start::normal},
    {"self_attn.g_proj.weight", true, Start::normal},
    {"self_attn.k_select.weight", true, Start::normal},
    {"self_attn.v_select.weight", true, Start::normal},
    {"self_attn.o_proj.weight", true, Start::scaled},
    {"mlp.gate_proj.weight", true, Start::normal},
    {"mlp.up_proj.weight", true, Start::normal},
    {"mlp.down_proj.weight", true, Start::scaled},
    {"mlp.gate.weight", true, Start::normal},
    {"mlp.gate.bias", false, Start::zero},
    {"mlp.experts.gate_proj.weight", true, Start::normal},
    {"mlp.experts.up_proj.weight", true, Start::normal},
    {"mlp.experts.down_proj.weight", true, Start::scaled},
    {"mlp.shared_expert.gate_proj.weight", true, Start::normal},
    {"mlp.shared_expert.up_proj.weight", true, Start::normal},
    {"mlp.shared_expert.down_proj.weight", true, Start::scaled},
    {"mlp.shared_expert_gate.weight", true, Start::normal},
    {"_proj.bias", false, Start::zero},

    {"linear_attn.in_proj_qkv.weight", true, Start::normal},
    {"linear_attn.in_proj_z.weight", true, Start::normal},
    {"linear_attn.in_proj_ba.weight", true, Start::normal},
    {"linear_attn.conv1d.weight", true, Start::flat},
    {"linear_attn.out_proj.weight", true, Start::scaled},
    {"linear_attn.A_log", false, Start::log_of_uniform},
    {"linear_attn.dt_bias", false, Start::time_step},
    {"linear_attn.norm.weight", false, Start::one},

    {"self_attn.gate.theta", false, Start::zero},
    {"self_attn.sinks", false, Start::flat},
    {"self_attn.kv_bias.key", false, Start::flat},
    {"self_attn.kv_bias.value", false, Start::flat},
    {"self_attn.q_norm.weight", false, Start::norm_weight},
    {"self_attn.k_norm.weight", false, Start::norm_weight},
    {"self_attn.out_norm.weight", false, Start::norm_weight},
    {".poly.weight", false, Start::third},
    {".poly.bias", false, Start::zero},

    {"norm.gate_down.weight", true, Start::normal},
    {"norm.gate_up.weight", true, Start::up},
    {"norm.pre_weight", false, Start::one},
    {"norm.alpha", false, Start::alpha},
    {"norm.weight", false, Start::norm_weight},
    {"norm.bias", false, Start::zero},
};

const Row& row_of(const std::string& name) {
  for (const Row& row : rows)
    if (name.ends_with(row.ending)) return row;
  fail("%s is not in the table", name.c_str());
}

// The value that all elements start at, or NaN where they are random; the standard deviation of those.
struct Expected {
  double value, deviation;
};

Expected expected_start(const Parameter& p, const ModelConfig& c) {
  const double matrix = c.init.kind == InitRule::Kind::fan_in ? 1 / std::sqrt(double(p.shape.back())) : c.init.std;
  const bool shrinks = c.init.kind == InitRule::Kind::depth_scaled;
  switch (row_of(p.name).start) {
    case Start::zero: return {0, 0};
    case Start::one: return {1, 0};
    case Start::third: return {1.0 / 3, 0};
    case Start::root_of_hidden: return {std::sqrt(double(c.hidden)), 0};
    case Start::norm_weight: return {c.norm.zero_centred ? 0.0 : 1.0, 0};
    case Start::log_of_uniform:
    case Start::time_step:
    case Start::flat: return {NAN, c.init.std};
    case Start::embedding: return {NAN, c.tied ? matrix : c.init.std};
    case Start::normal: return {NAN, matrix};
    case Start::scaled: return {NAN, shrinks ? c.init.std / std::sqrt(2.0 * double(c.layers)) : matrix};
    case Start::up: return c.norm.gate.zero_init ? Expected{0, 0} : Expected{NAN, matrix};
    case Start::alpha: {
      // Attention reads the first norm of a block. With --norm-placement=post it reads the stream as the second norm
      // of the block before it left it.
      const char* const read_by_attention =
          c.placement == NormPlacement::post ? ".post_attention_layernorm.alpha" : ".input_layernorm.alpha";
      return {p.name.ends_with(read_by_attention) ? 0.8 : 0.2, 0};
    }
  }
  return {};
}

// Every variant, and lines in which flags about starting values and decay meet.
std::vector<std::string> lines() {
  std::vector<std::string> all = small_models();
  for (std::string& line : all)
    if (line.find("dyt") != std::string::npos && line.find("--dyt-alpha") == std::string::npos)
      line += " --dyt-alpha=0.2,0.8";
  for (const char* line :
       {"--init=depth-scaled --layers=3 --attn-bias=all --ffn-bias=on --attn=g1 --tied=off --position=learned",
        "--init=depth-scaled --ffn=polynorm --attn-sink=kv-bias --attn=g1 --gate=static --embedding-scale=on",
        "--norm=gated --norm-weight=zero-centred --attn-sink=learned --sdpa-out=groupnorm --norm-gate-init=zero",
        "--norm=preaffine --norm-weight=zero-centred --sdpa-out=groupnorm --tied=off --norm-placement=post",
        "--norm=dyt --dyt-alpha=0.2,0.8 --norm-placement=sandwich",
        "--init=depth-scaled --layers=3 --experts=3 --router-bias --shared-experts=2 --ffn-bias=on --dense-layers=1",
        "--mixer=hybrid --layers=4 --attention-every=3 --init=depth-scaled --norm-weight=zero-centred",
        "--norm=dyt --dyt-alpha=0.2,0.8 --norm-placement=post --embedding-scale=on",
        "--norm=gated-dyt --dyt-alpha=0.2,0.8 --norm-placement=sandwich --norm-gate=tensorwise",
        "--init-std=0.1 --tied=off --norm=gated --attn-sink=kv-bias",
        "--init=fan-in --tied=off --norm=gated --attn=g1 --head-experts=2",
        "--init=fan-in --init-std=0.3 --mixer=hybrid --layers=4 --attention-every=3 --experts=3 --shared-experts=1.5"})
    all.push_back(line);
  return all;
}

// RFC 9923, for the stream of a parameter's random numbers.
uint64_t fnv1a(const std::string& text) {
  uint64_t h = 0xcbf29ce484222325;
  for (const unsigned char c : text) h = (h ^ c) * 0x100000001b3;
  return h;
}

Shape shape_of(const std::string& flags, const std::string& ending) {
  const Model model(small_model(flags));
  for (const Parameter& p : model.weights.list())
    if (p.name.ends_with(ending)) return p.shape;
  return {};
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
      const Start kind = row_of(p.name).start;
      // Draw i of a parameter is normal number i of the stream of its name, whatever else the model has.
      const uint64_t stream = uint64_t(1) << 48 | (fnv1a(p.name) & 0xffffffffffff);
      std::vector<float> expected(p.size, float(start.value)), got(p.size);
      for (size_t i = 0; i < p.size; i++) {
        if (std::isnan(start.value)) expected[i] = float(start.deviation * normal(seed, stream, i));
        const double u = uniform_double(seed, stream, i);
        if (kind == Start::log_of_uniform) expected[i] = float(std::log(0.01 + 15.99 * u));
        if (kind == Start::time_step) expected[i] = float(std::log(std::expm1(0.001 * std::pow(100, u))));
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
      const Row& row = row_of(p.name);
      const bool decays = row.decays || (row.start == Start::norm_weight && model.config.norm.zero_centred);
      const float* const values = after.data() + p.offset;
      REQUIRE_BITWISE(std::vector<float>(p.size, decays ? 0.5f : 1.0f), std::vector<float>(values, values + p.size));
    }
  }
}

TEST_CASE("parameters: a gate has the scores that its paper gives it", "[parameters]") {
  // Hidden 20, 4 query heads and 2 key/value heads of 6. (arXiv 2505.06708. Rows are scores of a token.)
  const std::tuple<const char*, const char*, Shape> gates[] = {
      {"--attn=full", "g_proj.weight", {}},
      {"--attn=g1", "g_proj.weight", {24, 20}},
      {"--attn=g2", "g_proj.weight", {12, 20}},
      {"--attn=g3", "g_proj.weight", {12, 20}},
      {"--attn=g4", "g_proj.weight", {24, 20}},
      {"--attn=g5", "g_proj.weight", {20, 20}},
      {"--attn=g1 --gate=headwise", "g_proj.weight", {4, 20}},
      {"--attn=g2 --gate=headwise", "g_proj.weight", {2, 20}},
      {"--attn=g3 --gate=headwise --qk-norm=off", "g_proj.weight", {2, 20}},
      {"--attn=g4 --gate=headwise --qk-norm=off", "g_proj.weight", {4, 20}},
      {"--attn=g1 --gate=shared", "g_proj.weight", {24, 20}},
      {"--attn=g2 --gate=shared", "g_proj.weight", {12, 20}},
      {"--attn=g1 --gate=static", "gate.theta", {4, 6}},
      {"--attn=g2 --gate=static", "gate.theta", {2, 6}},
      {"--attn=g1 --gate=static", "g_proj.weight", {}},
      {"--head-experts=0", "v_select.weight", {}},
      {"--head-experts=5", "v_select.weight", {10, 20}},
      {"--head-experts=5", "v_proj.weight", {60, 20}},
      {"--head-experts=5", "k_select.weight", {}},
      {"--head-experts=5", "k_proj.weight", {12, 20}},
      {"--head-experts=5 --head-experts-of=kv", "v_select.weight", {10, 20}},
      {"--head-experts=5 --head-experts-of=kv", "v_proj.weight", {60, 20}},
      {"--head-experts=5 --head-experts-of=kv", "k_select.weight", {10, 20}},
      {"--head-experts=5 --head-experts-of=kv", "k_proj.weight", {60, 20}},
      {"--norm=gated --norm-rank=3", "model.norm.gate_down.weight", {3, 20}},
      {"--norm=gated --norm-rank=3", "model.norm.gate_up.weight", {20, 3}},
      {"--norm=gated --norm-rank=3 --norm-gate=tensorwise", "model.norm.gate_up.weight", {1, 3}},
      {"--norm=gated --qk-norm=on", "q_norm.gate_down.weight", {}},
      {"--attn-bias=none", "q_proj.bias", {}},
      {"--attn-bias=qkv", "q_proj.bias", {24}},
      {"--attn-bias=qkv", "k_proj.bias", {12}},
      {"--attn-bias=qkv", "v_proj.bias", {12}},
      {"--attn-bias=qkv", "o_proj.bias", {}},
      {"--attn-bias=all", "v_proj.bias", {12}},
      {"--attn-bias=all", "o_proj.bias", {20}},
      {"--ffn-bias=off", "up_proj.bias", {}},
      {"--ffn-bias=on", "gate_proj.bias", {28}},
      {"--ffn-bias=on", "up_proj.bias", {28}},
      {"--ffn-bias=on", "down_proj.bias", {20}},
      {"--ffn=gelu", "mlp.gate_proj.weight", {}},
      // Experts of 11, and a dense FFN of 28.
      {"--experts=5", "layers.0.mlp.gate.weight", {5, 20}},
      {"--experts=5", "layers.1.mlp.gate.bias", {}},
      {"--experts=5 --router-bias", "layers.1.mlp.gate.bias", {5}},
      {"--experts=5", "mlp.experts.gate_proj.weight", {5, 11, 20}},
      {"--experts=5", "mlp.experts.up_proj.weight", {5, 11, 20}},
      {"--experts=5", "mlp.experts.down_proj.weight", {5, 20, 11}},
      {"--experts=5 --ffn=gelu", "mlp.experts.gate_proj.weight", {}},
      {"--experts=5 --ffn=gelu --ffn-bias=on", "mlp.experts.up_proj.bias", {5, 11}},
      {"--experts=5 --ffn-bias=on", "mlp.experts.down_proj.bias", {5, 20}},
      {"--experts=5", "mlp.shared_expert.up_proj.weight", {}},
      {"--experts=5 --shared-experts=3", "mlp.shared_expert.up_proj.weight", {33, 20}},
      {"--experts=5 --shared-experts=3", "mlp.shared_expert_gate.weight", {1, 20}},
      {"--experts=5 --shared-experts=3 --shared-expert-gate=off", "mlp.shared_expert_gate.weight", {}},
      {"--experts=5 --ffn=polynorm", "mlp.experts.poly.weight", {3}},
      {"--experts=5 --dense-layers=1", "layers.0.mlp.up_proj.weight", {28, 20}},
      {"--experts=5 --dense-layers=1", "layers.0.mlp.gate.weight", {}},
      {"--experts=5 --dense-layers=1", "layers.1.mlp.up_proj.weight", {}},
      {"--experts=5 --dense-layers=1", "layers.1.mlp.gate.weight", {5, 20}},
      {"--tied=on", "lm_head.weight", {}},
      {"--tied=off", "lm_head.weight", {37, 20}},
      {"--norm-placement=post", "model.norm.weight", {}},
      {"--norm-placement=sandwich", "mlp_out_layernorm.weight", {20}},
      {"--position=learned", "model.embed_positions.weight", {9, 20}},
      {"--attn-sink=learned", "sinks", {4}},
      {"--attn-sink=kv-bias", "kv_bias.value", {4, 6}}};
  for (const auto& [flags, name, shape] : gates) {
    INFO(flags << " " << name);
    REQUIRE(shape_of(flags, name) == shape);
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
