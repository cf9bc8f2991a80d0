// step: what a step of training does to the weights and what it reports, against a plain loop in double; when it
// refuses to go on; and what a validation takes.
#include "tests/compare.h"
#include "tests/reference_loop.h"
#include "tests/refusal.h"
#include "tests/script.h"
#include "tests/small_runs.h"
#include "tests/tokens.h"

using namespace gated;

namespace {

// Decay, clipping and epsilon large enough to matter in a few steps.
Config run_of(const std::string& flags, size_t micro_batches) {
  Config c = small_run(small_model(flags), 8, micro_batches);
  c.adamw = {0, 0.8f, 0.9f, 1e-3f, 0.5f};
  c.clip = 0.3f;
  c.schedule = {2e-2f, 5e-3f, 3, 8};
  return c;
}

std::string refusal_of_result(Run& run) {
  return refusal([&] { run.trainer.next_result(); });
}

}  // namespace

TEST_CASE("step: losses, norms, rates and weights are those of a plain loop", "[step]") {
  for (auto [flags, micro_batches] :
       {std::pair{"", 1},
        {"", 3},
        {"--dropout=0.3", 1},
        {"--dropout=0.3 --tied=off", 3},
        {"--norm=gated --norm-rank=3 --attn=g1 --dropout=0.2", 2},
        {"--norm=layernorm --position=learned --ffn=gelu --ffn-bias=on --dropout=0.1", 2},
        {"--norm=dyt --embedding-scale=on --attn=g2 --gate=headwise --attn-sink=learned", 2},
        {"--experts=5 --shared-experts=1 --balance-loss=0.3 --z-loss=0.1 --ffn-bias=on", 3},
        {"--mixer=hybrid --attention-every=2 --linear-key-dim=6 --norm=gated --norm-rank=3", 2},
        {"--attn=g1 --gate=static --attn-sink=kv-bias --ffn=polynorm", 2}}) {
    INFO(flags << ", " << micro_batches << " micro-batches");
    Context ctx(Device::cpu);
    const Deviation d = deviation_from_loop(run_of(flags, size_t(micro_batches)), 8, ctx);
    REQUIRE(d.reported < 1e-4);
    REQUIRE(d.weights < 2e-6);
  }
}

TEST_CASE("step: results that are taken a step late are the same", "[step]") {
  const Config config = run_of("", 2);
  Context ctx(Device::cpu);
  Run prompt(config, ctx), late(config, ctx);
  std::vector<StepResult> results;
  for (size_t step = 1; step <= 5; step++) {
    training_step(late.trainer);
    const std::optional<StepResult> due = late.trainer.next_result(1);
    REQUIRE(due.has_value() == (step > 1));
    if (due) results.push_back(*due);
    REQUIRE(!late.trainer.next_result(1));
  }
  results.push_back(late.trainer.next_result().value());
  REQUIRE(!late.trainer.next_result());
  for (size_t step = 1; step <= 5; step++) {
    const StepResult& r = results[step - 1];
    REQUIRE(r.step == step);
    REQUIRE_BITWISE(prompt.steps(1), (std::vector<float>{r.loss, r.gradient_norm, r.learning_rate}));
  }
  training_step(late.trainer);
  training_step(late.trainer);
  REQUIRE_THROWS_AS(training_step(late.trainer), Error);  // there is room for two that nobody took
}

TEST_CASE("step: of two results that are due, the first is given without the second", "[step]") {
  // The second step diverges. What is not given one by one would wait for both, and lose the first.
  Context ctx(Device::cpu);
  Run run(run_of("", 1), ctx);
  training_step(run.trainer);
  change_weights(run.trainer.model, [](const Parameter&, float* w) { w[0] = NAN; });
  run.trainer.model.weights_changed();
  training_step(run.trainer);
  REQUIRE(run.trainer.next_result().value().step == 1);
  REQUIRE(refusal_of_result(run).starts_with("step 2: the loss is"));
}

TEST_CASE("step: an infinite loss, norm or gradient ends the run with its weights as they were", "[step]") {
  Context ctx(Device::cpu);
  // The loss alone: as a device would report it.
  Run loss(run_of("", 2), ctx);
  loss.steps(1);
  for (float bad : {INFINITY, NAN}) {
    loss.trainer.losses()[1] = bad;
    loss.trainer.end_step();
    REQUIRE(contains(refusal_of_result(loss), "diverged"));
  }
  // The gradient alone. Logits of next to nothing, so the loss is ln V; but what the embedding gets back passes
  // through an output matrix of 1e21, whose squares leave the range of float. In the second micro-batch of two as
  // well.
  for (size_t micro_batches : {1, 2}) {
    Run gradient(run_of("--norm=none --tied=off", micro_batches), ctx);
    change_weights(gradient.trainer.model, [](const Parameter& p, float* w) {
      for (size_t i = 0; i < p.size; i++)
        w[i] *= p.name == "lm_head.weight" ? 1e23f : p.name == "model.embed_tokens.weight" ? 1e-26f : 1;
    });
    const std::string before = gradient.trainer.fingerprint();
    training_step(gradient.trainer);
    REQUIRE(std::isfinite(gradient.trainer.losses()[0]));
    const std::string message = refusal_of_result(gradient);
    INFO(message);
    REQUIRE(message.find("step 1: the loss is 3.6") == 0);  // ln 37
    REQUIRE(contains(message, "diverged"));
    REQUIRE(message.ends_with("Step 0 is the last that moved the weights"));
    REQUIRE(gradient.trainer.fingerprint() == before);
  }
}

TEST_CASE("step: a validation is the mean loss of the first batches, or of all that there are", "[step]") {
  // 20 sequences of 9 tokens for validation: 6 batches of 3, and two sequences that fill no batch.
  const Folder folder;
  const auto text = [&](const char* name, int bytes) {
    std::string text;
    for (int i = 0; i < bytes; i++) text += char('a' + (i * i + i / 7) % 26);
    return folder.write(name, text);
  };
  Config config = small_run(small_model("--vocab=256 --dropout=0.4"), 8, 2);
  config.batch = 3;
  config.data = {.data = text("train", 500), .val_data = text("val", 20 * 9 + 1), .seed = config.data.seed};
  Context ctx(Device::cpu);
  Run run(config, ctx);
  run.steps(2);
  const Data data = open_data(config.data);
  Model& model = run.trainer.model;
  std::vector<double> losses;
  for (size_t first = 0; first + 3 <= 20; first += 3) {
    std::vector<int> ids, targets;
    for (size_t b = 0; b < 3; b++) {
      const std::vector<int> tokens = sequence_of(*data.val, first + b, 9);
      ids.insert(ids.end(), tokens.begin(), tokens.end() - 1);
      targets.insert(targets.end(), tokens.begin() + 1, tokens.end());
    }
    losses.push_back(double(model.loss({ids, targets, 3, 9})));
  }
  REQUIRE(losses.size() == 6);
  for (size_t batches : {1, 2, 5, 6, 7, 100}) {
    double sum = 0;
    const size_t taken = std::min<size_t>(batches, 6);
    for (size_t i = 0; i < taken; i++) sum += losses[i];
    INFO(batches);
    REQUIRE(run.trainer.validate(batches) == sum / double(taken));
  }
  for (size_t i = 1; i < 6; i++) REQUIRE(losses[i] != losses[0]);
}
