// --from: a run of ./train as the start of another, or as what --evaluate looks at. Runs the program in the current
// folder.
#include <cfloat>
#include <cmath>

#include "tests/catch.h"
#include "tests/hf_folder.h"
#include "tests/save_checkpoint.h"
#include "tests/script.h"
#include "training/flags/model_source.h"

using namespace gated;

namespace {

const std::string small = "{repo}/train " + small_run_flags +
                          "--data=bigram-backcopy --context=16 --steps=6 --warmup=3 --val-batches=2 --sample-tokens=5 ";

}  // namespace

TEST_CASE("from: a run's flags and weights are another run's start, and flags beside it change it", "[from]") {
  const Folder f;
  const Said first = ended(f.run(small + "--norm=gated --attn=g1 --out=first"));
  const std::string loss = between(first.text, "validation loss ");

  // The same data, the same weights: the same loss, on every device, from the folder and from the file.
  for (const char* from :
       {"--from=first", "--from=first --device=emulated", "--from=first/step_00000006.safetensors"}) {
    const std::string said = f.done("{repo}/train --evaluate --val-batches=2 " + std::string(from));
    REQUIRE(between(said, "validation loss ") == loss);
    REQUIRE(contains(said, "gated: mean"));  // it is the model of --attn=g1
  }
  REQUIRE(f.run("ls").text == "first\n");

  // Trained on: from step 1, with those weights. A resumed run needs them no more.
  const Said second =
      ended(f.run("{repo}/train --from=first --lr=1e-30 --min-lr=0 --steps=2 --val-batches=2 --out=second"));
  REQUIRE(says(second.text, {"from       first/step_00000006.safetensors", "--norm=gated", "step 1/2 "}));
  REQUIRE(between(second.text, "validation loss ") == loss);
  const std::string four = "{repo}/train --from=first --steps=4 --val-batches=2 --save-every=2 --keep=0 --out=third";
  const Said whole = f.run(four);
  fs::remove(f / "third/step_00000004.safetensors");
  const Said resumed = f.run(four + " --resume");
  REQUIRE(contains(resumed.text, "step 3/4 "));
  REQUIRE(!contains(resumed.text, "step 2/4 "));
  REQUIRE(fingerprint_of(resumed) == fingerprint_of(whole));
  REQUIRE(fingerprint_of(whole) != fingerprint_of(first));
  fs::remove(f / "third/step_00000004.safetensors");
  fs::rename(f / "first", f / "elsewhere");
  const Said alone = f.run(four + " --resume");
  REQUIRE(contains(alone.text, "step 3/4 "));
  REQUIRE(fingerprint_of(alone) == fingerprint_of(whole));
  require_refused_at_once(f.run(four + "new --resume"), "--from=first: there is no such file or folder");
  fs::rename(f / "elsewhere", f / "first");

  // Named by its flags instead, without the vocabulary that --from told it.
  REQUIRE(f.run(small + "--norm=gated --attn=g1 --out=third --evaluate").exit_code == 0);

  // On other data, whose vocabulary is another: the model's is what counts.
  const Said other = f.run("{repo}/train --from=first --data='{repo}/Makefile' --steps=1");
  require_refused_at_once(other, "--vocab=64: text needs 256");
  const Said bytes = ended(f.run(small + "--data='{repo}/Makefile' --vocab=300 --out=bytes"));
  REQUIRE(f.run("{repo}/train --from=bytes --data='{repo}/README.md' --steps=1 --sample-tokens=0").exit_code == 0);

  // Which is validated on a share of it, not on what the first was.
  f.write("val.txt", std::string(3000, 'v'));
  ended(f.run(small + "--data='{repo}/Makefile' --val-data=val.txt --out=own"));
  const auto validated_on = [&](const std::string& flags) {
    const std::string said =
        replaced(f.done("{repo}/train --evaluate --val-batches=2 --from=own " + flags), "\\s+", " ");
    return between(said, "data ", " of it, ");
  };
  const size_t bytes_of_readme = fs::file_size("README.md");
  REQUIRE(validated_on("") == "3000 bytes of 1 text files: 2 batches");
  REQUIRE(validated_on("--val-batches=1000000") == "3000 bytes of 1 text files: 46 batches");
  REQUIRE(
      contains(validated_on("--data='{repo}/README.md'"), format(" of %zu bytes of 1 text files: 2", bytes_of_readme)));
  REQUIRE(validated_on("--data='{repo}/Makefile'").starts_with("3000 bytes of"));  // the run's own
  REQUIRE(validated_on("--val-fraction=0.5").starts_with("tokens "));
  REQUIRE(validated_on("--data='{repo}/README.md' --val-data=val.txt").starts_with("3000 bytes of"));

  // What evaluation writes goes where --out says, and to no run of another model.
  REQUIRE(f.run("{repo}/train --evaluate --from=first --out=seen").exit_code == 0);
  REQUIRE(f.run("ls seen").text == "measures.safetensors\n");
  require_refused_at_once(f.run("{repo}/train --evaluate --from=first --out=second"),
                          "--out=second: holds a run's checkpoints");
  REQUIRE(contains(f.run("{repo}/train --from=first --describe").text, "model.layers.0.self_attn.g_proj.weight"));
}

TEST_CASE("from: flags that make another function of the same weights are said, and what is left out is", "[from]") {
  const Folder f;
  ended(f.run(small + "--attn=g1 --out=run"));
  const std::string from = "{repo}/train --from=run --device=cpu --val-batches=1 ";
  const auto notes = [&](const std::string& command) {
    std::string notes;
    for (const std::string& line : lines_of(f.done(command)))
      if (line.starts_with("note: ")) notes += line + "\n";
    return notes;
  };
  const std::string said =
      "note: --gate=shared --rope-theta=77 --ffn=glu, where run/step_00000006.safetensors has "
      "--gate=elementwise --rope-theta=10000 --ffn=swiglu\n";
  const std::string changed = from + "--ffn=glu --rope-theta=77 --gate=shared --dropout=0.1 --context=8 ";
  for (const char* use : {"--evaluate", "--steps=1 --sample-tokens=0", "--generate --prompt-tokens=1 --tokens=1"})
    REQUIRE(notes(changed + use) == said);
  // (A gate of means and an FFN of sigmoids are no architecture's that could be written.)
  REQUIRE(contains(f.run(changed + "--export=x").text, said));
  REQUIRE(notes(from + "--evaluate --dropout=0.1 --context=8") == "");
  REQUIRE(notes(from + "--steps=2 --ffn=swiglu --lr=1e-3 --sample-tokens=0") == "");

  // The layers of Qwen3-Next that predict further tokens.
  TensorMap tensors = tensors_of(hf_model("qwen3_next"),
                                 [](const auto&, size_t n, const auto&) { return std::vector<float>(n, 0.01f); });
  tensors["mtp.norm.weight"] = tensors["mtp.fc.weight"] = {"F32", {1}, bytes_of(std::vector<float>{1})};
  write_folder(f, "next", hf_model("qwen3_next").at("config"), tensors);
  REQUIRE(notes("{repo}/train --from=next --device=cpu --generate --prompt-tokens=1 --tokens=1") ==
          "note: next: its 2 tensors mtp.* are left out: they predict the token after the next\n");
}

TEST_CASE("from: what is no model, and what the model is not, is refused in one line", "[from]") {
  const Folder f;
  REQUIRE(f.run(small + "--position=learned --out=run").exit_code == 0);
  const auto from = [&](const std::string& rest) { return f.run("{repo}/train --device=cpu --from=" + rest); };
  f.write("empty/a", "");
  f.done(small + "--attn=g1 --out=gated");
  // The last are weights that a flag leaves without a place. (Every flag: tests/test_from_matrix.cpp.)
  for (const auto& [flags, named] : refusals("from")) require_refused_at_once(from(flags), named);
  REQUIRE(!fs::exists(f / "not-made"));
  require_refused_at_once(f.run("{repo}/train --evaluate"), "--evaluate needs --out=FOLDER");

  // Weights that are no numbers.
  const auto altered = [&](const std::string& from, const std::string& to, const auto& change) {
    const Checkpoint run(f / (from + "/step_00000006.safetensors"));
    std::map<std::string, std::vector<float>> values;
    std::vector<TensorView> tensors;
    for (const auto& [name, t] : run.tensors()) {
      values[name].resize(count(t.shape));
      run.read_numbers(name, t.shape, values[name].data());
      tensors.push_back({name, t.shape, values[name].data()});
    }
    change(values);
    std::map<std::string, std::string> metadata = run.metadata();
    std::erase_if(metadata, [](const auto& entry) { return entry.first.starts_with("gated."); });
    fs::create_directory(f / to);
    save_checkpoint(f / (to + "/step_00000006.safetensors"), tensors, metadata);
  };
  altered("run", "huge", [](auto& values) {
    for (float& x : values["model.norm.weight"]) x *= 1e38f;
    for (float& x : values["model.embed_tokens.weight"]) x *= 1e4f;
  });
  altered("gated", "diverged", [](auto& values) { values["model.layers.0.mlp.up_proj.weight"][77] = NAN; });
  // Numbers that are numbers, of which none comes out.
  const std::string overflows = "what the model computes overflows";
  require_refused(from("huge --evaluate"), overflows);
  require_refused(from("huge --generate --prompt-tokens=1"), overflows);
  // A value of 0.99 of the largest float, 522 times a weight, which the FFN multiplies by 0. In FP8 522 is 535 beside
  // 1000.
  altered("run", "edge", [](auto& values) {
    const std::string layer = "model.layers.0.", ffn = layer + "mlp.";
    for (const std::string& name : {std::string("model.embed_positions.weight"), layer + "self_attn.o_proj.weight",
                                    ffn + "gate_proj.weight", ffn + "up_proj.weight", ffn + "down_proj.weight"})
      std::fill(values[name].begin(), values[name].end(), 0.f);
    for (float& x : values["model.embed_tokens.weight"]) x = 1;
    values[layer + "post_attention_layernorm.weight"][3] = 1000;
    values[layer + "post_attention_layernorm.weight"][5] = 522;
    values[ffn + "gate_proj.weight"][3] = 1e-3f;
    values[ffn + "up_proj.weight"][5] = 0.99f * (FLT_MAX / 522);
  });
  ended(from("edge --evaluate"));
  require_refused(from("edge --evaluate --quantize=fp8-w8a8"), "the validation loss in the numbers of --quantize is");
  const std::string found = "tensor \"model.layers.0.mlp.up_proj.weight\" has a NaN as element 77, expected numbers";
  for (const char* rest : {"diverged --evaluate", "diverged --generate --prompt-tokens=1", "diverged --export=written"})
    require_refused(from(rest), found);
  for (const char* rest : {"--evaluate", "--resume"})
    require_refused(f.run(small + "--attn=g1 --out=diverged " + rest), found);

  // A file of another program, and one of a program that knows more flags.
  const float zeros[6] = {};
  write_safetensors(f / "foreign.safetensors", {{"model.embed_tokens.weight", {2, 3}, zeros}}, {});
  require_refused_at_once(from("foreign.safetensors"), "was not written by ./train");
  save_checkpoint(f / "newer.safetensors", {{"model.embed_tokens.weight", {2, 3}, zeros}}, {{"flag--wings", "2"}});
  require_refused_at_once(from("newer.safetensors"),
                          "was made with \"--wings\"=\"2\", a flag that this program does not have");
  save_checkpoint(f / "bare.safetensors", {{"x", {6}, zeros}}, {});
  require_refused_at_once(from("bare.safetensors"), "no matrix model.embed_tokens.weight");

  // Flags by their old names.
  save_checkpoint(f / "old.safetensors", {{"model.embed_tokens.weight", {2, 3}, zeros}},
                  {{"flag--gate-shared", "on"}, {"flag--gate-input", "hidden"}, {"flag--attn", "g1"}});
  const auto source = open_model_source(f / "old.safetensors");
  const std::vector<std::string>& flags = source->flags();
  REQUIRE(flags == std::vector<std::string>{"--attn=g1", "--gate=shared", "--vocab=2"});

  fs::resize_file(f / "run/step_00000006.safetensors", 5000);
  const std::string unreadable = "run: none of its 1 checkpoints can be read: name another folder to start anew";
  const std::string best = "; there is its best.safetensors: --from=run/best.safetensors names that\n";
  REQUIRE(ended(from("run"), 1).text.ends_with("error: " + unreadable + best));
  REQUIRE(
      ended(f.run(small + "--position=learned --resume --out=run"), 1).text.ends_with("error: " + unreadable + best));
  // One that holds nothing else.
  fs::remove(f / "run/step_00000006.safetensors");
  for (const char* flags : {"--from=run", "--evaluate --from=run", "--evaluate --out=run", "--generate --out=run"})
    REQUIRE(ended(f.run(std::string("{repo}/train --device=cpu ") + flags), 1).text.ends_with(best));
  const std::string anew = small + "--position=learned --out=run";
  REQUIRE(ended(f.run(anew + " --resume"), 1).text.ends_with("to go on from: name another folder" + best));
  require_refused(f.run(anew), "--out=run: holds a run's checkpoints already");
  fs::remove(f / "run/best.safetensors");
  REQUIRE(ended(from("run"), 1).text.ends_with("of Hugging Face's transformers\n"));
  ended(
      f.run("{repo}/train --device=cpu --generate --prompt-tokens=1 --tokens=1 --out=gated/step_00000006.safetensors"));
}
