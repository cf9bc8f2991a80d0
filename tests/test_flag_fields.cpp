// flag fields: every flag, and every named value of it, arrives in the field that it names, and in no other.
#include <functional>

#include "tests/contents.h"
#include "training/flags/command_line.h"
#include "training/flags/run_metadata.h"

using namespace gated;

namespace {

struct Row {
  std::string word, room;  // room: flags without which the word would be refused
  std::function<bool(const Config&)> arrived;
};

#define FIELD(word, room, condition) table.push_back({word, room, [](const Config& c) { return condition; }})
// A flag of two values, of which the second makes the field true.
#define EITHER(flag, no, yes, room, field) \
  FIELD(flag "=" no, room, !field);        \
  FIELD(flag "=" yes, room, field)
// Every named value of a flag: the field's value of the same name.
#define NAMED(flag, room, type, field, ...)                                                                    \
  do {                                                                                                         \
    using enum type;                                                                                           \
    const std::vector<std::string> names = pieces(replaced(#__VA_ARGS__, "_", "-"), ", ");                     \
    for (size_t i = 0; const type value : {__VA_ARGS__})                                                       \
      table.push_back({flag + ("=" + names[i++]), room, [value](const Config& c) { return field == value; }}); \
  } while (0)

std::vector<Row> all_rows() {
  std::vector<Row> table;
  FIELD("--preset=gpt2-124m", "", c.preset == "gpt2-124m" && c.model.layers == 12);
  FIELD("--params=900000", "", c.params == 900000);
  FIELD("--match-params=--attn=g1", "", c.match_params == "--attn=g1");
  FIELD("--describe", "", c.describe);
  NAMED("--norm", "", NormKind, c.model.norm.kind, rmsnorm, layernorm, dyt, preaffine, gated, gated_dyt, none);
  NAMED("--norm-placement", "", NormPlacement, c.model.placement, pre, post, sandwich);
  FIELD("--norm-eps=0.25", "", c.model.norm.eps == 0.25f);
  EITHER("--norm-weight", "plain", "zero-centred", "", c.model.norm.zero_centred);
  FIELD("--norm-rank=7", "--norm=gated", c.model.norm.gate.rank == 7);
  NAMED("--norm-gate", "--norm=gated", NormGateScore, c.model.norm.gate.score, elementwise, tensorwise);
  NAMED("--norm-gate-act", "--norm=gated", Activation, c.model.norm.gate.op.act, sigmoid, tanh, silu, identity);
  EITHER("--norm-gate-init", "normal", "zero", "--norm=gated", c.model.norm.gate.zero_init);
  FIELD("--norm-gate-scale=3", "--norm=gated", c.model.norm.gate.op.scale == 3);
  FIELD("--dyt-alpha=0.2", "--norm=dyt", c.model.norm.dyt_alpha == 0.2 && c.model.dyt_alpha_attention == 0.2);
  FIELD("--dyt-alpha=0.2,0.8", "--norm=dyt", c.model.norm.dyt_alpha == 0.2 && c.model.dyt_alpha_attention == 0.8);
  NAMED("--mixer", "", MixerKind, c.model.mixer, attention, gated_delta);
  FIELD("--mixer=hybrid", "", c.model.mixer == MixerKind::hybrid && c.model.attention_every == 4);
  FIELD("--attention-every=3", "--mixer=hybrid", c.model.attention_every == 3);
  NAMED("--delta", "--mixer=hybrid", DeltaForm, c.model.linear.form, recurrent, chunk);
  NAMED("--attn", "", GatePosition, c.model.attention.gate_at, g1, g2, g3, g4, g5);
  FIELD("--attn=full", "", c.model.attention.gate_at == GatePosition::none);
  NAMED("--gate", "--attn=g1", GateKind, c.model.attention.gate.kind, elementwise, headwise, shared);
  FIELD("--gate=static", "--attn=g1", c.model.attention.gate.kind == GateKind::static_);
  EITHER("--gate-op", "mul", "add", "--attn=g1", c.model.attention.gate.op.additive);
  NAMED("--gate-act", "--attn=g1", Activation, c.model.attention.gate.op.act, sigmoid, silu, ns_sigmoid, identity);
  FIELD("--head-experts=3", "", c.model.attention.head_experts.E == 3);
  FIELD("--head-experts-per-token=2", "--head-experts=3", c.model.attention.head_experts.k == 2);
  NAMED("--head-experts-of", "--head-experts=3", HeadExpertsOf, c.model.attention.head_experts.of, v, kv);
  NAMED("--attn-score", "", AttentionScore, c.model.attention.score, softmax, sigmoid);
  NAMED("--attn-sink", "", AttentionSink, c.model.attention.sink, none, learned, kv_bias);
  NAMED("--sdpa-out", "", SdpaOut, c.model.attention.sdpa_out, plain, groupnorm, silu);
  FIELD("--window=11", "", c.model.attention.window == 11);
  NAMED("--window-layers", "--window=11", WindowLayers, c.model.window_layers, all, even, not_nth);
  FIELD("--full-every=3", "--window=11 --window-layers=not-nth", c.model.full_every == 3);
  FIELD("--score-dim=9", "", c.model.attention.score_dim == 9);
  EITHER("--qk-norm", "off", "on", "", c.model.attention.qk_norm);
  NAMED("--attn-bias", "", AttentionBias, c.model.attention.bias, none, qkv, all);
  NAMED("--position", "", Position, c.model.position, rope, learned, none);
  FIELD("--rope-theta=500", "", c.model.rope_theta == 500);
  FIELD("--rope-fraction=0.5", "", c.model.rope_fraction == 0.5 && c.model.rope_dims() == 16);
  FIELD("--rope-scaling=llama3,8,8192,2,5", "",
        (c.model.rope_scaling == RopeScaling{RopeScaling::Kind::llama3, 8, 8192, 2, 5}));
  FIELD("--window-rope-theta=500", "--window=11", c.model.window_rope_theta == 500);
  NAMED("--ffn", "", FfnKind, c.model.ffn.kind, swiglu, glu, geglu, swiglu_clamped, gelu, relu2, polynorm);
  FIELD("--gelu=tanh", "--ffn=gelu", c.model.ffn.gelu == Activation::gelu_tanh);
  FIELD("--gelu=erf", "--ffn=gelu", c.model.ffn.gelu == Activation::gelu_erf);
  FIELD("--ffn-bias", "", c.model.ffn.bias);
  FIELD("--tied=off", "", !c.model.tied);
  FIELD("--embedding-scale", "", c.model.embedding_scale);
  FIELD("--embedding-factor=3.5", "", c.model.embedding_factor == 3.5f);
  NAMED("--init", "", InitRule::Kind, c.model.init.kind, plain, depth_scaled, fan_in);
  FIELD("--init-std=0.5", "", c.model.init.std == 0.5);
  EITHER("--residual", "off", "on", "", c.model.residual);
  FIELD("--clip-residual=17", "", c.model.clip_residual == 17);
  FIELD("--clip-output=19", "", c.model.clip_output == 19);
  FIELD("--dropout=0.3", "", c.model.dropout == 0.3f);
  FIELD("--experts=6", "", c.model.moe.E == 6 && c.model.moe.k == 2);
  FIELD("--experts-per-token=3", "--experts=6", c.model.moe.k == 3);
  FIELD("--expert-hidden=77", "--experts=6", c.model.moe.F == 77);
  FIELD("--dense-layers=1", "--experts=6", c.model.dense_layers == 1);
  FIELD("--shared-experts=2", "--experts=6", c.model.moe.shared == 2);
  EITHER("--shared-expert-gate", "off", "on", "--experts=6 --shared-experts=1", c.model.moe.shared_gate);
  EITHER("--router-renormalise", "off", "on", "--experts=6", c.model.moe.renormalise);
  EITHER("--router-bias", "off", "on", "--experts=6", c.model.moe.router_bias);
  FIELD("--balance-loss=0.25", "--experts=6", c.model.moe.balance == 0.25f);
  NAMED("--balance-over", "--experts=6", BalanceOver, c.model.moe.balance_over, global, micro_batch);
  FIELD("--z-loss=0.5", "--experts=6", c.model.moe.z == 0.5f);
  FIELD("--layers=3", "", c.model.layers == 3);
  FIELD("--hidden=52", "", c.model.hidden == 52);
  FIELD("--heads=6", "", c.model.attention.H == 6);
  FIELD("--kv-heads=1", "", c.model.attention.KVH == 1);
  FIELD("--head-dim=14", "", c.model.attention.D == 14);
  FIELD("--linear-key-heads=1", "--mixer=hybrid", c.model.linear.Hk == 1);
  FIELD("--linear-value-heads=6", "--mixer=hybrid", c.model.linear.Hv == 6);
  FIELD("--linear-key-dim=15", "--mixer=hybrid", c.model.linear.Dk == 15);
  FIELD("--linear-value-dim=16", "--mixer=hybrid", c.model.linear.Dv == 16);
  FIELD("--conv-width=2", "--mixer=hybrid", c.model.linear.W == 2);
  FIELD("--ffn-hidden=33", "", c.model.ffn.F == 33);
  FIELD("--context=21", "", c.model.context == 21);
  FIELD("--data=a.txt", "", c.data.data == "a.txt");
  FIELD("--val-data=b.txt", "", c.data.val_data == "b.txt");
  FIELD("--val-fraction=0.25", "", c.data.val_fraction == 0.25);
  FIELD("--vocab=300", "", c.vocab == 300 && c.data.vocab == 300 && c.model.vocab == 300);
  FIELD("--seed=18446744073709551615", "", c.seed == UINT64_MAX && c.data.seed == UINT64_MAX);
  FIELD("--steps=500", "", c.steps == 500 && c.schedule.steps == 500);
  FIELD("--batch=5", "", c.batch == 5);
  NAMED("--transport", "", TransportChoice, c.transport, mpi, nccl);
  FIELD("--transport=auto", "", c.transport == TransportChoice::automatic);
  FIELD("--ranks=4", "--describe --micro-batches=4", c.ranks == 4);
  FIELD("--micro-batches=6", "", c.micro_batches == 6);
  FIELD("--slices=3", "--micro-batches=6", c.slices == 3);
  FIELD("--lr=0.5", "", c.schedule.peak == 0.5f);
  FIELD("--min-lr=0.00025", "", c.schedule.final == 0.00025f);
  FIELD("--warmup=7", "", c.schedule.warmup == 7);
  NAMED("--schedule", "", ScheduleKind, c.schedule.kind, cosine, wsd);
  FIELD("--decay=7", "--schedule=wsd", c.schedule.decay == 7);
  FIELD("--beta1=0.75", "", c.adamw.beta1 == 0.75f);
  FIELD("--beta2=0.5", "", c.adamw.beta2 == 0.5f);
  FIELD("--adam-eps=0.125", "", c.adamw.epsilon == 0.125f);
  FIELD("--weight-decay=0.375", "", c.adamw.weight_decay == 0.375f);
  FIELD("--clip=2.5", "", c.clip == 2.5f);
  NAMED("--precision", "", Storage, c.model.storage, fp32, bf16);
  NAMED("--recompute", "", Recompute, c.model.recompute, none, light, full);
  EITHER("--graph", "off", "on", "", c.graph);
  NAMED("--mma", "--precision=bf16", MmaArithmetic, c.mma, hopper, ampere);
  EITHER("--matmul", "exact", "cublas", "", c.cublas);
  FIELD("--tf32", "--matmul=cublas", c.tf32);
  FIELD("--val-every=23", "", c.val_every == 23);
  FIELD("--val-batches=24", "", c.val_batches == 24);
  FIELD("--measure-every=25", "", c.measure_every == 25);
  FIELD("--check-ranks-every=25", "", c.check_ranks_every == 25);
  FIELD("--sample-tokens=25", "", c.sample_tokens == 25);
  FIELD("--temperature=1.5", "", c.temperature == 1.5);
  FIELD("--top-k=26", "", c.top_k == 26);
  FIELD("--top-p=0.75", "", c.top_p == 0.75);
  FIELD("--tokenizer=file.json", "", c.tokenizer == "file.json");
  FIELD("--out=folder", "", c.out == "folder");
  FIELD("--save-every=27", "--out=folder", c.save_every.steps == 27);
  FIELD("--save-every=30m", "--out=folder", c.save_every.seconds == 1800);
  FIELD("--log-every=7", "", c.log_every == 7);
  FIELD("--keep=28", "--out=folder", c.keep == 28);
  FIELD("--resume", "--out=folder", c.resume);
  FIELD("--change-precision", "--out=folder --resume", c.change_precision);
  FIELD("--evaluate", "--out=folder", c.evaluate);
  FIELD("--yarn=4", "--evaluate --out=folder", c.model.yarn == 4);
  FIELD("--quantize=none", "--evaluate --out=folder", !c.quantize);
  FIELD("--quantize=fp8-w8a8", "--evaluate --out=folder", c.quantize.value() == QuantizedFormat::fp8);
  FIELD("--quantize=nvfp4-w4a4", "--evaluate --out=folder", c.quantize.value() == QuantizedFormat::nvfp4);
  FIELD("--smoothquant=0.25", "--evaluate --out=folder --quantize=fp8-w8a8", c.smoothquant == 0.25);
  NAMED("--probe", "--evaluate --out=folder --data=recall", Probe, c.probe, none, retrieval);
  FIELD("--choices=file.bin", "--evaluate --out=folder", c.choices == "file.bin");
  NAMED("--device", "", DeviceChoice, c.device, cpu, cuda, emulated);
  FIELD("--device=auto", "", c.device == DeviceChoice::automatic);
  FIELD("--threads=3", "", c.threads == 3);
  return table;
}
const std::vector<Row> rows = all_rows();

// What every flag says, by its name.
std::map<std::string, std::string> values(Config config) {
  std::map<std::string, std::string> all;
  for (const Flag& f : list_flags(config)) all[f.name] = f.get();
  return all;
}

}  // namespace

TEST_CASE("flag fields: every flag and named value arrives, and changes no other flag", "[flags]") {
  // First those that need a model that is there: tests/test_from.cpp, test_hf_model.cpp, test_hf_code.cpp,
  // test_generate.cpp.
  std::vector<std::string> covered = words_of(
      "--from --export --export-dtype --export-dtype=fp32 --export-dtype=bf16 --export-as --export-as=auto "
      "--export-as=architecture --export-as=code --generate --prompt --prompt-tokens --tokens --samples");
  Config defaults;
  std::map<std::string, Flag> flags;
  for (const Flag& f : list_flags(defaults)) flags.emplace(f.name, f);
  for (const Row& row : rows) {
    INFO(row.word);
    const std::string word = row.word, name = word.substr(0, word.find('='));
    const std::string value = word.size() > name.size() ? word.substr(name.size() + 1) : "on";
    covered.insert(covered.end(), {name, name + "=" + value});
    const std::string room = row.room + " ";
    const Config config = config_of_flags(room + word);
    REQUIRE(row.arrived(config));
    if (!row.room.empty()) REQUIRE_THROWS_AS(config_of_flags(word), Error);  // it would say nothing
    if (name == "--preset") continue;
    std::map<std::string, std::string> before = values(config_of_flags(room)), after = values(config);
    REQUIRE(after.at(name) == value);
    const Flag& flag = flags.at(name);
    if (flag.is_switch)
      for (const auto& [said, read] : {std::pair("", "on"), {"=on", "on"}, {"=off", "off"}})
        REQUIRE(values(config_of_flags(room + name + said)).at(name) == read);
    before.erase(name), after.erase(name);
    REQUIRE(before == after);
    // A value that is the default has to arrive as well where it comes after another.
    if (flag.choices.size() < 2 || flag.get() != value) continue;
    const std::string other = name + "=" + flag.choices[flag.choices[0].value == value].value + " ";
    if (other.find("sigmoid") == std::string::npos) REQUIRE(!row.arrived(config_of_flags(room + other)));
    REQUIRE(row.arrived(config_of_flags(room + other + word)));
  }
  for (const auto& [name, f] : flags) {
    INFO(name);
    REQUIRE(!f.help.empty());
    const std::string before = f.get();
    f.set(before);
    REQUIRE(f.get() == before);
    REQUIRE(std::ranges::count(covered, name));
    for (const Flag::Choice& choice : f.choices) {
      REQUIRE(std::ifstream(choice.file).good());  // the file that implements it is there
      REQUIRE((name == "--preset" || f.is_switch || std::ranges::count(covered, name + "=" + choice.value)));
    }
  }
}

TEST_CASE("flag fields: which flags change the weights, and which the architecture", "[flags]") {
  // These may change where a run goes on from a checkpoint.
  const std::vector<std::string> free = words_of(
      "--export --export-dtype --export-as --preset --from --params --match-params --describe --val-every "
      "--measure-every --check-ranks-every --evaluate --quantize --smoothquant --yarn --probe --val-batches "
      "--sample-tokens --temperature --top-k --out --save-every --keep --resume --device --threads --change-precision "
      "--top-p --generate --prompt --prompt-tokens --tokens --samples --tokenizer --choices --recompute --graph "
      "--log-every --ranks --transport");
  const std::vector<std::string> of_no_model = words_of(
      "--data --schedule --decay --val-data --val-fraction --vocab --seed --steps --batch --micro-batches --slices "
      "--lr --min-lr --warmup --beta1 --beta2 --adam-eps --weight-decay --clip --precision --mma --matmul --tf32");
  Config config;
  // A checkpoint remembers the first kind, all of them.
  const std::map<std::string, std::string> remembered = run_metadata(config, open_data({.data = "bigram-backcopy"}));
  for (const Flag& f : list_flags(config)) {
    INFO(f.name);
    const bool is_free = std::ranges::count(free, f.name);
    REQUIRE(f.shapes_the_result() == !is_free);
    REQUIRE(f.shapes_the_model() == (!is_free && !std::ranges::count(of_no_model, f.name)));
    REQUIRE(remembered.contains("flag" + f.name) == !is_free);
  }
}
