// recompute: what the backward computes again is what the forward had: whole runs, measures and generation have the
// bits that they have where everything is kept, in less memory. (A checkpoint of another value: tests/test_matrix.cpp.)

#include "layers/smoothquant.h"
#include "tests/harness.h"
#include "tests/small_runs.h"
#include "training/inspect/arrays.h"
#include "training/inspect/measures.h"

using namespace gated;

namespace {

constexpr Recompute savings[] = {Recompute::light, Recompute::full};

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
  config.model.recompute = recompute;
  return config;
}

// What measures say, and the bits of all arrays, in which a NaN stands for what is not there.
struct Shown {
  std::string measures;
  std::vector<uint32_t> arrays;
};
Shown shown_by(Run& run, Context& ctx) {
  Meter meter(ctx.device);
  ArrayMeter array_meter(run.config.model, ctx.device);
  run.trainer.validate(2, {&meter, &array_meter});
  Shown shown = {measures_entry(1, meter.result()), {}};
  for (const Arrays::Array& array : array_meter.result().list)
    for (const float value : array.values) shown.arrays.push_back(__builtin_bit_cast(uint32_t, value));
  return shown;
}

}  // namespace

// Two steps of two micro-batches each with every value of the flag.
static void require_same_run(const std::string& flags, Device device) {
  INFO(flags << " on " << name_of(device));
  Context ctx(device);
  Run all(run_of(flags, Recompute::none), ctx);
  const std::vector<float> expected = all.steps(2);
  for (const Recompute recompute : savings) {
    Run run(run_of(flags, recompute), ctx);
    REQUIRE_BITWISE(expected, run.steps(2));
    REQUIRE_BITWISE(all.trainer.model.weights.grads.download(), run.trainer.model.weights.grads.download());
    REQUIRE(run.trainer.fingerprint() == all.trainer.fingerprint());
  }
}

// (Next to nothing is computed in these: waking a second thread costs more.)
TEST_CASE("recompute: losses, gradients and weights have the bits that they have where all is kept", "[bitwise]") {
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

TEST_CASE("recompute: how experts were routed is counted once", "[bitwise]") {
  const Threads one(1);
  Context cpu(Device::cpu);
  const char* const flags = "--experts=5 --balance-loss=0.5 --z-loss=0.1 --layers=3";
  std::vector<std::vector<float>> reports;
  for (const Recompute recompute : {Recompute::none, Recompute::light, Recompute::full}) {
    Run run(run_of(flags, recompute, 3), cpu);
    run.steps(2);
    const float* const report = run.trainer.model.routing_reports();
    reports.emplace_back(report, report + run.trainer.model.routing_values());
    REQUIRE_BITWISE(reports[0], reports.back());
  }
  REQUIRE(reports[0].at(2 * router_report_values) > 0);
}

TEST_CASE("recompute: measures, arrays and losses by position are those of a model that keeps all", "[bitwise]") {
  const Threads one(1);
  for (const std::string& flags : variants()) {
    INFO(flags);
    Context cpu(Device::cpu);
    Run all(run_of(flags, Recompute::none), cpu);
    all.steps(1);
    const Shown expected = shown_by(all, cpu);
    for (const Recompute recompute : savings) {
      Run run(run_of(flags, recompute), cpu);
      run.steps(1);
      const Shown shown = shown_by(run, cpu);
      REQUIRE(shown.measures == expected.measures);
      REQUIRE(shown.arrays == expected.arrays);
    }
  }
}

TEST_CASE("recompute: SmoothQuant sees what every norm wrote", "[bitwise]") {
  const Threads one(1);
  for (const char* flags :
       {"--layers=3", "--layers=3 --experts=4 --norm=gated --norm-rank=3 --norm-placement=sandwich"}) {
    INFO(flags);
    std::string expected;
    for (const Recompute recompute : {Recompute::none, Recompute::light, Recompute::full}) {
      Context cpu(Device::cpu);
      Run run(run_of(flags, recompute), cpu);
      run.steps(2);
      SmoothQuant smooth(run.trainer.model, cpu);
      run.trainer.look_at_training(2, [&] { smooth.see(18); });
      smooth.fold(0.5);
      if (expected.empty()) expected = run.trainer.fingerprint();
      REQUIRE(run.trainer.fingerprint() == expected);
    }
  }
}

TEST_CASE("recompute: a model that was trained so generates, with a cache and without", "[bitwise]") {
  const Threads one(1);
  const std::vector<int> ids = {1, 30, 7, 7, 2, 11, 36, 0, 5};
  for (const char* flags :
       {"--attn=g1 --layers=3", "--mixer=hybrid --linear-key-dim=6 --norm-placement=post --layers=3"}) {
    INFO(flags);
    Context cpu(Device::cpu);
    Run all(run_of(flags, Recompute::none), cpu);
    const std::vector<float> expected = all.trainer.model.next_token_logits(ids);
    for (const Recompute recompute : savings) {
      Run run(run_of(flags, recompute), cpu);
      Model& model = run.trainer.model;
      REQUIRE_BITWISE(expected, model.next_token_logits(ids));
      model.begin_sequences(1, ids.size());
      model.read({ids.begin(), ids.end() - 1});
      REQUIRE_BITWISE(expected, model.read({ids.back()}));
    }
  }
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
