// hf_config: config.json of transformers into flags, and back.
#include "training/models/hf_config.h"

#include "tests/fixtures.h"
#include "tests/refusal.h"
#include "tests/script.h"
#include "training/flags/command_line.h"
#include "training/flags/match_params.h"

using namespace gated;

namespace {

// Models that are known by name: their sizes, as their config.json says them, and how many parameters transformers
// counts.
json published(const std::string& name) {
  for (const json& model : read_fixtures("published_configs.json"))
    if (model.at("name") == name) return model.at("config");
  fail("no model %s", name.c_str());
}

std::string unread(const std::string& config) {
  return refusal([&] { read_hf_config("config.json", json::parse(config)); });
}

// The refusal of --export for a line of flags.
std::string unwritten(const std::string& line) {
  return refusal([&] {
    Config c = config_of_flags(line);
    c.export_as = ExportAs::architecture;
    write_hf_config(c);
  });
}

}  // namespace

TEST_CASE("hf_config: published models have the published number of parameters", "[hf]") {
  const Folder f;
  for (const json& p : read_fixtures("published_configs.json")) {
    INFO(p.at("name"));
    f.write("config.json", p.at("config").dump());
    Config c = config_of_flags("--describe --from=" + (f / "config.json"));
    REQUIRE(total_parameters(c.model) == p.at("parameters"));
    // What is written says the same of every flag.
    const HfConfig written = write_hf_config(c);
    REQUIRE(written.json.at("model_type") == p.at("config").at("model_type"));
    REQUIRE(written.note == "");
    f.write("config.json", written.json.dump());
    Config back = config_of_flags("--describe --from=" + (f / "config.json"));
    REQUIRE(changed_flags_text(back) == changed_flags_text(c));
  }
  // The whole way, by the program.
  f.write("config.json", published("Qwen3-0.6B").dump());
  REQUIRE(says(f.done("{repo}/train --describe --from=config.json --context=2048"),
               {"596,049,920", "--layers=28", "--context=2048"}));
  REQUIRE(f.run("{repo}/train --from=config.json").text ==
          "error: --from=config.json: a config.json holds no weights: add --describe, or name the folder that "
          "it stands in\n");
}

TEST_CASE("hf_config: what no flag says is refused with its key", "[hf]") {
  const json qwen3 = published("Qwen3-0.6B"), next = published("Qwen3-Next-80B-A3B");
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
    REQUIRE(one_line(message, {"config.json: ", part}));
  };
  names(unread(with(qwen3, "model_type", "mamba")), "\"model_type\" is \"mamba\", expected one of qwen3, qwen2, llama");
  names(unread("{}"), "\"model_type\" is not there");
  names(unread(with(qwen3, "model_type", 3)), "\"model_type\" is \"3\", expected a string");
  names(unread(with(qwen3, "architectures", {"Qwen3ForTokenClassification"})), "expected [\"Qwen3ForCausalLM\"]");
  names(unread(without(qwen3, "hidden_size")), "\"hidden_size\" is not there, expected a whole number");
  names(unread(with(qwen3, "hidden_size", -1024)), "\"hidden_size\" is \"-1024\", expected a whole number");
  names(unread(with(qwen3, "hidden_size", "1024")), "\"hidden_size\" is \"1024\", expected a whole number");
  names(unread(with(published("Qwen2.5-0.5B"), "num_attention_heads", 0)),
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

  const json llama = published("Llama-3.2-1B"), oss = published("gpt-oss-20b");
  const json gemma = published("Gemma-3-1B");
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
  names(unread(with(published("gpt2-xl"), "vocab_size", 0)), "\"vocab_size\" is \"0\"");
  names(unread(with(gemma, "query_pre_attn_scalar", 0)), "\"query_pre_attn_scalar\" is \"0\", expected 1 or more");
  for (const auto& [config, key, value] :
       {std::tuple(qwen3, "rms_norm_eps", "0"), {published("gpt2-xl"), "layer_norm_epsilon", "0"},
        {gemma, "sliding_window", "0"}, {oss, "sliding_window", "0"}})
    names(unread(with(config, key, json::parse(value))), format("\"%s\" is \"0\", expected ", key));
  // Said twice, and not the same.
  json patterned = gemma;
  patterned["sliding_window_pattern"] = 6;
  REQUIRE(unread(with(patterned, "_sliding_window_pattern", 6)) == "");
  names(unread(with(patterned, "_sliding_window_pattern", 5)), "\"sliding_window_pattern\" is \"6\", expected \"5\"");
  json interval = next;
  for (int i = 0; i < 48; i++)
    interval["layer_types"][size_t(i)] = i % 3 == 2 ? "full_attention" : "linear_attention";
  REQUIRE(unread(with(interval, "full_attention_interval", 3)) == "");
  names(unread(with(interval, "full_attention_interval", 4)),
        "\"full_attention_interval\" is \"4\", expected 3, as \"layer_types\" says");
  // (transformers' own Gemma 3 takes its layers' kinds, and keeps whatever pattern is beside them.)
  for (int i = 0; i < 26; i++)
    patterned["layer_types"][size_t(i)] = i % 4 == 3 ? "full_attention" : "sliding_attention";
  REQUIRE(unread(patterned.dump()) == "");
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
  names(unread(with(published("gpt2-xl"), "n_ctx", 512)), "\"n_ctx\" is \"512\", expected \"1024\"");

  names(unread(with(next, "layer_types", {"full_attention"})), "\"layer_types\"");
  names(unread(with(next, "full_attention_interval", 0)), "\"full_attention_interval\"");
  names(unread(with(next, "num_hidden_layers", 20000)), "\"num_hidden_layers\"");
  names(unread(with(next, "mlp_only_layers", {1})), "\"mlp_only_layers\"");
  names(unread(with(next, "mlp_only_layers", "all")), "\"mlp_only_layers\"");
  names(unread(with(next, "decoder_sparse_step", 2)), "\"decoder_sparse_step\"");
  names(unread(with(next, "shared_expert_intermediate_size", 0)), "\"shared_expert_intermediate_size\"");
  names(unread(with(published("gpt2-xl"), "n_head", 7)), "\"n_head\" is \"7\", expected a divisor of n_embd");
  names(unread(with(published("gpt2-xl"), "activation_function", "relu")), "\"activation_function\"");
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
  for (const std::string line :
       {"--embedding-factor=3", "--window=4", "--norm=gated", "--attn=g2", "--norm-placement=post", "--ffn=polynorm",
        "--attn-score=sigmoid", "--clip-residual=10", "--residual=off", "--preset=gpt2-124m --head-dim=32",
        "--head-experts=2", "--attn=g1 --gate-act=silu"})
    REQUIRE(says(unwritten(line), {"--export-as=architecture: none of transformers has " + words_of(line).back()}));
}

TEST_CASE("hf_config: what the fuzzer starts from is read, or refused in one line", "[hf]") {
  size_t read = 0, refused = 0;
  for (const auto& entry : fs::directory_iterator("tests/corpus/hf_config")) {
    INFO(entry.path());
    const std::string message = unread(contents(entry.path()));
    REQUIRE(!contains(message, "\n"));
    (message.empty() ? read : refused)++;
  }
  REQUIRE((read >= 18 && refused >= 2));
}
