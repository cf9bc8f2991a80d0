// check_flags: which flags contradict each other, and what to do about it. The one place where flags are refused
// together; what a single flag allows stands in its row of the table (training/flags/flags.cpp).
#include <algorithm>
#include <climits>

#include "dataloader/recall.h"
#include "training/flags/flags.h"
#include "training/flags/model_source.h"

namespace gated {

namespace {

// Flags that say nothing where no other flag makes room for them.
struct Needs {
  std::vector<const char*> flags;
  bool met;
  const char* what;
};

std::vector<Needs> needs_of(const Config& c) {
  const ModelConfig& m = c.model;
  const bool has_dyt = m.norm.base() == NormKind::dyt;
  const bool has_root = m.has_linear() || !(has_dyt || m.norm.kind == NormKind::none) || m.attention.qk_norm ||
                        m.attention.sdpa_out == SdpaOut::groupnorm;
  const bool has_gelu = m.ffn.kind == FfnKind::gelu || m.ffn.kind == FfnKind::geglu;
  const bool has_out = !c.out.empty();
  return {
      {{"--attn", "--head-experts", "--attn-score", "--attn-sink", "--sdpa-out", "--window", "--qk-norm", "--attn-bias",
        "--rope-theta", "--rope-fraction", "--rope-scaling", "--window-rope-theta", "--score-dim", "--yarn"},
       m.has_attention(),
       "a layer with attention: add --mixer=hybrid, or leave --mixer=gated-delta out"},
      {{"--attention-every"}, m.mixer == MixerKind::hybrid, "--mixer=hybrid"},
      {{"--linear-key-heads", "--linear-value-heads", "--linear-key-dim", "--linear-value-dim", "--conv-width",
        "--delta"},
       m.has_linear(),
       "a layer with the gated delta rule: add --mixer=gated-delta or --mixer=hybrid"},
      {{"--gate", "--gate-op", "--gate-act"},
       m.has_attention() && m.attention.gate_at != GatePosition::none,
       "a gated attention: add --attn=g1 (to g5)"},
      {{"--head-experts-per-token", "--head-experts-of"},
       m.has_attention() && m.attention.head_experts.E > 0,
       "experts of a head: add --head-experts=E"},
      {{"--experts-per-token", "--expert-hidden", "--dense-layers", "--shared-experts", "--router-renormalise",
        "--router-bias", "--balance-loss", "--balance-over", "--z-loss"},
       m.moe.E > 0,
       "a mixture of experts: add --experts=E"},
      {{"--shared-expert-gate"}, m.moe.E > 0 && m.moe.shared > 0, "--shared-experts=N"},
      {{"--ffn-hidden"},
       m.moe.E == 0 || m.dense_layers > 0,
       "a layer without experts: the width of an expert is --expert-hidden; add --dense-layers=N"},
      {{"--norm-rank", "--norm-gate", "--norm-gate-act", "--norm-gate-init", "--norm-gate-scale"},
       m.norm.with_gate(),
       "a norm with a gate: add --norm=gated or --norm=gated-dyt"},
      {{"--decay"}, c.schedule.kind == ScheduleKind::wsd, "--schedule=wsd: a cosine falls over all steps"},
      {{"--dyt-alpha"}, has_dyt, "DyT: add --norm=dyt or --norm=gated-dyt"},
      {{"--rope-theta", "--rope-fraction", "--rope-scaling", "--window-rope-theta", "--yarn"},
       m.position == Position::rope,
       "--position=rope"},
      {{"--yarn"},
       c.evaluate || c.generate,
       "--evaluate or --generate: it changes how a run that is trained reads its positions"},
      {{"--probe", "--choices"}, c.evaluate, "--evaluate: it asks a run that is trained"},
      {{"--gelu"}, has_gelu, "an FFN with GELU: add --ffn=gelu or --ffn=geglu"},
      {{"--full-every"},
       m.has_attention() && m.attention.window > 0 && m.window_layers == WindowLayers::not_nth,
       "--window=N --window-layers=not-nth"},
      {{"--window-rope-theta"}, m.has_attention() && m.attention.window > 0, "a window: add --window=N"},
      {{"--window-layers"}, m.has_attention() && m.attention.window > 0, "a window: add --window=N"},
      {{"--norm-eps"}, has_root, "a norm with a root: --norm=rmsnorm, layernorm, preaffine or gated, or --qk-norm"},
      {{"--val-fraction"},
       !is_synthetic(c.data.data) || c.data.val_fraction == 0,
       "data of which a share can be kept (bigram-backcopy and recall make their own validation data)"},
      {{"--delta"},
       m.storage == Storage::fp32,
       "--precision=fp32: over bf16 arrays the rule always goes 64 tokens at a time"},
      {{"--mma"}, m.storage == Storage::bf16, "--precision=bf16: fp32 products are not those of tensor cores"},
      {{"--tf32"}, c.cublas, "--matmul=cublas: the project's own products are fp32"},
      {{"--export"}, c.source != nullptr, "--from=FOLDER: the model that is written"},
      {{"--export-dtype", "--export-as"}, !c.export_folder.empty(), "--export=FOLDER"},
      {{"--change-precision"}, c.resume, "--resume: it goes on from a checkpoint of the other precision"},
      {{"--resume"}, has_out, "--out=FOLDER: the folder that holds the checkpoints"},
      {{"--evaluate"}, has_out || c.source, "--out=FOLDER: the folder that holds the checkpoints; or --from=FOLDER"},
      {{"--generate"}, c.source || !c.generate, "--from=FOLDER or --out=FOLDER: the model that writes"},
      {{"--prompt", "--prompt-tokens", "--tokens", "--samples"}, c.generate, "--generate: it writes after a prompt"},
      {{"--quantize"}, c.evaluate, "--evaluate: it looks at a run that is trained"},
      {{"--smoothquant"}, c.quantize.has_value(), "--quantize=fp8-w8a8 or nvfp4-w4a4"},
      {{"--ranks"}, c.describe, "--describe: what it says is of one of them; ranks are started as mpirun -n R ./train"},
      {{"--save-every", "--keep"}, has_out, "--out=FOLDER: there are no checkpoints without one"}};
}

void check_gate_flags(const AttentionConfig& a) {
  const GatePosition at = a.gate_at;
  const GateKind kind = a.gate.kind;
  const bool multiplies = !a.gate.op.additive;
  const bool on_keys = at == GatePosition::g3, on_queries = at == GatePosition::g4, on_output = at == GatePosition::g5;
  require(!(kind == GateKind::headwise && multiplies && a.qk_norm && (on_keys || on_queries)),
          "--gate=headwise with --attn=%s: QK-norm divides a head's score out again; take --gate=elementwise or "
          "--qk-norm=off",
          on_keys ? "g3" : "g4");
  require(!(kind == GateKind::headwise && on_output),
          "--gate=headwise with --attn=g5: there are no heads after the output projection; take --gate=elementwise");
  require(!(kind == GateKind::shared && (on_keys || on_queries || on_output)),
          "--gate=shared with --attn=%s: heads share a gate in --attn=g1 and --attn=g2 alone; take --gate=elementwise",
          on_keys      ? "g3"
          : on_queries ? "g4"
                       : "g5");
  const Activation act = a.gate.op.act;
  require(!(kind == GateKind::static_ && multiplies && (act == Activation::silu || act == Activation::identity)),
          "--gate=static with --gate-act=%s: the gate would start at 0 and let nothing through; take "
          "--gate-act=sigmoid or ns-sigmoid",
          name_of(act));
}

void check_norm_flags(const ModelConfig& m) {
  const NormGateConfig& gate = m.norm.gate;
  const Activation act = gate.op.act;
  const char* name = name_of(act);
  const bool starts_near_0 = act != Activation::sigmoid;
  require(!(starts_near_0 && gate.zero_init),
          "--norm-gate-init=zero with --norm-gate-act=%s: the gate would start at 0 and output nothing; take "
          "--norm-gate-act=sigmoid or --norm-gate-init=normal",
          name);
  require(
      !(starts_near_0 && m.norm.kind == NormKind::gated_dyt && m.placement == NormPlacement::post),
      "--norm=gated-dyt with --norm-placement=post and --norm-gate-act=%s: the stream itself would pass through gates "
      "that start near 0, and no norm scales it up again; take --norm-gate-act=sigmoid",
      name);
  require(
      !(starts_near_0 && !m.residual),
      "--residual=off with --norm-gate-act=%s: all that a layer reads would pass through gates that start near 0; take "
      "--norm-gate-act=sigmoid",
      name);
  require(
      m.residual || m.norm.kind != NormKind::none,
      "--residual=off with --norm=none: a branch starts smaller than what it reads, and no norm scales it up again; "
      "take another --norm");
  require(!m.norm.zero_centred || m.norm.divides_by_rms(),
          "--norm-weight=zero-centred is for the RMS norms: add --norm=rmsnorm, preaffine or gated");
  require(!(m.norm.kind == NormKind::none && m.placement != NormPlacement::pre),
          "--norm=none with --norm-placement: there is no norm to place; leave --norm-placement=pre");
}

void check_bf16_flags(const Config& c) {
  const ModelConfig& m = c.model;
  if (m.storage == Storage::fp32) return;
  const struct {
    bool used;
    const char* flag;
    size_t width;
  } widths[] = {{m.has_attention(), "--head-dim", m.attention.D},
                {m.has_linear(), "--linear-key-dim", m.linear.Dk},
                {m.has_linear(), "--linear-value-dim", m.linear.Dv}};
  for (const auto& [used, flag, width] : widths)
    require(!used || width % 16 == 0,
            "--precision=bf16 with %s=%zu: tensor cores multiply 16 at a time; take a multiple of 16", flag, width);
  // A value of few bits times its scale has more bits than bf16: stored as one it would be rounded to another format on
  // top.
  require(!c.quantize.has_value(),
          "--precision=bf16 with --quantize: what it rounds would be rounded to bf16 once more; add --precision=fp32, "
          "which evaluates a run of bf16 too");
}

}  // namespace

void check_model_flags(const ModelConfig& m) {
  const AttentionConfig& a = m.attention;
  require(a.H % a.KVH == 0,
          "--heads=%zu does not divide by --kv-heads=%zu: every key/value head serves the same number of query heads",
          a.H, a.KVH);
  require(
      m.mixer != MixerKind::hybrid || m.attention_every <= m.layers,
      "--attention-every=%zu is more than --layers=%zu: no layer would attend; lower it, or take --mixer=gated-delta",
      m.attention_every, m.layers);
  require(
      m.linear.Hv % m.linear.Hk == 0,
      "--linear-value-heads=%zu does not divide by --linear-key-heads=%zu: every key head serves the same number of "
      "value heads",
      m.linear.Hv, m.linear.Hk);
  if (m.position == Position::rope) {
    require(a.D % 2 == 0, "--head-dim=%zu is odd, but --position=rope turns pairs: make it even", a.D);
    require(m.rope_dims() >= 2,
            "--rope-fraction=%g of --head-dim=%zu is no pair to turn: raise it, or take --position=none",
            m.rope_fraction, a.D);
  }
  require(m.window_rope_theta == 0 || m.window_rope_theta >= 1,
          "--window-rope-theta=%g: expected 0 or a number from 1 to 1e+12", m.window_rope_theta);
  require(m.yarn == 1 || !m.rope_scaling.on(),
          "--yarn=%g with --rope-scaling: positions are scaled in one way or the other; leave --yarn out", m.yarn);
  require(m.embedding_factor == 1 || !m.embedding_scale,
          "--embedding-factor with --embedding-scale: one is fixed, the other learned; take one of them");
  check_gate_flags(a);
  require(
      a.head_experts.E == 0 || a.head_experts.k <= a.head_experts.E,
      "--head-experts-per-token=%zu is more than --head-experts=%zu: a token takes each of a head's experts at most "
      "once",
      a.head_experts.k, a.head_experts.E);
  require(m.moe.E == 0 || m.moe.k <= m.moe.E,
          "--experts-per-token=%zu is more than --experts=%zu: a token takes each expert at most once", m.moe.k,
          m.moe.E);
  require(m.moe.E == 0 || m.dense_layers < m.layers,
          "--dense-layers=%zu of --layers=%zu leaves no layer for --experts=%zu: lower it, or leave --experts out",
          m.dense_layers, m.layers, m.moe.E);
  require(a.score == AttentionScore::softmax || a.sink == AttentionSink::none,
          "--attn-score=sigmoid with an --attn-sink: sigmoid scores do not compete, so a sink has nothing to take; "
          "take --attn-sink=none");
  check_norm_flags(m);
}

std::set<std::string> flags_without_effect(const Config& config) {
  std::set<std::string> idle;
  for (const Needs& n : needs_of(config))
    if (!n.met) idle.insert(n.flags.begin(), n.flags.end());
  return idle;
}

bool is_of_training(const std::string& flag) {
  return std::set<std::string>{"--init",    "--init-std",     "--norm-gate-init", "--dyt-alpha", "--delta",
                               "--dropout", "--balance-loss", "--balance-over",   "--z-loss"}
      .contains(flag);
}

void check_flags(Config& c, const std::set<std::string>& given) {
  auto is_given = [&](const char* flag) { return given.count(flag) > 0; };
  for (const Needs& n : needs_of(c))
    for (const char* flag : n.flags)
      require(n.met || !is_given(flag), "%s needs %s, or leave %s out", flag, n.what, flag);
  const char* width = c.model.moe.E > 0 ? "--expert-hidden" : "--ffn-hidden";
  require((c.params > 0) + !c.match_params.empty() + is_given(width) <= 1,
          "--params, --match-params and %s all choose the FFN's width: give one of them", width);
  require(!(is_given("--val-data") && is_given("--val-fraction")),
          "--val-data and --val-fraction were both given: validation data is either its own or a share of --data");
  require(!c.cublas || c.device == DeviceChoice::automatic || c.device == DeviceChoice::cuda,
          "--matmul=cublas with --device=%s: cuBLAS runs on a GPU alone; take --matmul=exact or --device=cuda",
          c.device == DeviceChoice::cpu ? "cpu" : "emulated");
  require(
      c.transport != TransportChoice::nccl || c.device == DeviceChoice::automatic || c.device == DeviceChoice::cuda,
      "--transport=nccl with --device=%s: NCCL moves bytes between GPUs alone; take --transport=mpi or --device=cuda",
      c.device == DeviceChoice::cpu ? "cpu" : "emulated");
  require(!c.graph || c.device != DeviceChoice::cpu,
          "--graph=on with --device=cpu: nothing is launched there that a graph could hold; leave --graph out, or take "
          "--device=cuda or emulated");
  require(
      c.probe == Probe::none || c.data.data == "recall",
      "--probe=retrieval with --data=%s: it asks in the language of --data=recall, which the run has to have learned",
      c.data.data.c_str());
  require(c.probe == Probe::none || c.model.context >= Recall::shortest_probe,
          "--probe=retrieval with --context=%zu: a probe has %zu tokens or more", c.model.context,
          Recall::shortest_probe);
  require(
      c.export_folder.empty() || !(c.evaluate || c.generate || c.describe || c.resume || !c.out.empty()),
      "--export with --evaluate, --generate, --describe, --resume or --out: it writes a model and does nothing else; "
      "give one of them");
  require(!c.source || c.source->has_weights() || c.describe,
          "--from=%s: a config.json holds no weights: add --describe, or name the folder that it stands in",
          c.from.c_str());
  for (const char* flag : {"--params", "--match-params"})
    require(!is_given(flag) || !(c.generate || !c.export_folder.empty()),
            "%s with --from=%s: the width of its FFN is that of its weights; leave %s out", flag, c.from.c_str(), flag);
  require(!c.generate || !c.evaluate, "--generate with --evaluate: each looks at a model by itself; leave one out");
  require(!c.generate || !c.resume, "--generate with --resume: it trains nothing; leave --resume out");
  require(!is_given("--prompt") || !is_given("--prompt-tokens"),
          "--prompt and --prompt-tokens were both given: the prompt is either text or tokens");
  require(!c.evaluate || !c.resume, "--evaluate with --resume: it trains nothing; leave --resume out");
  require(c.smoothquant == 0 || c.model.norm.kind != NormKind::none,
          "--smoothquant=%g with --norm=none: SmoothQuant folds its scales into the weights of norms; leave it out",
          c.smoothquant);
  require(c.smoothquant == 0 || c.model.placement != NormPlacement::post,
          "--smoothquant=%g with --norm-placement=post: norms write the residual stream itself there, and dividing it "
          "would change the model; leave --smoothquant out",
          c.smoothquant);
  require(c.micro_batches % c.slice_count() == 0,
          "--slices=%zu does not divide --micro-batches=%zu: all slices have as many micro-batches", c.slices,
          c.micro_batches);
  require(c.slice_count() % c.ranks == 0, "--ranks=%zu does not divide the %zu slices of a step (--slices)", c.ranks,
          c.slice_count());
  size_t tokens;
  require(!__builtin_mul_overflow(c.batch, c.model.context, &tokens), "--batch=%zu times --context=%zu overflows",
          c.batch, c.model.context);
  require(c.model.moe.E == 0 || tokens <= size_t(INT_MAX) / c.model.moe.k,
          "--batch=%zu times --context=%zu times --experts-per-token=%zu is more than 2^31 - 1 rows of experts",
          c.batch, c.model.context, c.model.moe.k);

  // Defaults give way to what was given.
  if (c.model.mixer == MixerKind::hybrid && !is_given("--attention-every"))
    c.model.attention_every = std::min(c.model.attention_every, c.model.layers);
  Schedule& s = c.schedule;
  if (c.source && !is_given("--lr")) s.peak = rate_of_trained(c.model.hidden);
  if (c.source && !is_given("--min-lr")) s.final = std::min(3e-5f, 0.004f / float(c.model.hidden));
  if (!is_given("--min-lr")) s.final = std::min(s.final, s.peak);
  if (!is_given("--warmup")) s.warmup = std::min(s.warmup, (c.steps + 1) / 2);
  s.steps = c.steps;
  require(s.final <= s.peak, "--min-lr=%g is above --lr=%g: the rate falls from --lr to --min-lr", double(s.final),
          double(s.peak));
  require(s.warmup <= c.steps, "--warmup=%zu is longer than --steps=%zu", s.warmup, c.steps);
  require(s.kind != ScheduleKind::wsd || s.warmup + s.decay <= c.steps,
          "--warmup=%zu and --decay=%zu are longer than --steps=%zu", s.warmup, s.decay, c.steps);
  if (c.slices == usual_slices(c.micro_batches)) c.slices = 0;  // one name for it, in what a checkpoint remembers too
  c.data.seed = c.seed;
  c.data.vocab = c.vocab;
  if (c.vocab) c.model.vocab = c.vocab;
  check_model_flags(c.model);
  check_bf16_flags(c);
}

void check_device_flags(const Config& c, const std::string& no_gpu) {
  require(no_gpu.empty() || c.device != DeviceChoice::cuda,
          "--device=cuda: %s; or take --device=cpu, or --device=emulated to run the kernels without a GPU",
          no_gpu.c_str());
  require(no_gpu.empty() || !c.cublas, "--matmul=cublas: cuBLAS runs on a GPU alone, and %s; or take --matmul=exact",
          no_gpu.c_str());
  require(no_gpu.empty() || c.transport != TransportChoice::nccl,
          "--transport=nccl: NCCL moves bytes between GPUs alone, and %s; or take --transport=mpi", no_gpu.c_str());
  require(no_gpu.empty() || !c.graph || c.device == DeviceChoice::emulated,
          "--graph=on: nothing is launched on the CPU that a graph could hold, and %s; leave --graph out, or take "
          "--device=emulated",
          no_gpu.c_str());
}

}  // namespace gated
