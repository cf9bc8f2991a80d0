// recompute: what the backward computes again is what the forward had: whole runs, measures and generation have the
// bits that they have where everything is kept, in less memory. (A checkpoint of another value: tests/test_matrix.cpp.)

#include "layers/smoothquant.h"
#include "tests/harness.h"
#include "tests/small_runs.h"
#include "training/inspect/arrays.h"
#include "training/inspect/measures.h"

using namespace gated;

namespace {

// A block between others is the one whose activations are overwritten on both sides. Of small_models() with three
// layers, and some in bf16.
const std::vector<std::string>& variants() {
  static const std::vector<std::string> lines = [] {
    std::vector<std::string> all = small_models();
    for (const std::string& flags : fixture_lines("recompute_models.txt", {""}))
      all.push_back("--precision=bf16 --head-dim=16 " + flags);
    for (std::string& line : all) line += " --layers=3";
    return all;
  }();
  return lines;
}

Config run_of(const std::string& flags, Recompute recompute, size_t micro_batches = 2) {
  Config config = small_run(small_model(flags), 4, micro_batches);
  config.slices = 1;  // so that routers count over both micro-batches
  config.model.recompute = recompute;
  return config;
}

// Whatever a run has come to: losses, gradients and weights, reports of its routers, measures, the bits of all arrays,
// in which a NaN stands for what is not there, the logits behind a text, with a cache and without, and the weights that
// SmoothQuant makes of what norms wrote.
struct Outcome {
  std::string fingerprint, measures, smoothed;
  std::vector<std::vector<float>> numbers;
  std::vector<uint32_t> arrays;
};
Outcome outcome_of(const Config& config, Context& ctx) {
  Run run(config, ctx);
  Model& model = run.trainer.model;
  Outcome outcome;
  outcome.numbers = {run.steps(2), model.weights.grads.download(), {}};
  outcome.fingerprint = run.trainer.fingerprint();
  outcome.numbers[2].resize(model.routing_values());
  Buffer<float>::copy_to_host(ctx.device, outcome.numbers[2].data(), model.routing_reports(), model.routing_values());
  Meter meter(ctx.device);
  ArrayMeter array_meter(config.model, ctx.device);
  run.trainer.validate(2, {&meter, &array_meter});
  outcome.measures = measures_entry(1, meter.result());
  for (const Arrays::Array& array : array_meter.result().list)
    for (const float value : array.values) outcome.arrays.push_back(__builtin_bit_cast(uint32_t, value));
  const std::vector<int> ids = {1, 30, 7, 7, 2, 11, 36, 0, 5};
  outcome.numbers.push_back(model.next_token_logits(ids));
  model.begin_sequences(1, ids.size());
  model.read({ids.begin(), ids.end() - 1});
  outcome.numbers.push_back(model.read({ids.back()}));
  const ModelConfig& m = config.model;  // it takes no others
  if (m.placement == NormPlacement::post || m.norm.kind == NormKind::none || m.storage == Storage::bf16) return outcome;
  SmoothQuant smooth(model, ctx);
  run.trainer.look_at_training(2, [&] { smooth.see(config.batch * config.model.context); });
  smooth.fold(0.5);
  outcome.smoothed = run.trainer.fingerprint();
  return outcome;
}

}  // namespace

// Two steps of two micro-batches each with every value of the flag.
static void require_same_run(const std::string& flags, Device device) {
  INFO(flags << " on " << name_of(device));
  Context ctx(device);
  const Outcome expected = outcome_of(run_of(flags, Recompute::none), ctx);
  REQUIRE_BITWISE(expected.numbers[3], expected.numbers[4]);
  for (const Recompute recompute : {Recompute::light, Recompute::full}) {
    const Outcome outcome = outcome_of(run_of(flags, recompute), ctx);
    require_same(expected.numbers, outcome.numbers);
    REQUIRE(outcome.fingerprint == expected.fingerprint);
    REQUIRE(outcome.measures == expected.measures);
    REQUIRE(outcome.smoothed == expected.smoothed);
    REQUIRE(outcome.arrays == expected.arrays);
  }
}

// (Next to nothing is computed in these: waking a second thread costs more.)
TEST_CASE("recompute: training, measures, arrays and generation have the bits that they have where all is kept",
          "[bitwise]") {
  const Threads one(1);
  for (const std::string& flags : variants()) require_same_run(flags, Device::cpu);
}

TEST_CASE("recompute: the same on kernels", "[bitwise]") {
  for (const char* flags :
       {"--norm=gated --norm-rank=3 --attn=g1 --dropout=0.1 --layers=3",
        "--mixer=hybrid --linear-key-dim=6 --experts=4 --shared-experts=1 --layers=3",
        "--precision=bf16 --head-dim=16 --norm-placement=post --attn=g2 --layers=3",
        "--precision=bf16 --mixer=hybrid --attention-every=2 --linear-key-heads=1 --linear-value-heads=1 "
        "--linear-key-dim=16 --linear-value-dim=16 --head-dim=16 --layers=3"})
    require_same_run(flags, kernel_device);
}

TEST_CASE("recompute: the memory of a block's activations, and one tensor or two for each of the others", "[memory]") {
  const auto bytes_of_run = [](const std::string& flags, size_t layers, Recompute recompute) {
    ModelConfig config = small_model(flags + " --layers=" + std::to_string(layers));
    config.recompute = recompute;
    Model model(config);
    model.plan(2, 9);
    return model.activation_bytes();
  };
  const size_t stream = (18 * 20 * sizeof(float) + 127) / 128 * 128;
  for (auto [flags, tensors] : {std::pair{"", 1},
                                {"--dropout=0.1", 2},
                                {"--residual=off", 1},
                                {"--residual=off --clip-output=1", 1},
                                {"--norm-placement=post --dropout=0.1", 1}}) {
    INFO(flags);
    const size_t one = bytes_of_run(flags, 3, Recompute::full), more = bytes_of_run(flags, 8, Recompute::full);
    REQUIRE(more - one == 5 * size_t(tensors) * stream);
    REQUIRE(bytes_of_run(flags, 1, Recompute::full) == bytes_of_run(flags, 1, Recompute::none));
    REQUIRE(more * 3 < bytes_of_run(flags, 8, Recompute::none));

    // Lightly: of the blocks' cheap tensors those of one.
    size_t cheap = 0;
    const auto add_cheap = [&](const TensorVisitor::Tensor& t, const auto&) {
      if (t.lifetime == Lifetime::cheap) cheap += (t.bytes + 127) / 128 * 128;
    };
    Model model(small_model(flags + std::string(" --layers=8")));
    model.plan(2, 9);
    model.block_activations(1, TensorVisitor(add_cheap, Storage::fp32));
    const size_t all = bytes_of_run(flags, 8, Recompute::none);
    REQUIRE(all - bytes_of_run(flags, 8, Recompute::light) == 7 * cheap);
    REQUIRE(cheap * 8 * 5 > all);  // at least a fifth
  }
}

TEST_CASE("recompute: a second backward of a forward is refused where the first one has overwritten it", "[model]") {
  Context cpu(Device::cpu);
  const Config config = run_of("", Recompute::full);
  Model model(config.model, 2, 9, 1, cpu);
  const std::vector<int> ids(18, 3);
  float loss;
  model.upload({ids, ids, 2, 9}, 0);
  model.forward();
  model.backward({}, &loss);
  REQUIRE_THROWS_WITH(model.backward({}, &loss), Catch::Contains("a second backward"));
}
