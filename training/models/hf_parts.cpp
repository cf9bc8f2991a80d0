#include "training/models/hf_parts.h"

#include <charconv>
#include <cmath>

#include "training/process/number_text.h"

namespace gated::hf_parts {

using nlohmann::json;

// The number that a float's shortest text says: 1e-5, not what 1e-5f is in double.
static double shortest(float value) {
  const std::string text = number_text(value);
  double real = 0;
  std::from_chars(text.data(), text.data() + text.size(), real);
  return real;
}

static void say(Words& words, const char* flag, size_t value) {
  words.push_back(flag + ("=" + std::to_string(value)));
}
static void say(Words& words, const char* flag, double value) {
  words.push_back(flag + ("=" + number_text(value)));
}
static void say(Words& words, const char* flag, bool value) {
  words.push_back(flag + std::string(value ? "=on" : "=off"));
}

const Part sizes = {[](const Keys& keys, Words& words) {
                      say(words, "--vocab", keys.one_or_more("vocab_size"));
                      say(words, "--layers", keys.whole("num_hidden_layers"));
                      say(words, "--hidden", keys.whole("hidden_size"));
                      say(words, "--context", keys.whole("max_position_embeddings"));
                    },
                    [](const Config& c, json& j) {
                      j["vocab_size"] = c.model.vocab;
                      j["num_hidden_layers"] = c.model.layers;
                      j["hidden_size"] = c.model.hidden;
                      j["max_position_embeddings"] = c.model.context;
                    }};

// What transformers takes for a key that is not there differs from architecture to architecture. Where files have it,
// it has to be there.
static void say_heads(const Keys& keys, Words& words, size_t kv_heads, size_t head_dim) {
  say(words, "--heads", keys.whole("num_attention_heads"));
  say(words, "--kv-heads", kv_heads);
  say(words, "--head-dim", head_dim);
}
// Of equal shares of the stream.
static size_t usual_head_dim(const Keys& keys) {
  const size_t H = keys.one_or_more("num_attention_heads");
  return keys.whole_or("head_dim", keys.whole("hidden_size") / H);
}
static void write_heads(const Config& c, json& j) {
  j["num_attention_heads"] = c.model.attention.H;
  j["num_key_value_heads"] = c.model.attention.KVH;
  j["head_dim"] = c.model.attention.D;
}
const Part heads = {[](const Keys& keys, Words& words) {
                      say_heads(keys, words, keys.whole("num_key_value_heads"), keys.whole("head_dim"));
                    },
                    write_heads};
const Part qwen2_heads = {[](const Keys& keys, Words& words) {
                            say_heads(keys, words, keys.whole("num_key_value_heads"), usual_head_dim(keys));
                          },
                          write_heads};
const Part llama_heads = {[](const Keys& keys, Words& words) {
                            const size_t all = keys.whole("num_attention_heads");
                            say_heads(keys, words, keys.whole_or("num_key_value_heads", all), usual_head_dim(keys));
                          },
                          write_heads};

const Part dense_ffn = {
    [](const Keys& keys, Words& words) { say(words, "--ffn-hidden", keys.whole("intermediate_size")); },
    [](const Config& c, json& j) { j["intermediate_size"] = c.model.ffn.F; }};

// The epsilon that the norm's authors use needs no flag. (A flag of 0 says so, too.)
static void say_eps(const Keys& keys, const char* key, double absent, double usual, Words& words) {
  const double eps = keys.real_or(key, absent);
  if (eps == 0) keys.refuse(key, "more than 0");
  if (eps != usual) say(words, "--norm-eps", eps);
}
const Part rms_norm = {
    [](const Keys& keys, Words& words) { say_eps(keys, "rms_norm_eps", keys.real("rms_norm_eps"), 1e-6, words); },
    [](const Config& c, json& j) { j["rms_norm_eps"] = shortest(c.model.norm.epsilon()); }};

const Part tied = {
    [](const Keys& keys, Words& words) { say(words, "--tied", keys.flag_or("tie_word_embeddings", false)); },
    [](const Config& c, json& j) { j["tie_word_embeddings"] = c.model.tied; }};

const Part all_biases = {
    [](const Keys& keys, Words& words) {
      words.push_back(keys.flag_or("attention_bias", false) ? "--attn-bias=all" : "--attn-bias=none");
    },
    [](const Config& c, json& j) { j["attention_bias"] = c.model.attention.bias == AttentionBias::all; }};

const Part mlp_bias = {
    [](const Keys& keys, Words& words) { say(words, "--ffn-bias", keys.flag_or("mlp_bias", false)); },
    [](const Config& c, json& j) { j["mlp_bias"] = c.model.ffn.bias; }};

// How positions are scaled, from an object with rope_type and what belongs to it. max_position_embeddings is no part of
// it.
static void say_rope_scaling(const Keys& scaling, Words& words) {
  scaling.require_agreement("type", scaling, "rope_type");
  const std::string type = scaling.text_or("rope_type", scaling.text_or("type", "default"));
  if (type == "default") return;
  const auto turns = [&](double slow, double fast, double usual_fast) {
    return slow == 1 && fast == usual_fast ? "" : "," + number_text(slow) + "," + number_text(fast);
  };
  const std::string factor =
      type == "linear" || type == "llama3" || type == "yarn" ? number_text(scaling.real("factor")) : "";
  if (type == "linear") return words.push_back("--rope-scaling=linear," + factor);
  if (type == "llama3" || type == "yarn") {
    const std::string trained = std::to_string(scaling.whole("original_max_position_embeddings"));
    if (type == "llama3")
      return words.push_back("--rope-scaling=llama3," + factor + "," + trained +
                             turns(scaling.real("low_freq_factor"), scaling.real("high_freq_factor"), 4));
    for (const char* key : {"attention_factor", "mscale", "mscale_all_dim"})
      if (scaling.has(key)) scaling.refuse(key, "not there: 0.1 log(factor) + 1 is what cos and sin are multiplied by");
    return words.push_back(
        (scaling.flag_or("truncate", true) ? "--rope-scaling=yarn," : "--rope-scaling=yarn-unrounded,") + factor + "," +
        trained + turns(scaling.real_or("beta_slow", 1), scaling.real_or("beta_fast", 32), 32));
  }
  scaling.refuse(scaling.has("rope_type") ? "rope_type" : "type", "default, linear, llama3 or yarn");
}

static json rope_scaling_json(const RopeScaling& s) {
  switch (s.kind) {
    case RopeScaling::Kind::linear: return {{"rope_type", "linear"}, {"factor", s.scale}};
    case RopeScaling::Kind::llama3:
      return {{"rope_type", "llama3"},
              {"factor", s.scale},
              {"original_max_position_embeddings", s.trained},
              {"low_freq_factor", s.slow},
              {"high_freq_factor", s.fast}};
    case RopeScaling::Kind::yarn:
      return {{"rope_type", "yarn"}, {"factor", s.scale},   {"original_max_position_embeddings", s.trained},
              {"beta_slow", s.slow}, {"beta_fast", s.fast}, {"truncate", s.whole_points}};
    case RopeScaling::Kind::none: break;
  }
  return {{"rope_type", "default"}};
}

// Where rope_scaling stands beside rope_parameters it has to say the same.
static void require_same_scaling(const Keys& keys, const Keys& parameters) {
  if (!keys.has("rope_scaling")) return;
  Words old, now;
  say_rope_scaling(keys.object("rope_scaling"), old);
  say_rope_scaling(parameters, now);
  if (old != now) keys.refuse("rope_scaling", "what \"rope_parameters\" says, or one of them alone");
}

// transformers wrote rope_theta and rope_scaling beside the other keys, and from version 5 on rope_parameters with
// both.
static void read_rope(const Keys& keys, Words& words) {
  const bool together = keys.has("rope_parameters");
  const Keys at = together ? keys.object("rope_parameters") : keys;
  keys.require_agreement("rope_theta", at, "rope_theta");
  if (together) require_same_scaling(keys, at);
  say(words, "--rope-theta", at.has("rope_theta") ? at.real("rope_theta") : keys.real_or("rope_theta", 10000));
  if (together || keys.has("rope_scaling")) say_rope_scaling(together ? at : keys.object("rope_scaling"), words);
}
static void write_rope(const Config& c, json& j) {
  j["rope_theta"] = c.model.rope_theta;
  j["rope_scaling"] = rope_scaling_json(c.model.rope_scaling);
}
const Part rope = {read_rope, write_rope};
// Without a word of it gpt-oss is with YaRN.
const Part gpt_oss_rope = {[](const Keys& keys, Words& words) {
                             if (!keys.has("rope_parameters")) keys.object("rope_scaling");
                             read_rope(keys, words);
                           },
                           write_rope};

// Of the kinds in layer_types every n-th is full_attention, and the others are `other`: n. Refuses other lists.
static size_t full_every(const Keys& keys, const std::string& other) {
  const std::vector<std::string> kinds = keys.texts("layer_types");
  const size_t n = size_t(std::find(kinds.begin(), kinds.end(), "full_attention") - kinds.begin()) + 1;
  bool good = kinds.size() == keys.whole("num_hidden_layers");
  for (size_t i = 0; i < kinds.size(); i++) good &= kinds[i] == ((i + 1) % n == 0 ? "full_attention" : other);
  if (!good) keys.refuse("layer_types", "a kind for every layer, every n-th full_attention, the others " + other);
  return n;
}

// Two kinds of layers, which turn at bases of their own: five that see a window to one that sees all, whose positions
// alone are scaled.
const Part gemma3_layers = {
    [](const Keys& keys, Words& words) {
      keys.require_agreement("sliding_window_pattern", keys, "_sliding_window_pattern");
      size_t every = keys.whole_or("sliding_window_pattern", keys.whole_or("_sliding_window_pattern", 6));
      if (keys.has("layer_types")) {
        const size_t n = full_every(keys, "sliding_attention"), layers = keys.whole("num_hidden_layers");
        if (n <= layers || every <= layers) every = n;  // in fewer layers than the pattern none sees all
      }
      say(words, "--window", keys.one_or_more("sliding_window"));
      words.push_back("--window-layers=not-nth");
      say(words, "--full-every", every);
      if (keys.has("rope_parameters")) {
        const Keys both = keys.object("rope_parameters");
        const Keys all = both.object("full_attention"), window = both.object("sliding_attention");
        keys.require_agreement("rope_theta", all, "rope_theta");
        keys.require_agreement("rope_local_base_freq", window, "rope_theta");
        require_same_scaling(keys, all);
        say(words, "--rope-theta", all.real("rope_theta"));
        say(words, "--window-rope-theta", window.real("rope_theta"));
        say_rope_scaling(all, words);
        if (window.text_or("rope_type", "default") != "default") window.refuse("rope_type", "\"default\"");
      } else {
        say(words, "--rope-theta", keys.real("rope_theta"));
        say(words, "--window-rope-theta", keys.real("rope_local_base_freq"));
        if (keys.has("rope_scaling")) say_rope_scaling(keys.object("rope_scaling"), words);
      }
    },
    [](const Config& c, json& j) {
      const ModelConfig& m = c.model;
      j["sliding_window"] = m.attention.window;
      j["layer_types"] = json::array();
      for (size_t i = 0; i < m.layers; i++)
        j["layer_types"].push_back((i + 1) % m.full_every == 0 ? "full_attention" : "sliding_attention");
      json all = rope_scaling_json(m.rope_scaling);
      all["rope_theta"] = m.rope_theta;
      j["rope_parameters"] = {{"full_attention", all},
                              {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", m.window_rope_theta}}}};
      j["rope_theta"] = m.rope_theta;
      j["rope_local_base_freq"] = m.window_rope_theta;
      j["sliding_window_pattern"] = m.full_every;
      if (m.rope_scaling.on()) j["rope_scaling"] = rope_scaling_json(m.rope_scaling);
    }};

// Its embedding is multiplied by the root of its width, and a tied matrix is what it has if nothing is said.
const Part gemma3_scales = {[](const Keys& keys, Words& words) {
                              const float factor = float(std::sqrt(double(keys.whole("hidden_size"))));
                              if (factor > 0 && factor < 1e6f)
                                words.push_back("--embedding-factor=" + number_text(factor));
                              const size_t divisor = keys.one_or_more("query_pre_attn_scalar"),
                                           D = keys.whole("head_dim");
                              if (divisor != D) say(words, "--score-dim", divisor);
                              say(words, "--tied", keys.flag_or("tie_word_embeddings", true));
                            },
                            [](const Config& c, json& j) {
                              const AttentionConfig& a = c.model.attention;
                              j["query_pre_attn_scalar"] = a.score_dim ? a.score_dim : a.D;
                              j["tie_word_embeddings"] = c.model.tied;
                            }};

// The first part of a head's dimensions alone turns.
const Part partial_rope = {[](const Keys& keys, Words& words) {
                             const bool together = keys.has("rope_parameters");
                             const Keys at = together ? keys.object("rope_parameters") : keys;
                             keys.require_agreement("partial_rotary_factor", at, "partial_rotary_factor");
                             const double absent = keys.real_or("partial_rotary_factor", 0.25);
                             say(words, "--rope-fraction", at.real_or("partial_rotary_factor", absent));
                           },
                           [](const Config& c, json& j) { j["partial_rotary_factor"] = c.model.rope_fraction; }};

// The gates of arXiv 2505.06708 as its authors released them: in Qwen3, with keys that transformers does not know.
const Part released_gates = {[](const Keys& keys, Words& words) {
                               const bool element = keys.flag_or("elementwise_attn_output_gate", false);
                               const bool head = keys.flag_or("headwise_attn_output_gate", false);
                               if (element && head)
                                 keys.refuse("headwise_attn_output_gate", "false beside elementwise_attn_output_gate");
                               const bool bias = keys.flag_or("qkv_bias", false);
                               if (bias && (element || head)) keys.refuse("qkv_bias", "false: a gate has no bias here");
                               if (element || head) words.push_back("--attn=g1");
                               if (head) words.push_back("--gate=headwise");
                               if (bias) words.push_back("--attn-bias=all");
                               say(words, "--qk-norm", keys.flag_or("use_qk_norm", true));
                             },
                             [](const Config& c, json& j) {
                               const AttentionConfig& a = c.model.attention;
                               if (a.gate_at != GatePosition::g1) return;
                               j["elementwise_attn_output_gate"] = a.gate.kind == GateKind::elementwise;
                               j["headwise_attn_output_gate"] = a.gate.kind == GateKind::headwise;
                               j["qkv_bias"] = false;
                               j["use_qk_norm"] = a.qk_norm;
                             }};

// Qwen's files have num_experts, and since version 5 of transformers num_local_experts, as gpt-oss's.
static size_t experts_in(const Keys& keys) {
  keys.require_agreement("num_experts", keys, "num_local_experts");
  return keys.whole(keys.has("num_local_experts") ? "num_local_experts" : "num_experts");
}
static void read_experts(const Keys& keys, Words& words) {
  const size_t E = experts_in(keys);
  say(words, "--experts", E);
  if (E > 0) say(words, "--experts-per-token", keys.whole("num_experts_per_tok"));
}
// Layers that keep a dense FFN are those at the beginning.
const Part qwen_experts = {[](const Keys& keys, Words& words) {
                             read_experts(keys, words);
                             say(words, "--expert-hidden", keys.whole("moe_intermediate_size"));
                             say(words, "--router-renormalise", keys.flag("norm_topk_prob"));
                             if (keys.whole_or("decoder_sparse_step", 1) != 1) keys.refuse("decoder_sparse_step", "1");
                             const json* dense = keys.find("mlp_only_layers");
                             if (!dense || dense->empty()) return;
                             for (size_t i = 0; i < dense->size(); i++)
                               if (!dense->is_array() || (*dense)[i] != i)
                                 keys.refuse("mlp_only_layers", "layers 0, 1, 2 and so on");
                             say(words, "--dense-layers", dense->size());
                           },
                           [](const Config& c, json& j) {
                             const MoeConfig& e = c.model.moe;
                             j["num_experts"] = e.E;
                             j["num_experts_per_tok"] = e.k;
                             j["moe_intermediate_size"] = e.F;
                             j["norm_topk_prob"] = e.renormalise;
                             j["decoder_sparse_step"] = 1;
                             j["mlp_only_layers"] = json::array();
                             for (size_t i = 0; i < c.model.dense_layers; i++) j["mlp_only_layers"].push_back(i);
                           }};

const Part shared_expert = {
    [](const Keys& keys, Words& words) {
      if (experts_in(keys) == 0) return;
      const size_t one = keys.whole("moe_intermediate_size");
      const size_t all = keys.whole("shared_expert_intermediate_size");
      if (one == 0 || all == 0) keys.refuse("shared_expert_intermediate_size", "a whole number from 1 on");
      say(words, "--shared-experts", double(all) / double(one));
      say(words, "--shared-expert-gate", true);
    },
    [](const Config& c, json& j) { j["shared_expert_intermediate_size"] = c.model.moe.shared_width(); }};

// Every n-th layer is softmax attention, the others follow the gated delta rule.
const Part linear_layers = {
    [](const Keys& keys, Words& words) {
      const size_t layers = keys.whole("num_hidden_layers");
      if (layers > 10000) keys.refuse("num_hidden_layers", "at most 10000");
      const char* const interval = "full_attention_interval";
      const size_t n = keys.has("layer_types") ? full_every(keys, "linear_attention")
                       : keys.has(interval)    ? keys.one_or_more(interval)
                                               : 4;
      const bool hybrid = n > 1 && n <= layers;
      if (hybrid && keys.whole_or(interval, n) != n)
        keys.refuse(interval, std::to_string(n) + ", as \"layer_types\" says");
      words.push_back(n == 1 ? "--mixer=attention" : hybrid ? "--mixer=hybrid" : "--mixer=gated-delta");
      if (hybrid) say(words, "--attention-every", n);
      say(words, "--linear-key-heads", keys.whole("linear_num_key_heads"));
      say(words, "--linear-value-heads", keys.whole("linear_num_value_heads"));
      say(words, "--linear-key-dim", keys.whole("linear_key_head_dim"));
      say(words, "--linear-value-dim", keys.whole("linear_value_head_dim"));
      say(words, "--conv-width", keys.whole("linear_conv_kernel_dim"));
    },
    [](const Config& c, json& j) {
      const LinearAttentionConfig& l = c.model.linear;
      j["layer_types"] = json::array();
      for (size_t i = 0; i < c.model.layers; i++)
        j["layer_types"].push_back(c.model.attends(i) ? "full_attention" : "linear_attention");
      j["linear_num_key_heads"] = l.Hk;
      j["linear_num_value_heads"] = l.Hv;
      j["linear_key_head_dim"] = l.Dk;
      j["linear_value_head_dim"] = l.Dv;
      j["linear_conv_kernel_dim"] = l.W;
    }};

const Part gpt_oss_experts = {[](const Keys& keys, Words& words) {
                                read_experts(keys, words);
                                say(words, "--expert-hidden", keys.whole("intermediate_size"));
                              },
                              [](const Config& c, json& j) {
                                j["num_local_experts"] = c.model.moe.E;
                                j["num_experts_per_tok"] = c.model.moe.k;
                                j["intermediate_size"] = c.model.moe.F;
                              }};

// Layers 0, 2, 4, ... see a window, the others all.
const Part window_of_even_layers = {
    [](const Keys& keys, Words& words) {
      say(words, "--window", keys.one_or_more("sliding_window"));
      words.push_back("--window-layers=even");
      if (!keys.has("layer_types")) return;
      const std::vector<std::string> kinds = keys.texts("layer_types");
      bool good = kinds.size() == keys.whole("num_hidden_layers");
      for (size_t i = 0; i < kinds.size(); i++) good &= kinds[i] == (i % 2 ? "full_attention" : "sliding_attention");
      if (!good) keys.refuse("layer_types", "sliding_attention and full_attention in turns, one for every layer");
    },
    [](const Config& c, json& j) {
      j["sliding_window"] = c.model.attention.window;
      j["layer_types"] = json::array();
      for (size_t i = 0; i < c.model.layers; i++)
        j["layer_types"].push_back(i % 2 == 0 ? "sliding_attention" : "full_attention");
    }};

const Part gpt2_sizes = {[](const Keys& keys, Words& words) {
                           const size_t C = keys.whole("n_embd"), H = keys.whole("n_head");
                           if (H == 0 || C % H != 0) keys.refuse("n_head", "a divisor of n_embd");
                           say(words, "--vocab", keys.one_or_more("vocab_size"));
                           say(words, "--layers", keys.whole("n_layer"));
                           say(words, "--hidden", C);
                           keys.require_agreement("n_ctx", keys, "n_positions");
                           say(words, "--context", keys.whole(keys.has("n_positions") ? "n_positions" : "n_ctx"));
                           say(words, "--heads", H);
                           say(words, "--kv-heads", H);
                           say(words, "--head-dim", C / H);
                           if (C > size_t{1} << 40) keys.refuse("n_embd", "at most 2^40");
                           say(words, "--ffn-hidden", keys.whole_or("n_inner", 4 * C));
                           say_eps(keys, "layer_norm_epsilon", 1e-5, 1e-5, words);
                           say(words, "--tied", keys.flag_or("tie_word_embeddings", true));
                         },
                         [](const Config& c, json& j) {
                           j["vocab_size"] = c.model.vocab;
                           j["n_layer"] = c.model.layers;
                           j["n_embd"] = c.model.hidden;
                           j["n_positions"] = j["n_ctx"] = c.model.context;
                           j["n_head"] = c.model.attention.H;
                           j["n_inner"] = c.model.ffn.F;
                           j["layer_norm_epsilon"] = shortest(c.model.norm.epsilon());
                           j["tie_word_embeddings"] = c.model.tied;
                         }};

const Part gpt2_activation = {[](const Keys& keys, Words& words) {
                                const std::string name = keys.text_or("activation_function", "gelu_new");
                                const bool tanh = name == "gelu_new" || name == "gelu_pytorch_tanh";
                                if (!tanh && name != "gelu")
                                  keys.refuse("activation_function", "\"gelu_new\" or \"gelu\"");
                                words.push_back(tanh ? "--gelu=tanh" : "--gelu=erf");
                              },
                              [](const Config& c, json& j) {
                                j["activation_function"] =
                                    c.model.ffn.gelu == Activation::gelu_tanh ? "gelu_new" : "gelu";
                              }};

}  // namespace gated::hf_parts
