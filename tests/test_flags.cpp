// flags: the table, the command line, the schedule, and that the README's flag map is the table's.
#include <fstream>
#include <sstream>

#include "tests/compare.h"
#include "training/command_line.h"

using namespace gated;

namespace {

// "" when accepted, else the refusal.
std::string parse(Config& config, std::vector<std::string> words) {
  std::vector<char*> argv = {const_cast<char*>("train")};
  for (std::string& w : words) argv.push_back(w.data());
  try {
    parse_command_line(config, int(argv.size()), argv.data());
    return "";
  } catch (const Error& e) {
    return e.what();
  }
}
std::string parse(std::vector<std::string> words) {
  Config config;
  return parse(config, std::move(words));
}
bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("flags: every flag reads back what it prints, and every named value is accepted", "[flags]") {
  Config config;
  const std::vector<Flag> flags = list_flags(config);
  for (const Flag& f : flags) {
    INFO(f.name);
    REQUIRE(!f.help.empty());
    if (f.is_switch) continue;
    const std::string before = f.get();
    f.set(before);
    REQUIRE(f.get() == before);
    for (const auto& choice : f.choices) {
      INFO(choice.value);
      f.set(choice.value);
      REQUIRE(f.get() == choice.value);
      REQUIRE(std::ifstream(choice.file).good());  // the file that implements it is there
    }
    f.set(before);
  }
}

TEST_CASE("flags: values arrive", "[flags]") {
  Config c;
  REQUIRE(parse(c, {"--norm=gated", "--norm-rank=8", "--attn=g1", "--gate=headwise", "--ffn=glu", "--tied=off",
                    "--qk-norm=off", "--lr=0.5", "--min-lr=0.25", "--warmup=3", "--steps=10",
                    "--seed=18446744073709551615", "--out=x", "--resume"}) == "");
  REQUIRE((c.model.norm.kind == NormKind::gated && c.model.norm.gate.rank == 8 &&
           c.model.attention.gate_at == GatePosition::g1));
  REQUIRE((c.model.attention.gate.score == GateScore::headwise && c.model.ffn.kind == FfnKind::glu && !c.model.tied &&
           !c.model.attention.qk_norm));
  REQUIRE((c.schedule.peak == 0.5f && c.schedule.final == 0.25f && c.schedule.warmup == 3 && c.schedule.steps == 10));
  REQUIRE((c.seed == UINT64_MAX && c.data.seed == UINT64_MAX && c.out == "x" && c.resume));
}

TEST_CASE("flags: what is wrong is refused by name", "[flags]") {
  REQUIRE(contains(parse({"--nrom=gated"}), "--nrom"));
  REQUIRE(contains(parse({"--norm=batch"}), "--norm=batch: expected rmsnorm | layernorm"));
  for (const char* bad : {"--layers=0", "--layers=-1", "--layers=2x", "--layers=", "--layers=99999999999999999999",
                          "--lr=nan", "--lr=inf", "--lr=-1", "--head-dim=257", "--clip=0", "--temperature=-1",
                          "--beta2=1", "--device=tpu", "--precision=bf16"}) {
    INFO(bad);
    const std::string word = bad, message = parse({word});
    REQUIRE(contains(message, word.substr(0, word.find('='))));
    REQUIRE(!contains(message, "\n"));
  }
  REQUIRE(parse({"stray"}) != "");
  REQUIRE(parse({"--steps"}) != "");
  REQUIRE(contains(parse({"--gate=headwise"}), "--attn=g1"));
  REQUIRE(contains(parse({"--norm-rank=8"}), "--norm=gated"));
  REQUIRE(contains(parse({"--resume"}), "--out"));
  REQUIRE(contains(parse({"--keep=3"}), "--out"));
  REQUIRE(contains(parse({"--val-data=a", "--val-fraction=0.2"}), "--val-fraction"));
  REQUIRE(contains(parse({"--lr=1e-4", "--min-lr=1e-3"}), "--min-lr"));
  REQUIRE(contains(parse({"--steps=5", "--warmup=6"}), "--warmup"));
  REQUIRE(parse({"--steps=5"}) == "");  // the default warm-up gives way
  REQUIRE(parse({"--lr=1e-4"}) == "");  // and the default final rate
  REQUIRE(contains(parse({"--attn=g1", "--gate-shared=maybe"}), "--gate-shared=maybe"));
  REQUIRE(contains(parse({"--norm=dyt", "--qk-norm=off", "--norm-eps=1e-4"}), "--norm-eps"));
  REQUIRE(contains(parse({"--data=bigram-backcopy", "--val-fraction=0.2"}), "--val-fraction"));
  REQUIRE(contains(parse({"--params=5", "--ffn-hidden=7"}), "--ffn-hidden"));
  REQUIRE(contains(parse({"--heads=6", "--kv-heads=4"}), "--kv-heads=4"));
}

TEST_CASE("flags: a switch is on when named, and takes on or off", "[flags]") {
  for (auto [word, on] : {std::pair{"--gate-shared", true}, {"--gate-shared=on", true}, {"--gate-shared=off", false}}) {
    Config c;
    INFO(word);
    REQUIRE(parse(c, {"--attn=g1", word}) == "");
    REQUIRE(c.model.attention.gate.shared == on);
  }
}

TEST_CASE("schedule: warm-up is a line, then a cosine falls to the final rate", "[flags]") {
  const Schedule s = {1.0f, 0.1f, 10, 110};
  REQUIRE(s.at(1) == 0.1f);
  REQUIRE(s.at(10) == 1.0f);
  REQUIRE(s.at(60) == Approx(0.55));
  REQUIRE(s.at(110) == 0.1f);
  for (size_t step = 11; step <= 110; step++) REQUIRE(s.at(step) < s.at(step - 1));
  const Schedule no_cosine = {1.0f, 0.1f, 5, 5}, no_warmup = {1.0f, 0.0f, 0, 2};
  REQUIRE(no_cosine.at(5) == 1.0f);
  REQUIRE(no_warmup.at(1) == 0.5f);
}

TEST_CASE("flags: the README's flag map is the table's", "[readme]") {
  std::ifstream file("README.md");
  std::stringstream readme;
  readme << file.rdbuf();
  INFO("paste the output of ./train --flag-map into README.md");
  REQUIRE(contains(readme.str(), flag_map_markdown()));
}

TEST_CASE("flags: every line of flags in the README's tables of the papers is accepted", "[readme]") {
  std::ifstream file("README.md");
  std::stringstream all;
  all << file.rdbuf();
  const std::string readme = all.str();
  const size_t begin = readme.find("## The papers' tables"), end = readme.find("\n## ", begin + 1);
  REQUIRE((begin != std::string::npos && end != std::string::npos));
  size_t lines = 0;
  for (size_t at = begin; (at = readme.find("`--", at + 1)) < end; lines++) {
    const std::string line = readme.substr(at + 1, readme.find('`', at + 1) - at - 1);
    if (line.find("=") == std::string::npos || line.find("'") != std::string::npos)
      continue;  // a name, a shell's quotes
    INFO(line);
    std::istringstream words(line);
    std::vector<std::string> list;
    for (std::string w; words >> w;) list.push_back(w);
    REQUIRE(parse(list) == "");
  }
  REQUIRE(lines > 40);
}
