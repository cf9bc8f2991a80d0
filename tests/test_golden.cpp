// golden: a run anyone can repeat, on any machine, to the last bit of every weight.
//   ./train --data=bigram-backcopy --steps=20 --lr=3e-3 --warmup=20 --norm=gated --attn=g1 --sample-tokens=0
// and the same with --mixer=hybrid, with --experts=8 --shared-experts=1, with --precision=bf16, and in four
// micro-batches, which several ranks can share (tests/test_ranks.cpp). The commands and the numbers stand in the README
// too. A number changes only when the meaning of an operation does. A number alone would say that nothing has changed,
// not that it was right: so beside each of these in fp32 stands a plain loop in double, which the run must follow
// (other models: tests/test_step.cpp); bf16 is held to fp32 by tests/test_bf16.cpp and tests/test_fixtures.cpp.
#include "tests/compare.h"
#include "tests/contents.h"
#include "tests/reference_loop.h"
#include "tests/small_runs.h"

using namespace gated;

namespace {

struct Golden {
  std::string first, last, fingerprint, shortened;
  std::string flags() const {
    return "--data=bigram-backcopy --steps=20 --lr=3e-3 --warmup=20 " + first + "--norm=gated --attn=g1 " + last +
           "--sample-tokens=0";
  }
};
const Golden golden[] = {{"", "", "104e50215c21fe39", "1593980e39926771"},
                         {"--mixer=hybrid ", "", "e5f7658b7aaead30", "b4dc078274aa83c8"},
                         {"--experts=8 --shared-experts=1 ", "", "2f00aa6ed1f7cc85", "c6c3b071b37be749"},
                         {"", "--precision=bf16 ", "c63abe83a0e2878f", "0d3ce08311609113"},
                         {"", "--batch=4 --micro-batches=4 ", "5aee2639413e782f", "d70044ab0bd3c4b7"}};

const std::string fewer_tokens = " --batch=1 --context=80";

Config filled_in(Config config) {
  config.schedule.steps = config.steps;
  config.model.vocab = open_data(config.data).train->vocab();
  return config;
}

}  // namespace

#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)  // elsewhere fmaf is a call of the C library: many minutes
TEST_CASE("golden: two steps of each with fewer tokens", "[golden][short]") {
  for (const Golden& run : golden) {
    INFO(run.flags());
    Config config = filled_in(config_of_flags(run.flags() + fewer_tokens));
    config.steps = 2;
    CHECK(fingerprint_of_run(config) == run.shortened);
  }
}

TEST_CASE("golden: 20 steps end in the weights that the README names", "[golden]") {
  for (const Golden& run : golden) {
    INFO(run.flags());
    REQUIRE(fingerprint_of_run(filled_in(config_of_flags(run.flags()))) == run.fingerprint);
    const Config config = filled_in(config_of_flags(run.flags() + fewer_tokens));
    if (config.model.storage == Storage::bf16) continue;
    Context ctx(Device::cpu);
    const Deviation d = deviation_from_loop(config, 3, ctx);
    REQUIRE(d.reported < 1e-5);
    REQUIRE(d.weights < 1e-5);
  }
}
#endif

TEST_CASE("golden: small runs end in the same weights without fused multiply-add instructions too", "[golden]") {
  Config config = config_of_flags(golden[0].flags());
  config.batch = 3, config.micro_batches = 2;
  config.model.context = 40, config.model.layers = 2, config.model.hidden = 36, config.model.ffn.F = 50;

  Config dropping = config;  // dropout, decay and clipping in every step
  dropping.micro_batches = 3, dropping.steps = dropping.schedule.warmup = 8;
  dropping.model.dropout = 0.2f;
  dropping.adamw.weight_decay = 0.5f, dropping.clip = 0.4f;

  Config gpt2 = config_of_flags(
      "--data=bigram-backcopy --norm=layernorm --position=learned --ffn=gelu --ffn-bias=on --attn-bias=all "
      "--qk-norm=off --init=depth-scaled --tied=off --layers=2 --hidden=36 --kv-heads=4 --ffn-hidden=50 --context=40 "
      "--batch=2 --micro-batches=2 --dropout=0.1 --weight-decay=0.3 --steps=8 --warmup=8 --seed=7");

  Config hybrid = config;
  hybrid.model.mixer = MixerKind::hybrid, hybrid.model.attention_every = 2, hybrid.model.context = 70;

  Config experts = config;
  experts.model.moe = {.E = 5, .F = 21, .shared = 1, .router_bias = true, .balance = 0.1f};
  experts.model.dense_layers = 1;
  experts.slices = 1;  // so that the balance counts both micro-batches

  for (const auto& [run, fingerprint] : {std::pair{config, "2f155bb389c0e1c7"},
                                         {dropping, "94015f086c979b57"},
                                         {gpt2, "02f997b876e39e5d"},
                                         {hybrid, "b6fd43dd0474ecc5"},
                                         {experts, "9d3daff4de8c49b1"}}) {
    REQUIRE(fingerprint_of_run(filled_in(run)) == fingerprint);
  }
}

TEST_CASE("golden: small runs in bf16 end in the same weights, linear attention and experts among them", "[golden]") {
  const std::string flags =
      "--data=bigram-backcopy --precision=bf16 --layers=4 --hidden=64 --heads=2 --kv-heads=1 --head-dim=32 "
      "--context=70 "
      "--batch=2 --steps=6 --warmup=3 --mixer=hybrid --linear-key-heads=1 --linear-value-heads=2 --linear-key-dim=16 "
      "--linear-value-dim=32 --experts=4 --expert-hidden=32 --shared-experts=1 --norm=gated --attn=g1 --mma=";
  for (const auto& [mma, fingerprint] : {std::pair{"hopper", "88bcd36a35e2fb93"}, {"ampere", "aec455501e18c860"}}) {
    INFO(mma);
    REQUIRE(fingerprint_of_run(filled_in(config_of_flags(flags + mma))) == fingerprint);
  }
}

TEST_CASE("golden: the README names the same command and fingerprint", "[readme]") {
  const std::string readme = contents("README.md");
  size_t command = 0, end = 0;  // the fingerprints stand behind the commands, in the same order
  for (const Golden& run : golden) {
    INFO(run.flags());
    REQUIRE((command = readme.find("./train " + run.flags() + "\n", command + 1)) != std::string::npos);
    REQUIRE((end = readme.find("fingerprint of the weights: " + run.fingerprint + "\n", end + 1)) != std::string::npos);
  }
}
