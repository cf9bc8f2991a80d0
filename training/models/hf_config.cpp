#include "training/models/hf_config.h"

#include <nlohmann/json.hpp>
#include <set>

#include "dataloader/quote.h"
#include "training/flags/flags.h"
#include "training/models/hf_parts.h"

namespace gated {

using nlohmann::json;

namespace {

// ---- the architectures

// A key that has no flag: what it has to be (JSON), which is also what its absence means.
struct Must {
  const char *key, *value;
};

struct Row {
  HfArchitecture architecture;
  const char *model_type, *class_name;
  std::vector<std::string> flags;  // that all models of it have, beside what the defaults are
  std::vector<hf_parts::Part> parts;
  std::vector<Must> musts;
};

// ---- a model whose code goes along

bool is_of_the_model(const Flag& f) {
  return (f.shapes_the_model() && !is_of_training(f.name)) || f.name == "--vocab";
}

// "flags": all of them, by the names that ./train has, numbers as numbers, on and off as true and false.
const hf_parts::Part every_flag = {
    [](const Keys& keys, hf_parts::Words& words) {
      const Keys flags = keys.object("flags");
      Config config;
      std::set<std::string> known;
      for (const Flag& f : list_flags(config))
        if (is_of_the_model(f)) known.insert(f.name);
      for (const auto& [name, value] : keys.find("flags")->items()) {
        if (!known.contains("--" + name)) flags.refuse(name, "no flag of this name: no model has one");
        const std::string text = value.is_string()    ? value.get<std::string>()
                                 : value.is_boolean() ? (value.get<bool>() ? "on" : "off")
                                                      : value.dump();
        if (text.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789.,+-") != text.npos)
          flags.refuse(name, "the value of a flag");
        words.push_back("--" + name + "=" + text);
      }
      for (const std::string& name : known)
        if (!flags.has(name.substr(2))) flags.refuse(name.substr(2), "a value for every flag of a model");
    },
    [](const Config& c, json& j) {
      Config config = c;
      for (const Flag& f : list_flags(config)) {
        if (!is_of_the_model(f)) continue;
        const json number = json::parse(f.get(), nullptr, false);
        j["flags"][f.name.substr(2)] = f.is_switch          ? json(f.get() == "on")
                                       : number.is_number() ? number
                                                            : json(f.get());
      }
      j["flags"]["vocab"] = c.model.vocab;
      j["auto_map"] = {{"AutoConfig", "modeling_gated.GatedConfig"},
                       {"AutoModelForCausalLM", "modeling_gated.GatedForCausalLM"}};
    }};

const std::vector<Row>& rows() {
  using namespace hf_parts;
  static const std::vector<Row> all = {
      {HfArchitecture::qwen3,
       "qwen3",
       "Qwen3ForCausalLM",
       {},
       {sizes, heads, dense_ffn, rms_norm, tied, rope, all_biases, released_gates},
       {{"hidden_act", "\"silu\""}, {"use_sliding_window", "false"}}},
      {HfArchitecture::qwen2,
       "qwen2",
       "Qwen2ForCausalLM",
       {"--qk-norm=off", "--attn-bias=qkv"},
       {sizes, qwen2_heads, dense_ffn, rms_norm, tied, rope},
       {{"hidden_act", "\"silu\""}, {"use_sliding_window", "false"}}},
      {HfArchitecture::llama,
       "llama",
       "LlamaForCausalLM",
       {"--qk-norm=off"},
       {sizes, llama_heads, dense_ffn, rms_norm, tied, rope, all_biases, mlp_bias},
       {{"hidden_act", "\"silu\""}}},
      {HfArchitecture::qwen3_moe,
       "qwen3_moe",
       "Qwen3MoeForCausalLM",
       {},
       {sizes, heads, dense_ffn, rms_norm, tied, rope, all_biases, qwen_experts},
       {{"hidden_act", "\"silu\""}, {"use_sliding_window", "false"}}},
      {HfArchitecture::qwen3_next,
       "qwen3_next",
       "Qwen3NextForCausalLM",
       {"--norm-weight=zero-centred", "--attn=g1"},
       {sizes, heads, dense_ffn, rms_norm, tied, rope, partial_rope, qwen_experts, shared_expert, linear_layers},
       {{"hidden_act", "\"silu\""}, {"attention_bias", "false"}}},
      {HfArchitecture::gpt_oss,
       "gpt_oss",
       "GptOssForCausalLM",
       {"--qk-norm=off", "--attn-sink=learned", "--attn-bias=all", "--ffn=swiglu-clamped", "--ffn-bias=on",
        "--router-bias=on"},
       {sizes, heads, gpt_oss_experts, rms_norm, tied, gpt_oss_rope, window_of_even_layers},
       {{"hidden_act", "\"silu\""}, {"attention_bias", "true"}, {"swiglu_limit", "7.0"}}},
      {HfArchitecture::gemma3,
       "gemma3_text",
       "Gemma3ForCausalLM",
       {"--norm-weight=zero-centred", "--norm-placement=sandwich", "--ffn=geglu", "--gelu=tanh"},
       {sizes, heads, dense_ffn, rms_norm, gemma3_layers, gemma3_scales},
       {{"hidden_activation", "\"gelu_pytorch_tanh\""},
        {"attention_bias", "false"},
        {"attn_logit_softcapping", "null"},
        {"final_logit_softcapping", "null"},
        {"use_bidirectional_attention", "false"}}},
      {HfArchitecture::gpt2,
       "gpt2",
       "GPT2LMHeadModel",
       {"--norm=layernorm", "--position=learned", "--qk-norm=off", "--attn-bias=all", "--ffn=gelu", "--ffn-bias=on"},
       {gpt2_sizes, gpt2_activation},
       {{"scale_attn_weights", "true"},
        {"scale_attn_by_inverse_layer_idx", "false"},
        {"add_cross_attention", "false"}}},
      {HfArchitecture::code, "gated", "GatedForCausalLM", {}, {every_flag}, {}}};
  return all;
}

const Row& row_of(const std::string& file, const Keys& keys) {
  std::string known;
  const std::string type = keys.text_or("model_type", "");
  for (const Row& row : rows()) {
    known += (known.empty() ? "" : ", ") + std::string(row.model_type);
    if (type != row.model_type) continue;
    if (!keys.has("architectures")) return row;
    const std::vector<std::string> names = keys.texts("architectures");
    if (std::find(names.begin(), names.end(), row.class_name) != names.end()) return row;
    keys.refuse("architectures", format("[\"%s\"]", row.class_name));
  }
  fail("%s: \"model_type\" is %s, expected one of %s", file.c_str(), type.empty() ? "not there" : quote(type).c_str(),
       known.c_str());
}

}  // namespace

HfModel read_hf_config(const std::string& file, const json& config) {
  const Keys keys(file, config);
  const Row& row = row_of(file, keys);
  HfModel model = {row.architecture, row.flags};
  for (const Must& must : row.musts) {
    const json value = json::parse(must.value);
    if (keys.has(must.key) && *keys.find(must.key) != value) keys.refuse(must.key, must.value);
  }
  if (keys.has("quantization_config"))
    fail(
        "%s: \"quantization_config\": its weights are quantized, expected F32, BF16 or F16: expand them with "
        "transformers first",
        file.c_str());
  for (const hf_parts::Part& part : row.parts) part.read(keys, model.flags);
  try {
    check_model_flags(config_of_words(model.flags).model);
  } catch (const Error& e) {
    fail("%s: its keys are these flags here: %s", file.c_str(), e.what());
  }
  return model;
}

// ---- writing

namespace {

const char* const gates_note =
    "its gates are laid out as the authors of arXiv 2505.06708 release them: open it with their modeling code "
    "(github.com/qiuzh20/gated_attention), as transformers has no such model";
const char* const code_note =
    "its code goes along: AutoModelForCausalLM.from_pretrained(FOLDER, trust_remote_code=True) opens it";

// The flags of a model that mean something in it, by name.
std::map<std::string, std::string> model_flags(Config config) {
  if (config.model.norm.eps == (config.model.norm.kind == NormKind::layernorm ? 1e-5f : 1e-6f))
    config.model.norm.eps = 0;
  const std::set<std::string> idle = flags_without_effect(config);
  std::map<std::string, std::string> flags;
  for (const Flag& f : list_flags(config))
    if (is_of_the_model(f) && !idle.contains(f.name)) flags[f.name] = f.get();
  flags["--vocab"] = std::to_string(config.model.vocab);
  return flags;
}

// The flags that a config.json says otherwise than the model, with the model's values.
std::vector<std::string> unsaid_by(const json& written, const Config& config) {
  const Config back = config_of_words(read_hf_config("config.json", json::parse(written.dump())).flags);
  const std::map<std::string, std::string> ours = model_flags(config), theirs = model_flags(back);
  std::vector<std::string> unsaid;
  for (const auto& [name, value] : ours)
    if (!theirs.contains(name) || theirs.at(name) != value) unsaid.push_back(name + "=" + value);
  for (const auto& [name, value] : theirs)
    if (!ours.contains(name)) unsaid.push_back(name + " (it would be " + value + ")");
  return unsaid;
}

}  // namespace

HfConfig write_hf_config(const Config& config) {
  std::vector<std::string> fewest;
  const Row* nearest = nullptr;
  for (const Row& row : rows()) {
    const bool is_code = row.architecture == HfArchitecture::code;
    if (is_code ? config.export_as == ExportAs::architecture : config.export_as == ExportAs::code) continue;
    json written = {{"architectures", {row.class_name}}, {"model_type", row.model_type}};
    for (const Must& must : row.musts) written[must.key] = json::parse(must.value);
    for (const hf_parts::Part& part : row.parts) part.write(config, written);
    std::vector<std::string> unsaid;
    try {
      unsaid = unsaid_by(written, config);
    } catch (const Error&) {
      continue;  // no model of this architecture has such sizes
    }
    // transformers' Qwen3 has no gates.
    const bool released =
        config.model.attention.gate_at != GatePosition::none && row.architecture == HfArchitecture::qwen3;
    if (unsaid.empty() && (!released || config.export_as == ExportAs::architecture))
      return {row.architecture, std::move(written), is_code ? code_note : released ? gates_note : ""};
    if (!nearest || unsaid.size() < fewest.size()) {
      nearest = &row;
      fewest = unsaid;
    }
  }
  require(nearest,
          "--export-as=architecture: none of transformers has a model of these sizes; leave --export-as out, and the "
          "model's code goes along");
  std::string list;
  for (const std::string& flag : fewest) list += (list.empty() ? "" : ", ") + flag;
  fail(
      "--export-as=architecture: none of transformers has %s; all else is %s; leave --export-as out, and the model's "
      "code goes along",
      list.c_str(), nearest->class_name);
}

}  // namespace gated
