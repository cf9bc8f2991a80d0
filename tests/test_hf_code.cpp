// hf_code: models that no architecture of transformers is, exported with their code
// (training/models/modeling_gated.py). That it computes what ./train computes is held twice: tests/fixtures/models.json
// is what it computed in float64, which tests/test_fixtures.cpp compares with; and where transformers is installed it
// opens what is exported here.
#include <map>
#include <set>

#include "tests/fixture_models.h"
#include "tests/hf_folder.h"
#include "tests/refusal.h"
#include "training/models/hf_config.h"
#include "training/models/hf_model.h"

using namespace gated;

namespace {

const std::string code_path = "training/models/modeling_gated.py";

// A model of tests/small_models.h as --export has it, without what its routers' losses add to gradients.
Config small_config(const std::string& flags) {
  Config c;
  c.model = small_model(flags);
  c.vocab = c.model.vocab;
  c.model.moe.balance = c.model.moe.z = c.model.dropout = 0;
  c.export_as = ExportAs::code;
  return c;
}

void write_model(const std::string& folder, const Config& c, const Model& model) {
  const std::vector<float> flat = fixture_weights(model);
  export_hf_folder(
      folder, c, [&](float* to) { std::copy(flat.begin(), flat.end(), to); }, false);
}

}  // namespace

TEST_CASE("hf_code: every flag of a model is read by the code, and every flag that it reads is one", "[hf]") {
  const std::string code = contents(code_path);
  REQUIRE(count(code, "\n") <= 400);
  const json flags = write_hf_config(small_config("")).json.at("flags");
  for (const auto& [name, value] : flags.items()) {
    INFO(name);
    REQUIRE(contains(code, "\"" + name + "\""));
  }
  const auto read = matches(code, "\\bf(?:\\[|\\.get\\()[\"']([a-z-]+)[\"'][\\])]");
  REQUIRE(read.size() > 50);
  for (const auto& flag : read) {
    INFO(flag[1]);
    REQUIRE(flags.contains(flag[1]));
  }
}

TEST_CASE("hf_code: the tensors of a model are the parameters of its code, and come back", "[hf]") {
  const json fixtures = read_fixtures("models.json");
  INFO(code_path << " has changed: run scripts/make_fixtures.py again");
  REQUIRE(fixtures.at("formulas") == format("%016lx", fnv1a(contents(code_path))));
  const Folder f;
  for (const json& fixture : fixtures.at("models")) {
    const std::string line = fixture.at("flags");
    INFO(line);
    const Config c = small_config(line);
    std::set<std::string> shapes;
    for (const HfTensor& t : hf_tensors(HfArchitecture::code, c.model)) shapes.insert(t.name + shape_text(t.shape));
    std::string all;
    for (const std::string& shape : shapes) all += shape + "\n";
    REQUIRE(fixture.at("parameters") == format("%016lx", fnv1a(all)));

    const Model model(c.model);
    fs::remove_all(f / "out");
    write_model(f / "out", c, model);
    REQUIRE(f.run("LC_ALL=C ls out").text == "config.json\nmodel.safetensors\nmodeling_gated.py\n");
    REQUIRE(contents(f / "out/modeling_gated.py") == contents(code_path));
    const Config back = config_of_flags("--from=" + (f / "out"));
    std::vector<float> weights(model.weights.flat_size());
    back.source->require_fit(back.model);
    back.source->read(back.model, model.weights.list(), weights.data());
    REQUIRE(weights == fixture_weights(model));
  }
}

TEST_CASE("hf_code: what transformers has goes there, unless code is asked for; other models take their code along",
          "[hf]") {
  const auto written = [](const std::string& line, const std::string& as) {
    Config c = config_of_flags(line);
    c.export_as = as == "code" ? ExportAs::code : as == "auto" ? ExportAs::automatic : ExportAs::architecture;
    return write_hf_config(c);
  };
  for (const char* as : {"auto", "architecture"}) REQUIRE(written("", as).json.at("model_type") == "qwen3");
  REQUIRE(written("", "code").architecture == HfArchitecture::code);
  for (const char* line : {"--norm=gated", "--attn=g1", "--attn=g2", "--head-experts=3", "--norm=dyt", "--window=4"}) {
    INFO(line);
    const HfConfig code = written(line, "auto");
    REQUIRE(code.json.at("model_type") == "gated");
    REQUIRE(code.json.at("auto_map").at("AutoModelForCausalLM") == "modeling_gated.GatedForCausalLM");
    REQUIRE(contains(code.note, "trust_remote_code=True"));
  }
  // Their authors' code opens what transformers' Qwen3 would read without its gates.
  const HfConfig released = written("--attn=g1", "architecture");
  REQUIRE(released.json.at("model_type") == "qwen3");
  REQUIRE(contains(released.note, "github.com/qiuzh20/gated_attention"));
}

TEST_CASE("hf_code: a configuration that names no flag, or not all, is refused with the key", "[hf]") {
  const json whole = write_hf_config(small_config("--norm=gated --norm-rank=3")).json;
  const auto refused = [&](const std::function<void(json&)>& change) {
    json changed = whole;
    change(changed);
    return refusal([&] { read_hf_config("config.json", changed); });
  };
  REQUIRE(refused([](json&) {}) == "");
  REQUIRE(says(refused([](json& j) { j.erase("flags"); }), {"config.json: \"flags\" is not there"}));
  REQUIRE(says(refused([](json& j) { j["flags"].erase("norm"); }), {"flags: \"norm\" is not there"}));
  REQUIRE(says(refused([](json& j) { j["flags"]["out"] = "x"; }), {"flags: \"out\" is \"x\"", "no flag of this name"}));
  REQUIRE(says(refused([](json& j) { j["flags"]["norm"] = "batch"; }), {"--norm=batch"}));
  REQUIRE(says(refused([](json& j) { j["flags"]["norm"] = "a\nb"; }), {"\"norm\" is", "the value of a flag"}));
  REQUIRE(says(refused([](json& j) { j["flags"]["heads"] = json::array(); }), {"\"heads\" is"}));
  REQUIRE(says(refused([](json& j) { j["flags"]["heads"] = nullptr; }), {"\"heads\" is"}));
  REQUIRE(says(refused([](json& j) { j["flags"]["layers"] = true; }), {"--layers=on"}));
}

// Where transformers is not installed, what its side computes stands in the fixtures alone.
TEST_CASE("hf_code: transformers opens every model, with the same loss, gradients and greedy tokens", "[hf]") {
  const std::string python = transformers_python();
  if (python.empty()) return;
  const Folder f;
  const size_t T = 7, prompt = 3;
  const std::vector<int> ids = tokens_of("ids", T + 1, 37);
  std::string command = "OMP_NUM_THREADS=1 HF_HOME=cache " + python + " {repo}/scripts/open_export.py --train ";
  for (size_t i = 0; i < ids.size(); i++) command += (i ? "," : "") + std::to_string(ids[i]);
  for (size_t i = 0; i < small_models().size(); i++) {
    const Config c = small_config(small_models()[i]);
    write_model(f / ("out" + std::to_string(i)), c, Model(c.model));
    command += " out" + std::to_string(i);
  }
  const std::vector<std::string> lines = lines_of(f.done(command + " 2>errors || { cat errors; false; }"));
  Context ctx(Device::cpu);
  for (size_t i = 0; i < small_models().size(); i++) {
    INFO(small_models()[i]);
    const json theirs = json::parse(lines.at(i));
    REQUIRE(theirs.at("model") == "GatedForCausalLM");

    const Config c = small_config(small_models()[i]);
    Model model(c.model, 1, T, 1, ctx);
    model.weights.values.upload(fixture_weights(model));
    model.weights_changed();
    const std::vector<int> inputs(ids.begin(), ids.end() - 1), targets(ids.begin() + 1, ids.end());
    const float loss = forward_backward(model, {inputs, targets, 1, T}, ctx);
    REQUIRE(std::abs(loss - float(theirs.at("loss"))) <= 2e-6f * loss);
    const auto ours = by_name(model.weights, model.weights.grads);
    std::map<std::string, std::vector<float>> gradients;
    float largest = 0;
    for (const auto& [name, t] : tensors_in(f / ("out" + std::to_string(i) + "/gradients.safetensors")))
      for (const float g : gradients[name] = floats_in(t)) largest = std::max(largest, std::abs(g));
    REQUIRE(gradients.size() == ours.size());
    for (const auto& [name, here] : ours) {
      INFO(name);
      const std::vector<float>& there = gradients.at(name);
      REQUIRE(there.size() == here.size());
      // (sums in float32: one that nearly cancels has the rounding of what it is made of)
      float error = 0, size = largest / 100;
      for (size_t i = 0; i < here.size(); i++) {
        error = std::max(error, std::abs(here[i] - there[i]));
        size = std::max(size, std::abs(there[i]));
      }
      REQUIRE(error <= 5e-5f * size);
    }
    std::vector<int> greedy(ids.begin(), ids.begin() + prompt);
    while (greedy.size() < T) {
      const std::vector<float> logits = model.next_token_logits(greedy);
      greedy.push_back(int(std::max_element(logits.begin(), logits.end()) - logits.begin()));
    }
    REQUIRE(theirs.at("tokens") == greedy);
  }
}
