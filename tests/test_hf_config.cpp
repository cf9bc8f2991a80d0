// hf_config: config.json of transformers into flags, and back.
#include "training/models/hf_config.h"

#include "tests/fixtures.h"
#include "tests/refusal.h"
#include "tests/script.h"
#include "training/flags/command_line.h"
#include "training/flags/match_params.h"

using namespace gated;

namespace {

// Models that are known by name: their sizes, as their config.json says them, and how many parameters transformers
// counts.
json published(const std::string& name) {
  static const json all = read_fixtures("published_configs.json");
  for (const json& model : all)
    if (model.at("name") == name) return model.at("config");
  fail("no model %s", name.c_str());
}

std::string unread(const std::string& config) {
  return refusal([&] { read_hf_config("config.json", json::parse(config)); });
}

// The refusal of --export for a line of flags.
std::string unwritten(const std::string& line) {
  return refusal([&] {
    Config c = config_of_flags(line);
    c.export_as = ExportAs::architecture;
    write_hf_config(c);
  });
}

}  // namespace

TEST_CASE("hf_config: published models have the published number of parameters", "[hf]") {
  const Folder f;
  for (const json& p : read_fixtures("published_configs.json")) {
    INFO(p.at("name"));
    f.write("config.json", p.at("config").dump());
    Config c = config_of_flags("--describe --from=" + (f / "config.json"));
    REQUIRE(total_parameters(c.model) == p.at("parameters"));
    // What is written says the same of every flag.
    const HfConfig written = write_hf_config(c);
    REQUIRE(written.json.at("model_type") == p.at("config").at("model_type"));
    REQUIRE(written.note == "");
    f.write("config.json", written.json.dump());
    Config back = config_of_flags("--describe --from=" + (f / "config.json"));
    REQUIRE(changed_flags_text(back) == changed_flags_text(c));
  }
  // The whole way, by the program.
  f.write("config.json", published("Qwen3-0.6B").dump());
  REQUIRE(says(f.done("{repo}/train --describe --from=config.json --context=2048"),
               {"596,049,920", "--layers=28", "--context=2048"}));
  REQUIRE(f.run("{repo}/train --from=config.json").text ==
          "error: --from=config.json: a config.json holds no weights: add --describe, or name the folder that "
          "it stands in\n");
}

// Rows of tests/fixtures/changed_configs.json: a published model, the keys that are changed, or with null taken out,
// and what is then said; nothing where the model is read.
TEST_CASE("hf_config: what no flag says is refused with its key", "[hf]") {
  const auto said = [](json config, const json& changes, const std::string& part) {
    INFO(changes);
    config.merge_patch(changes);
    const std::string message = unread(config.dump());
    CHECK((part.empty() ? message.empty() : one_line(message, {"config.json: ", part})));
  };
  for (const json& row : read_fixtures("changed_configs.json")) said(published(row[0]), row[1], row[2]);
  said({}, json::object(), "\"model_type\" is not there");
  // Of layers' kinds: every third, and every fourth.
  const auto kinds = [](size_t layers, size_t every, const char* others) {
    json list;
    for (size_t i = 1; i <= layers; i++) list.push_back(i % every == 0 ? "full_attention" : others);
    return list;
  };
  const json next = published("Qwen3-Next-80B-A3B"), thirds = kinds(48, 3, "linear_attention");
  said(next, {{"layer_types", thirds}, {"full_attention_interval", 3}}, "");
  said(next, {{"layer_types", thirds}, {"full_attention_interval", 4}},
       "\"full_attention_interval\" is \"4\", expected 3, as \"layer_types\" says");
  // (transformers' own Gemma 3 takes its layers' kinds, and keeps whatever pattern is beside them.)
  said(published("Gemma-3-1B"), {{"sliding_window_pattern", 6}, {"layer_types", kinds(26, 4, "sliding_attention")}},
       "");
}

TEST_CASE("hf_config: flags that no architecture has are refused by name", "[hf]") {
  for (const char* line :
       {"", "--tied=off --attn-bias=all", "--qk-norm=off --attn-bias=qkv", "--qk-norm=off --ffn-bias",
        "--experts=4 --dense-layers=1", "--preset=gpt2-124m", "--preset=gpt2-124m --gelu=erf --tied=off", "--attn=g1",
        "--attn=g1 --gate=headwise", "--init=depth-scaled", "--dropout=0.1 --norm-eps=1e-5",
        "--norm-weight=zero-centred --attn=g1 --mixer=hybrid --rope-fraction=0.25",
        "--norm-weight=zero-centred --mixer=gated-delta --experts=4 --shared-experts=2",
        "--qk-norm=off --rope-scaling=llama3,8,40,2,5", "--rope-scaling=linear,4",
        "--rope-scaling=yarn-unrounded,4,40",
        // Gemma 3, of fewer layers than its pattern has, so that none sees all.
        "--norm-weight=zero-centred --norm-placement=sandwich --ffn=geglu --gelu=tanh --hidden=64 --embedding-factor=8 "
        "--window=4 --window-layers=not-nth --layers=4"}) {
    INFO(line);
    REQUIRE(unwritten(line) == "");
  }
  for (const std::string line :
       {"--embedding-factor=3", "--window=4", "--norm=gated", "--attn=g2", "--norm-placement=post", "--ffn=polynorm",
        "--attn-score=sigmoid", "--clip-residual=10", "--residual=off", "--preset=gpt2-124m --head-dim=32",
        "--head-experts=2", "--attn=g1 --gate-act=silu"})
    REQUIRE(says(unwritten(line), {"--export-as=architecture: none of transformers has " + words_of(line).back()}));
  REQUIRE(one_line(unwritten("--position=none --heads=3 --kv-heads=3 --head-dim=5"),
                   {"--export-as=architecture: none of transformers has a model of these sizes; leave"}));
}

TEST_CASE("hf_config: what the fuzzer starts from is read, or refused in one line", "[hf]") {
  size_t read = 0, refused = 0;
  for (const auto& entry : fs::directory_iterator("tests/corpus/hf_config")) {
    INFO(entry.path());
    const std::string message = unread(contents(entry.path()));
    REQUIRE(!contains(message, "\n"));
    (message.empty() ? read : refused)++;
  }
  REQUIRE((read >= 18 && refused >= 2));
}
