// trainer: whole runs: what they add up, allocate and report, and which flags change them. (On every device, and across
// an interruption: tests/test_matrix.cpp.)
#include "tests/harness.h"
#include "tests/contents.h"
#include "tests/small_runs.h"
#include "training/memory.h"

using namespace gated;

TEST_CASE("trainer: a look at training shows the run's first micro-batches, in their order", "[bitwise]") {
  Context cpu(Device::cpu);
  Run run(small_run(small_model("--layers=1"), 20, 2), cpu);
  struct Embedding : Inspector {
    std::vector<float> h;
    void state(const StateView& view) override {
      const float* const first = view.h.as<float>();
      if (layer == 0) h.assign(first, first + view.B * view.T * view.C);
    }
  };
  std::vector<std::vector<float>> seen, expected;
  Embedding embedding;
  run.trainer.look_at_training(5, [&] {
    run.trainer.model.inspect(embedding);
    seen.push_back(embedding.h);
  });
  for (auto [step, m] : {std::pair(0, 0), {0, 1}, {1, 0}, {1, 1}, {2, 0}}) {
    std::vector<int> ids(18), targets(18);
    run.loader.training_batch(size_t(step), size_t(m), ids.data(), targets.data());
    run.trainer.model.upload({ids, targets, 2, 9});
    run.trainer.model.forward();
    run.trainer.model.inspect(embedding);
    expected.push_back(embedding.h);
  }
  REQUIRE(seen == expected);
  REQUIRE(expected[0] != expected[1]);
  REQUIRE(expected[0] != expected[2]);
}

TEST_CASE("trainer: micro-batches add up in a slice, slices eight to a group, groups in their order", "[bitwise]") {
  // With beta1 = 0 and nothing to clip the first moment is the gradient of the step.
  for (auto [M, G] : {std::pair<size_t, size_t>{6, 1}, {6, 2}, {6, 6}, {18, 9}, {19, 19}, {16, 16}}) {
    INFO(M << " micro-batches in " << G << " slices");
    Config config = small_run(small_model("--layers=1 --experts=3 --balance-loss=0.5"), 20, M);
    config.slices = G, config.clip = 1e30f, config.adamw.beta1 = 0;
    std::vector<float> expected;
    on_both_devices([&, M = M, G = G](Context& ctx) {
      Run run(config, ctx), alone(config, ctx);
      run.steps(1);
      Model& model = alone.trainer.model;
      std::vector<float> total, group;
      const auto add = [](std::vector<float>& to, const std::vector<float>& from) {
        to.resize(from.size(), 0.0f);
        for (size_t i = 0; i < from.size(); i++) to[i] += from[i];
      };
      for (size_t s = 0; s < G; s++) {
        set_zero(model.weights.grads.data(), model.weights.flat_size(), ctx);
        for (size_t m = s * (M / G); m < (s + 1) * (M / G); m++) {
          model.upload(alone.trainer.training_batch(m), alone.trainer.micro_batch_number(m));
          model.forward();
          model.backward({m, M, M / G}, alone.trainer.loss());
        }
        ctx.synchronize();
        add(group, model.weights.grads.download());
        if (s % 8 != 7 && s + 1 < G) continue;
        add(total, group);
        group.clear();
      }
      const std::vector<float> m = run.trainer.optimizer.states[0].values.download();
      std::vector<float> of_parameters, summed;  // without what lies between them
      for (const Parameter& p : model.weights.list()) {
        of_parameters.insert(of_parameters.end(), &m[p.offset], &m[p.offset] + p.size);
        summed.insert(summed.end(), &total[p.offset], &total[p.offset] + p.size);
      }
      REQUIRE_BITWISE(summed, of_parameters);
      if (expected.empty()) expected = summed;
      REQUIRE_BITWISE(expected, summed);
    });
  }
}

TEST_CASE("trainer: a step allocates nothing, and takes the scratch that was planned", "[trainer][bitwise]") {
  for (const char* flags :
       {"", "--norm=gated --norm-rank=3 --attn=g1", "--norm=gated-dyt --norm-rank=3 --tied=off",
        "--norm=layernorm --position=learned --ffn-bias=on --attn-bias=all", "--norm=preaffine",
        "--norm=dyt --embedding-scale=on --ffn=polynorm", "--attn-sink=kv-bias --attn=g2",
        "--attn-sink=learned --sdpa-out=groupnorm", "--head-experts=3 --head-experts-per-token=2 --head-experts-of=kv",
        "--experts=6 --shared-experts=1 --router-bias --ffn=polynorm --ffn-bias=on",
        "--recompute=full --dropout=0.1 --layers=3"})
    on_both_devices([&](Context& ctx) {
      INFO(flags);
      Config config = small_run(small_model(flags), 20, 2);
      config.model.context = 70;
      Run run(config, ctx);
      REQUIRE(ctx.scratch_bytes() == training_scratch(run.trainer.model, ctx.device));
      run.steps(1);
      run.trainer.validate(1);
      const size_t before = allocations;
      run.steps(1);
      run.trainer.validate(1);
      REQUIRE(allocations == before);
      REQUIRE(ctx.most_scratch_used() <= ctx.scratch_bytes());
      if (ctx.device != Device::cpu) REQUIRE(ctx.most_scratch_used() > 0);
    });
}

TEST_CASE("trainer: the gradient's norm by layer, before clipping, against AdamW's first moments", "[bitwise]") {
  // After the first step m is (1 - beta1) times the clipped gradient.
  for (size_t micro_batches : {1, 3}) {
    Config config = small_run(small_model("--norm=gated --norm-rank=3 --attn=g1 --layers=11"), 20, micro_batches);
    config.clip = 0.01f;
    std::vector<float> expected;
    on_both_devices([&](Context& ctx) {
      Run run(config, ctx);
      const float norm = run.steps(1)[1];
      const std::vector<float> norms = run.trainer.gradient_norm_by_layer();
      REQUIRE(norms.size() == 11);  // layers.1 and layers.10 are two
      if (expected.empty()) expected = norms;
      REQUIRE_BITWISE(norms, expected);
      REQUIRE(norm > 2 * config.clip);
      const std::vector<float> m = run.trainer.optimizer.states[0].values.download();
      const double unclipped = double(norm) / double(config.clip) / (1 - double(config.adamw.beta1));
      for (size_t layer = 0; layer < 11; layer++) {
        double squares = 0;
        for (const Parameter& p : run.trainer.model.weights.list())
          if (p.name.find("layers." + std::to_string(layer) + ".") != std::string::npos)
            for (size_t i = 0; i < p.size; i++) squares += double(m[p.offset + i]) * double(m[p.offset + i]);
        REQUIRE(double(norms[layer]) == Approx(std::sqrt(squares) * unclipped).epsilon(1e-5));
      }
    });
  }
}

TEST_CASE("trainer: every flag that shapes the result changes the weights", "[trainer]") {
  // A value other than the default for each; what is left out has its own test, or names the data and the model's
  // sizes.
  const FlagValues other = flag_values(
      "--norm-eps=0.1 --norm-rank=2 --norm-gate-scale=2 --dyt-alpha=0.9 --init-std=0.1 --attention-every=2 "
      "--head-experts=2 --head-experts-per-token=2 --experts=3 --experts-per-token=1 --expert-hidden=11 "
      "--dense-layers=1 --shared-experts=1 --balance-loss=0.5 --z-loss=0.5 --window=3 --rope-theta=100 "
      "--rope-scaling=linear,3 --window-rope-theta=100 --full-every=2 --score-dim=9 --embedding-factor=2 "
      "--rope-fraction=0.5 --clip-residual=0.02 --clip-output=0.001 --dropout=0.3 --seed=6 --batch=3 "
      "--micro-batches=2 --slices=1 --lr=0.01 --min-lr=0.002 --warmup=1 --decay=3 --beta1=0.5 --beta2=0.5 "
      "--adam-eps=0.001 --weight-decay=5 --clip=0.01 --steps=3");
  // What some flags need beside them.
  const std::string wide = "--vocab=64 --hidden=32 --heads=2 --kv-heads=1 --head-dim=16 --ffn-hidden=48";
  std::map<std::string, std::string> room;
  for (const auto& [with, flags] : std::vector<std::pair<std::string, std::string>>{
           {"--norm=gated", "--norm-rank --norm-gate-scale --norm-gate --norm-gate-act --norm-gate-init"},
           {"--norm=dyt", "--dyt-alpha"},
           {"--window=3", "--window-rope-theta"},
           {"--window=3 --window-layers=not-nth", "--full-every"},
           {"--head-experts=3", "--head-experts-per-token --head-experts-of"},
           {"--mixer=hybrid --layers=3", "--attention-every"},
           {"--experts=3",
            "--experts-per-token --expert-hidden --dense-layers --shared-experts --balance-loss --z-loss "
            "--router-renormalise --router-bias"},
           {"--mixer=gated-delta", "--delta"},
           {"--attn=g1", "--gate --gate-op --gate-act"},
           {"--window=3 --layers=6", "--window-layers"},
           {"--ffn=gelu", "--gelu"},
           {"--schedule=wsd", "--decay"},
           {"--experts=3 --shared-experts=1", "--shared-expert-gate"},
           {"--experts=3 --balance-loss=0.5 --micro-batches=2 --slices=1", "--balance-over"},
           {"--micro-batches=3", "--slices"},
           {wide, "--precision"},
           {wide + " --precision=bf16", "--mma"}})
    for (const std::string& flag : words_of(flags)) room[flag] = with;
  const std::string base =
      "--data=bigram-backcopy --vocab=37 --context=9 --layers=2 --hidden=20 --heads=4 --kv-heads=2 --head-dim=6 "
      "--batch=2 --steps=4 --warmup=0 ";
  const Threads one(1);  // next to no work: waking a second thread costs more than it does
  auto fingerprint_after = [&](const std::string& flags) { return fingerprint_of_run(config_of_flags(base + flags)); };
  Config defaults;
  for (const Flag& f : list_flags(defaults)) {
    if (!f.shapes_the_result() || f.kind == Flag::Kind::size || f.kind == Flag::Kind::data) continue;
    if (f.name == "--matmul" || f.name == "--tf32") continue;  // of GPUs
    INFO(f.name);
    const std::string with = room.count(f.name) ? room.at(f.name) + " " : "";
    std::set<std::string> results = {fingerprint_after(with)};
    if (f.choices.empty()) {
      REQUIRE(other.count(f.name));
      REQUIRE(results.insert(fingerprint_after(with + f.name + "=" + other.at(f.name)[0])).second);
    }
    for (const Flag::Choice& c : f.choices) {  // one of them is the default
      INFO(c.value);
      const bool is_new = results.insert(fingerprint_after(with + f.name + "=" + c.value)).second;
      REQUIRE(is_new == (c.value != f.get()));
    }
  }
  REQUIRE(fingerprint_after("") != fingerprint_after("--seed=6"));
  const std::string linear = "--mixer=gated-delta --norm=none ";  // whose only root is that of the norm of its output
  REQUIRE(fingerprint_after(linear) != fingerprint_after(linear + "--norm-eps=0.1"));
  const std::string dyt = "--norm=dyt --dyt-alpha=";
  REQUIRE(fingerprint_after(dyt + "0.5,0.9") != fingerprint_after(dyt + "0.5"));  // in the norms that attention reads
  REQUIRE(fingerprint_after(dyt + "0.5,0.9") != fingerprint_after(dyt + "0.9"));
}
