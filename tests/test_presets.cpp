// presets: every field of every model that has a name, against what its authors published.
//
//   GPT-2       Radford et al. 2019, table 2, and the hyperparameters of the released models (n_layer, n_embd, n_head;
//               n_ctx 1024, a vocabulary of 50257, an FFN of 4 n_embd, GELU in its tanh form, biases everywhere)
//   Qwen3-1.7B  config.json of the released model; the context is the 4096 tokens at which P1 trains
//   P1          arXiv 2505.06708: Qwen3-1.7B's shape, 28 layers, theta 10000 in pre-training; 48 layers with the FFN
//               narrowed to the same number of parameters
//   P1 15A2B    24 layers, 32 query and 4 key/value heads, 8 of 128 experts. The paper has no width of an expert: 736
//               gives 15B. (Its row "+4 experts" has 400M more, which is a width of 678, and 13.9B in all.)
//   P2          arXiv 2601.22966, table 5. Its columns 7B-A2B and 24B-A3B, taken as they stand, have 16.0B and 20.8B
//               parameters.
#include <cmath>

#include "layers/model.h"
#include "tests/contents.h"
#include "training/flags/command_line.h"
#include "training/flags/match_params.h"
#include "training/flags/presets.h"

using namespace gated;

namespace {

struct Published {
  const char* name;
  size_t layers, hidden, heads, kv_heads, head_dim, ffn_hidden, context, vocab;
  std::string flags;  // of the architecture; what is not named is as in Qwen3's block
  size_t parameters, active = parameters;
};

const char* const gpt2 =
    "--norm=layernorm --position=learned --qk-norm=off --attn-bias=all --ffn=gelu --gelu=tanh --ffn-bias=on "
    "--init=depth-scaled";
// RMSNorm before each half with epsilon 1e-6, QK-norm, rotary positions over whole heads, SwiGLU, no biases, tied.
const char* const qwen3 =
    "--norm=rmsnorm --norm-placement=pre --norm-eps=0 --norm-weight=plain --attn=full --attn-score=softmax "
    "--attn-sink=none --sdpa-out=plain --window=0 --qk-norm=on --attn-bias=none --position=rope --rope-theta=10000 "
    "--rope-fraction=1 --ffn=swiglu --ffn-bias=off --tied=on --embedding-scale=off --init=plain --residual=on "
    "--clip-residual=0 --clip-output=0 --dropout=0";

const std::string linear = " --linear-key-dim=128 --linear-value-dim=128 --linear-key-heads=";
const std::string linear_8 = linear + "8 --linear-value-heads=16", hybrid = "--mixer=hybrid --attention-every=4";
const std::string experts = " --tied=off --shared-experts=1 --experts=";
const std::string p1_15a2b = "--tied=off --experts=128 --experts-per-token=8 --expert-hidden=736";
const std::string p2_7b = hybrid + linear_8 + experts + "128 --experts-per-token=6 --expert-hidden=384";
const std::string p2_24b =
    hybrid + linear + "16 --linear-value-heads=32" + experts + "256 --experts-per-token=8 --expert-hidden=512";

// One layer, by hand. Norms of a block: 2*2048. QK-norm: 2 head_dim.
constexpr size_t attention_of(size_t heads, size_t kv, size_t D) {
  return 2048 * D * (2 * heads + 2 * kv) + 2 * D;
}
constexpr size_t linear_of(size_t hk, size_t hv) {
  return 2048 * (2 * hk * 128 + 3 * hv * 128 + 2 * hv) + 4 * (2 * hk + hv) * 128 + 2 * hv + 128;
}
// What a linear layer has more than one with attention, in the 2B model.
constexpr size_t linear_more = linear_of(8, 16) - attention_of(8, 2, 256);
constexpr size_t expert(size_t F) {
  return 3 * 2048 * F;
}
constexpr size_t ends = 2 * 151936 * 2048 + 2048;  // embedding, output matrix, final norm
constexpr size_t p1_moe(size_t experts) {
  return ends + 24 * (attention_of(32, 4, 128) + 2 * 2048 + 2048 * 128 + experts * expert(736));
}
constexpr size_t p2_7b_moe(size_t experts) {  // and the shared one, and its gate
  return ends + 12 * attention_of(8, 1, 256) + 36 * linear_of(8, 16) +
         48 * (2 * 2048 + 2048 * 128 + (experts + 1) * expert(384) + 2048);
}
constexpr size_t p2_24b_moe(size_t experts) {
  return ends + 6 * attention_of(16, 2, 256) + 18 * linear_of(16, 32) +
         24 * (2 * 2048 + 2048 * 256 + (experts + 1) * expert(512) + 2048);
}

const Published published[] = {
    {"gpt2-124m", 12, 768, 12, 12, 64, 3072, 1024, 50257, gpt2, 124439808},
    {"gpt2-350m", 24, 1024, 16, 16, 64, 4096, 1024, 50257, gpt2, 354823168},
    {"gpt2-774m", 36, 1280, 20, 20, 64, 5120, 1024, 50257, gpt2, 774030080},
    {"gpt2-1558m", 48, 1600, 25, 25, 64, 6400, 1024, 50257, gpt2, 1557611200},
    {"qwen3-1.7b", 28, 2048, 16, 8, 128, 6144, 4096, 151936, "--rope-theta=1e+06", 1720574976},
    {"p1-1.7b-28l", 28, 2048, 16, 8, 128, 6144, 4096, 151936, "", 1720574976},
    // 151936*2048 + 48*(2*2048*2048 + 2*1024*2048 + 256 + 3*2048*2730 + 2*2048) + 2048
    {"p1-1.7b-48l", 48, 2048, 16, 8, 128, 2730, 4096, 151936, "", 1720465408},
    // 151936*2048 + 28*(2*2048*2048 + 2*512*2048 + 512 + 3*2048*6144 + 2*2048) + 2048
    {"p2-2b", 28, 2048, 8, 2, 256, 6144, 4096, 151936, "", 1661861888},
    // Linear layers with the heads of the 7B column, which has the same hidden width: 8 for q and k, 16 for v, 128
    // wide.
    {"p2-2b-linear", 28, 2048, 8, 2, 256, 6144, 4096, 151936, "--mixer=gated-delta" + linear_8,
     1661861888 + 28 * linear_more},
    {"p2-2b-hybrid", 28, 2048, 8, 2, 256, 6144, 4096, 151936, hybrid + linear_8, 1661861888 + 21 * linear_more},
    {"p1-15a2b", 24, 2048, 32, 4, 128, 6144, 4096, 151936, p1_15a2b, p1_moe(128), p1_moe(8)},
    {"p2-7b-a2b", 48, 2048, 8, 1, 256, 6144, 4096, 151936, p2_7b, p2_7b_moe(128), p2_7b_moe(6)},
    {"p2-24b-a3b", 24, 2048, 16, 2, 256, 6144, 4096, 151936, p2_24b, p2_24b_moe(256), p2_24b_moe(8)},
};

}  // namespace

TEST_CASE("presets: every field is the published one", "[presets]") {
  for (const Published& p : published) {
    FlagValues expected = flag_values(format(
        "%s --layers=%zu --hidden=%zu --heads=%zu --kv-heads=%zu --head-dim=%zu --ffn-hidden=%zu --context=%zu "
        "--vocab=%zu %s",
        qwen3, p.layers, p.hidden, p.heads, p.kv_heads, p.head_dim, p.ffn_hidden, p.context, p.vocab, p.flags.c_str()));
    Config config = config_of_flags(std::string("--preset=") + p.name), defaults = config_of_flags("");
    const std::vector<Flag> flags = list_flags(config), plain = list_flags(defaults);
    for (size_t i = 0; i < flags.size(); i++) {
      const std::string& name = flags[i].name;
      if (name == "--preset") continue;
      INFO(p.name << " " << name);
      // A flag of training, data or the run is not the preset's.
      REQUIRE(flags[i].get() == (expected.count(name) ? expected.at(name)[0] : plain[i].get()));
      expected.erase(name);
    }
    REQUIRE(expected.empty());
    REQUIRE(config.model.vocab == p.vocab);
    REQUIRE(total_parameters(config.model) == p.parameters);
    REQUIRE(Model(config.model).weights.active() == p.active);
  }
  REQUIRE(presets().size() == std::size(published) + 1);
  REQUIRE((presets()[0].name == std::string("tiny") && presets()[0].flags.empty()));
}

// Table 1 of arXiv 2505.06708 says how many million parameters each row adds to the 15A2B model, whose 24 layers have
// 32 query and 4 key/value heads of 128: 50, 201, 25, 1.6, 0.2. SwitchHead, "v, 1top1" and "kv, 4top4": one expert adds
// its score alone, as the gate of a head does.
TEST_CASE("presets: what gates and experts add is what the papers say", "[presets]") {
  const auto total = [](const std::string& flags) { return total_parameters(model_of_flags("--preset=" + flags)); };
  const std::string p1 = "p1-15a2b ";
  REQUIRE(std::abs(double(total(p1)) / 15e9 - 1) < 0.01);
  for (const auto& [flags, added] :
       {std::pair("--kv-heads=8", 50331648),
        {"--heads=48 --kv-heads=4", 201326592},
        {"--attn=g1", 201326592},
        {"--attn=g1 --gate=shared", 201326592},
        {"--attn=g2", 25165824},
        {"--attn=g2 --gate=shared", 25165824},
        {"--attn=g3", 25165824},
        {"--attn=g4", 201326592},
        {"--attn=g5", 100663296},
        {"--attn=g1 --gate=headwise", 1572864},
        {"--attn=g2 --gate=headwise", 196608},
        {"--attn=g1 --gate=static", 24 * 32 * 128},
        {"--head-experts=1", 196608},
        {"--head-experts=4 --head-experts-per-token=4 --head-experts-of=kv", 2 * (3 * 25165824 + 4 * 196608)}})
    CHECK(total(p1 + flags) - total(p1) == size_t(added));
  const std::string width_678 = p1 + "--expert-hidden=678 --experts=";
  REQUIRE(std::round(double(total(width_678 + "132") - total(width_678 + "128")) / 1e6) == 400);
  // P2: 3.7M for GatedNorm on the 2B model, rank 16: 28 layers of two norms, and the final one.
  REQUIRE(total("p2-2b --norm=gated") - total("p2-2b") == 57 * 2 * 16 * 2048);
}
