// describe: sizes of the presets as published, the listing, and the FFN width that matches a number of parameters.
#include "training/describe.h"

#include <map>

#include "layers/model.h"
#include "tests/contents.h"
#include "tests/small_models.h"
#include "training/flags/match_params.h"
#include "training/memory.h"

using namespace gated;

namespace {

size_t total(const std::string& flags) {
  return total_parameters(model_of_flags(flags));
}

}  // namespace

TEST_CASE("describe: flags after a preset change it, before or after its name", "[describe]") {
  REQUIRE(model_of_flags("--preset=gpt2-124m --layers=3").layers == 3);
  REQUIRE(model_of_flags("--layers=3 --preset=gpt2-124m").layers == 3);
  REQUIRE(model_of_flags("--preset=gpt2-124m --ffn=swiglu --norm=rmsnorm").ffn.kind == FfnKind::swiglu);
  REQUIRE_THROWS_AS(model_of_flags("--preset=gpt3"), Error);
}

TEST_CASE("describe: --match-params changes this run's own model", "[describe]") {
  const Config run = config_of_flags("--preset=p2-2b --attn=g1 --norm=gated");
  REQUIRE(total_parameters(with_flags(run, "--attn=full --norm=rmsnorm")) == total("--preset=p2-2b"));
  REQUIRE(with_flags(run, "--layers=3").layers == 3);
  for (const char* line : {"--device=cuda", "--help", "--layers", "attn"})
    REQUIRE_THROWS_AS(with_flags(run, line), Error);
}

TEST_CASE("describe: the width that matches a number of parameters is the nearest", "[describe]") {
  const ModelConfig g1 = model_of_flags("--attn=g1 --norm=gated");
  const size_t wanted = total("");
  const MatchedWidth m = match_ffn_width(g1, wanted);
  REQUIRE(m.ffn_hidden < g1.ffn.F);
  auto distance = [&](size_t width) {
    ModelConfig c = g1;
    c.ffn.F = width;
    const size_t n = total_parameters(c);
    return n > wanted ? n - wanted : wanted - n;
  };
  REQUIRE(distance(m.ffn_hidden) <= distance(m.ffn_hidden + 1));
  REQUIRE(distance(m.ffn_hidden) <= distance(m.ffn_hidden - 1));
  REQUIRE(match_ffn_width(model_of_flags(""), wanted).ffn_hidden == ModelConfig{}.ffn.F);
  // P1's 48 layers: the width nearest to the total of 28.
  const ModelConfig deep = model_of_flags("--preset=p1-1.7b-48l");
  REQUIRE(match_ffn_width(deep, total("--preset=p1-1.7b-28l")).ffn_hidden == deep.ffn.F);
  REQUIRE_THROWS_AS(match_ffn_width(g1, 1000), Error);
}

TEST_CASE("describe: what is printed adds up, for every variant", "[describe]") {
  std::vector<std::string> lines = small_models();
  for (const char* flags : {"", " --dropout=0.1", " --experts=4 --norm-placement=post"})
    for (const char* recompute : {"--recompute=light", "--recompute=full"})
      lines.push_back(std::string(recompute) + " --layers=5" + flags);
  for (const std::string& flags : lines) {
    INFO(flags);
    Config config;
    config.model = small_model(flags);
    const std::string text = describe(config);
    Model model(config.model);
    REQUIRE(contains(text, with_commas(model.weights.total()) + "\n"));
    for (const Parameter& p : model.weights.list()) REQUIRE(contains(text, p.name + " "));
    // The memory it names is what a model that runs has taken.
    Context cpu(Device::cpu);
    Model real(config.model, config.batch, config.model.context, 1, cpu);
    const TrainingMemory memory = training_memory(config.model, config.batch, config.model.context, 1, Device::cpu);
    REQUIRE(memory.weights == real.weights.values.size() * sizeof(float));
    REQUIRE(memory.gradients == real.weights.grads.size() * sizeof(float));
    REQUIRE(memory.activations + memory.between == real.allocated_bytes());
    REQUIRE(contains(text, format("total              %12.1f\n", double(memory.total()) / 1048576.0)));
  }
}

TEST_CASE("describe: which weights decay, the sums of the parts, FLOPs and memory as the flags say",
          "[describe][bitwise]") {
  const char* const flags =
      "--norm=gated --attn=g1 --tied=off --attn-bias=all --micro-batches=3 --batch=5 --context=20 --device=";
  for (const char* device : {"cpu", "emulated"}) {
    const Config config = config_of_flags(std::string(flags) + device);
    const std::string text = describe(config);
    INFO(text);
    Model model(config.model);
    std::map<std::string, size_t> parts;
    for (const Parameter& p : model.weights.list()) {
      const std::string line = " " + between(text, "  " + p.name + " ");
      INFO(line);
      REQUIRE(line.ends_with("  decays") == (p.shape.size() == 2));  // matrices
      REQUIRE(contains(line, " " + with_commas(p.size) + " "));
      // The word behind the number of model.layers.3.mlp..., or the first two of any other.
      const auto part = matches(p.name, "^(?:model\\.layers\\.\\d+\\.(\\w+)|\\w+\\.\\w+)").at(0);
      parts[part[1].empty() ? part[0] : part[1]] += p.size;
    }
    size_t total = 0;
    for (const auto& [part, size] : parts) {
      REQUIRE(contains(text, format("  %-58s %31s\n", part.c_str(), with_commas(size).c_str())));
      total += size;
    }
    REQUIRE(contains(text, format("  %-58s %31s\n", "total", with_commas(total).c_str())));

    REQUIRE(contains(text, "for 5 sequences of 20 tokens (100 tokens)"));
    // Of a layer: q, o and the gate 128*128, k and v 64*128, the FFN 3*128*384; nine GatedNorms of 2*16*128; the output
    // matrix.
    const size_t products = 4 * (3 * 128 * 128 + 2 * 64 * 128 + 3 * 128 * 384) + 9 * 2 * 16 * 128 + 256 * 128;
    REQUIRE(contains(text, format("FLOPs a token, training          %.4g (6 x %s weights of matrix products",
                                  6.0 * double(products) + 12.0 * 128 * 10 * 4, with_commas(products).c_str())));
    const TrainingMemory memory =
        training_memory(config.model, 5, 20, 3, std::string(device) == "cpu" ? Device::cpu : kernel_device);
    const std::string numbers = text.substr(text.find("memory, MiB"));
    for (auto [name, bytes] : {std::pair{"weights", memory.weights},
                               {"gradients", 2 * memory.weights},  // and their sum over micro-batches
                               {"optimizer", 2 * memory.weights},
                               {"activations", memory.activations},
                               {"scratch", memory.scratch},
                               {"total", memory.total()}})
      REQUIRE(contains(numbers, format("%-18s %12.1f\n", name, double(bytes) / 1048576.0)));
  }
}

// GPT-2 124M has 124,439,808 numbers, 474.70 MiB, in 7596 chunks of 16384. The embedding and its positions have 2404 of
// them, a layer 432 or, eight times, 433. A bucket has 64 at most: 37 and one of 36; 6 and one of 48 or 49. Of four
// ranks the last owns 37 * 16 + 9 + 12 * (6 * 16 + 12) + 8 = 1905, of which the last has 3328 numbers: 119.01 MiB.
TEST_CASE("describe: what one of several ranks holds and sends, by numbers made by hand", "[describe]") {
  const std::string text = describe(config_of_flags("--preset=gpt2-124m --micro-batches=8 --ranks=4 --describe"));
  const std::string numbers = text.substr(text.find("memory of a\nrank, MiB"));
  INFO(numbers);
  REQUIRE(contains(numbers, format("%-18s %12.1f\n", "gradients", 609.7)));  // whole, its own sum, four pieces of 4 MiB
  REQUIRE(contains(numbers, format("%-18s %12.1f\n", "optimizer", 238.0)));  // two moments of its own part
  REQUIRE(contains(numbers, "sent by a rank, MiB a step, of 4 ranks\n"));
  // Eight slices are two rounds: each time all but its own quarter. Of the weights a quarter to three others.
  REQUIRE(contains(numbers, format("  %-58s %31.1f\n", "gradients, 2 rounds, to their owners", 712.1)));
  REQUIRE(contains(numbers, format("  %-58s %31.1f\n", "weights, from their owner, to the others", 356.0)));
  // To each of three others, twice the gradients and once the weights of 38 + 12 * 7 buckets.
  REQUIRE(contains(numbers, format("  %-58s %31s\n", "messages, of at most 1024 KiB", "1,098")));
  REQUIRE(contains(numbers, format("  %-58s %30.1f%%\n", "of both, behind compute: all but the embedding", 68.3)));

  // In bf16 copies of all, its own part of the masters, and what is read in fp32: of a layer 4 * 768 numbers of norms,
  // 4 * 768 and 5 * 768 of biases, at the end 2 * 768: 0.46 MiB. Copies and these travel.
  const std::string narrow =
      between(describe(config_of_flags("--preset=gpt2-124m --precision=bf16 --micro-batches=8 --ranks=4 --describe")),
              "memory of a\nrank, MiB", "behind compute");
  INFO(narrow);
  REQUIRE(contains(narrow, format("%-18s %12.1f\n", "weights", 356.8)));
  REQUIRE(contains(narrow, format("  %-58s %31.1f\n", "weights, from their owner, to the others", 178.4)));
}

TEST_CASE("describe: activations with each value of --recompute, and which are cheap", "[describe]") {
  const auto described = [](const std::string& flags) {
    return describe(config_of_flags("--context=64 --ffn=swiglu " + flags));
  };
  const auto line_of = [](const std::string& text, const std::string& begin) { return begin + between(text, begin); };
  std::string line;
  for (const char* name : {"none", "light", "full"}) {
    const std::string flags = format("--recompute=%s", name), text = described(flags);
    const Config config = config_of_flags("--context=64 " + flags);
    const size_t bytes = training_memory(config.model, config.batch, 64, 1, Device::cpu).activations;
    if (line.empty()) line = line_of(text, "activations, MiB, with --recompute");
    REQUIRE(line_of(text, "activations, MiB, with --recompute") == line);
    REQUIRE(contains((line + ","), format(" %s %.1f,", name, double(bytes) / 1048576.0)));
    REQUIRE(contains(text, format("activations        %12.1f\n", double(bytes) / 1048576.0)));
    REQUIRE(line_of(text, "FLOPs a token") == line_of(described(""), "FLOPs a token"));
    REQUIRE(line_of(text, "  mlp: activation ").ends_with(" cheap"));
    REQUIRE(!line_of(text, "  mlp: up ").ends_with(" cheap"));
  }
}

TEST_CASE("describe: numbers are grouped by thousands", "[describe]") {
  for (const auto& [n, text] : {std::pair(1, "1"), {999, "999"}, {1000, "1,000"}, {1234567, "1,234,567"}})
    REQUIRE(with_commas(size_t(n)) == text);
}
