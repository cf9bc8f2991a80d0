// bf16: whole runs with --precision=bf16: the same bits on cpu and kernels, near those of fp32; G1 inside attention;
// masters and their copies; a run that goes on in the other precision.
#include "kernels/gate.h"
#include "tests/activations.h"
#include "tests/harness.h"
#include "tests/script.h"
#include "tests/small_runs.h"
#include "training/flags/run_metadata.h"

using namespace gated;

namespace {

// Heads are as wide as one step of a tensor core.
ModelConfig bf16_model(const std::string& flags) {
  return small_model("--precision=bf16 --head-dim=16 " + flags);
}

// The twelfth has linear attention in every layer, with heads of values that share keys.
const std::vector<std::string>& bf16_lines() {
  static const std::vector<std::string> lines = fixture_lines("bf16_models.txt", {""});
  return lines;
}

std::vector<float> gradient(const ModelConfig& config, Context& ctx, float& loss) {
  Model model(config, 2, config.context, 3, ctx);
  change_weights(model, [](const Parameter& p, float* w) {
    for (size_t i = 0; i < p.size; i++)  // a bias that is lost should show
      if (w[i] == 0) w[i] = 0.1f * (float(i % 7) - 3);
  });
  model.weights_changed();
  loss = forward_backward(model, RandomBatch(config), ctx);
  return model.weights.grads.download();
}

void require_rounded_copies(const Parameters& weights) {
  REQUIRE_BITWISE(stored<bf16>(weights.values.download()), widened(weights.copies.download()));
}

}  // namespace

TEST_CASE("bf16: losses and gradients are near those of fp32", "[bf16]") {
  for (const std::string& line : bf16_lines()) {
    INFO(line);
    ModelConfig config = bf16_model(line);
    Context ctx(Device::cpu);
    float loss, exact_loss;
    const std::vector<float> narrow = gradient(config, ctx, loss);
    config.storage = Storage::fp32;
    const std::vector<float> exact = gradient(config, ctx, exact_loss);
    REQUIRE(std::fabs(loss - exact_loss) < 0.01f);
    REQUIRE(narrow != exact);
    REQUIRE(norm_error(exact, narrow) < 0.04);
  }
}

// Its share of a small model's output is below the bounds of the test above.
TEST_CASE("bf16: attention that applies G1 itself has the bits of the gate behind it", "[bf16][bitwise]") {
  for (const char* gate : {"", "--gate-act=silu", "--gate-act=identity --gate-op=add",
                           "--gate=headwise --gate-act=silu", "--gate-act=ns-sigmoid --sdpa-out=groupnorm"})
    for (Device device : {Device::cpu, kernel_device}) {
      INFO(gate << " on " << name_of(device));
      Context ctx(device), cpu(Device::cpu);
      const ModelConfig config = bf16_model(std::string("--attn=g1 ") + gate);
      Model model(config, 2, config.context, 3, ctx);
      const Activations left(model, ctx);
      model.upload(RandomBatch(config), 0);
      model.forward();
      const size_t N = 2 * config.context, D = config.attention.D, C = config.attention.H * D;
      const bool headwise = config.attention.gate.kind == GateKind::headwise, normed = contains(gate, "groupnorm");
      const auto o = left.get<bf16>(normed ? "self_attn: weighted values, normed or activated"
                                           : "self_attn: weighted values"),
                 z = left.get<bf16>("self_attn: gate logit"), y = left.get<bf16>("self_attn: gate output");
      REQUIRE(y.size() == config.layers);
      for (size_t l = 0; l < y.size(); l++) {
        std::vector<bf16> expected(N * C);
        gate_forward(expected.data(), o[l].data(), z[l].data(), N, C, headwise ? D : 1, config.attention.gate.op, cpu);
        REQUIRE_BITWISE(expected, y[l]);
      }
    }
}

TEST_CASE("bf16: a run has the same bits on cpu and kernels, and copies that are the masters, rounded",
          "[bf16][bitwise]") {
  for (const std::string& line : bf16_lines()) {
    INFO(line);
    const bool main_line = line.size() < 40 || line.starts_with("--mixer") || line.starts_with("--experts=3 --head") ||
                           line.find("--position=learned") != std::string::npos;
    Config config = small_run(bf16_model(line), main_line ? 3 : 2, main_line ? 2 : 1);
    Context cpu(Device::cpu), kernels(kernel_device);
    Run one(config, cpu), other(config, kernels);
    for (const Run* run : {&one, &other}) require_rounded_copies(run->trainer.model.weights);
    REQUIRE_BITWISE(one.steps(config.steps), other.steps(config.steps));
    REQUIRE(one.trainer.fingerprint() == other.trainer.fingerprint());
    for (const Run* run : {&one, &other}) require_rounded_copies(run->trainer.model.weights);
  }
}

TEST_CASE("bf16: the arithmetic of ampere is another, and the same on cpu and kernels", "[bf16][bitwise]") {
  const Config config = small_run(bf16_model(""), 2);
  std::vector<std::string> fingerprints;
  for (MmaArithmetic arithmetic : {MmaArithmetic::hopper, MmaArithmetic::ampere}) {
    Context cpu(Device::cpu), kernels(kernel_device);
    cpu.use_mma(arithmetic);
    Run expected(config, cpu);
    expected.steps(2);
    fingerprints.push_back(expected.trainer.fingerprint());
    if (!multiplies_as(kernels, arithmetic)) continue;  // a GPU has one of them
    Run run(config, kernels);
    run.steps(2);
    REQUIRE(run.trainer.fingerprint() == fingerprints.back());
  }
  REQUIRE(fingerprints[0] != fingerprints[1]);
}

static void require_precision_changes(const std::string& line) {
  INFO(line);
  const Folder folder;
  Context ctx(Device::cpu);
  Config config = small_run(bf16_model(line), 6);
  config.out = folder.path;
  prepare_checkpoint_folder(config.out);
  const Data data = open_data(config.data);
  config.model.storage = Storage::fp32;
  size_t steps = 0;
  std::string saved;
  for (Storage storage : {Storage::fp32, Storage::bf16, Storage::fp32}) {
    config.model.storage = storage;
    Run run(config, ctx);
    if (steps > 0) {
      config.change_precision = false;
      REQUIRE_THROWS_WITH(newest_checkpoint(config, run_metadata(config, data)),
                          Catch::Contains("add --change-precision"));
      config.change_precision = true;
      run.trainer.load(*newest_checkpoint(config, run_metadata(config, data)));
      REQUIRE(run.trainer.steps_done() == steps);
      REQUIRE(run.trainer.fingerprint() == saved);
      if (storage == Storage::bf16) require_rounded_copies(run.trainer.model.weights);
    }
    run.steps(2);
    steps += 2;
    run.trainer.save(run_metadata(config, data));
    saved = run.trainer.fingerprint();
  }
}

TEST_CASE("bf16: with --change-precision a run goes on from a checkpoint of fp32, and back", "[bf16]") {
  require_precision_changes("--norm=gated --norm-rank=3");
  require_precision_changes("--experts=4 --shared-experts=1 --head-experts=2");
}

TEST_CASE("bf16: a model takes less memory for activations, and the plan of its scratch is enough", "[bf16][bitwise]") {
  // (products of the second take the most, those of its FFN)
  for (const char* line : {"", "--ffn-hidden=4096", "--experts=64 --shared-experts=1 --head-experts=2"})
    for (Device device : {Device::cpu, kernel_device}) {
      INFO(line << ", " << name_of(device));
      Context ctx(device);
      ModelConfig config = bf16_model(line);
      Run narrow(small_run(config, 1), ctx);
      narrow.steps(1);  // (an operation that wants more scratch than was planned is refused)
      config.storage = Storage::fp32;
      Model wide(config);
      wide.plan(2, 9);
      REQUIRE(narrow.trainer.model.activation_bytes() < 0.7 * double(wide.activation_bytes()));
    }
}
