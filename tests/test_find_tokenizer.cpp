// find_tokenizer: with --tokenizer, or with one beside the model, samples are text, prompts are text, and the file goes
// where the model goes. Runs the program in the current folder.
#include <fstream>
#include <nlohmann/json.hpp>

#include "dataloader/text.h"
#include "dataloader/tokenizer.h"
#include "tests/script.h"
#include "tests/shard.h"

using namespace gated;

namespace {

Said said_by_train(const Folder& f, const std::string& flags) {
  return f.run("{repo}/train " + small_run_flags +
               "--context=32 --steps=3 --warmup=1 --val-batches=2 --sample-tokens=20 " + flags);
}

// "12 7" as tokens.
std::vector<int32_t> tokens_of(const std::string& numbers) {
  std::vector<int32_t> tokens;
  for (const std::string& word : words_of(numbers)) tokens.push_back(std::stoi(word));
  return tokens;
}

// A tokenizer in t, and a shard d.bin of a text in its tokens.
Tokenizer tokenizer_and_data(const Folder& f, const char* kind = "gpt2") {
  const auto fixtures = nlohmann::json::parse(std::ifstream("tests/fixtures/tokenizers.json"));
  f.write("t/tokenizer.json", fixtures[kind]["tokenizer"].dump());
  const Tokenizer t = read_tokenizer(f / "t");
  std::string text;
  for (int i = 0; i < 200; i++) text += "The model reads the text. ";
  const std::vector<int32_t> ids = t.encode(text);
  f.write("d.bin", shard_of(std::vector<uint16_t>(ids.begin(), ids.end()), 20240520, 1, int32_t(t.vocab())));
  return t;
}

}  // namespace

TEST_CASE("find_tokenizer: a sample is text, and the run's folder keeps the tokenizer", "[tokenizer]") {
  const Folder f;
  const Tokenizer t = tokenizer_and_data(f);
  const Said numbers = ended(said_by_train(f, "--data=d.bin --out=plain"));
  const auto sample = [](const std::string& said) {
    return matches(said, "\nsample.*\n([^]*?)\nfingerprint").at(0)[1];
  };
  const std::vector<int32_t> sampled = tokens_of(sample(numbers.text));
  REQUIRE(sampled.size() == 20);
  for (const char* flags : {"--data=d.bin --tokenizer=t --out=named", "--data=d.bin --tokenizer=t/tokenizer.json"})
    REQUIRE(sample(said_by_train(f, flags).text) == printable(t.decode(sampled)));
  REQUIRE(!fs::exists(f / "plain/tokenizer.json"));
  REQUIRE(f.read("named/tokenizer.json") == f.read("t/tokenizer.json"));
  // It comes along.
  const std::string on = f.done("{repo}/train --from=named --data=d.bin --steps=1 --sample-tokens=20 --temperature=0");
  REQUIRE(contains(sample(on), "e"));

  // One beside the model that is of no use stands in nobody's way.
  auto unknown = nlohmann::json::parse(f.read("t/tokenizer.json"));
  unknown["model"]["type"] = "Unigram";
  f.write("named/tokenizer.json", unknown.dump());
  const std::string again = "{repo}/train --from=named --data=d.bin --steps=1 --sample-tokens=4 --temperature=0";
  const std::string noted = f.done(again);
  REQUIRE(contains(noted, "note: no text without a tokenizer: named/tokenizer.json: \"model\" is of type"));
  REQUIRE(sample(noted).find_first_not_of("0123456789 ") == std::string::npos);
  require_refused(f.run(again + " --tokenizer=named"),
                  "error: --tokenizer=named: named/tokenizer.json: \"model\" is of type \"Unigram\"");
  REQUIRE(!contains(f.run("{repo}/train --from=named --data=d.bin --evaluate --val-batches=1").text, "note: "));

  // One beside a run's folder is none of the run.
  fs::copy(f / "t/tokenizer.json", f / "tokenizer.json");
  REQUIRE(sample(said_by_train(f, "--data=d.bin --out=run3").text) == sample(numbers.text));

  for (const auto& [flags, named] :
       {std::pair("--data=bigram-backcopy --tokenizer=t",
                  "t: has 360 tokens, but the model has 64: name the tokenizer of its data, or set --vocab"),
        {"--data=d.bin --tokenizer=d.bin", "--tokenizer=d.bin: it has a NUL byte, expected JSON"},
        {"--data=d.bin --tokenizer=nowhere", "--tokenizer=nowhere: cannot open: No such file"}})
    require_refused(said_by_train(f, flags), named);
}

TEST_CASE("find_tokenizer: text is not read byte by byte into a model that has a tokenizer", "[tokenizer]") {
  const Folder f;
  tokenizer_and_data(f);
  f.write("a.txt", std::string(5000, 'x'));
  ended(said_by_train(f, "--data=d.bin --tokenizer=t --out=run"));
  const std::string from = "{repo}/train --from=run --steps=1 --val-batches=1 --sample-tokens=0 ";
  for (const std::string flags : {"--data=a.txt", "--data=a.txt --evaluate", "--data=a.txt --out=new",
                                  "--val-data=a.txt", "--val-data=a.txt --evaluate"})
    require_refused_at_once(f.run(from + flags),
                            flags.substr(0, flags.find(' ')) + ": is text, read byte by byte, but run/tokenizer.json");
  require_refused_at_once(f.run(from + "--data=self"), "scripts/tokenize.py TEXT --tokenizer=run/tokenizer.json");
  require_refused_at_once(said_by_train(f, "--data=a.txt --vocab=360 --tokenizer=t"), "but t says");
  REQUIRE(!fs::exists(f / "new"));
  // A model of bytes has none, and a run of bytes is not held to what lies in its --out.
  ended(said_by_train(f, "--data=a.txt --out=bytes"));
  ended(f.run("{repo}/train --from=bytes --data=a.txt --steps=1 --sample-tokens=0"));
  fs::copy(f / "t/tokenizer.json", f / "bytes/tokenizer.json");
  ended(said_by_train(f, "--data=a.txt --resume --out=bytes"));
}

TEST_CASE("find_tokenizer: --generate reads a prompt of text and writes text", "[tokenizer]") {
  const Folder f;
  const Tokenizer t = tokenizer_and_data(f, "llama3");
  ended(said_by_train(f, "--data=d.bin --tokenizer=t --out=run"));
  const std::string generate = "{repo}/train --device=cpu --generate --tokens=12 --temperature=0 --out=run ";
  const auto text = [&](const std::string& flags) { return f.done(generate + flags + " 2>/dev/null"); };
  // The same tokens as numbers: a beginning of text stands before them.
  const std::string prompt = "The model, größer";
  std::string ids;
  for (const int32_t id : t.encode_prompt(prompt)) ids += (ids.empty() ? "" : ",") + std::to_string(id);
  REQUIRE(ids.starts_with("0,"));
  const std::string written = text("--prompt='" + prompt + "'");
  REQUIRE(written.starts_with("<|begin_of_text|>" + prompt));
  REQUIRE(text("--prompt-tokens=" + ids) == written);
  REQUIRE(text("--tokenizer=t --prompt='" + prompt + "'") == written);
  fs::remove(f / "run/tokenizer.json");
  REQUIRE(printable(t.decode(tokens_of(text("--prompt-tokens=" + ids)))) + "\n" == written);
  REQUIRE(contains(text("--tokenizer=t --samples=2 --prompt='The'"), "sample 2\n<|begin_of_text|>The"));

  require_refused(f.run(generate + "--prompt=The"), "not bytes: name its tokenizer, --tokenizer=FILE");
  require_refused(f.run(generate + "--tokenizer=t --prompt=\"$(printf 'ab\\377')\""),
                  "--prompt: byte 2 of the text is not UTF-8");
  auto larger = nlohmann::json::parse(f.read("t/tokenizer.json"));
  larger["added_tokens"].push_back(larger["added_tokens"][0]);
  larger["added_tokens"].back()["content"] = "<far>";
  larger["added_tokens"].back()["id"] = t.vocab() + 5;
  f.write("larger.json", larger.dump());
  REQUIRE(text("--tokenizer=larger.json --prompt='" + prompt + "'") == written);
  require_refused(f.run(generate + "--tokenizer=larger.json --prompt='a <far>'"),
                  format("--prompt: its token %zu is none of the model, which has %zu", t.vocab() + 5, t.vocab()));
}

TEST_CASE("find_tokenizer: the file goes with a model that is exported", "[tokenizer]") {
  const Folder f;
  const Tokenizer t = tokenizer_and_data(f);
  ended(said_by_train(f, "--data=d.bin --tokenizer=t --out=run"));
  f.done("{repo}/train --from=run --export=model");
  REQUIRE(f.read("model/tokenizer.json") == f.read("t/tokenizer.json"));
  REQUIRE(f.run("{repo}/train --generate --from=model --tokens=3 --prompt=The 2>/dev/null").text.starts_with("The"));

  // One that is no JSON does not go; nor does one that was asked for and is none leave a folder behind.
  f.write("broken.json", f.read("t/tokenizer.json").substr(0, 1000));
  const auto refused = [&](const std::string& tokenizer, const std::string& named) {
    require_refused_at_once(f.run("{repo}/train --from=run --export=second --tokenizer=" + tokenizer), named);
  };
  refused("broken.json", "broken.json: it is not valid JSON");
  refused("nowhere", "nowhere: cannot open");
  refused("/dev/null", "not a regular file");
  for (const auto& [text, named] : {std::pair("{}", "other.json: has no object \"model\", expected a tokenizer.json"),
                                    {"{\"model\": []}", "has no object \"model\""},
                                    {"[]", "other.json: it does not begin with '{'"},
                                    {"{\"model\": {}, \"model\": {}}", "it has the key \"model\" twice"}}) {
    f.write("other.json", text);
    refused("other.json", named);
  }
  auto larger = nlohmann::json::parse(f.read("t/tokenizer.json"));
  larger["model"]["vocab"]["more"] = larger["model"]["vocab"].size();
  f.write("other.json", larger.dump());
  refused("other.json", format("--tokenizer=other.json: has %zu tokens, but the model has %zu",
                               larger["model"]["vocab"].size(), t.vocab()));
  REQUIRE(!fs::exists(f / "second"));
  fs::copy_file(f / "broken.json", f / "run/tokenizer.json", fs::copy_options::overwrite_existing);
  for (const char* command :
       {"--from=run --export=second", "--from=run --data=d.bin --steps=1 --warmup=1 --sample-tokens=0 --out=third"}) {
    const std::string without = f.done(std::string("{repo}/train --val-batches=1 ") + command);
    REQUIRE(contains(without, "note: the tokenizer does not go along: run/tokenizer.json: it is not valid JSON"));
  }
  for (const char* folder : {"second", "third"}) REQUIRE(!fs::exists(f.path / folder / "tokenizer.json"));
}
