// golden: a run anyone can repeat, on any machine, to the last bit of every weight.
//   ./train --data=bigram-backcopy --steps=20 --norm=gated --attn=g1 --sample-tokens=0
// The number below stands in the README too. It changes only when the meaning of an operation does.
#include <fstream>
#include <sstream>

#include "tests/compare.h"
#include "training/flags.h"
#include "training/trainer.h"

using namespace gated;

namespace {

const char* const golden_fingerprint = "104e50215c21fe39";

Config golden_config() {
  Config config;
  config.data.data = "bigram-backcopy";
  config.steps = 20;
  config.model.norm.kind = NormKind::gated;
  config.model.attention.gate_at = GatePosition::g1;
  return config;
}

std::string fingerprint_after_training(Config config) {
  check_flags(config, {});
  const Data data = open_data(config.data);
  config.model.vocab = data.train->vocab();
  const TokenLoader loader(data, {config.batch, config.model.context, config.micro_batches}, config.seed);
  Context ctx(Device::cpu);
  Trainer trainer(config, loader, ctx);
  while (trainer.steps_done() < config.steps) {
    training_step(trainer);
    trainer.results();
  }
  return trainer.fingerprint();
}

}  // namespace

#ifdef __FMA__  // elsewhere fmaf is a call of the C library, and the run takes many minutes
TEST_CASE("golden: 20 steps end in the weights that the README names", "[golden]") {
  REQUIRE(fingerprint_after_training(golden_config()) == golden_fingerprint);
}
#endif

TEST_CASE("golden: a small run ends in the same weights without fused multiply-add instructions too", "[golden]") {
  Config config = golden_config();
  config.batch = 3, config.micro_batches = 2;
  config.model.context = 40, config.model.layers = 2, config.model.hidden = 36, config.model.ffn.F = 50;
  REQUIRE(fingerprint_after_training(config) == "2f155bb389c0e1c7");
}

TEST_CASE("golden: the README names the same fingerprint", "[readme]") {
  std::ifstream file("README.md");
  std::stringstream readme;
  readme << file.rdbuf();
  REQUIRE(readme.str().find(golden_fingerprint) != std::string::npos);
}
