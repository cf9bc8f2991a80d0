// program: what ./train says and writes is what the run did. The run is done again here, on the library that the
// program is made of, which other tests hold to a plain loop (tests/test_step.cpp). Runs the program in the current
// folder.
#include <nlohmann/json.hpp>

#include "tests/compare.h"
#include "tests/script.h"
#include "tests/small_runs.h"
#include "tests/tokens.h"
#include "training/text/generate.h"
#include "training/inspect/measures.h"
#include "training/text/sampler.h"

using namespace gated;

namespace {

// What the program prints, errors too.
std::string output_of(const std::string& flags) {
  return Folder().run("{repo}/train " + flags).text;
}

// The numbers in brackets of a regular expression, where it is found first.
std::vector<double> numbers(const std::string& text, const std::string& expression) {
  const auto found = matches(text, expression);
  INFO(expression << "\n" << text);
  REQUIRE(!found.empty());
  std::vector<double> all;
  for (size_t i = 1; i < found[0].size(); i++) all.push_back(std::stod(found[0][i]));
  return all;
}

// Steps, and the validations that follow some of them, as log.jsonl has them behind what ran.
std::vector<nlohmann::json> log_of(const std::string& folder) {
  std::vector<nlohmann::json> entries;
  for (const std::string& line : lines_of(contents(folder + "/log.jsonl")))
    entries.push_back(nlohmann::json::parse(line));
  REQUIRE((entries[0].contains("run") && entries[0]["step"] == 0));
  entries.erase(entries.begin());
  return entries;
}

// The sample of a model: the first token of the validation data, then one at a time from the last `context` tokens.
std::string sample_of(Model& model, const Data& data, const Sampler& sampler, size_t count) {
  std::vector<int> sample = {sequence_of(*data.val, 0, data.val->is_text() ? 64 : 8)[0]};
  while (sample.size() < count) {
    std::vector<int> window = sample;
    while (window.size() > model.config.context) window.erase(window.begin());
    sample.push_back(sampler.draw(model.next_token_logits(window), sample.size()));
  }
  return text_of(sample, data.val->is_text());
}

const std::string small =
    "--layers=2 --hidden=32 --heads=2 --kv-heads=1 --head-dim=16 --ffn-hidden=48 --batch=2 --warmup=3 ";

}  // namespace

TEST_CASE("program: header, lines, log, checkpoints and sample are those of the run", "[program]") {
  const Folder folder;
  const std::string flags =
      small +
      "--data=bigram-backcopy --vocab=20 --context=64 --micro-batches=2 --dropout=0.2 --clip=0.3 "
      "--weight-decay=0.3 --steps=7 --seed=11 --val-every=3 --val-batches=2 --measure-every=6 --sample-tokens=100 "
      "--temperature=1.3 --top-k=5 --save-every=3 --keep=0 --device=cpu --threads=3 --out=" +
      (folder / "run");
  const std::string out = output_of(flags);
  INFO(out);
  Context ctx(Device::cpu);
  Run run(config_of_flags(flags), ctx);

  // The header. 20*32 + 2*(2*32*32 + 2*16*32 + 2*16 + 3*48*32 + 2*32) + 32 parameters; of products 16000, and attention
  // of 12 * 32 * 32 keys in 2 layers.
  const double flops = 6 * 16000 + 2 * 12 * 32 * 32;
  std::string header = out.substr(0, out.find("\n\n"));
  header = replaced(header, "\n *", " ");
  REQUIRE(
      says(header, {"cpu, 3 threads, fp32 matmul peak ", "bigram-backcopy: 19 tokens, 3 of them triggers, and BOS 19",
                    " 256 tokens a step, epoch of 274877906944.0 steps"}));  // 2^40 sequences
  REQUIRE(contains(header, " 16224 parameters, 0.12 MFLOP a token, "));
  Config defaults, config = config_of_flags(flags);
  const std::vector<Flag> now = list_flags(config), then = list_flags(defaults);
  for (size_t i = 0; i < now.size(); i++) {
    INFO(now[i].name);
    const bool said = contains(header, now[i].name + "=" + now[i].get());
    REQUIRE(said == (now[i].get() != then[i].get()));
  }

  // Steps and validations, printed and logged.
  std::vector<nlohmann::json> log = log_of(folder / "run");
  REQUIRE(log.size() == 7 + 3 + 2);
  const double peak = numbers(out, "matmul peak ([0-9]+) GFLOP/s")[0] * 1e9;
  size_t entry = 0;
  for (size_t step = 1; step <= 7; step++) {
    INFO("step " << step);
    const std::vector<float> expected = run.steps(1);
    const nlohmann::json& line = log[entry++];
    REQUIRE(line["step"] == step);
    REQUIRE(line["loss"] == double(expected[0]));
    REQUIRE(line["gradient_norm"] == double(expected[1]));
    REQUIRE(line["learning_rate"] == double(expected[2]));
    const std::string place = format("step %zu/7  ", step);
    const std::vector<double> printed = numbers(
        out, place + "loss ([0-9.]+)  norm +([0-9.]+)  lr ([0-9.e+-]+) +([0-9]+) tok/s +([0-9.]+)% (?:of )?peak");
    REQUIRE(printed[0] == std::stod(format("%.4f", double(expected[0]))));
    REQUIRE(std::fabs(printed[1] - double(expected[1])) <= 0.00051);  // fewer digits where the line is narrow
    REQUIRE(std::fabs(printed[2] - double(expected[2])) <= 0.051 * printed[2]);
    const double speed = 256 / line["seconds"].get<double>();
    REQUIRE(std::fabs(printed[3] - speed) <= 0.51 + 1e-6 * speed);
    // (the header rounds the peak to whole GFLOP/s, which on a busy machine are few)
    REQUIRE(std::fabs(printed[4] - 100 * speed * flops / peak) <= 0.51 + printed[4] * 0.51e9 / peak);
    if (step != 3 && step != 6 && step != 7) continue;
    Meter meter(Device::cpu);
    const double loss = run.trainer.validate(2, {&meter});
    REQUIRE(log[entry]["step"] == step);
    REQUIRE(log[entry++]["validation_loss"] == loss);
    REQUIRE(contains(out, place + format("validation loss %.4f\n", loss)));
    if (step == 3) continue;
    Measures seen = meter.result();
    seen.gradient_norm_by_layer = run.trainer.gradient_norm_by_layer();
    REQUIRE(log[entry++] == nlohmann::json::parse(measures_entry(step, seen)));
    REQUIRE(contains(out, measures_text(seen, 80)) == (step == 7));
  }

  // What is left of it.
  for (size_t step = 1; step <= 7; step++)
    REQUIRE(fs::exists(folder / ("run/" + checkpoint_name(step))) == (step == 3 || step == 6 || step == 7));
  const Sampler sampler = {1.3, 5, 11};
  const std::string sample = sample_of(run.trainer.model, open_data(config.data), sampler, 100);
  REQUIRE(contains(out, "\nsample (temperature 1.3, seed 11):\n" + sample +
                            "\nfingerprint of the weights: " + run.trainer.fingerprint() + "\n"));

  // Taken up again, there is nothing left to do.
  const std::string again = output_of(flags + " --resume");
  INFO(again);
  REQUIRE(contains(again, "\n0 steps in 0:00\n"));
  REQUIRE(!contains(again, "/7  loss"));
  REQUIRE(contains(again, "fingerprint of the weights: " + run.trainer.fingerprint() + "\n"));
  REQUIRE(log_of(folder / "run") == log);
}

TEST_CASE("program: a text's split, its bigrams, its prompt, and a width chosen by a number of parameters",
          "[program]") {
  const Folder folder;
  std::string text;
  for (int i = 0; i < 1000; i++) text += char((i < 750 ? 'a' : 'A') + (i * i / 3 + i) % 7);
  folder.write("text", text);
  const std::string flags =
      small +
      "--context=32 --val-fraction=0.25 --val-every=0 --val-batches=1 --steps=5 --seed=4 --device=cpu "
      "--sample-tokens=33 --save-every=2 --keep=1 --dropout=0.5 --data=" +
      (folder / "text") + " --out=" + (folder / "run");
  const std::string wide = replaced(flags, "--ffn-hidden=48", "--params=30000");
  const std::string out = output_of(wide);
  INFO(out);
  // 256*32 + 2*(2*32*32 + 2*16*32 + 2*16 + 2*32) + 32 = 14560 parameters without an FFN, and 192 for each of its
  // channels: 80 are nearest to 30000.
  REQUIRE(says(out, {"--ffn-hidden=80 gives 29920, 80 fewer than the 30000 asked for", " 29920 parameters, "}));
  REQUIRE(!contains(out, "--params="));  // the width that it chose stands among the flags, and repeats the run
  REQUIRE(says(out, {"tokens 0 to 750 of 1000 bytes of 1 text files",
                     "64 tokens a step, epoch of 11.5 steps"}));  // 23 sequences of 32

  // Entropy of a letter after a letter, over the seven sequences of validation.
  std::map<std::string, double> pairs, singles;
  for (size_t i = 750; i < 750 + 7 * 32; i++) pairs[text.substr(i, 2)]++, singles[text.substr(i, 1)]++;
  double entropy = 0;
  for (const auto& [pair, n] : pairs) entropy += n * std::log(singles.at(pair.substr(0, 1)) / n);
  REQUIRE(contains(out, format("entropy %.4f nats", entropy / (7 * 32))));

  Context ctx(Device::cpu);
  Config config = config_of_flags(replaced(flags, "--ffn-hidden=48", "--ffn-hidden=80"));
  Run run(config, ctx);
  run.steps(5);
  std::vector<nlohmann::json> log = log_of(folder / "run");
  std::erase_if(log, [](const nlohmann::json& entry) { return !entry.contains("validation_loss"); });
  REQUIRE(log.size() == 1);
  REQUIRE(log[0]["step"] == 5);
  REQUIRE(log[0]["validation_loss"] == run.trainer.validate(1));
  REQUIRE(list_checkpoints(folder / "run").size() == 1);
  REQUIRE(fs::exists(folder / ("run/" + checkpoint_name(5))));
  const std::string sample = sample_of(run.trainer.model, open_data(config.data), {0.8, 0, 4}, 33);
  REQUIRE(sample[0] == text[750]);
  REQUIRE(contains(out, "\nsample (temperature 0.8, seed 4):\n" + sample +
                            "\nfingerprint of the weights: " + run.trainer.fingerprint() + "\n"));
}

TEST_CASE("program: a device that is named is the device that runs", "[program]") {
  const std::string flags =
      "--data=bigram-backcopy --context=8 --layers=1 --hidden=12 --heads=2 --kv-heads=1 --head-dim=6 "
      "--ffn-hidden=16 --batch=2 --steps=2 --warmup=1 --val-batches=1 --sample-tokens=0 ";
  const std::string emulated = output_of(flags + "--device=emulated"), cpu = output_of(flags + "--device=cpu");
  INFO(emulated);
  REQUIRE(contains(emulated, "device     emulated\n"));
  REQUIRE(contains(cpu, "device     cpu, "));
  // The vocabulary is the data's: 64*12 + (2*12*12 + 2*6*12 + 2*6 + 3*16*12 + 2*12) + 12 parameters.
  for (const std::string& out : {cpu, emulated}) REQUIRE(contains(out, "model      1824 parameters, "));
  REQUIRE(fingerprint_of({0, emulated}) == fingerprint_of({0, cpu}));
  // The GPU's half is not in a build without nvcc; with it, no GPU may answer.
  for (const char* wanted : {"--device=cuda", "--matmul=cublas"}) {
    const std::string refused = output_of(flags + wanted);
    if (!contains(refused, "fingerprint")) REQUIRE(contains(refused, std::string("error: ") + wanted));
  }
}

TEST_CASE("program: --describe tells of the model that the same flags would train", "[program]") {
  const std::string text = output_of("--data=bigram-backcopy --params=900000 --describe");
  INFO(text);
  // 64 tokens: 64*128 + 4*(2*128*128 + 2*64*128 + 2*32 + 2*128) + 128 = 206208, and 1536 for a channel of the FFN.
  REQUIRE(contains(text, "--ffn-hidden=452 gives 900480, 480 more than the 900000 asked for"));
  REQUIRE(matches(text, "total +900,480\n").size() == 1);
  REQUIRE(matches(text, "model.embed_tokens.weight +\\[64,128\\] +8,192  decays\n").size() == 1);
}
