#include "training/flags.h"

#include <algorithm>
#include <charconv>

#include "training/presets.h"

namespace gated {

const char* name_of(Flag::Kind kind) {
  switch (kind) {
    case Flag::Kind::shortcut: return "Shortcuts";
    case Flag::Kind::norm: return "Norms";
    case Flag::Kind::attention: return "Attention";
    case Flag::Kind::block: return "FFN, residual stream, weights";
    case Flag::Kind::size: return "Sizes";
    case Flag::Kind::data: return "Data";
    case Flag::Kind::training: return "Training";
    default: return "Run";
  }
}

namespace {

// The shortest text that reads back as the same number.
template <class T>
std::string number_text(T value) {
  char text[64];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  return std::string(text, end);
}

template <class T>
T parse_number(const std::string& flag, const std::string& text, T low, T high) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  require(error == std::errc{} && end == text.data() + text.size() && value >= low && value <= high,
          "%s=%s: expected a number from %s to %s", flag.c_str(), text.c_str(), number_text(low).c_str(),
          number_text(high).c_str());
  return value;
}

// Collects the table's rows; one method for each type of value.
class FlagTable {
 public:
  std::vector<Flag> rows;

  void begin(Flag::Kind kind) { kind_ = kind; }

  template <class T>
  void number(const char* name, T& field, T low, T high, const char* help) {
    Flag& f = add(name, help, number_text(low) + " to " + number_text(high));
    f.set = [&field, name, low, high](const std::string& s) { field = parse_number(name, s, low, high); };
    f.get = [&field] { return number_text(field); };
  }
  void text(const char* name, std::string& field, const char* allowed, const char* help) {
    Flag& f = add(name, help, allowed);
    f.set = [&field](const std::string& s) { field = s; };
    f.get = [&field] { return field; };
  }
  void toggle(const char* name, bool& field, const char* help) {
    Flag& f = add(name, help, "");
    f.is_switch = true;
    f.set = [&field, name](const std::string& s) {
      const bool on = s.empty() || s == "on" || s == "true";  // CLI11 reads a bare switch as true
      require(on || s == "off" || s == "false", "%s=%s: expected on or off, or no value", name, s.c_str());
      field = on;
    };
    f.get = [&field] { return std::string(field ? "on" : "off"); };
  }
  template <class E>
  struct Value {
    const char* text;
    E value;
    const char *file, *meaning;
  };
  template <class E>
  void choice(const char* name, E& field, std::vector<Value<E>> values, const char* help) {
    std::string allowed;
    for (const auto& v : values) allowed += (allowed.empty() ? "" : " | ") + std::string(v.text);
    Flag& f = add(name, help, allowed);
    for (const auto& v : values) f.choices.push_back({v.text, v.file, v.meaning});
    f.set = [&field, values, allowed, name](const std::string& s) {
      for (const auto& v : values)
        if (s == v.text) {
          field = v.value;
          return;
        }
      fail("%s=%s: expected %s", name, s.c_str(), allowed.c_str());
    };
    f.get = [&field, values] {
      for (const auto& v : values)
        if (v.value == field) return std::string(v.text);
      return std::string("?");
    };
  }
  // on or off, each with the file that implements it
  void on_off(const char* name, bool& field, const char* on_file, const char* on, const char* off_file, const char* off,
              const char* help) {
    choice<bool>(name, field, {{"on", true, on_file, on}, {"off", false, off_file, off}}, help);
  }

 private:
  Flag& add(const char* name, const char* help, std::string allowed) {
    rows.push_back({name, help, kind_, std::move(allowed), {}, false, {}, {}});
    return rows.back();
  }
  Flag::Kind kind_ = Flag::Kind::shortcut;
};

}  // namespace

std::vector<Flag> list_flags(Config& c) {
  FlagTable t;
  const size_t many = size_t{1} << 40;
  ModelConfig& m = c.model;

  t.begin(Flag::Kind::shortcut);
  std::vector<FlagTable::Value<std::string>> names;
  for (const Preset& p : presets()) names.push_back({p.name, p.name, "training/presets.h", p.meaning});
  t.choice<std::string>("--preset", c.preset, names, "a model by name; flags beside it change it");
  t.number("--params", c.params, size_t{0}, size_t{1} << 50, "total parameters: chooses --ffn-hidden; 0: as it is");
  t.text("--match-params", c.match_params, "FLAGS",
         "chooses --ffn-hidden for as many parameters as this model has with these flags changed: "
         "--match-params=--attn=full");
  t.toggle("--describe", c.describe, "print what the model is made of, its size, FLOPs and memory, and train nothing");

  t.begin(Flag::Kind::norm);
  t.choice<NormKind>(
      "--norm", m.norm.kind,
      {{"rmsnorm", NormKind::rmsnorm, "kernels/rmsnorm.cu", "x / rms(x) * w"},
       {"layernorm", NormKind::layernorm, "kernels/layernorm.cu", "(x - mean) / deviation * w + b"},
       {"dyt", NormKind::dyt, "kernels/dyt.cu", "tanh(alpha x) * w + b"},
       {"preaffine", NormKind::preaffine, "kernels/rmsnorm.cu", "RMSNorm(w1 * x), w1 learned"},
       {"gated", NormKind::gated, "kernels/gated_norm.cu", "RMSNorm times a low-rank gate of itself"},
       {"gated-dyt", NormKind::gated_dyt, "kernels/gated_norm.cu", "DyT times a low-rank gate of itself"},
       {"none", NormKind::none, "kernels/residual.cu", "x"}},
      "norm before attention, FFN and output");
  t.choice<NormPlacement>("--norm-placement", m.placement,
                          {{"pre", NormPlacement::pre, "layers/block.cuh", "h + f(N(h))"},
                           {"post", NormPlacement::post, "layers/block.cuh", "N(h + f(h))"},
                           {"sandwich", NormPlacement::sandwich, "layers/block.cuh", "h + N(f(N(h)))"}},
                          "where the norm stands");
  t.number("--norm-eps", m.norm.eps, 0.0f, 1.0f, "added inside the root, in QK-norm too; 0: 1e-6, LayerNorm's 1e-5");
  t.choice<bool>("--norm-weight", m.norm.zero_centred,
                 {{"plain", false, "kernels/rmsnorm.cu", "w, starting at 1"},
                  {"zero-centred", true, "kernels/rmsnorm.cu", "1 + w, w starting at 0"}},
                 "weight of the RMS norms");
  t.number("--norm-rank", m.norm.gate.rank, size_t{1}, size_t{512}, "rank of GatedNorm's gate");
  t.choice<NormGateScore>("--norm-gate", m.norm.gate.score,
                          {{"elementwise", NormGateScore::elementwise, "kernels/gate.cu", "a score for every element"},
                           {"tensorwise", NormGateScore::tensorwise, "kernels/gate.cu", "a score for every token"}},
                          "scores of GatedNorm's gate");
  t.choice<Activation>("--norm-gate-act", m.norm.gate.op.act,
                       {{"sigmoid", Activation::sigmoid, "core/activation.cuh", "1 / (1 + e^-z)"},
                        {"tanh", Activation::tanh, "core/activation.cuh", "tanh z"},
                        {"silu", Activation::silu, "core/activation.cuh", "z sigmoid(z)"},
                        {"identity", Activation::identity, "core/activation.cuh", "z"}},
                       "its activation");
  t.choice<bool>("--norm-gate-init", m.norm.gate.zero_init,
                 {{"normal", false, "layers/norm.cuh", "W_up starts as every matrix does"},
                  {"zero", true, "layers/norm.cuh", "W_up starts at 0: every sigmoid at one half"}},
                 "its start");
  t.number("--norm-gate-scale", m.norm.gate.op.scale, 1e-6f, 1e6f,
           "factor of its score; 2 makes zero init the identity");
  t.number("--dyt-alpha", m.norm.dyt_alpha, 1e-6, 1e6, "DyT: where alpha starts");
  t.number("--dyt-alpha-attn", m.dyt_alpha_attention, 1e-6, 1e6, "DyT: the same for the norms that attention reads");

  t.begin(Flag::Kind::attention);
  t.choice<GatePosition>("--attn", m.attention.gate_at,
                         {{"full", GatePosition::none, "layers/attention.cuh", "no gate"},
                          {"g1", GatePosition::g1, "layers/gate.cuh", "the output of attention is gated"},
                          {"g2", GatePosition::g2, "layers/gate.cuh", "the values are"},
                          {"g3", GatePosition::g3, "layers/gate.cuh", "the keys are"},
                          {"g4", GatePosition::g4, "layers/gate.cuh", "the queries are"},
                          {"g5", GatePosition::g5, "layers/gate.cuh", "the output of the output projection is"}},
                         "what of attention is gated");
  t.choice<GateScore>("--gate", m.attention.gate.score,
                      {{"elementwise", GateScore::elementwise, "kernels/gate.cu", "a score for every element"},
                       {"headwise", GateScore::headwise, "kernels/gate.cu", "a score for every head"}},
                      "scores of the attention gate");
  t.toggle("--gate-shared", m.attention.gate.shared,
           "the gate's score is the mean over heads (kernels/shared_gate.cu)");
  t.choice<bool>("--gate-op", m.attention.gate.op.additive,
                 {{"mul", false, "kernels/gate.cu", "what is gated, times the score"},
                  {"add", true, "kernels/gate.cu", "plus the score"}},
                 "how a score is applied");
  t.choice<Activation>(
      "--gate-act", m.attention.gate.op.act,
      {{"sigmoid", Activation::sigmoid, "core/activation.cuh", "1 / (1 + e^-z)"},
       {"silu", Activation::silu, "core/activation.cuh", "z sigmoid(z)"},
       {"ns-sigmoid", Activation::ns_sigmoid, "core/activation.cuh", "(1 + sigmoid z) / 2: never sparse"},
       {"identity", Activation::identity, "core/activation.cuh", "z"}},
      "the gate's activation");
  t.choice<GateInput>("--gate-input", m.attention.gate.input,
                      {{"hidden", GateInput::hidden, "layers/gate.cuh", "a projection of the hidden state"},
                       {"none", GateInput::none, "kernels/static_gate.cu", "learned, the same for every token"}},
                      "what the gate sees");
  t.choice<AttentionScore>(
      "--attn-score", m.attention.score,
      {{"softmax", AttentionScore::softmax, "kernels/attention.cu", "weights that add up to 1"},
       {"sigmoid", AttentionScore::sigmoid, "kernels/attention.cu", "a sigmoid of each score less log(context)"}},
      "attention weights");
  t.choice<AttentionSink>(
      "--attn-sink", m.attention.sink,
      {{"none", AttentionSink::none, "kernels/attention.cu", "keys alone"},
       {"learned", AttentionSink::learned, "kernels/sinks.cu", "and a learned logit per head, without value"},
       {"kv-bias", AttentionSink::kv_bias, "kernels/sinks.cu", "and a learned key and value per head"}},
      "what a query may attend to");
  t.choice<SdpaOut>("--sdpa-out", m.attention.sdpa_out,
                    {{"plain", SdpaOut::plain, "layers/attention.cuh", "as it is"},
                     {"groupnorm", SdpaOut::groupnorm, "kernels/rmsnorm.cu", "RMSNorm of every head"},
                     {"silu", SdpaOut::silu, "kernels/activation.cu", "SiLU"}},
                    "output of attention, before its gate");
  t.number("--window", m.attention.window, size_t{0}, many, "tokens a query sees, itself included; 0: all before it");
  t.choice<WindowLayers>("--window-layers", m.window_layers,
                         {{"all", WindowLayers::all, "layers/model.h", "every layer"},
                          {"even", WindowLayers::even, "layers/model.h", "layers 0, 2, 4, ...; the others see all"}},
                         "layers with a window");
  t.on_off("--qk-norm", m.attention.qk_norm, "kernels/rmsnorm.cu", "RMSNorm of every query and key head",
           "layers/attention.cuh", "queries and keys as projected", "norm of queries and keys");
  t.choice<AttentionBias>("--attn-bias", m.attention.bias,
                          {{"none", AttentionBias::none, "layers/linear.cuh", "no biases"},
                           {"qkv", AttentionBias::qkv, "layers/linear.cuh", "of queries, keys and values"},
                           {"all", AttentionBias::all, "layers/linear.cuh", "and of the output projection"}},
                          "biases of attention's projections");
  t.choice<Position>("--position", m.position,
                     {{"rope", Position::rope, "kernels/rope.cu", "queries and keys turn with their position"},
                      {"learned", Position::learned, "kernels/embedding.cu", "an embedding for every position"},
                      {"none", Position::none, "layers/attention.cuh", "only the causal mask tells"}},
                     "how a token knows its place");
  t.number("--rope-theta", m.rope_theta, 1.0, 1e12, "base of the rotary frequencies");
  t.number("--rope-fraction", m.rope_fraction, 0.0, 1.0, "share of a head's dimensions that turn, the first ones");

  t.begin(Flag::Kind::block);
  t.choice<FfnKind>("--ffn", m.ffn.kind,
                    {{"swiglu", FfnKind::swiglu, "kernels/glu.cu", "SiLU(gate) * up"},
                     {"glu", FfnKind::glu, "kernels/glu.cu", "sigmoid(gate) * up"},
                     {"geglu", FfnKind::geglu, "kernels/glu.cu", "GELU(gate) * up"},
                     {"gelu", FfnKind::gelu, "kernels/activation.cu", "GELU(up)"},
                     {"relu2", FfnKind::relu2, "kernels/activation.cu", "max(up, 0)^2"},
                     {"polynorm", FfnKind::polynorm, "kernels/polynorm.cu", "normed powers of up, added"}},
                    "feed-forward network");
  t.choice<Activation>("--gelu", m.ffn.gelu,
                       {{"tanh", Activation::gelu_tanh, "core/activation.cuh", "GPT-2's approximation"},
                        {"erf", Activation::gelu_erf, "core/activation.cuh", "x times the normal distribution"}},
                       "which GELU");
  t.on_off("--ffn-bias", m.ffn.bias, "layers/linear.cuh", "biases", "layers/linear.cuh", "none", "biases of the FFN");
  t.on_off("--tied", m.tied, "layers/model.h", "the embedding is the output matrix too", "layers/model.h",
           "an output matrix of its own", "share embedding and output matrix");
  t.on_off("--embedding-scale", m.embedding_scale, "kernels/embedding.cu", "a learned factor, starting at sqrt(hidden)",
           "kernels/embedding.cu", "none", "factor of the embedding (DyT)");
  t.choice<bool>("--init", m.depth_scaled_init,
                 {{"plain", false, "layers/parameters.h", "every matrix N(0, 0.02)"},
                  {"depth-scaled", true, "layers/model.h", "output projections N(0, 0.02 / sqrt(2 layers)) (GPT-2)"}},
                 "initial weights");
  t.number("--clip-residual", m.clip_residual, 0.0f, 1e30f, "bound of the residual stream's elements; 0: none");
  t.number("--clip-output", m.clip_output, 0.0f, 1e30f, "bound of attention's and the FFN's output; 0: none");
  t.number("--dropout", m.dropout, 0.0f, 0.99f,
           "of attention's and the FFN's output in training (kernels/residual.cu)");

  t.begin(Flag::Kind::size);
  t.number("--layers", m.layers, size_t{1}, size_t{10000}, "blocks");
  t.number("--hidden", m.hidden, size_t{1}, many, "width of the residual stream");
  t.number("--heads", m.attention.H, size_t{1}, many, "query heads");
  t.number("--kv-heads", m.attention.KVH, size_t{1}, many, "key/value heads; divides --heads");
  t.number("--head-dim", m.attention.D, size_t{1}, size_t{256}, "width of a head");
  t.number("--ffn-hidden", m.ffn.F, size_t{1}, many, "width inside the FFN");
  t.number("--context", m.context, size_t{1}, many, "tokens in a sequence");

  t.begin(Flag::Kind::data);
  t.text("--data", c.data.data, "self | bigram-backcopy | PATH | FILE.bin",
         "self: this repository's source; a text file, folder, list (a,b or @list.txt) or glob, read as bytes; "
         "GPT-2 token shards of llm.c; or the synthetic task of arXiv 2410.13835");
  t.text("--val-data", c.data.val_data, "as --data", "validation data of its own, instead of a share of --data");
  t.number("--val-fraction", c.data.val_fraction, 0.0, 0.9, "share of --data, at its end, kept for validation");
  t.number("--vocab", c.vocab, size_t{0}, size_t{1} << 31, "tokens in the vocabulary; 0: as the data has");
  t.number("--seed", c.seed, uint64_t{0}, UINT64_MAX,
           "of initial weights, order of the data, synthetic data, dropout, samples");

  t.begin(Flag::Kind::training);
  t.number("--steps", c.steps, size_t{1}, many, "optimizer steps");
  t.number("--batch", c.batch, size_t{1}, many, "sequences in a micro-batch");
  t.number("--micro-batches", c.micro_batches, size_t{1}, many, "micro-batches whose gradients one step adds up");
  t.number("--lr", c.schedule.peak, 0.0f, 1e3f, "learning rate after warm-up");
  t.number("--min-lr", c.schedule.final, 0.0f, 1e3f, "learning rate at the end of the cosine");
  t.number("--warmup", c.schedule.warmup, size_t{0}, many, "steps of linear warm-up");
  t.number("--beta1", c.adamw.beta1, 0.0f, 0.9999999f, "AdamW: decay of the mean gradient (kernels/adamw.cu)");
  t.number("--beta2", c.adamw.beta2, 0.0f, 0.9999999f, "AdamW: decay of the mean squared gradient");
  t.number("--adam-eps", c.adamw.epsilon, 1e-30f, 1.0f, "AdamW: added to the root of the mean square");
  t.number("--weight-decay", c.adamw.weight_decay, 0.0f, 1e3f,
           "AdamW: decoupled decay of matrices; norms do not decay");
  t.number("--clip", c.clip, 1e-30f, 1e30f, "largest gradient norm; larger gradients are scaled down to it");

  t.begin(Flag::Kind::run);
  t.number("--val-every", c.val_every, size_t{0}, many, "steps between validations; 0: only at the end");
  t.number("--val-batches", c.val_batches, size_t{1}, many, "batches of a validation");
  t.number("--sample-tokens", c.sample_tokens, size_t{0}, many, "length of the sample printed at the end");
  t.number("--temperature", c.temperature, 0.0, 1e3, "of the sample; 0 takes the likeliest token");
  t.number("--top-k", c.top_k, size_t{0}, many, "the sample draws from the k likeliest tokens; 0: from all");
  t.text("--out", c.out, "FOLDER", "where checkpoints and log.jsonl go; empty: nothing is written");
  t.number("--save-every", c.save_every, size_t{1}, many,
           "steps between checkpoints (with --out); one more at the end");
  t.number("--keep", c.keep, size_t{0}, many, "checkpoints kept, the newest; 0: all");
  t.toggle("--resume", c.resume,
           "continue bit for bit from the newest checkpoint in --out, or start where there is none");
  t.choice<DeviceChoice>(
      "--device", c.device,
      {{"auto", DeviceChoice::automatic, "train_gpt.cu", "cuda where a GPU answers, cpu elsewhere"},
       {"cpu", DeviceChoice::cpu, "kernels/matmul_cpu.cpp", "the references and the tuned CPU kernels"},
       {"cuda", DeviceChoice::cuda, "core/device.cuh", "the kernels on a GPU"},
       {"emulated", DeviceChoice::emulated, "core/simt.h", "the same kernels on the CPU, thread by thread: slow"}},
      "where to run; results are the same bits on all");
  t.choice<Precision>("--precision", c.precision,
                      {{"fp32", Precision::fp32, "core/math.cuh", "exact: every device gives the same bits"}},
                      "arithmetic");
  t.number("--threads", c.threads, size_t{0}, size_t{4096}, "CPU threads; 0: one a core");
  return t.rows;
}

void check_flags(Config& c, const std::set<std::string>& given) {
  auto is_given = [&](const char* flag) { return given.count(flag) > 0; };
  const ModelConfig& m = c.model;
  // Flags that say nothing where another flag does not make room for them.
  struct Needs {
    std::vector<const char*> flags;
    bool met;
    const char* what;
  };
  const bool has_dyt = m.norm.base() == NormKind::dyt;
  const bool has_root =
      !(has_dyt || m.norm.kind == NormKind::none) || m.attention.qk_norm || m.attention.sdpa_out == SdpaOut::groupnorm;
  const bool has_gelu = m.ffn.kind == FfnKind::gelu || m.ffn.kind == FfnKind::geglu;
  const Needs needs[] = {
      {{"--gate", "--gate-shared", "--gate-op", "--gate-act", "--gate-input"},
       m.attention.gate_at != GatePosition::none,
       "a gated attention: add --attn=g1 (to g5)"},
      {{"--norm-rank", "--norm-gate", "--norm-gate-act", "--norm-gate-init", "--norm-gate-scale"},
       m.norm.with_gate(),
       "a norm with a gate: add --norm=gated or --norm=gated-dyt"},
      {{"--dyt-alpha", "--dyt-alpha-attn"}, has_dyt, "DyT: add --norm=dyt or --norm=gated-dyt"},
      {{"--rope-theta", "--rope-fraction"}, m.position == Position::rope, "--position=rope"},
      {{"--gelu"}, has_gelu, "an FFN with GELU: add --ffn=gelu or --ffn=geglu"},
      {{"--window-layers"}, m.attention.window > 0, "a window: add --window=N"},
      {{"--norm-eps"}, has_root, "a norm with a root: --norm=rmsnorm, layernorm, preaffine or gated, or --qk-norm=on"},
      {{"--val-fraction"},
       !is_backcopy(c.data.data) || c.data.val_fraction == 0,
       "data of which a share can be kept (bigram-backcopy makes its own validation data)"},
      {{"--resume"}, !c.out.empty(), "--out=FOLDER: the folder that holds the checkpoints"},
      {{"--save-every", "--keep"}, !c.out.empty(), "--out=FOLDER: there are no checkpoints without one"}};
  for (const Needs& n : needs)
    for (const char* flag : n.flags)
      require(n.met || !is_given(flag), "%s needs %s, or leave %s out", flag, n.what, flag);
  require((c.params > 0) + !c.match_params.empty() + is_given("--ffn-hidden") <= 1,
          "--params, --match-params and --ffn-hidden all choose the FFN's width: give one of them");
  require(!(is_given("--val-data") && is_given("--val-fraction")),
          "--val-data and --val-fraction were both given: validation data is either its own or a share of --data");
  // Defaults give way to what was given.
  if (!is_given("--min-lr")) c.schedule.final = std::min(c.schedule.final, c.schedule.peak);
  if (!is_given("--warmup")) c.schedule.warmup = std::min(c.schedule.warmup, c.steps);
  require(c.schedule.final <= c.schedule.peak, "--min-lr=%g is above --lr=%g: the cosine falls from --lr to --min-lr",
          double(c.schedule.final), double(c.schedule.peak));
  require(c.schedule.warmup <= c.steps, "--warmup=%zu is longer than --steps=%zu", c.schedule.warmup, c.steps);
  c.schedule.steps = c.steps;
  c.data.seed = c.seed;
  c.data.vocab = c.vocab;
  if (c.vocab) c.model.vocab = c.vocab;
  validate(c.model);
}

}  // namespace gated
