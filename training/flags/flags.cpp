// flags: the table. A row is a flag's name, where its value goes, what it allows, and its line of help.
#include "training/flags/flags.h"

#include <map>

#include "dataloader/files.h"
#include "kernels/dispatch.h"
#include "training/flags/flag_table.h"
#include "training/flags/presets.h"

namespace gated {

const char* name_of(Flag::Kind kind) {
  switch (kind) {
    case Flag::Kind::shortcut: return "Shortcuts";
    case Flag::Kind::norm: return "Norms";
    case Flag::Kind::attention: return "Attention";
    case Flag::Kind::block: return "FFN, residual stream, weights";
    case Flag::Kind::experts: return "Mixture of experts";
    case Flag::Kind::size: return "Sizes";
    case Flag::Kind::data: return "Data";
    case Flag::Kind::training: return "Training";
    case Flag::Kind::arithmetic: return "Arithmetic";
    case Flag::Kind::run: return "Run";
    case Flag::Kind::file: return "Files";
    case Flag::Kind::inference: return "Evaluation and generation";
  }
  return "";
}

namespace {

std::vector<FlagTable::Choice<Activation>> activations_for(unsigned use) {
  std::vector<FlagTable::Choice<Activation>> choices;
  for (const ActivationRow& a : activations)
    if (a.uses & use) choices.push_back({a.name, a.act, "core/nonlinear.cuh", a.meaning});
  return choices;
}

void list_shortcuts(FlagTable& t, Config& c) {
  t.begin(Flag::Kind::shortcut);
  std::vector<FlagTable::Choice<std::string>> names;
  for (const Preset& p : presets()) names.push_back({p.name, p.name, "training/flags/presets.cpp", p.meaning});
  t.choice<std::string>("--preset", c.preset, names, "a model by name; the other flags change it");
  t.text(
      "--from", c.from, "FOLDER | FILE.safetensors | config.json",
      "a model that is there: the newest checkpoint of a run's --out, one file of it, or a folder of Hugging Face's "
      "transformers; its flags, which other flags change, and its weights: to train it on from step 1, for --evaluate "
      "or --export (training/flags/model_source.h)");
  t.number(
      "--params", c.params, at_least(0),
      "total parameters: chooses the --ffn-hidden (with experts the --expert-hidden) that comes nearest; 0: as it is");
  t.text("--match-params", c.match_params, "FLAGS",
         "chooses the --ffn-hidden (with experts the --expert-hidden) so that the model has as many parameters as with "
         "these flags changed: --match-params=--attn=full");
  t.on_off("--describe", c.describe, "training/describe.cpp",
           "print what the model is made of, its size, FLOPs and memory, and train nothing");
}

void list_norm_flags(FlagTable& t, ModelConfig& m) {
  t.begin(Flag::Kind::norm);
  t.choice<NormKind>(
      "--norm", m.norm.kind,
      {{"rmsnorm", NormKind::rmsnorm, "kernels/rmsnorm.cu", "x / rms(x) * w"},
       {"layernorm", NormKind::layernorm, "kernels/layernorm.cu", "(x - mean) / deviation * w + b"},
       {"dyt", NormKind::dyt, "kernels/dyt.cu", "tanh(alpha x) * w + b"},
       {"preaffine", NormKind::preaffine, "kernels/rmsnorm.cu", "RMSNorm(w1 * x), w1 learned"},
       {"gated", NormKind::gated, "kernels/gated_norm.cu", "RMSNorm, times a low-rank gate of its own output"},
       {"gated-dyt", NormKind::gated_dyt, "kernels/gated_norm.cu", "DyT, times a low-rank gate of its own output"},
       {"none", NormKind::none, "kernels/residual.cu", "x"}},
      "the norm before attention, before the FFN and before the output matrix");
  t.choice<NormPlacement>("--norm-placement", m.placement,
                          {{"pre", NormPlacement::pre, "layers/block.cuh", "h + f(N(h))"},
                           {"post", NormPlacement::post, "layers/block.cuh", "N(h + f(h))"},
                           {"sandwich", NormPlacement::sandwich, "layers/block.cuh", "h + N(f(N(h)))"}},
                          "where the norm N stands, f being attention or the FFN and h the residual stream");
  t.number("--norm-eps", m.norm.eps, between(0.0f, 1.0f),
           "epsilon inside the root of every norm, QK-norm too; 0: 1e-6, for LayerNorm 1e-5");
  t.choice<bool>("--norm-weight", m.norm.zero_centred,
                 {{"plain", false, "kernels/rmsnorm.cu", "w, starting at 1"},
                  {"zero-centred", true, "kernels/rmsnorm.cu", "1 + w, w starting at 0"}},
                 "the weight of RMS norms");
  t.number("--norm-rank", m.norm.gate.rank, between<size_t>(1, 512), "rank of GatedNorm's gate");
  t.choice<NormGateScore>(
      "--norm-gate", m.norm.gate.score,
      {{"elementwise", NormGateScore::elementwise, "kernels/gated_norm.cu", "one for every element"},
       {"tensorwise", NormGateScore::tensorwise, "kernels/gated_norm.cu", "one for every token"}},
      "scores of GatedNorm's gate");
  t.choice<Activation>("--norm-gate-act", m.norm.gate.op.act, activations_for(norm_gate),
                       "activation of GatedNorm's gate");
  t.choice<bool>("--norm-gate-init", m.norm.gate.zero_init,
                 {{"normal", false, "layers/norm.cuh", "like every other matrix"},
                  {"zero", true, "layers/norm.cuh", "at 0: every sigmoid is one half"}},
                 "how the matrix W_up of GatedNorm's gate starts");
  t.number("--norm-gate-scale", m.norm.gate.op.scale, above_zero(1e6f),
           "factor of GatedNorm's score; 2 with --norm-gate-init=zero starts as the plain norm");
  t.one_or_two("--dyt-alpha", m.norm.dyt_alpha, m.dyt_alpha_attention, above_zero(1e6),
               "where DyT's alpha starts: A in every norm; with A,B it is B in those that attention reads");
}

// The names of --rope-scaling, and what FAST is where it is not said.
struct ScalingName {
  const char* name;
  RopeScaling::Kind kind;
  double fast;
  bool whole_points;
};
const ScalingName scaling_names[] = {{"linear", RopeScaling::Kind::linear, 32, true},
                                     {"llama3", RopeScaling::Kind::llama3, 4, true},
                                     {"yarn", RopeScaling::Kind::yarn, 32, true},
                                     {"yarn-unrounded", RopeScaling::Kind::yarn, 32, false}};

RopeScaling read_rope_scaling(const std::string& text) {
  const std::vector<std::string> words = between_commas(text);
  if (text == "none") return {};
  const char* const flag = "--rope-scaling";
  for (const ScalingName& name : scaling_names) {
    if (words[0] != name.name) continue;
    const bool linear = name.kind == RopeScaling::Kind::linear;
    const std::string plain = name.name + std::string(linear ? ",S" : ",S,L");
    require(linear ? words.size() == 2 : words.size() == 3 || words.size() == 5, "%s=%s: expected %s", flag,
            text.c_str(), (linear ? plain : plain + " or " + plain + ",SLOW,FAST").c_str());
    const double scale = parse_number(flag, text, words[1], between(1.0, 1e6));
    RopeScaling s = {name.kind, scale, 0, 1, name.fast, name.whole_points};
    if (!linear) s.trained = parse_number(flag, text, words[2], at_least(1));
    if (words.size() == 5) {
      s.slow = parse_number(flag, text, words[3], above_zero(1e6));
      s.fast = parse_number(flag, text, words[4], above_zero(1e6));
    }
    require(s.slow < s.fast, "%s=%s: SLOW is %g and FAST %g, expected a range", flag, text.c_str(), s.slow, s.fast);
    return s;
  }
  fail("%s=%s: there is no scaling \"%s\": expected none, linear, llama3, yarn or yarn-unrounded", flag, text.c_str(),
       words[0].c_str());
}

std::string rope_scaling_text(const RopeScaling& s) {
  for (const ScalingName& name : scaling_names) {
    if (s.kind != name.kind || s.whole_points != name.whole_points) continue;
    std::string text = name.name + ("," + number_text(s.scale));
    if (s.kind == RopeScaling::Kind::linear) return text;
    text += "," + number_text(s.trained);
    const bool usual = s.slow == 1 && s.fast == name.fast;
    return usual ? text : text + "," + number_text(s.slow) + "," + number_text(s.fast);
  }
  return "none";
}

void list_attention_flags(FlagTable& t, ModelConfig& m) {
  AttentionConfig& a = m.attention;
  t.begin(Flag::Kind::attention);
  t.choice<MixerKind>(
      "--mixer", m.mixer,
      {{"attention", MixerKind::attention, "layers/attention_mixer.cuh", "softmax attention in every layer"},
       {"gated-delta", MixerKind::gated_delta, "layers/gated_delta_net.cuh", "the gated delta rule in every layer"},
       {"hybrid", MixerKind::hybrid, "layers/block_parts.cuh", "attention in one layer of --attention-every"}},
      "how tokens meet");
  t.number("--attention-every", m.attention_every, at_least(2),
           "layers from one with attention to the next in a hybrid; it is the last of them");
  t.choice<DeltaForm>(
      "--delta", m.linear.form,
      {{"recurrent", DeltaForm::recurrent, "kernels/gated_delta.cu", "token by token"},
       {"chunk", DeltaForm::chunk, "kernels/gated_delta_chunk.cu", "64 tokens at a time, to other bits"}},
      "how the gated delta rule goes through a sequence");
  t.choice<GatePosition>("--attn", a.gate_at,
                         {{"full", GatePosition::none, "layers/attention_mixer.cuh", "nothing: attention has no gate"},
                          {"g1", GatePosition::g1, "layers/gating.cuh", "the output of attention"},
                          {"g2", GatePosition::g2, "layers/gating.cuh", "the values"},
                          {"g3", GatePosition::g3, "layers/gating.cuh", "the keys"},
                          {"g4", GatePosition::g4, "layers/gating.cuh", "the queries"},
                          {"g5", GatePosition::g5, "layers/gating.cuh", "the output of the output projection"}},
                         "what the gate's score multiplies");
  t.choice<GateKind>(
      "--gate", a.gate.kind,
      {{"elementwise", GateKind::elementwise, "kernels/gate.cu", "one for every element, from the hidden state"},
       {"headwise", GateKind::headwise, "kernels/gate.cu",
        "one for every head, from the hidden state; with --attn=g1 to g4, of which g3 and g4 need --qk-norm=off or "
        "--gate-op=add"},
       {"shared", GateKind::shared, "kernels/shared_gate.cu",
        "elementwise scores, their mean over the heads; with --attn=g1 and g2"},
       {"static", GateKind::static_, "kernels/static_gate.cu",
        "one for every element, learned, for all tokens; with --gate-act=sigmoid and ns-sigmoid, or --gate-op=add"}},
      "scores of attention's gate");
  t.choice<bool>("--gate-op", a.gate.op.additive,
                 {{"mul", false, "kernels/gate.cu", "it multiplies the value"},
                  {"add", true, "kernels/gate.cu", "it is added to the value"}},
                 "what the score of attention's gate does");
  t.choice<Activation>("--gate-act", a.gate.op.act, activations_for(attention_gate), "activation of attention's gate");
  t.number("--head-experts", a.head_experts.E, between<size_t>(0, 32),
           "SwitchHead: matrices of each key/value head, mixed by a token's scores; 0: one, without a score");
  t.number("--head-experts-per-token", a.head_experts.k, between<size_t>(1, 32),
           "SwitchHead: how many of the --head-experts a token takes, those of the largest score");
  t.choice<HeadExpertsOf>(
      "--head-experts-of", a.head_experts.of,
      {{"v", HeadExpertsOf::v, "layers/switch_head.cuh", "of values"},
       {"kv", HeadExpertsOf::kv, "layers/switch_head.cuh", "of values and of keys, with scores of their own for each"}},
      "SwitchHead: what the --head-experts are matrices of");
  t.choice<AttentionScore>(
      "--attn-score", a.score,
      {{"softmax", AttentionScore::softmax, "kernels/attention.cu", "weights that add up to 1"},
       {"sigmoid", AttentionScore::sigmoid, "kernels/attention.cu", "a sigmoid of each score less log(context)"}},
      "how scores of queries and keys become weights");
  t.choice<AttentionSink>(
      "--attn-sink", a.sink,
      {{"none", AttentionSink::none, "kernels/attention.cu", "nothing"},
       {"learned", AttentionSink::learned, "kernels/sinks.cu", "a learned logit per head, without a value"},
       {"kv-bias", AttentionSink::kv_bias, "kernels/sinks.cu", "a learned key and value per head"}},
      "what a query may attend to beside the keys");
  t.choice<SdpaOut>("--sdpa-out", a.sdpa_out,
                    {{"plain", SdpaOut::plain, "layers/attention_mixer.cuh", "nothing"},
                     {"groupnorm", SdpaOut::groupnorm, "kernels/rmsnorm.cu", "RMSNorm of every head"},
                     {"silu", SdpaOut::silu, "kernels/activation.cu", "SiLU"}},
                    "what is done to the output of attention before its gate");
  t.number("--window", a.window, at_least(0), "tokens that a query sees, itself included; 0: all before it");
  t.choice<WindowLayers>(
      "--window-layers", m.window_layers,
      {{"all", WindowLayers::all, "layers/model_config.h", "every layer"},
       {"even", WindowLayers::even, "layers/model_config.h", "layers 0, 2, 4, ...; the others see all"},
       {"not-nth", WindowLayers::not_nth, "layers/model_config.h", "all but the last of every --full-every"}},
      "layers with attention that have the window");
  t.number(
      "--full-every", m.full_every, at_least(2),
      "layers with attention from one that sees all to the next, with --window-layers=not-nth; it is the last of them");
  t.number("--score-dim", a.score_dim, at_least(0),
           "scores of queries and keys are divided by the root of it; 0: of --head-dim");
  t.on_off("--qk-norm", a.qk_norm, "kernels/rmsnorm.cu", "RMSNorm of every query head and key head");
  t.choice<AttentionBias>("--attn-bias", a.bias,
                          {{"none", AttentionBias::none, "layers/linear.cuh", "none"},
                           {"qkv", AttentionBias::qkv, "layers/linear.cuh", "of queries, keys and values"},
                           {"all", AttentionBias::all, "layers/linear.cuh", "of the output projection too"}},
                          "biases of attention's projections");
  t.choice<Position>("--position", m.position,
                     {{"rope", Position::rope, "kernels/rope.cu", "queries and keys turn with their position"},
                      {"learned", Position::learned, "kernels/embedding.cu", "every position has a learned embedding"},
                      {"none", Position::none, "layers/attention_mixer.cuh", "the causal mask alone tells"}},
                     "how a token knows its place");
  t.number("--rope-theta", m.rope_theta, between(1.0, 1e12), "base of the rotary frequencies");
  t.number("--rope-fraction", m.rope_fraction, between(0.0, 1.0),
           "share of a head's dimensions that RoPE rotates, the first ones");
  t.parts(
      "--rope-scaling", "none | linear,S | llama3,S,L[,SLOW,FAST] | yarn,S,L[,SLOW,FAST] | yarn-unrounded,...",
      "how positions are scaled to read S times the L tokens of a first training (kernels/rope.cu); points that go "
      "round less than SLOW times in them are slowed whole (1), those that do more often than FAST not (llama3 4, yarn "
      "32)",
      [&m](const std::string& text) { m.rope_scaling = read_rope_scaling(text); },
      [&m] { return rope_scaling_text(m.rope_scaling); });
  t.number("--window-rope-theta", m.window_rope_theta, between(0.0, 1e12),
           "base of the rotary frequencies in layers with a window, which are not scaled; 0: as in layers without one");
}

void list_block_flags(FlagTable& t, ModelConfig& m) {
  t.begin(Flag::Kind::block);
  t.choice<FfnKind>("--ffn", m.ffn.kind,
                    {{"swiglu", FfnKind::swiglu, "kernels/glu.cu", "SiLU(gate) * up"},
                     {"glu", FfnKind::glu, "kernels/glu.cu", "sigmoid(gate) * up"},
                     {"geglu", FfnKind::geglu, "kernels/glu.cu", "GELU(gate) * up"},
                     {"swiglu-clamped", FfnKind::swiglu_clamped, "kernels/glu.cu",
                      "(up + 1) * gate * sigmoid(1.702 gate), gate <= 7, -7 <= up <= 7 (gpt-oss)"},
                     {"gelu", FfnKind::gelu, "kernels/activation.cu", "GELU(up)"},
                     {"relu2", FfnKind::relu2, "kernels/activation.cu", "max(up, 0)^2"},
                     {"polynorm", FfnKind::polynorm, "kernels/polynorm.cu", "the sum of normed powers of up"}},
                    "the feed-forward network (FFN)");
  t.choice<Activation>(
      "--gelu", m.ffn.gelu,
      {{"tanh", Activation::gelu_tanh, "core/nonlinear.cuh", "GPT-2's approximation"},
       {"erf", Activation::gelu_erf, "core/nonlinear.cuh", "x times the cumulative normal distribution"}},
      "the GELU of --ffn=gelu and --ffn=geglu");
  t.on_off("--ffn-bias", m.ffn.bias, "layers/linear.cuh", "biases of the FFN's projections");
  t.on_off("--tied", m.tied, "layers/model_state.cuh", "the embedding is the output matrix too");
  t.on_off("--embedding-scale", m.embedding_scale, "kernels/embedding.cu",
           "a learned factor of the embedding, starting at sqrt(hidden): DyT's authors use it");
  t.number("--embedding-factor", m.embedding_factor, above_zero(1e6f),
           "fixed factor of the embedding (kernels/embedding.cu)");
  using Rule = InitRule::Kind;
  t.choice<Rule>("--init", m.init.kind,
                 {{"plain", Rule::plain, "layers/parameters.h", "every matrix N(0, std), of --init-std"},
                  {"depth-scaled", Rule::depth_scaled, "layers/parameters.h",
                   "output projections N(0, std / sqrt(2 layers)) (GPT-2)"},
                  {"fan-in", Rule::fan_in, "layers/parameters.h",
                   "every matrix N(0, 1 / sqrt(its inputs)) (LeCun): a gate's logits start alike at every width"}},
                 "initial weights");
  t.number("--init-std", m.init.std, above_zero(1e3),
           "standard deviation of initial weights, where --init has no other rule");
  t.on_off("--residual", m.residual, "layers/block.cuh",
           "the outputs of attention and of the FFN are added to the residual stream; off: they replace it");
  t.number("--clip-residual", m.clip_residual, at_least_zero(), "bound of the residual stream's elements; 0: none");
  t.number("--clip-output", m.clip_output, at_least_zero(), "bound of attention's and the FFN's output; 0: none");
  t.number("--dropout", m.dropout, between(0.0f, 0.99f),
           "share of attention's and the FFN's output that is dropped in training (kernels/residual.cu)");
}

void list_experts_flags(FlagTable& t, ModelConfig& m) {
  MoeConfig& e = m.moe;
  t.begin(Flag::Kind::experts);
  t.number("--experts", e.E, between<size_t>(0, dispatch_experts_most),
           "experts, each an --ffn of its own, in the place of the FFN (layers/moe.cuh); 0: one FFN for all tokens");
  t.number("--experts-per-token", e.k, between<size_t>(1, dispatch_experts_most),
           "how many of the --experts a token takes");
  t.number("--expert-hidden", e.F, at_least(1), "width inside an expert");
  t.number("--dense-layers", m.dense_layers, between<size_t>(0, 10000),
           "so many layers at the beginning keep the FFN of --ffn-hidden");
  t.number("--shared-experts", e.shared, between(0.0, 1024.0),
           "experts that every token takes: one FFN, so many times as wide as an expert; 1.5 is one and a half");
  t.on_off("--shared-expert-gate", e.shared_gate, "layers/moe.cuh",
           "a sigmoid of each token scales the output of --shared-experts");
  t.on_off("--router-renormalise", e.renormalise, "kernels/router.cu",
           "the weights of a token's experts are divided by their sum");
  t.on_off("--router-bias", e.router_bias, "layers/moe.cuh", "a bias of the router's logits (gpt-oss)");
  t.number("--balance-loss", e.balance, between(0.0f, 1e3f),
           "factor of the loss that keeps all experts busy (kernels/router.cu)");
  t.choice<BalanceOver>(
      "--balance-over", e.balance_over,
      {{"global", BalanceOver::global, "layers/moe.cuh",
        "all micro-batches of the slice so far: of the step, with --slices=1 (arXiv 2501.11873). By default, "
        "with up to eight micro-batches, a slice is one of them, and both values mean the same"},
       {"micro-batch", BalanceOver::micro_batch, "layers/moe.cuh", "the micro-batch alone"}},
      "the tokens that --balance-loss counts");
  t.number("--z-loss", e.z, between(0.0f, 1e3f), "factor of the loss that keeps the router's logits small");
}

void list_sizes(FlagTable& t, ModelConfig& m) {
  t.begin(Flag::Kind::size);
  t.number("--layers", m.layers, between<size_t>(1, 10000), "blocks");
  t.number("--hidden", m.hidden, at_least(1), "width of the residual stream");
  t.number("--heads", m.attention.H, at_least(1), "query heads");
  t.number("--kv-heads", m.attention.KVH, at_least(1), "key/value heads; divides --heads");
  t.number("--head-dim", m.attention.D, between<size_t>(1, 256), "width of a head");
  t.number("--linear-key-heads", m.linear.Hk, at_least(1), "heads of queries and keys of the gated delta rule");
  t.number("--linear-value-heads", m.linear.Hv, at_least(1),
           "heads of values of the gated delta rule; a multiple of --linear-key-heads");
  t.number("--linear-key-dim", m.linear.Dk, between<size_t>(1, 256),
           "width of a query or key head of the gated delta rule");
  t.number("--linear-value-dim", m.linear.Dv, at_least(1), "width of a value head of the gated delta rule");
  t.number("--conv-width", m.linear.W, between<size_t>(1, 1024),
           "tokens that the convolution before the gated delta rule sees, the token itself included");
  t.number("--ffn-hidden", m.ffn.F, at_least(1), "width inside the FFN");
  t.number("--context", m.context, at_least(1), "tokens in a sequence");
}

void list_data_flags(FlagTable& t, Config& c) {
  t.begin(Flag::Kind::data);
  t.text("--data", c.data.data, "self | bigram-backcopy | recall | PATH | FILE.bin",
         "self: this repository's source; a text file, folder, list (a,b or @list.txt) or glob, read as bytes; "
         "token shards of llm.c or scripts/tokenize.py; or made up: the task of arXiv 2410.13835, or keys whose values "
         "stand further back (dataloader/recall.h)");
  t.text_or_nothing(
      "--val-data", c.data.val_data, "as --data",
      "validation data of its own, instead of a share of --data; empty: that share. With --from it is that of "
      "the run, unless --data is other data or --val-fraction is given");
  t.number("--val-fraction", c.data.val_fraction, between(0.0, 0.9),
           "share of --data, at its end, kept for validation");
  t.number("--vocab", c.vocab, between<size_t>(0, size_t{1} << 31), "tokens in the vocabulary; 0: as the data has");
  t.number("--seed", c.seed, Bounds<uint64_t>{0, UINT64_MAX, ">= 0"},
           "seed of initial weights, order of the data, synthetic data, dropout and samples");
}

void list_training_flags(FlagTable& t, Config& c) {
  t.begin(Flag::Kind::training);
  t.number("--steps", c.steps, at_least(1), "optimizer steps");
  t.number("--batch", c.batch, at_least(1), "sequences in a micro-batch");
  t.number("--micro-batches", c.micro_batches, at_least(1), "micro-batches whose gradients one step adds up");
  t.number("--slices", c.slices, at_least(0),
           "parts of a step, of as many --micro-batches each: a slice adds its gradients up in place, and the sums of "
           "slices are added (training/optimizer.cuh); 0: the largest divisor of --micro-batches up to 8");
  t.number("--lr", c.schedule.peak, between(0.0f, 1e3f),
           "learning rate after the warm-up; with --from at most 3e-4 and 0.04 / --hidden, where it is not given");
  t.choice<ScheduleKind>("--schedule", c.schedule.kind,
                         {{"cosine", ScheduleKind::cosine, "training/flags/schedule.h", "a cosine over all --steps"},
                          {"wsd", ScheduleKind::wsd, "training/flags/schedule.h",
                           "constant, then a linear --decay: it can be made longer"}},
                         "how the learning rate falls from --lr to --min-lr");
  t.number("--min-lr", c.schedule.final, between(0.0f, 1e3f), "learning rate at the end of the schedule");
  t.number("--decay", c.schedule.decay, at_least(0),
           "of --schedule=wsd: the last steps, in which the rate falls; 0: a fifth of --steps");
  t.number("--warmup", c.schedule.warmup, at_least(0),
           "steps of linear warm-up; where it is not given, at most half of --steps");
  t.number("--beta1", c.adamw.beta1, between(0.0f, 0.9999999f), "AdamW: decay of the mean gradient (kernels/adamw.cu)");
  t.number("--beta2", c.adamw.beta2, between(0.0f, 0.9999999f), "AdamW: decay of the mean squared gradient");
  t.number("--adam-eps", c.adamw.epsilon, between(1e-30f, 1.0f), "AdamW: added to the root of the mean square");
  t.number("--weight-decay", c.adamw.weight_decay, between(0.0f, 1e3f),
           "AdamW: decoupled decay of matrices, embeddings and zero-centred norm weights");
  t.number("--clip", c.clip, above_zero(1e30f), "largest gradient norm; a larger gradient is scaled down to it");
}

void list_arithmetic_flags(FlagTable& t, Config& c) {
  t.begin(Flag::Kind::arithmetic);
  t.choice<Storage>(
      "--precision", c.model.storage,
      {{"fp32", Storage::fp32, "core/math.cuh", "floats"},
       {"bf16", Storage::bf16, "core/storage.h",
        "activations and copies of the weights in bf16, products on tensor cores; weights, their gradients "
        "and the optimizer stay fp32"}},
      "how numbers are stored and multiplied; with each every device gives the same bits");
  t.choice<MmaArithmetic>("--mma", c.mma,
                          {{"hopper", MmaArithmetic::hopper, "core/mma.h", "of compute capability 9 and later"},
                           {"ampere", MmaArithmetic::ampere, "core/mma.h", "of compute capability 8"}},
                          "which tensor cores --precision=bf16 computes as: the CPU as either, a GPU as its own");
  t.choice<bool>(
      "--matmul", c.cublas,
      {{"exact", false, "kernels/matmul.cu", "the project's own kernels: the bits of the CPU"},
       {"cublas", true, "kernels/bf16/matmul_cublas.cu", "cuBLASLt: equal from run to run, but not the CPU's bits"}},
      "who multiplies matrices on a GPU");
  t.on_off("--tf32", c.tf32, "kernels/bf16/matmul_cublas.cu",
           "cuBLASLt rounds what it multiplies to TF32, for tensor cores");
}

void list_run_flags(FlagTable& t, Config& c) {
  t.begin(Flag::Kind::run);
  t.number("--log-every", c.log_every, at_least(1),
           "steps between the lines that are printed; log.jsonl has every step");
  t.number("--val-every", c.val_every, at_least(0), "steps between validations; 0: one at the end");
  t.number("--val-batches", c.val_batches, at_least(1), "batches of a validation");
  t.number("--measure-every", c.measure_every, at_least(0),
           "steps between validations that also measure attention, activations and gates "
           "(training/inspect/measures.h); 0: one at the end");
  t.number(
      "--check-ranks-every", c.check_ranks_every, at_least(0),
      "steps between comparisons of the weights that each of several ranks reads: one that has others is named, and "
      "the run ends; 0: none");
  t.choice<TransportChoice>(
      "--transport", c.transport,
      {{"auto", TransportChoice::automatic, "training/main.cu",
        "nccl where this build has it and every rank has a GPU of its own, mpi elsewhere"},
       {"mpi", TransportChoice::mpi, "training/ranks/mpi.cpp", "MPI; of GPUs, by way of the hosts' memory"},
       {"nccl", TransportChoice::nccl, "training/ranks/nccl.cpp", "NCCL, from GPU to GPU"}},
      "what moves gradients and weights between several ranks (docs/ranks.md); the same bits");
  t.choice<DeviceChoice>(
      "--device", c.device,
      {{"auto", DeviceChoice::automatic, "training/main.cu", "cuda where a GPU answers, cpu elsewhere"},
       {"cpu", DeviceChoice::cpu, "kernels/cpu/matmul_cpu.cpp", "the references and the tuned CPU kernels"},
       {"cuda", DeviceChoice::cuda, "core/device.cuh", "the kernels on a GPU"},
       {"emulated", DeviceChoice::emulated, "core/simt.h", "the same kernels on the CPU, thread by thread: slow"}},
      "where to run; --matmul=exact gives the same bits on all");
  t.on_off("--graph", c.graph, "core/graph.cuh",
           "launch each micro-batch, and the update, as one CUDA graph, recorded when they are launched for the second "
           "time; the same bits. --device=emulated follows the same rules");
  t.choice<Recompute>(
      "--recompute", c.model.recompute,
      {{"none", Recompute::none, "layers/model.cu", "nothing"},
       {"light", Recompute::light, "layers/block.cuh", "outputs of norms, rotations, gates and activation functions"},
       {"full", Recompute::full, "layers/model.cu", "all that a block computes: its input alone is kept"}},
      "what of the forward is not kept in memory, and computed again in the backward, to the same bits");
  t.number("--threads", c.threads, between<size_t>(0, 4096),
           "CPU threads; 0: one a core, and of several ranks one a core of their share");
  t.number("--ranks", c.ranks, between<size_t>(1, size_t{1} << 20),
           "of --describe: what one of so many ranks would hold and send (docs/ranks.md); mpirun -n starts them");
}

// "100", or a time: "90s", "30m", "2h". (5M is five million steps.)
Interval read_interval(const char* flag, const std::string& text) {
  const std::map<char, size_t> seconds_of = {{'s', 1}, {'m', 60}, {'h', 3600}};
  const auto unit = seconds_of.find(text.empty() ? '\0' : text.back());
  const bool is_time = unit != seconds_of.end();
  size_t count = 0;
  require(read_number(text.substr(0, text.size() - is_time), count) == Read::number && count >= 1 &&
              count <= size_t{1} << (is_time ? 32 : 40),
          "%s=%s: expected steps, as 100, or seconds, minutes or hours, as 90s, 30m or 2h: a whole number from 1", flag,
          text.c_str());
  return is_time ? Interval{0, count * unit->second} : Interval{count, 0};
}

std::string interval_text(const Interval& every) {
  if (every.steps) return number_text(every.steps);
  if (every.seconds % 3600 == 0) return number_text(every.seconds / 3600) + "h";
  return every.seconds % 60 ? number_text(every.seconds) + "s" : number_text(every.seconds / 60) + "m";
}

void list_file_flags(FlagTable& t, Config& c) {
  t.begin(Flag::Kind::file);
  t.text_or_nothing("--out", c.out, "FOLDER",
                    "where checkpoints, log.jsonl and, at the end, measures.safetensors go; empty: nothing is written");
  t.parts(
      "--save-every", "steps, or a time as 90s, 30m or 2h",
      "from one checkpoint to the next; one more at the end, before a --decay begins, where the validation loss is "
      "lower than any before, and where SIGUSR1 asks for one",
      [&c](const std::string& text) { c.save_every = read_interval("--save-every", text); },
      [&c] { return interval_text(c.save_every); });
  t.number("--keep", c.keep, at_least(0),
           "how many checkpoints are kept, the newest, beside the one from before a --decay and best.safetensors, that "
           "of the lowest validation loss; 0: all");
  t.on_off("--resume", c.resume, "training/checkpoint/checkpoint.h",
           "continue bit for bit from the newest checkpoint in --out, or start where there is none");
  t.on_off("--change-precision", c.change_precision, "training/flags/run_metadata.h",
           "with --resume: go on though the checkpoint was made with the other --precision; it holds fp32 weights");
  t.text(
      "--export", c.export_folder, "FOLDER",
      "train nothing: write the model of --from as config.json and model.safetensors, which transformers opens, into a "
      "new folder (training/models/hf_model.h)");
  t.choice<bool>("--export-dtype", c.export_bf16,
                 {{"fp32", false, "training/models/hf_model.cpp", "as they are"},
                  {"bf16", true, "core/bf16.cuh", "rounded to the nearest of 16 bits"}},
                 "the weights that --export writes");
  t.choice<ExportAs>(
      "--export-as", c.export_as,
      {{"auto", ExportAs::automatic, "training/models/hf_config.cpp",
        "an architecture that transformers has, where one is the model; else code"},
       {"architecture", ExportAs::architecture, "training/models/hf_config.cpp",
        "that, the gates of arXiv 2505.06708 as their authors released them among them; refused where none is"},
       {"code", ExportAs::code, "training/models/modeling_gated.py",
        "any model: its code goes along, which transformers runs with trust_remote_code=True"}},
      "what --export writes");
}

void list_inference_flags(FlagTable& t, Config& c) {
  t.begin(Flag::Kind::inference);
  t.on_off(
      "--evaluate", c.evaluate, "training/evaluate.h",
      "train nothing: validation loss and measures of the newest checkpoint in --out, whose measures.safetensors is "
      "written anew, in another context beside it (training/inspect/arrays.h); --context, --batch and other flags of "
      "training may differ from the run's");
  t.number("--yarn", c.model.yarn, between(1.0, 1024.0),
           "of --evaluate and --generate: YaRN lets the run read so many times the --context that it was trained with, "
           "which its checkpoint knows (kernels/rope.cu); 1: positions as in training");
  t.choice<std::optional<QuantizedFormat>>(
      "--quantize", c.quantize,
      {{"none", {}, "training/evaluate.cu", "full precision alone"},
       {"fp8-w8a8", QuantizedFormat::fp8, "kernels/quantize.cu",
        "E4M3: weights with a scale for 128 x 128, activations with one for a token"},
       {"nvfp4-w4a4", QuantizedFormat::nvfp4, "kernels/quantize.cu", "E2M1 with an E4M3 scale for 16 numbers"}},
      "of --evaluate: the validation loss also with weights and inputs of the linear layers rounded to 8 or 4 bits");
  t.number("--smoothquant", c.smoothquant, between(0.0, 1.0),
           "of --quantize: alpha of SmoothQuant, which first moves outliers of activations into weights, by what the "
           "first --val-batches micro-batches of training show (layers/smoothquant.h); 0: it does not");
  t.choice<Probe>(
      "--probe", c.probe,
      {{"none", Probe::none, "training/evaluate.cu", "nothing"},
       {"retrieval", Probe::retrieval, "training/inspect/retrieval.h",
        "a key, by where it stands in sequences of the run's length, twice that, ... up to --context; of a run "
        "with --data=recall"}},
      "what --evaluate asks the run for besides");
  t.text("--choices", c.choices, "FILE.bin",
         "of --evaluate: questions with several endings, HellaSwag's as llm.c or scripts/tokenize.py --choices writes "
         "them: how many the model gets right (training/inspect/choose.h)");
  t.on_off("--generate", c.generate, "training/text/generate.h",
           "train nothing: print what the model of --from, or the newest checkpoint in --out, writes after a prompt");
  t.text("--prompt", c.prompt, "TEXT", "the text that --generate continues");
  t.text("--prompt-tokens", c.prompt_ids, "IDS",
         "the token ids that --generate continues, with commas between them, instead of a --prompt");
  t.number("--tokens", c.tokens, at_least(0),
           "how many tokens --generate writes; 0: 100, or fewer where the --context ends");
  t.number("--samples", c.samples, at_least(1),
           "how many continuations --generate writes side by side; more than one are printed when all are there");
  t.number(
      "--sample-tokens", c.sample_tokens, at_least(0),
      "length of the sample printed at the end; after the --context a token sees the last --context tokens, or what "
      "windows and states hold");
  t.number("--temperature", c.temperature, between(0.0, 1e3), "temperature of a sample; 0 takes the likeliest token");
  t.number("--top-k", c.top_k, at_least(0), "a sample draws from the k likeliest tokens; 0: from all");
  t.number("--top-p", c.top_p, between(0.0, 1.0),
           "a sample draws from the likeliest tokens whose probabilities together reach p, after --top-k; 1: from all");
  t.text_or_nothing(
      "--tokenizer", c.tokenizer, "FILE | FOLDER",
      "a tokenizer.json, or a folder that has one: text for tokens that are no bytes (dataloader/tokenizer.h); empty: "
      "that of --from or --out, where there is one");
}

}  // namespace

std::string changed_flags_text(Config& config) {
  std::string text;
  Config defaults;
  const std::vector<Flag> now = list_flags(config), then = list_flags(defaults);
  for (size_t i = 0; i < now.size(); i++)
    if (now[i].get() != then[i].get() && now[i].name != "--resume" && now[i].kind != Flag::Kind::shortcut)
      text += " " + now[i].name + "=" + now[i].get();
  return text.empty() ? "all at their defaults" : text;
}

Config config_of_words(const std::vector<std::string>& words) {
  Config config;
  const std::vector<Flag> table = list_flags(config);
  for (const std::string& word : words) {
    const size_t equals = word.find('=');
    for (const Flag& f : table)
      if (f.name == word.substr(0, equals)) f.set(word.substr(equals + 1));
  }
  if (config.vocab) config.model.vocab = config.vocab;
  return config;
}

std::vector<Flag> list_flags(Config& c) {
  FlagTable t;
  list_shortcuts(t, c);
  list_norm_flags(t, c.model);
  list_attention_flags(t, c.model);
  list_block_flags(t, c.model);
  list_experts_flags(t, c.model);
  list_sizes(t, c.model);
  list_data_flags(t, c);
  list_training_flags(t, c);
  list_arithmetic_flags(t, c);
  list_run_flags(t, c);
  list_file_flags(t, c);
  list_inference_flags(t, c);
  return t.rows;
}

}  // namespace gated
