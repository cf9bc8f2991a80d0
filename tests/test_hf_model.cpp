// hf_model: folders of transformers read and written. tests/fixtures/hf_models.json, made by scripts/make_models.py,
// says what transformers' own models compute with weights that both sides make.
#include <sys/file.h>

#include "tests/fixture_models.h"
#include "tests/hf_folder.h"
#include "tests/refusal.h"
#include "training/checkpoint/checkpoint.h"
#include "training/models/hf_config.h"
#include "training/models/hf_model.h"
#include "training/models/hf_weights.h"

using namespace gated;

namespace {

// The tensors of a fixture's model.
TensorMap tensors_of(const json& fixture) {
  return gated::tensors_of(fixture, [](const std::string& name, size_t n, const json& t) {
    std::vector<float> x = values_of<float>(name, n, 0.25f);
    for (float& value : x) value += float(t.at("around"));
    return x;
  });
}

// The fixture of this name as a folder of transformers.
void write_model(const Folder& f, const std::string& name, const std::string& folder = "in") {
  write_folder(f, folder, hf_model(name).at("config"), tensors_of(hf_model(name)));
}

Config config_from(const std::string& folder, const std::string& more = "") {
  return config_of_flags("--from=" + folder + more);
}

// The weights of the model that --from names, in their flat order.
std::vector<float> weights_from(const Config& c) {
  const Model model(c.model);
  std::vector<float> flat(model.weights.flat_size());
  c.source->read(c.model, model.weights.list(), flat.data());
  return flat;
}

// After the last token.
std::vector<float> logits_of(const Config& c, const std::vector<int>& ids) {
  Context ctx(Device::cpu);
  Model model(c.model, 1, ids.size(), 1, ctx);
  model.weights.values.upload(weights_from(c));
  return model.next_token_logits(ids);
}

// Reads a folder of these tensors and writes it again: they have the same bytes, and the configuration says the same.
Config require_comes_back(const Folder& f, const json& config, const TensorMap& tensors, const std::string& more = "") {
  write_folder(f, "in", config, tensors);
  fs::remove_all(f / "out");
  const Config c = config_from(f / "in", " --export=" + (f / "out") + more);
  export_model(c);
  REQUIRE(tensors_in(f / "out/model.safetensors") == tensors);
  REQUIRE(folder_names(f / "out").size() == 2);
  REQUIRE(config_from(f / "out").source->flags() == c.source->flags());
  return c;
}

}  // namespace

TEST_CASE_METHOD(Folder, "hf_model: loss, logits and every gradient are those of transformers", "[fixtures]") {
  const Threads one(1);  // next to no work: waking a second thread costs more than it does
  for (const Device device : {Device::cpu, Device::emulated})
    for (const json& fixture : hf_models()) {
      INFO(fixture.at("name"));
      const json& config = fixture.at("config");
      write_folder(*this, "model", config, tensors_of(fixture));
      // (transformers' loss has not those of routers)
      const bool experts = config.value("num_experts", 0) + config.value("num_local_experts", 0) > 0;
      const Config c = config_from(path / "model", experts ? " --balance-loss=0 --z-loss=0" : "");
      Context ctx(device);
      Model model(c.model, 2, c.model.context, 1, ctx);
      model.weights.values.upload(weights_from(c));
      const auto got = results_of(model, ctx);
      const json& expected = fixture.at("results");
      for (const char* name : {"loss", "logits"}) require_near(name, expected.at(name), got.at(name), 1e-5);
      const auto architecture = read_hf_config("config.json", config).architecture;
      const std::vector<HfTensor> tensors = hf_tensors(architecture, c.model);
      REQUIRE(tensors.size() == expected.at("gradients").size());
      for (const HfTensor& t : tensors) {
        std::vector<float> x(count(t.shape), NAN);
        for (const Piece& piece : t.pieces) give_piece(piece, got.at(piece.parameter).data(), x.data());
        require_near(t.name, expected.at("gradients").at(t.name), x, 2e-5);
      }
    }
}

TEST_CASE_METHOD(Folder,
                 "hf_model: what is read and written again has the same bytes in every tensor, in fp32 and BF16",
                 "[hf]") {
  for (const json& fixture : hf_models()) {
    INFO(fixture.at("name"));
    TensorMap tensors = tensors_of(fixture);
    const bool released = std::string(fixture.at("name")).starts_with("released gates");
    const std::string as = released ? " --export-as=architecture" : "";
    require_comes_back(*this, fixture.at("config"), tensors, as);
    for (auto& [name, t] : tensors) t = {"BF16", t.shape, bytes_of(rounded(floats_in(t)))};
    require_comes_back(*this, fixture.at("config"), tensors, " --export-dtype=bf16" + as);
  }
}

TEST_CASE_METHOD(Folder, "hf_model: a shared expert may have any width", "[hf]") {
  json config = hf_model("qwen3_next").at("config");
  TensorMap tensors = tensors_of(hf_model("qwen3_next"));
  for (const size_t width : {1, 13, 17}) {
    INFO(width);
    config["shared_expert_intermediate_size"] = width;
    for (auto& [name, t] : tensors) {
      if (name.find("mlp.shared_expert.") == name.npos) continue;
      t.shape[name.ends_with("down_proj.weight") ? 1 : 0] = width;
      t.bytes = bytes_of(values_of<float>(name, count(t.shape), 0.25f));
    }
    REQUIRE(require_comes_back(*this, config, tensors).model.moe.shared_width() == width);
  }
  // Whatever an expert's width is.
  MoeConfig moe;
  for (moe.F = 1; moe.F < 200; moe.F++)
    for (size_t width = 1; width < 300; width++) {
      moe.shared = double(width) / double(moe.F);
      if (moe.shared_width() != width) FAIL(width << " of " << moe.F);
    }
}

TEST_CASE_METHOD(
    Folder, "hf_model: with a smaller --context GPT-2 has the first of its positions, and no others with a larger one",
    "[hf]") {
  const json& fixture = hf_model("gpt2");
  const TensorMap tensors = tensors_of(fixture);
  write_folder(*this, "in", fixture.at("config"), tensors);
  const Config whole = config_from(path / "in");
  const size_t all = whole.model.context, first = all - 2, C = whole.model.hidden;
  const auto with_context = [&](size_t context) {
    return config_from(path / "in", format(" --context=%zu --export=", context) + (*this / "out"));
  };
  const Config c = with_context(first);
  c.source->require_fit(c.model);
  REQUIRE(c.model.context == first);

  const std::vector<int> ids = tokens_of("ids", first, c.model.vocab);
  REQUIRE(logits_of(c, ids) == logits_of(whole, ids));

  export_model(c);
  TensorMap shorter = tensors;
  Tensor& positions = shorter.at("transformer.wpe.weight");
  positions.shape[0] = first;
  positions.bytes.resize(first * C * sizeof(float));
  REQUIRE(tensors_in(path / "out/model.safetensors") == shorter);
  REQUIRE(config_from(path / "out").model.context == first);

  const auto refused = [&](const Config& config) { return refusal([&] { config.source->require_fit(config.model); }); };
  REQUIRE(refused(with_context(all + 1)).find("wpe.weight") != std::string::npos);
  write_folder(*this, "in", fixture.at("config"), shorter);
  REQUIRE(refused(whole).empty());  // its source has opened the files that were there
  REQUIRE(refused(config_from(path / "in")).find("wpe.weight") != std::string::npos);

  // Where a model is looked at or generates.
  const auto looked_at = [&](size_t context, bool gives) {
    ModelConfig m = whole.model;
    m.context = context;
    return refusal([&] { set_trained_context(m, all, "a", gives); });
  };
  REQUIRE(looked_at(first, true).empty());
  REQUIRE(looked_at(all, false).empty());
  REQUIRE(looked_at(first, false).find("knows no others") != std::string::npos);
  REQUIRE(looked_at(all + 1, true).find("knows no others") != std::string::npos);
  REQUIRE(c.source->gives_first_positions());
}

TEST_CASE_METHOD(Folder, "hf_model: several files and their index are one model, F16 and old names too", "[hf]") {
  const json& fixture = hf_model("gpt2");
  const TensorMap tensors = tensors_of(fixture);
  write_folder(*this, "one", fixture.at("config"), tensors);
  const std::vector<float> expected = weights_from(config_from(path / "one"));

  // As GPT-2 was published: no name in front, masks beside the biases.
  TensorMap old = {{"h.0.attn.bias", {"F32", {1, 1, 2, 2}, std::string(16, '\0')}}};
  for (const auto& [name, t] : tensors) old[name.substr(name.find('.') + 1)] = t;
  write_folder(*this, "old", fixture.at("config"), old);
  REQUIRE(weights_from(config_from(path / "old")) == expected);

  // A tensor a file.
  json index = {{"metadata", {{"total_size", 1}}}, {"weight_map", json::object()}};
  write("many/config.json", fixture.at("config").dump());
  for (const auto& [name, t] : tensors) {
    const std::string file = format("model-%zu.safetensors", index["weight_map"].size());
    index["weight_map"][name] = file;
    write("many/" + file, safetensors_of({{name, t}}));
  }
  write("many/model.safetensors.index.json", index.dump());
  REQUIRE(weights_from(config_from(path / "many")) == expected);

  // 1, 2^-24 and -65504 in F16.
  TensorMap half = tensors;
  Tensor& ln = half.at("transformer.ln_f.bias");
  ln = {"F16", ln.shape,
        bytes_of(std::vector<uint16_t>{0x3c00, 0x0001, 0xfbff}) + std::string(2 * (ln.shape[0] - 3), '\0')};
  write_folder(*this, "half", fixture.at("config"), half);
  const Config c = config_from(path / "half");
  const std::vector<float> flat = weights_from(c);
  const Model model(c.model);
  for (const Parameter& p : model.weights.list())
    if (p.name == "model.norm.bias")
      REQUIRE(std::vector<float>(&flat[p.offset], &flat[p.offset] + 3) == std::vector<float>{1, 0x1p-24f, -65504});

  // A tied model may bring its output matrix, as long as it is the embedding.
  TensorMap head = tensors;
  head["lm_head.weight"] = head.at("transformer.wte.weight");
  write_folder(*this, "head", fixture.at("config"), head);
  REQUIRE(weights_from(config_from(path / "head")) == expected);
  head["lm_head.weight"].bytes[7] ^= 1;
  write_folder(*this, "head", fixture.at("config"), head);
  CHECK_REFUSED(weights_from(config_from(path / "head")),
                "tensor \"lm_head.weight\" is not the embedding, though the model is tied");
}

TEST_CASE_METHOD(Folder, "hf_model: a damaged or foreign folder is refused in one line that names what", "[hf]") {
  const json config = hf_model("qwen3").at("config");
  const TensorMap tensors = tensors_of(hf_model("qwen3"));
  const auto refused = [&](const std::string& named) {
    CHECK_REFUSED(weights_from(config_from(path / "in")), named);
    fs::remove_all(path / "in");
  };
  const auto changed = [&](const std::function<void(TensorMap&)>& change, const std::string& named) {
    TensorMap t = tensors;
    change(t);
    write_folder(*this, "in", config, t);
    refused(named);
  };
  const std::string norm = "model.layers.1.post_attention_layernorm.weight", its = "tensor \"" + norm + "\" is ";
  changed([&](TensorMap& t) { t.erase(norm); }, "no tensor \"" + norm + "\" among the 23 it holds");
  changed([&](TensorMap& t) { t["model.layers.2.x"] = t.at(norm); },
          "model.safetensors: tensor \"model.layers.2.x\" is none of this model");
  changed([&](TensorMap& t) { t.at(norm).shape = {4, 5}; }, its + "F32 [4,5], expected the shape [20]");
  const Tensor whole_numbers = {"I32", {20}, std::string(80, '\0')}, blocks = {"U8", {20}, std::string(20, '\0')};
  changed([&](TensorMap& t) { t.at(norm) = whole_numbers; }, its + "I32, expected F32, BF16 or F16");
  changed([&](TensorMap& t) { t.erase(norm), t[norm + "_blocks"] = blocks; }, its + "MXFP4");
  write_model(*this, "qwen3");
  fs::resize_file(path / "in/model.safetensors", 5000);
  refused("in/model.safetensors: ");
  json wide = config;
  wide["head_dim"] = 300;
  for (const auto& [text, named] :
       {std::pair<std::string, std::string>(config.dump(),
                                            "in: holds neither model.safetensors nor model.safetensors.index.json"),
        {R"({"model_type":"qwen3","model_type":"llama"})", "in/config.json: it has the key \"model_type\" twice"},
        {"[]", "in/config.json: it does not begin with '{'"},
        {R"({"a": tru})", "in/config.json: it is not valid JSON"},
        {wide.dump(), "--head-dim=300: expected at most 256"}}) {
    write("in/config.json", text);
    refused(named);
  }

  // A number that is none, among good ones, in each of the forms that weights have.
  const auto holding = [&](const char* dtype, const std::string& bytes, size_t at) {
    const auto put = [&](TensorMap& tensors) {
      Tensor& t = tensors.at("model.layers.1.mlp.up_proj.weight");
      if (dtype != t.dtype) t = {dtype, t.shape, std::string(gated::count(t.shape) * 2, '\1')};
      t.bytes.replace(at * bytes.size(), bytes.size(), bytes);
    };
    changed(put, format("tensor \"model.layers.1.mlp.up_proj.weight\" has %s as element %zu, expected numbers",
                        bytes.back() == '\x7f' ? "a NaN" : "an infinity", at));
  };
  for (const size_t at : {0, 5, 479}) {
    holding("F32", {0, 0, '\xc0', '\x7f'}, at);
    holding("F32", {0, 0, '\x80', '\xff'}, at);
    holding("BF16", {'\xc0', '\x7f'}, at);
    holding("BF16", {'\x80', '\xff'}, at);
    holding("F16", {1, '\x7f'}, at);
    holding("F16", {0, '\xfc'}, at);
  }

  // The index.
  const TensorMap none, one = {{norm, tensors.at(norm)}}, two = {{norm, tensors.at(norm)}, {"x", tensors.at(norm)}};
  const auto indexed = [&](const json& weight_map, const TensorMap& a, const TensorMap& b, const std::string& named) {
    write("in/config.json", config.dump());
    write("in/model.safetensors.index.json", json{{"weight_map", weight_map}}.dump());
    write("in/a.safetensors", safetensors_of(a));
    write("in/b.safetensors", safetensors_of(b));
    refused(named);
  };
  indexed({{norm, "../in/a.safetensors"}}, one, none,
          "is said to be in \"../in/a.safetensors\", expected a safetensors file of the same folder");
  indexed({{norm, "/etc/passwd"}}, one, none, "is said to be in \"/etc/passwd\"");
  indexed({{norm, 5}}, one, none, "the file of " + its + "not a string");
  indexed(json::object(), one, none, "no \"weight_map\"");
  indexed({{norm, "c.safetensors"}}, one, none, "in/c.safetensors: cannot open");
  indexed({{norm, "b.safetensors"}}, one, none, "index.json: " + its + "not in b.safetensors");
  indexed({{norm, "a.safetensors"}, {"x", "b.safetensors"}}, one, two, "in/b.safetensors: " + its + "in ");
  indexed({{norm, "a.safetensors"}}, two, none, "a.safetensors holds 2 tensors, of which the index names 1");
}

TEST_CASE_METHOD(Folder, "hf_model: an export overwrites nothing, and one that fails leaves nothing", "[hf]") {
  write_model(*this, "llama");
  const auto train = [&](const std::string& rest) { return run("{repo}/train --from=in " + rest); };
  const std::string before = read("in/model.safetensors");
  for (const auto& [flags, named] :
       {std::pair("--export=in", "--export=in: exists and holds something"),
        {"--export=in/config.json", "--export=in/config.json: exists and holds something"},
        {"--export=in/config.json/x", "--export=in/config.json/x: cannot create the folder"},
        {"--export-as=code", "--export-as needs --export=FOLDER"},
        {"--export=out --evaluate", "--export with --evaluate"},
        {"--export-dtype=bf16", "--export-dtype needs --export=FOLDER"}})
    require_refused_at_once(train(flags), named);
  REQUIRE(read("in/model.safetensors") == before);
  require_refused(train("--export=out --export-as=architecture --clip-output=3"),
                  "none of transformers has --clip-output=3");
  REQUIRE(run("{repo}/train --export=out").text ==
          "error: --export needs --from=FOLDER: the model that is written, or leave --export out\n");
  REQUIRE(run("ls").text == "in\n");
  run("mkdir out");
  REQUIRE(train("--export=out/").text == "wrote out/: config.json, and 7340 parameters in F32 in model.safetensors\n");
  REQUIRE(tensors_in(path / "out/model.safetensors") == tensors_in(path / "in/model.safetensors"));
  REQUIRE(run("ls").text == "in\nout\n");
}

TEST_CASE_METHOD(Folder, "hf_model: a name that an export could not get is refused before the work", "[hf]") {
  write_model(*this, "llama");
  run("mkdir empty here; ln -s empty link; ln -s nowhere dangling; ln -s loop loop; mkdir -m 0 closed");
  const std::string before = run("ls -A . empty here").text;
  const auto refused = [&](const std::string& name, const std::string& why) {
    for (const char* slash : {"", "/"}) {
      require_refused_at_once(run("cd here; {repo}/train --from=../in --export=" + name + slash),
                              "error: --export=" + name + slash + ": " + why);
      REQUIRE(run("ls -A . empty here").text == before);
    }
  };
  for (const char* link : {"../link", "../dangling", "../loop"}) refused(link, "is a symbolic link");
  for (const char* name : {".", "..", "../empty/.", "../new/.."}) refused(name, "expected the name of a folder");
  refused("../loop/x", "cannot create the folder: Too many levels");
  if (answers("unshare -Umr mount -t tmpfs none " + (*this / "empty"))) {
    const Said mounted = run("unshare -Umr sh -c 'mount -t tmpfs none empty; {repo}/train --from=in --export=empty'");
    require_refused_at_once(mounted, "error: --export=empty: cannot rename the folder: ");
  }
  // A folder that others are in can be renamed, and so taken.
  REQUIRE(contains(done("cd empty; {repo}/train --from=../in --export=\"$PWD\" && ls"),
                   "config.json\nmodel.safetensors\n"));
}

TEST_CASE_METHOD(
    Folder, "hf_model: a link that leads in a circle is refused by its name, wherever a file or folder may be named",
    "[hf]") {
  for (const char* folder : {"in", "one", "index"}) write_model(*this, "llama", folder);
  run("ln -s loop loop; rm one/model.safetensors index/model.safetensors; ln -s x one/x; ln -s x one/model.safetensors;"
      "ln -s model.safetensors.index.json index/model.safetensors.index.json; mkdir config run log; "
      "ln -s config.json config/config.json; ln -s step_00000001.safetensors run/step_00000001.safetensors; "
      "ln -s log.jsonl log/log.jsonl; cp -r in beside; ln -s tokenizer.json beside/tokenizer.json; echo loop >list");
  for (const auto& [flags, name] : refusals("links in a circle")) {
    INFO(flags);
    const Said said = run("{repo}/train --device=cpu " + flags);
    require_refused(said, "");
    REQUIRE(says(said.text, {name, "Too many levels of symbolic links"}));
    REQUIRE(!contains(said.text, "filesystem error"));
  }
  REQUIRE(contains(done("{repo}/train --from=beside --export=x"), "note: the tokenizer does not go along: "));
}

TEST_CASE_METHOD(Folder, "hf_model: what killed exports left goes with the next; what only looks so stays", "[hf]") {
  write_model(*this, "llama");
  run("mkdir out.tmp.7 out.tmp.8.2 out.tmp.9 out.tmp.10 out.tmp.old other.tmp.7 out.tmp.11; touch out.tmp.12;"
      "echo > out.tmp.7/model.safetensors.tmp.7; echo > out.tmp.8.2/config.json; echo > out.tmp.9/other;"
      "ln -s . out.tmp.10/config.json; echo > out.tmp.old/config.json; ln -s out.tmp.7 out.tmp.13");
  File living(path / "out.tmp.11", O_RDONLY | O_DIRECTORY);
  REQUIRE(::flock(living.descriptor(), LOCK_EX) == 0);
  const std::string kept = "in\nother.tmp.7\nout.tmp.10\nout.tmp.11\nout.tmp.12\nout.tmp.13\nout.tmp.9\nout.tmp.old\n";
  // One that has the number of the process itself is none of its own, also where the export fails.
  const auto in_the_way = [&](const std::string& rest) {
    return run("sh -c 'mkdir out.tmp.$$; echo mine >out.tmp.$$/mine; " + rest +
               " exec {repo}/train --from=in --export=out'; cat out.tmp.*/mine; rm -r $(dirname $(grep -l mine "
               "out.tmp.*/mine))");
  };
  REQUIRE(says(in_the_way("ulimit -f 4;").text, {"cannot write: File too large\nmine\n"}));
  REQUIRE(run("LC_ALL=C ls").text == kept);
  REQUIRE(says(in_the_way("").text, {"wrote out: ", "\nmine\n"}));
  REQUIRE(run("LC_ALL=C ls").text == "in\nother.tmp.7\nout\n" + kept.substr(kept.find("out.")));
  REQUIRE(run("ls out").text == "config.json\nmodel.safetensors\n");
}

TEST_CASE_METHOD(Folder, "hf_model: an export does not round a weight to infinity", "[hf]") {
  write_model(*this, "llama");
  const Config c = config_from(path / "in");
  const Model model(c.model);
  const auto fill = [&](float x) {
    return [&model, x](float* flat) { std::fill_n(flat, model.weights.flat_size(), x); };
  };
  const std::string largest =
      refusal([&] { export_hf_folder(path / "out", c, fill(3.4028e38f), true); });  // nearer to 2^128
  REQUIRE(contains(largest, "element 0 of model.embed_tokens.weight is 3.4028e+38, which rounds to infinity"));
  REQUIRE(!std::filesystem::exists(path / "out"));
  export_hf_folder(path / "out", c, fill(3.38e38f), true);
}

// Where transformers is not installed there is nothing to open a folder with: what it would say stands in the fixture.
TEST_CASE_METHOD(Folder, "hf_model: transformers opens what is exported, and computes the same logits", "[hf]") {
  const std::string python = transformers_python();
  if (python.empty()) return;
  const size_t T = 11;
  const std::vector<int> ids = tokens_of("ids", T, 37);
  std::string command = python + " {repo}/scripts/open_export.py ";
  for (size_t i = 0; i < T; i++) command += (i ? "," : "") + std::to_string(ids[i]);
  std::vector<std::pair<json, Numbers>> expected;
  for (const json& fixture : hf_models()) {
    if (std::string(fixture.at("name")).starts_with("released gates")) continue;  // transformers has no such model
    write_folder(*this, "in", fixture.at("config"), tensors_of(fixture));
    const std::string folder = "out" + std::to_string(expected.size());
    const Config c = config_from(path / "in", " --export=" + (*this / folder));
    export_model(c);
    command += " " + folder;
    const std::vector<float> logits = logits_of(c, ids);
    expected.emplace_back(fixture, Numbers(logits.begin(), logits.end()));
  }
  size_t line = 0;
  const std::vector<std::string> lines = lines_of(done(command + " 2>errors || { cat errors; false; }"));
  for (const auto& [fixture, logits] : expected) {
    INFO(fixture.at("name"));
    const json opened = json::parse(lines.at(line++));
    REQUIRE(opened.at("model") == fixture.at("config").at("architectures")[0]);
    REQUIRE(relative_error(logits, Numbers(opened.at("logits"))) <= 1e-5);
  }
}
