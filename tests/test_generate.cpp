// generate: what a model writes after a prompt is what a plain loop over whole forwards draws, within the context and
// after it; characters are printed whole; and the program says so. Runs the program in the current folder.
#include "training/text/generate.h"

#include <csignal>

#include "tests/fixtures.h"
#include "tests/script.h"
#include "tests/small_models.h"
#include "training/flags/model_source.h"

using namespace gated;

namespace {

// Every token from a forward over what it sees: all tokens before it, or the last `sees`.
std::vector<std::vector<int>> plain_loop(Model& model, std::vector<std::vector<int>> sequences, size_t count,
                                         const Sampler& sampler, size_t sees) {
  for (size_t b = 0; b < sequences.size(); b++)
    for (size_t i = 0; i < count; i++) {
      std::vector<int>& s = sequences[b];
      const std::vector<int> seen(s.end() - ptrdiff_t(std::min(sees, s.size())), s.end());
      s.push_back(sampler.draw(model.next_token_logits(seen), s.size(), b));
    }
  return sequences;
}

void shake(Model& model) {
  model.weights.initialise(model.config.init, model.config.layers, 3);
  change_weights(model, [](const Parameter& p, float* w) {
    for (size_t i = 0; i < p.size; i++) w[i] *= 6;
  });
}

const std::string small = "{repo}/train " + small_run_flags +
                          "--layers=2 --context=32 --steps=20 --warmup=3 --val-batches=1 --sample-tokens=0 ";

}  // namespace

TEST_CASE("generate: samples are those of a plain loop over whole forwards, after the context too",
          "[generate][bitwise]") {
  for (Device device : {Device::cpu, kernel_device}) {
    Context ctx(device);
    for (const auto& [line, forever] : {std::pair{"--norm=gated --norm-rank=3 --attn=g1", false},
                                        {"--position=learned", false},
                                        {"--position=learned --window=3", false},
                                        {"--window=3", true},
                                        {"--window=3 --window-layers=even", false},
                                        {"--window=6", false},
                                        {"--mixer=gated-delta --linear-key-dim=6", true}}) {
      INFO(line << " on " << name_of(device));
      ModelConfig config = small_model(line);
      config.context = 5;
      REQUIRE(grows_forever(config) == forever);
      const size_t sees = forever ? 11 : 5;
      const Sampler sampler = {1.0, 30, 7, 0.95};
      const std::vector<std::vector<int>> prompts = {{3, 1}, {4, 1}, {5, 9}};
      ModelConfig longer = config;
      longer.context = sees;
      longer.trained_context = 5;
      Model whole(longer, 1, sees, 1, ctx), model(config, 3, 5, 1, ctx);
      shake(whole), shake(model);
      auto written = prompts;
      size_t calls = 0;
      continue_sequences(written, 9, model, sampler, [&] { return ++calls < 100; });
      REQUIRE(calls == 9);
      REQUIRE(written == plain_loop(whole, prompts, 9, sampler, sees));
      auto cut = prompts;
      continue_sequences(cut, 9, model, sampler, [&] { return cut[0].size() < 4; });
      for (size_t b = 0; b < 3; b++) REQUIRE(cut[b] == std::vector(written[b].begin(), written[b].begin() + 4));
    }
  }
}

TEST_CASE("generate: a character is printed when all of its bytes are there", "[generate]") {
  std::vector<std::string> pieces;
  TokenPrinter bytes(true, [&](const std::string& piece) { pieces.push_back(piece); });
  // a, a two-byte and a four-byte character, the beginning of one that another letter ends, a byte that begins none, a
  // cut one
  for (const int token : {0x61, 0xc3, 0xa9, 0xf0, 0x9f, 0x98, 0x80, 0xe2, 0x62, 0xff, 0xe2, 0x82}) bytes.add(token);
  const std::vector<std::string> whole = {"a", "\u00e9", "\U0001f600", "\\xe2b", "\\xff"};
  REQUIRE(pieces == whole);
  bytes.end();
  REQUIRE(pieces.size() == 6);
  REQUIRE(pieces[5] == "\\xe2\\x82");
  pieces.clear();
  TokenPrinter numbers(false, [&](const std::string& piece) { pieces.push_back(piece); });
  for (const int token : {12, 0xc3, 7}) numbers.add(token);
  numbers.end();
  REQUIRE(pieces == std::vector<std::string>{"12", " 195", " 7"});
  REQUIRE(text_of({'a', 300, -1, 0xc3, 300}, true) == "a<300><-1>\\xc3<300>");
  REQUIRE(text_of({50256, 0, 17}, false) == "50256 0 17");
  REQUIRE(text_of({}, true) == "");
}

TEST_CASE("generate: the program writes after a prompt, the same on every device", "[generate]") {
  const Folder f;
  std::string text;
  for (int i = 0; i < 400; i++) text += "the quick brown fox " + std::to_string(i % 10) + "\n";
  f.write("text.txt", text);
  f.done(small + "--data=text.txt --norm=gated --attn=g1 --out=run");
  const auto said = [&](const std::string& rest) { return f.done("{repo}/train --generate " + rest + " 2>err"); };
  const std::string one = said("--device=cpu --out=run --prompt='the q' --tokens=20 --seed=4");
  REQUIRE(one.starts_with("the q"));
  REQUIRE(one.ends_with("\n"));
  REQUIRE(says(f.read("err"), {"run/step_00000020.safetensors: ", " tokens/s\n"}));
  REQUIRE(said("--device=emulated --from=run --prompt='the q' --tokens=20 --seed=4") == one);
  REQUIRE(said("--device=cpu --from=run --threads=1 --prompt-tokens=116,104,101,32,113 --tokens=20 --seed=4") == one);
  REQUIRE(said("--device=cpu --from=run --prompt='the q' --tokens=20 --seed=5") != one);

  // Side by side: the first is the one alone, and each has a stream of its own.
  const std::string three = said("--device=cpu --out=run --prompt='the q' --tokens=20 --seed=4 --samples=3");
  const size_t second = three.find("\nsample 2\n"), third = three.find("\nsample 3\n");
  REQUIRE(three.substr(0, second) == "sample 1\n" + one);
  REQUIRE(three.substr(second + 10, third - second - 10) != three.substr(third + 10));

  // Where one token alone is left, by either way, and where the likeliest is taken.
  const std::string likeliest = said("--device=cpu --out=run --prompt='the q' --tokens=20 --temperature=0");
  for (const char* way : {"--top-p=0", "--top-k=1"})
    REQUIRE(said("--device=cpu --out=run --prompt='the q' --tokens=20 --temperature=2 " + std::string(way)) ==
            likeliest);

  REQUIRE(said("--device=cpu --out=run --prompt='the q' --tokens=27") ==
          said("--device=cpu --out=run --prompt='the q'"));
  REQUIRE(f.run("ls run").text == "best.safetensors\nlog.jsonl\nmeasures.safetensors\nstep_00000020.safetensors\n");

  // What cannot be written is refused before the first token.
  const std::string generate = "{repo}/train --generate --device=cpu --out=run ";
  for (const auto& [flags, named] : refusals("generate")) require_refused_at_once(f.run(generate + flags), named);
  require_refused(f.run(generate + "--prompt=a --tokens=1e12 --context=1e12 --window=4"), "memory");
  for (const char* yarn : {"", " --yarn=2"}) f.done(generate + "--prompt=a --tokens=40 --context=64" + yarn);
}

TEST_CASE("generate: numbers for other vocabularies, learned positions end, windows go on until interrupted",
          "[generate]") {
  const Folder f;
  REQUIRE(f.run(small + "--data=bigram-backcopy --position=learned --out=learned").exit_code == 0);
  REQUIRE(f.run(small + "--data=bigram-backcopy --window=8 --out=window").exit_code == 0);
  const std::string generate = "{repo}/train --generate --device=cpu --out=";
  const std::string ids = f.done(generate + "window --prompt-tokens=5,6 --tokens=50 2>err");
  REQUIRE(ids.starts_with("5 6 "));
  REQUIRE(count(ids, " ") == 51);
  for (const auto& [flags, named] :
       {std::pair("window --prompt=a", "vocabulary of 64, not bytes: name its tokenizer"),
        {"learned --prompt-tokens=1 --context=64", "learned 32 positions and knows no others"},
        {"learned --prompt-tokens=1 --tokens=32", "so at most --tokens=31\n"}})
    require_refused_at_once(f.run(generate + flags), named);

  const Said stopped = f.run(generate +
                             "window --prompt-tokens=1 --tokens=1e6 >text 2>err & "
                             "while [ ! -s text ] && kill -0 $!; do sleep 0.05; done; kill -TERM $! && wait $!");
  INFO(f.read("err"));
  REQUIRE(stopped.exit_code == 128 + SIGTERM);
  REQUIRE(contains(f.read("err"), "interrupted after token "));
  REQUIRE(f.read("text").ends_with("\n"));
}

TEST_CASE("generate: flags arrive", "[generate]") {
  const Folder f;
  f.done(small + "--data=bigram-backcopy --steps=1 --warmup=1 --out=run");
  const std::string line = "--generate --from=" + (f / "run") + " ";
  const Config c = config_of_flags(line + "--prompt-tokens=1,2 --tokens=31 --samples=32");
  REQUIRE((c.generate && c.prompt_ids == "1,2" && c.tokens == 31 && c.samples == 32));
  REQUIRE(config_of_flags("--generate=on --from=" + (f / "run")).generate);
  REQUIRE(config_of_flags(line + "--prompt=a").prompt == "a");
  REQUIRE(config_of_flags("--generate --out=" + (f / "run")).source->path().ends_with("step_00000001.safetensors"));
}
