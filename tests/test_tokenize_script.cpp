// tokenize_script: what scripts/tokenize.py makes of texts: shards that the loader reads, of the tokens that stand for
// those texts. Needs a python3 with the tokenizers library; without one it warns.
#include <nlohmann/json.hpp>

#include "dataloader/files.h"
#include "dataloader/loader.h"
#include "dataloader/tokenizer.h"
#include "tests/catch.h"
#include "tests/fixtures.h"
#include "tests/script.h"
#include "tests/tokens.h"

using namespace gated;

namespace {

#define NEEDS_TOKENIZERS                                                                                 \
  NEEDS("python3 -c 'import tokenizers'", "python3 with tokenizers (python3 -m pip install tokenizers)", \
        "scripts/tokenize.py")

// The first lines of a script of Python that looks into tokenize.py, which its first argument names.
const std::string import_script = R"py(
import importlib.util, os, sys
spec = importlib.util.spec_from_file_location("script", sys.argv[1])
script = importlib.util.module_from_spec(spec)
spec.loader.exec_module(script)
)py";

Said tokenize(const Folder& f, const std::string& arguments) {
  return f.run("{repo}/scripts/tokenize.py " + arguments);
}

std::vector<int32_t> tokens_of(const std::string& spec) {
  return all_of(*open_data({.data = spec, .val_fraction = 0}).train);
}

// What tokens stand for, and "|" for the end of text, which is the first token of a vocabulary made here.
std::string text_of(const std::vector<int32_t>& tokens, const Tokenizer& tokenizer) {
  std::string text;
  for (const int32_t token : tokens) text += token == 0 ? "|" : tokenizer.decode_one(token, true);
  return text;
}

}  // namespace

TEST_CASE("tokenize_script: a vocabulary made of texts, and shards in which these texts stand", "[tokenize_script]") {
  NEEDS_TOKENIZERS;
  const Folder f;
  std::string text;
  for (int i = 0; i < 400; i++) text += format("the %d. line <|endoftext|> of it\n\n  and so on", i);
  f.write("texts/b.txt", text);
  f.write("texts/a.txt", "first");
  f.write("texts/.hidden", "never");
  f.write("lines.jsonl", R"({"text": "one\nline"})"
                         "\n\n"
                         R"({"text": "two", "more": 1})"
                         "\n");
  const Said said = ended(tokenize(f, "texts lines.jsonl --train=400 --out=o --shard-tokens=1000"));
  REQUIRE(contains(said.text, "vocabulary 400, 16 bits a token"));
  REQUIRE(fs::exists(f / "o/train_000001.bin"));
  for (const auto& entry : fs::directory_iterator(f.path / "o")) REQUIRE(!contains(entry.path().string(), ".tmp."));

  const Tokenizer tokenizer = read_tokenizer(f / "o");
  const std::string train = text_of(tokens_of(f / "o/train_*.bin"), tokenizer),
                    val = text_of(tokens_of(f / "o/val_*.bin"), tokenizer);
  // The mark in the text is written in letters; the one before a document is a token.
  const bool whole = train + val == "|first|" + text + "|one\nline|two";
  REQUIRE(whole);
  const double share = double(val.size()) / double(train.size() + val.size());
  REQUIRE(share > 0.08);
  REQUIRE(share < 0.12);
  REQUIRE(open_data({.data = f / "o/train_*.bin", .val_data = f / "o/val_*.bin"}).train->vocab() == 400);

  // The same texts with that tokenizer give the same tokens.
  REQUIRE(tokenize(f, "texts lines.jsonl --tokenizer=o --out=again").exit_code == 0);
  const bool same = tokens_of(f / "again/train_*.bin") == tokens_of(f / "o/train_*.bin");
  REQUIRE(same);
  const Said plain =
      tokenize(f, "texts/a.txt --tokenizer=o/tokenizer.json --out=plain --end-of-text= --val-fraction=0");
  REQUIRE(contains(plain.text, "val:   0 tokens in 0 shards"));
  REQUIRE(text_of(tokens_of(f / "plain/train_*.bin"), tokenizer) == "first");

  // A vocabulary that 16 bits do not hold.
  nlohmann::json large = nlohmann::json::parse(f.read("o/tokenizer.json"));
  for (int i = 400; i < 70000; i++) large["model"]["vocab"][format("unused %d", i)] = i;
  f.write("large.json", large.dump());
  f.write("far.txt", "unused");
  REQUIRE(contains(
      tokenize(f, "far.txt --tokenizer=large.json --out=wide --end-of-text='unused 69999' --val-fraction=0").text,
      "vocabulary 70000, 32 bits a token"));
  const std::vector<int32_t> wide = tokens_of(f / "wide/train_*.bin");
  REQUIRE(wide.size() > 2);
  REQUIRE(wide[0] == 69999);
  REQUIRE(text_of({wide.begin() + 1, wide.end()}, tokenizer) == "unused");
}

TEST_CASE("tokenize_script: a long text is cut into pieces whose tokens are those of the whole", "[tokenize_script]") {
  NEEDS_TOKENIZERS;
  const Folder f;
  f.write("pieces.py", import_script + R"py(
text = "".join(f"Zeile {i}: Bäume\n\n  wachsen。木は{'育つ' * (i % 9)}!\t🌱\r\n" for i in range(300))
open("t.txt", "w", newline="").write(text)
tokenizer = script.byte_level_bpe(script.Texts(["t.txt"], 0, True), 600)
assert script.cuts_change_nothing(tokenizer)
for size in (64, 100, 333, 4096):
    script.PIECE = size
    pieces = [text for text, _, _ in script.Texts(["t.txt"], 0.25, True).pieces()]
    assert "".join(pieces) == text and len(pieces) > 3, (size, len(pieces))
    ids = [i for e in tokenizer.encode_batch(pieces, add_special_tokens=False) for i in e.ids]
    assert ids == tokenizer.encode(text, add_special_tokens=False).ids, size
    validation = sum(len(text) for text, _, val in script.Texts(["t.txt"] * 3, 0.25, True).pieces() if val)
    assert abs(validation / len(text) - 0.75) < 0.01, (size, validation)
print("same")
)py");
  REQUIRE(f.run("python3 pieces.py {repo}/scripts/tokenize.py").text == "same\n");
  // The script does not stand in the way of Python's module of its name.
  REQUIRE(f.run("cd {repo}/scripts && PYTHONDONTWRITEBYTECODE=1 python3 -c 'import tokenize; print(tokenize.NAME)'")
              .exit_code == 0);
}

TEST_CASE("tokenize_script: a folder holds the files that --data finds there, in that order", "[tokenize_script]") {
  WITH_PYTHON(f, "scripts/tokenize.py");
  for (const char* name :
       {"a.txt", "a/b.txt", "a-b.txt", "a/.hidden/c.txt", ".git/d.txt", "B", "\xff", "\xef\xbd\x81", "z/1"})
    f.write(std::string("texts/") + name, "text");
  REQUIRE(f.run("mkfifo texts/pipe; ln -s a.txt texts/link; ln -s nowhere texts/dangling; ln -s z texts/y").exit_code ==
          0);
  f.write("list.py", import_script + R"py(
for file in script.files_of(sys.argv[2:]):
    sys.stdout.buffer.write(os.fsencode(file) + b"\n")
)py");
  std::string expected;
  const std::vector<std::string> files = files_under(f / "texts");
  REQUIRE(files.size() == 8);
  for (const std::string& file : files) expected += file + "\n";
  const std::string list = "PYTHONDONTWRITEBYTECODE=1 python3 list.py {repo}/scripts/tokenize.py ";
  REQUIRE(f.run(list + f / "texts").text == expected);
  require_refused_at_once(f.run(list + "texts/pipe"), "texts/pipe: not a regular file");
  require_refused_at_once(f.run(list + "texts/pipe texts/a"), "texts/pipe: not a regular file");
}

TEST_CASE("tokenize_script: what it cannot do is said in a line, and nothing is left behind", "[tokenize_script]") {
  NEEDS_TOKENIZERS;
  const Folder f;
  const auto refused = [&](const std::string& arguments, const std::string& said) {
    INFO(arguments);
    require_refused_at_once(f.run("timeout 60 {repo}/scripts/tokenize.py " + arguments), said);
  };
  f.write("a.txt", "a text, and more of it");
  f.write("bad.txt", "a text\xff");
  f.write("nul.txt", std::string("a\0b", 3));
  f.write("bad.jsonl", "{\"text\": \"one\"}\n{\"text\": 2}\n");
  f.write("bad.json", "{}");
  f.run("mkdir empty with; mkfifo pipe with/tokenizer.json");
  REQUIRE(tokenize(f, "a.txt --train=300 --out=o").exit_code == 0);
  refused("a.txt --train=300 --out=o", "o: holds tokenizer.json already: name another folder");
  refused("a.txt --train=256 --out=p", "--train=256: expected 257");
  refused("a.txt --tokenizer=o --out=o", "o: holds train_000000.bin already");
  refused("a.txt --tokenizer=o --out=a.txt", "a.txt: cannot write");
  const std::string to_p = " --tokenizer=o --out=p", to_q = " --tokenizer=o --out=q";
  for (const auto& [texts, said] : refusals("tokenize: texts")) refused(texts + to_p, said);
  refused("a.txt --end-of-text='\xff'" + to_p, "the tokenizer has no such token");
  for (const auto& [tokenizer, said] : {std::pair("empty", "empty/tokenizer.json: No such file"),
                                        {"bad.json", "bad.json: not a tokenizer.json"},
                                        {"pipe", ": not a regular file"},
                                        {"with", ": not a regular file"}})
    refused(format("a.txt --out=p --tokenizer=%s", tokenizer), said);
  const std::string deep(100000, '[');
  for (const std::string& line :
       {std::string(R"({"text": "\ud800"})"), R"({"text": )" + deep, deep, std::string("5")}) {
    f.write("line.jsonl", line);
    refused("line.jsonl" + to_p, "line.jsonl: line 1 is no JSON object with a string \"text\"");
    refused("line.jsonl --train=300 --out=p", "line.jsonl: line 1 is no JSON object");
  }
  refused("--choices=pipe" + to_q, ": not a regular file");
  refused("--choices=bad.json --train=300 --out=z", "--choices needs --tokenizer");
  refused("--tokenizer=o --out=z", "there is nothing to read: expected TEXT...");
  refused("a.txt --choices=bad.json --tokenizer=o --out=z", "a.txt and --choices=bad.json were both given");
  for (const auto& [arguments, name] : {std::pair("'' --tokenizer=o --out=z", "TEXT"),
                                        {"a.txt --tokenizer=o --out=", "--out"},
                                        {"a.txt --tokenizer= --out=z", "--tokenizer"},
                                        {"--choices= --tokenizer=o --out=z", "--choices"}})
    refused(arguments, std::string(name) + ": it is empty, expected the name of a file or folder");
  f.write("nothing.txt", "");
  for (const char* how : {"--tokenizer=o", "--train=300"})
    refused(format("nothing.txt %s --out=p", how), "nothing.txt: no text to train on: 0 bytes");
  for (const char* question :
       {R"({"context": "a", "endings": ["b"], "label": 0})", R"({"context": "a", "endings": ["b", "c"], "label": 2})",
        R"({"context": 1, "endings": ["b", "c"], "label": 1})",
        R"({"ctx": "\ud800", "endings": ["a", "b"], "label": 0})",
        R"({"ctx": "a", "endings": ["b", "\udfff"], "label": 0})",
        R"({"ctx": "a", "endings": ["a", "b"], "label": 1e999})", R"({"ctx": "a", "endings": "ab", "label": 0})",
        "5"}) {
    f.write("question.json", question);
    refused("--choices=question.json" + to_q, "question 0 has no context");
  }
  for (const auto& [text, said] : {std::pair(deep, ""), {"{", ""}, {"[]", "holds no question"}}) {
    f.write("question.json", text);
    refused("--choices=question.json" + to_q, std::string("question.json: ") + said);
  }
  f.write("question.json", "{");
  refused("--choices=question.json" + to_q, "expected a list of questions in JSON, or one of them a line");
  ended(tokenize(f, "a.txt --train=300 --out='caf\xe9'"));
  ended(tokenize(f, "a.txt --tokenizer='caf\xe9' --out=again"));
  REQUIRE(f.read("again/tokenizer.json") == f.read("caf\xe9/tokenizer.json"));

  // What has the name, or had a file's unfinished name once, stays; and what cannot be written is known before it.
  f.write("question.json", R"({"ctx": "a", "endings": ["a", "b"], "label": 0})");
  f.run("ln -s nowhere q");
  refused("--choices=question.json" + to_q, "q: is there already");
  for (const char* name : {"r.part", "s/train_000000.bin.part"}) f.write(name, "mine");
  ended(tokenize(f, "--choices=question.json --tokenizer=o --out=r"));
  ended(tokenize(f, "a.txt --tokenizer=o --out=s"));
  for (const char* name : {"r.part", "s/train_000000.bin.part"}) REQUIRE(f.read(name) == "mine");
  refused("bad.txt --train=300 --out=a.txt/x", "a.txt/x: cannot write");
  refused("a.txt --tokenizer=o --out=full >/dev/full", "standard output: No space left on device");
  for (const char* name : {"p", "z"}) REQUIRE(!fs::exists(f.path / name));
  // A folder that was there stays, and so do shards whose words alone could not be printed.
  refused("bad.txt --tokenizer=o --out=empty", "iconv -c -f UTF-8 -t UTF-8 bad.txt >NEW leaves such bytes out");
  REQUIRE(fs::is_empty(f.path / "empty"));
  const std::string unbuffered =
      "PYTHONUNBUFFERED=1 {repo}/scripts/tokenize.py a.txt --tokenizer=o --out=kept >/dev/full";
  ended(f.run(unbuffered), 1);
  REQUIRE(fs::exists(f.path / "kept/train_000000.bin"));
  // What a full disk has no room for.
  f.write("long.json", "{\"ctx\": \"" + replaced(std::string(4000, 'a'), "a", "a ") +
                           "\", \"endings\": [\"a\", \"b\"], \"label\": 0}");
  NEEDS("unshare -rm true", "unshare -rm", "a disk that is full");
  for (const char* words : {"a.txt --tokenizer=o --out=disk/p", "--choices=long.json --tokenizer=o --out=disk/q"}) {
    const Said full =
        f.run(format("unshare -rm sh -c 'mkdir -p disk && mount -t tmpfs -o size=4k none disk && "
                     "{ {repo}/scripts/tokenize.py %s; ls -A disk; }'",
                     words));
    REQUIRE(fits(full.text, "error: disk/[pq][^\n]*: cannot write: No space left on device\n"));
  }
}
