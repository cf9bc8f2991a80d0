// presets: every field of every model that has a name, against what its authors published.
//
//   GPT-2       Radford et al. 2019, table 2, and the hyperparameters of the released models (n_layer, n_embd, n_head;
//               n_ctx 1024, a vocabulary of 50257, an FFN of 4 n_embd, GELU in its tanh form, biases everywhere)
//   Qwen3-1.7B  config.json of the released model; the context is the 4096 tokens at which P1 trains
//   P1          arXiv 2505.06708: Qwen3-1.7B's shape, 28 layers, theta 10000 in pre-training; 48 layers with the FFN
//               narrowed to the same number of parameters
//   P2          arXiv 2601.22966, table 5, column 2B
#include <map>
#include <sstream>

#include "layers/model.h"
#include "tests/catch.h"
#include "training/command_line.h"
#include "training/match_params.h"
#include "training/presets.h"

using namespace gated;

namespace {

struct Published {
  const char* name;
  size_t layers, hidden, heads, kv_heads, head_dim, ffn_hidden, context, vocab;
  const char* flags;  // of the architecture; what is not named is as in Qwen3's block
  size_t parameters;
};

const char* const gpt2 =
    "--norm=layernorm --position=learned --qk-norm=off --attn-bias=all --ffn=gelu --gelu=tanh --ffn-bias=on "
    "--init=depth-scaled";
// RMSNorm before each half with epsilon 1e-6, QK-norm, rotary positions over whole heads, SwiGLU, no biases, tied.
const char* const qwen3 =
    "--norm=rmsnorm --norm-placement=pre --norm-eps=0 --norm-weight=plain --attn=full --attn-score=softmax "
    "--attn-sink=none "
    "--sdpa-out=plain --window=0 --qk-norm=on --attn-bias=none --position=rope --rope-theta=10000 --rope-fraction=1 "
    "--ffn=swiglu --ffn-bias=off --tied=on --embedding-scale=off --init=plain --clip-residual=0 --clip-output=0 "
    "--dropout=0";

const char* const linear_2b_only =
    "--mixer=gated-delta --linear-key-heads=8 --linear-value-heads=16 --linear-key-dim=128 --linear-value-dim=128";
const char* const linear_2b_hybrid =
    "--mixer=hybrid --attention-every=4 --linear-key-heads=8 --linear-value-heads=16 --linear-key-dim=128 "
    "--linear-value-dim=128";
// What a linear layer has more than one with attention: q, k and v; z and the output; b and a; the convolution; A_log and
// dt_bias; the norm of a head. Less q and the output, k and v, QK-norm.
constexpr size_t linear_more =
    (2048 * 4096 + 2 * 2048 * 2048 + 2048 * 32 + 4 * 4096 + 32 + 128) - (2 * 2048 * 2048 + 2 * 512 * 2048 + 512);

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
    // Linear layers with the heads of the 7B column, which has the same hidden width: 8 for q and k, 16 for v, 128 wide.
    {"p2-2b-linear", 28, 2048, 8, 2, 256, 6144, 4096, 151936, linear_2b_only, 1661861888 + 28 * linear_more},
    {"p2-2b-hybrid", 28, 2048, 8, 2, 256, 6144, 4096, 151936, linear_2b_hybrid, 1661861888 + 21 * linear_more},
};

// "--a=1 --b=2" as a map; what comes later counts.
std::map<std::string, std::string> fields(const std::string& line) {
  std::map<std::string, std::string> map;
  std::istringstream words(line);
  for (std::string word; words >> word;) map[word.substr(0, word.find('='))] = word.substr(word.find('=') + 1);
  return map;
}

}  // namespace

TEST_CASE("presets: every field is the published one", "[presets]") {
  for (const Published& p : published) {
    std::map<std::string, std::string> expected = fields(std::string(qwen3) + " " + p.flags);
    expected["--layers"] = std::to_string(p.layers);
    expected["--hidden"] = std::to_string(p.hidden);
    expected["--heads"] = std::to_string(p.heads);
    expected["--kv-heads"] = std::to_string(p.kv_heads);
    expected["--head-dim"] = std::to_string(p.head_dim);
    expected["--ffn-hidden"] = std::to_string(p.ffn_hidden);
    expected["--context"] = std::to_string(p.context);
    expected["--vocab"] = std::to_string(p.vocab);
    Config config = config_of_flags(std::string("--preset=") + p.name), defaults = config_of_flags("");
    const std::vector<Flag> flags = list_flags(config), plain = list_flags(defaults);
    for (size_t i = 0; i < flags.size(); i++) {
      const std::string& name = flags[i].name;
      if (name == "--preset") continue;
      INFO(p.name << " " << name);
      // A flag of training, data or the run is not the preset's.
      REQUIRE(flags[i].get() == (expected.count(name) ? expected.at(name) : plain[i].get()));
      expected.erase(name);
    }
    REQUIRE(expected.empty());
    REQUIRE(config.model.vocab == p.vocab);
    REQUIRE(total_parameters(config.model) == p.parameters);
  }
  REQUIRE(presets().size() == std::size(published) + 1);
  REQUIRE((presets()[0].name == std::string("tiny") && presets()[0].flags.empty()));
}

TEST_CASE("presets: GPT-2's parameters are named and shaped as published", "[presets]") {
  // wte and wpe; in each block two LayerNorms, c_attn (3d,d), c_proj, c_fc, c_proj with their biases; ln_f.
  const size_t d = 768, layer = 2 * 2 * d + (3 * d * d + 3 * d) + (d * d + d) + (4 * d * d + 4 * d) + (4 * d * d + d);
  REQUIRE(total_parameters(model_of_flags("--preset=gpt2-124m")) == 50257 * d + 1024 * d + 12 * layer + 2 * d);
}
