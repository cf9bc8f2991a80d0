// trainer: whole runs. The same weights on every device, for any number of threads, and across an interruption.
#include <omp.h>

#include <filesystem>

#include "tests/harness.h"
#include "tests/small_runs.h"

using namespace gated;

TEST_CASE("trainer: 20 steps have the same losses and weights on cpu and kernels", "[bitwise]") {
  for (const char* flags : {"", "--norm=gated --norm-rank=3 --attn=g1", "--norm=gated --norm-rank=3 --tied=off",
                            "--attn=g1 --gate=headwise --ffn=glu", "--qk-norm=off --kv-heads=1"}) {
    INFO(flags);
    const ModelConfig model = small_model(flags);
    const Config config = small_run(model, 20, model.tied ? 1 : 2);
    Stream cpu(Device::cpu), kernels(kernel_device);
    Run a(config, cpu), b(config, kernels);
    const std::vector<float> expected = a.steps(20);
    REQUIRE_BITWISE(expected, b.steps(20));
    REQUIRE(a.trainer.fingerprint() == b.trainer.fingerprint());
    REQUIRE(expected[3 * 19] < expected[0]);  // it learns
    REQUIRE(a.trainer.validate(2) == b.trainer.validate(2));
  }
}

TEST_CASE("trainer: the number of threads changes no bit", "[bitwise]") {
  Config config = small_run(small_model("--norm=gated --norm-rank=3 --attn=g1"));
  config.model.context = 40, config.batch = 5;
  const int before = omp_get_max_threads();
  std::string one, fingerprint;
  for (int threads : {1, 2, 3}) {
    omp_set_num_threads(threads);
    Stream cpu(Device::cpu);
    Run run(config, cpu);
    run.steps(5);
    fingerprint = run.trainer.fingerprint();
    if (threads == 1) one = fingerprint;
    REQUIRE(fingerprint == one);
  }
  omp_set_num_threads(before);
}

TEST_CASE("trainer: saved and loaded, a run goes on bit for bit", "[checkpoint]") {
  const std::string folder =
      (std::filesystem::temp_directory_path() / ("trainer." + std::to_string(getpid()))).string();
  Config config = small_run(small_model("--norm=gated --norm-rank=3 --attn=g1"), 20, 2);
  config.out = folder;
  prepare_checkpoint_folder(folder);
  Stream cpu(Device::cpu);
  Run whole(config, cpu);
  whole.steps(10);
  const std::vector<float> expected = whole.steps(10);

  Run first(config, cpu);
  first.steps(10);
  first.trainer.save({{"note", "ten steps"}});
  Run second(config, cpu);
  second.trainer.load(*find_latest(folder));
  REQUIRE(second.trainer.steps_done() == 10);
  REQUIRE_BITWISE(expected, second.steps(10));
  REQUIRE(second.trainer.fingerprint() == whole.trainer.fingerprint());

  ModelConfig other = config.model;
  other.ffn.F++;
  Run wrong(small_run(other), cpu);
  REQUIRE_THROWS_AS(wrong.trainer.load(*find_latest(folder)), Error);
  std::filesystem::remove_all(folder);
}

TEST_CASE("trainer: a run that diverges stops before its weights are touched", "[trainer]") {
  Config config = small_run(small_model());
  Stream cpu(Device::cpu);
  Run run(config, cpu);
  std::vector<float> w = run.trainer.model.weights.values.download();
  for (const Parameter& p : run.trainer.model.weights.list())
    if (p.name == "model.norm.weight") w[p.offset] = INFINITY;
  run.trainer.model.weights.values.upload(w);
  const std::string before = run.trainer.fingerprint();
  REQUIRE_THROWS_AS(run.trainer.step(), Error);
  REQUIRE(run.trainer.fingerprint() == before);
  REQUIRE(run.trainer.steps_done() == 0);
}
