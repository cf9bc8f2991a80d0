// hf_config: config.json of transformers into flags, and back.
#include "training/models/hf_config.h"

#include <nlohmann/json.hpp>

#include "tests/catch.h"
#include "tests/contents.h"
#include "tests/fixtures.h"
#include "tests/refusal.h"
#include "tests/script.h"
#include "training/flags/command_line.h"
#include "training/flags/match_params.h"

using namespace gated;

namespace {

// Models that are known by name: their sizes, as their config.json says them, and how many parameters transformers counts.
struct Published {
  const char* name;
  size_t parameters;
  const char* config;
};
const Published
    published[] =
        {
            // clang-format off
    {"gpt2-xl", 1557611200,
     R"json({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 50257, "n_positions": 1024, "n_ctx": 1024, "n_embd": 1600, "n_layer": 48, "n_head": 25, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-05})json"},
    {"Qwen2.5-0.5B", 494032768,
     R"json({"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "hidden_act": "silu", "hidden_size": 896, "intermediate_size": 4864, "max_position_embeddings": 32768, "max_window_layers": 24, "num_attention_heads": 14, "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 32768, "tie_word_embeddings": true, "use_sliding_window": false, "vocab_size": 151936})json"},
    {"Qwen2.5-7B", 7615616512,
     R"json({"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "hidden_act": "silu", "hidden_size": 3584, "intermediate_size": 18944, "max_position_embeddings": 131072, "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "tie_word_embeddings": false, "use_sliding_window": false, "vocab_size": 152064})json"},
    {"Qwen3-0.6B", 596049920,
     R"json({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024, "intermediate_size": 3072, "max_position_embeddings": 40960, "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_theta": 1000000, "tie_word_embeddings": true, "use_sliding_window": false, "vocab_size": 151936})json"},
    {"Qwen3-1.7B", 1720574976,
     R"json({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 6144, "max_position_embeddings": 40960, "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_theta": 1000000, "tie_word_embeddings": true, "use_sliding_window": false, "vocab_size": 151936})json"},
    {"Qwen3-8B", 8190735360,
     R"json({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 12288, "max_position_embeddings": 40960, "num_attention_heads": 32, "num_hidden_layers": 36, "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_theta": 1000000, "tie_word_embeddings": false, "use_sliding_window": false, "vocab_size": 151936})json"},
    {"Qwen3-30B-A3B", 30532122624,
     R"json({"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false, "decoder_sparse_step": 1, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 6144, "max_position_embeddings": 40960, "mlp_only_layers": [], "moe_intermediate_size": 768, "norm_topk_prob": true, "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "tie_word_embeddings": false, "use_sliding_window": false, "vocab_size": 151936})json"},
    {"Qwen3-Next-80B-A3B", 79674391296,
     R"json({"model_type": "qwen3_next", "architectures": ["Qwen3NextForCausalLM"], "decoder_sparse_step": 1, "full_attention_interval": 4, "head_dim": 256, "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 5120, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_value_head_dim": 128, "max_position_embeddings": 262144, "mlp_only_layers": [], "moe_intermediate_size": 512, "norm_topk_prob": true, "num_attention_heads": 16, "num_experts": 512, "num_experts_per_tok": 10, "num_hidden_layers": 48, "num_key_value_heads": 2, "partial_rotary_factor": 0.25, "rms_norm_eps": 1e-06, "rope_theta": 10000000, "shared_expert_intermediate_size": 512, "tie_word_embeddings": false, "vocab_size": 151936})json"},
    {"Llama-3-8B", 8030261248,
     R"json({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "attention_bias": false, "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 8192, "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "tie_word_embeddings": false, "vocab_size": 128256})json"},      {"Llama-3.2-1B", 1235814400,
     R"json({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "attention_bias": false, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 8192, "max_position_embeddings": 131072, "mlp_bias": false, "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"}, "rope_theta": 500000.0, "tie_word_embeddings": true, "vocab_size": 128256})json"},
    {"gpt-oss-20b", 20914757184,
     R"json({"model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"], "attention_bias": true, "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2880, "initial_context_length": 4096, "intermediate_size": 2880, "max_position_embeddings": 131072, "num_attention_heads": 64, "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_key_value_heads": 8, "num_local_experts": 32, "rms_norm_eps": 1e-05, "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096, "rope_type": "yarn", "truncate": false}, "rope_theta": 150000, "sliding_window": 128, "swiglu_limit": 7.0, "tie_word_embeddings": false, "vocab_size": 201088})json"},
    {"Gemma-3-1B", 999885952,
     R"json({"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "attention_bias": false, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1152, "intermediate_size": 6912, "max_position_embeddings": 32768, "num_attention_heads": 4, "num_hidden_layers": 26, "num_key_value_heads": 1, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000, "rope_theta": 1000000, "sliding_window": 512, "sliding_window_pattern": 6, "vocab_size": 262144})json"},
    {"Gemma-3-27B", 27009346304,
     R"json({"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "head_dim": 128, "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 5376, "intermediate_size": 21504, "max_position_embeddings": 131072, "num_attention_heads": 32, "num_hidden_layers": 62, "num_key_value_heads": 16, "query_pre_attn_scalar": 168, "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000, "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "rope_theta": 1000000, "sliding_window": 1024, "sliding_window_pattern": 6, "vocab_size": 262208})json"},
            // clang-format on
};

std::string unread(const std::string& config) {
  return refusal([&] { read_hf_config("config.json", json::parse(config)); });
}

// The refusal of --export for a line of flags.
std::string unwritten(const std::string& line) {
  return refusal([&] {
    Config c = config_of_flags(line);
    write_hf_config(c);
  });
}

}  // namespace

TEST_CASE("hf_config: published models have the published number of parameters", "[hf]") {
  const Folder f;
  for (const Published& p : published) {
    INFO(p.name);
    f.write("config.json", p.config);
    Config c = config_of_flags("--describe --from=" + (f / "config.json"));
    REQUIRE(total_parameters(c.model) == p.parameters);
    // What is written says the same of every flag.
    const HfConfig written = write_hf_config(c);
    REQUIRE(written.json.at("model_type") == json::parse(p.config).at("model_type"));
    REQUIRE(written.note == "");
    f.write("config.json", written.json.dump());
    Config back = config_of_flags("--describe --from=" + (f / "config.json"));
    REQUIRE(changed_flags_text(back) == changed_flags_text(c));
  }
  // The whole way, by the program.
  f.write("config.json", published[3].config);
  const Said said = f.run("{repo}/train --describe --from=config.json --context=2048");
  INFO(said.text);
  REQUIRE(said.exit_code == 0);
  REQUIRE(contains(said.text, "596,049,920"));
  REQUIRE(contains(said.text, "--layers=28"));
  REQUIRE(contains(said.text, "--context=2048"));
  const Said alone = f.run("{repo}/train --from=config.json");
  REQUIRE(alone.text ==
          "error: --from=config.json: a config.json holds no weights: add --describe, or name the folder that "
          "it stands in\n");
}

TEST_CASE("hf_config: what no flag says is refused with its key", "[hf]") {
  const json qwen3 = json::parse(published[3].config), next = json::parse(published[7].config);
  REQUIRE(unread(qwen3.dump()) == "");
  const auto with = [](json config, const char* key, const json& value) {
    config[key] = value;
    return config.dump();
  };
  const auto without = [](json config, const char* key) {
    config.erase(key);
    return config.dump();
  };
  const auto names = [](const std::string& message, const std::string& part) {
    INFO(message);
    REQUIRE(message.starts_with("config.json: "));
    REQUIRE(message.find('\n') == std::string::npos);
    REQUIRE(contains(message, part));
  };
  names(unread(with(qwen3, "model_type", "mamba")), "\"model_type\" is \"mamba\", expected one of qwen3, qwen2, llama");
  names(unread("{}"), "\"model_type\" is not there");
  names(unread(with(qwen3, "model_type", 3)), "\"model_type\" is \"3\", expected a string");
  names(unread(with(qwen3, "architectures", {"Qwen3ForTokenClassification"})), "expected [\"Qwen3ForCausalLM\"]");
  names(unread(without(qwen3, "hidden_size")), "\"hidden_size\" is not there, expected a whole number");
  names(unread(with(qwen3, "hidden_size", -1024)), "\"hidden_size\" is \"-1024\", expected a whole number");
  names(unread(with(qwen3, "hidden_size", "1024")), "\"hidden_size\" is \"1024\", expected a whole number");
  names(unread(with(json::parse(published[1].config), "num_attention_heads", 0)),
        "\"num_attention_heads\" is \"0\", expected 1 or more");
  names(unread(without(qwen3, "head_dim")), "\"head_dim\" is not there");
  names(unread(with(qwen3, "hidden_act", "relu")), "\"hidden_act\" is \"relu\", expected \"silu\"");
  names(unread(with(qwen3, "use_sliding_window", true)), "\"use_sliding_window\" is \"true\", expected false");
  names(unread(with(qwen3, "tie_word_embeddings", 1)), "\"tie_word_embeddings\" is \"1\", expected true or false");
  names(unread(with(qwen3, "rope_scaling", 1)), "\"rope_scaling\" is \"1\", expected an object");
  names(unread(with(qwen3, "rope_scaling", {{"type", "longrope"}})), "rope_scaling: \"type\" is \"longrope\"");
  names(unread(with(qwen3, "rope_parameters", {{"rope_type", "longrope"}})), "\"rope_type\" is \"longrope\"");
  names(unread(with(qwen3, "quantization_config", {{"quant_method", "awq"}})), "its weights are quantized");
  json gated = qwen3;
  gated["elementwise_attn_output_gate"] = true;
  REQUIRE(unread(gated.dump()) == "");
  names(unread(with(gated, "headwise_attn_output_gate", true)), "\"headwise_attn_output_gate\"");
  names(unread(with(gated, "qkv_bias", true)), "\"qkv_bias\"");

  const json llama = json::parse(published[9].config), oss = json::parse(published[10].config);
  const json gemma = json::parse(published[11].config);
  REQUIRE(published[11].name == std::string("Gemma-3-1B"));
  const auto scaled = [&](json config, const char* key, const json& value) {
    config["rope_scaling"][key] = value;
    return config.dump();
  };
  names(unread(scaled(llama, "factor", "8")), "config.json: rope_scaling: \"factor\" is \"8\", expected a number");
  names(unread(scaled(llama, "low_freq_factor", nullptr)), "rope_scaling: \"low_freq_factor\" is not there");
  names(unread(scaled(oss, "attention_factor", 1)), "rope_scaling: \"attention_factor\" is \"1\", expected not there");
  names(unread(scaled(oss, "original_max_position_embeddings", -1)), "\"original_max_position_embeddings\"");
  names(unread(without(oss, "rope_scaling")), "\"rope_scaling\" is not there");
  names(unread(with(oss, "swiglu_limit", 5)), "\"swiglu_limit\"");
  names(unread(with(oss, "layer_types", {"full_attention"})), "\"layer_types\"");
  names(unread(with(gemma, "final_logit_softcapping", 30.0)), "\"final_logit_softcapping\" is \"30.0\", expected null");
  names(unread(with(gemma, "layer_types", {"full_attention"})), "\"layer_types\"");
  names(unread(without(gemma, "rope_local_base_freq")), "\"rope_local_base_freq\" is not there");
  names(unread(with(gemma, "hidden_activation", "gelu")), "\"hidden_activation\"");
  // Out of the range of a flag, or of flags together.
  names(unread(with(qwen3, "head_dim", 300)),
        "config.json: its keys are these flags here: --head-dim=300: expected at");
  names(unread(with(qwen3, "num_key_value_heads", 3)), "--heads=16 does not divide by --kv-heads=3");
  names(unread(with(qwen3, "vocab_size", 0)), "\"vocab_size\" is \"0\", expected 1 or more");
  names(unread(with(json::parse(published[0].config), "vocab_size", 0)), "\"vocab_size\" is \"0\"");
  names(unread(with(gemma, "query_pre_attn_scalar", 0)), "\"query_pre_attn_scalar\" is \"0\", expected 1 or more");
  // Said twice, and not the same.
  json both = llama;
  both["rope_parameters"] = both["rope_scaling"];
  both["rope_parameters"]["rope_theta"] = 500000;
  REQUIRE(unread(both.dump()) == "");
  names(unread(with(both, "rope_theta", 5)),
        "\"rope_theta\" is \"5\", expected \"500000\", as config.json: rope_param");
  names(unread(scaled(both, "factor", 8)), "\"rope_scaling\" is ");
  both = gemma;
  both["rope_parameters"] = {{"full_attention", {{"rope_theta", 1e6}, {"rope_type", "linear"}, {"factor", 8}}},
                             {"sliding_attention", {{"rope_theta", 1e4}}}};
  REQUIRE(unread(both.dump()) == "");
  names(unread(with(both, "rope_local_base_freq", 7)), "\"rope_local_base_freq\" is \"7\", expected \"10000.0\"");
  names(unread(with(both, "rope_scaling", {{"rope_type", "linear"}, {"factor", 4}})), "\"rope_scaling\" is ");
  names(unread(scaled(llama, "type", "yarn")), "\"type\" is \"yarn\", expected \"llama3\"");
  names(unread(with(next, "num_local_experts", 4)), "\"num_experts\" is \"512\", expected \"4\"");
  names(unread(with(json::parse(published[0].config), "n_ctx", 512)), "\"n_ctx\" is \"512\", expected \"1024\"");

  names(unread(with(next, "layer_types", {"full_attention"})), "\"layer_types\"");
  names(unread(with(next, "full_attention_interval", 0)), "\"full_attention_interval\"");
  names(unread(with(next, "num_hidden_layers", 20000)), "\"num_hidden_layers\"");
  names(unread(with(next, "mlp_only_layers", {1})), "\"mlp_only_layers\"");
  names(unread(with(next, "mlp_only_layers", "all")), "\"mlp_only_layers\"");
  names(unread(with(next, "decoder_sparse_step", 2)), "\"decoder_sparse_step\"");
  names(unread(with(next, "shared_expert_intermediate_size", 0)), "\"shared_expert_intermediate_size\"");
  names(unread(with(json::parse(published[0].config), "n_head", 7)),
        "\"n_head\" is \"7\", expected a divisor of n_embd");
  names(unread(with(json::parse(published[0].config), "activation_function", "relu")), "\"activation_function\"");
}

TEST_CASE("hf_config: flags that no architecture has are refused by name", "[hf]") {
  for (const char* line :
       {"", "--tied=off --attn-bias=all", "--qk-norm=off --attn-bias=qkv", "--qk-norm=off --ffn-bias",
        "--experts=4 --dense-layers=1", "--preset=gpt2-124m", "--preset=gpt2-124m --gelu=erf --tied=off", "--attn=g1",
        "--attn=g1 --gate=headwise", "--init=depth-scaled", "--dropout=0.1 --norm-eps=1e-5",
        "--norm-weight=zero-centred --attn=g1 --mixer=hybrid --rope-fraction=0.25",
        "--norm-weight=zero-centred --mixer=gated-delta --experts=4 --shared-experts=2",
        "--qk-norm=off --rope-scaling=llama3,8,40,2,5", "--rope-scaling=linear,4",
        "--rope-scaling=yarn-unrounded,4,40"}) {
    INFO(line);
    REQUIRE(unwritten(line) == "");
  }
  const auto names = [](const std::string& line, const std::string& flag) {
    INFO(line << ": " << unwritten(line));
    REQUIRE(contains(unwritten(line), "--export: no architecture of transformers has " + flag));
  };
  names("--embedding-factor=3", "--embedding-factor=3");
  names("--window=4", "--window=4");
  names("--norm=gated", "--norm=gated");
  names("--attn=g2", "--attn=g2");
  names("--norm-placement=post", "--norm-placement=post");
  names("--ffn=polynorm", "--ffn=polynorm");
  names("--attn-score=sigmoid", "--attn-score=sigmoid");
  names("--clip-residual=10", "--clip-residual=10");
  names("--residual=off", "--residual=off");
  names("--preset=gpt2-124m --head-dim=32", "--head-dim=32");
  names("--head-experts=2", "--head-experts=2");
  names("--attn=g1 --gate-act=silu", "--gate-act=silu");
}

TEST_CASE("hf_config: what the fuzzer starts from is read, or refused in one line", "[hf]") {
  size_t read = 0, refused = 0;
  for (const auto& entry : fs::directory_iterator("tests/corpus/hf_config")) {
    INFO(entry.path());
    const std::string message = unread(contents(entry.path()));
    REQUIRE(message.find('\n') == std::string::npos);
    (message.empty() ? read : refused)++;
  }
  REQUIRE((read >= 18 && refused >= 2));
}
