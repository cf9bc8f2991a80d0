// tokenizer: what tokenizers of six kinds make of texts beside what the tokenizers library made of them
// (tests/fixtures/tokenizers.json, by scripts/make_tokenizers.py); and what is refused, in which words.
#include "dataloader/tokenizer.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "dataloader/bpe.h"
#include "dataloader/pattern.h"
#include "dataloader/utf8.h"
#include "tests/catch.h"
#include "tests/refusal.h"
#include "tests/script.h"

using namespace gated;
using json = nlohmann::json;

namespace {

const json& fixtures() {
  static const json all = json::parse(std::ifstream("tests/fixtures/tokenizers.json"));
  return all;
}

Tokenizer tokenizer_of(const std::string& kind) {
  return Tokenizer(fixtures().at(kind).at("tokenizer").dump(), kind);
}

// A tokenizer with one value changed.
std::string with(const std::string& path, const json& value, const std::string& kind = "gpt2") {
  json changed = fixtures().at(kind).at("tokenizer");
  changed[json::json_pointer(path)] = value;
  return changed.dump();
}

}  // namespace

TEST_CASE("tokenizer: texts become the ids that the tokenizers library gives, and these the texts", "[tokenizer]") {
  size_t texts = 0;
  for (const auto& [kind, fixture] : fixtures().items()) {
    const Tokenizer tokenizer = tokenizer_of(kind);
    for (const json& c : fixture.at("cases")) {
      const std::string text = c.at("text");
      INFO(kind << ": " << c.at("text").dump());
      const std::vector<int32_t> ids = c.at("ids");
      CHECK(tokenizer.encode(text) == ids);
      std::vector<int32_t> whole = c.at("whole");
      if (kind == "llama2") whole.pop_back();  // the end of a text
      CHECK(tokenizer.encode_prompt(text) == whole);
      CHECK(tokenizer.decode(ids) == c.at("decoded").get<std::string>());
      texts++;
    }
  }
  REQUIRE(texts > 200);
}

TEST_CASE("tokenizer: byte-level tokens have every byte, and may end inside a character", "[tokenizer]") {
  const Tokenizer t = tokenizer_of("gpt2");
  REQUIRE(t.vocab() == 360);
  REQUIRE(t.model_vocab() == 360);
  std::string bytes;
  for (int32_t id = 0; id < 360; id++)
    if (t.decode_one(id, true).size() == 1) bytes += t.decode_one(id, true);
  std::sort(bytes.begin(), bytes.end());
  REQUIRE(bytes.size() == 256);
  REQUIRE(std::unique(bytes.begin(), bytes.end()) == bytes.end());
  const std::vector<int32_t> ids = t.encode("🌱");
  REQUIRE(ids.size() > 1);
  REQUIRE(utf8_front(t.decode_one(ids[0], true)).cut);
  REQUIRE(t.decode(std::vector<int32_t>{-1, 360, 1 << 30}) == "<-1><360><1073741824>");
}

TEST_CASE("tokenizer: tokens outside a model's vocabulary are counted apart", "[tokenizer]") {
  const Tokenizer t = tokenizer_of("gemma");
  REQUIRE(t.model_vocab() < t.vocab());
  REQUIRE(t.encode("picture <0>").size() == 1);
}

TEST_CASE("tokenizer: a text that does not encode is refused at its byte or character", "[tokenizer]") {
  const Tokenizer t = tokenizer_of("gpt2");
  for (const auto& [text, at] : std::vector<std::pair<std::string, int>>{
           {"abc\xff", 3}, {"\xc3", 0}, {"a\xc0\x80", 1}, {"é\xed\xa0\x80", 2}, {"\xf4\x90\x80\x80", 0}})
    REQUIRE(refusal([&, &text = text] { t.encode(text); }) == format("byte %d of the text is not UTF-8", at));
  json poor = fixtures().at("gpt2").at("tokenizer");
  poor["model"]["merges"] = json::array();
  poor["model"]["vocab"] = {{"a", 0}};
  poor["added_tokens"] = json::array();
  const Tokenizer only_a(poor.dump(), "t.json");
  REQUIRE(only_a.encode("aaa").size() == 3);
  CHECK_REFUSED(only_a.encode("ab"), "the character \"b\" has no token");
  // The text's, not one of those that its bytes are written as.
  CHECK_REFUSED(only_a.encode("a中"), "the character \"\\u4e2d\" has no token");
  poor["model"]["vocab"] = {{"a", 0}, {"ä", 1}, {"¸", 2}};
  CHECK_REFUSED(Tokenizer(poor.dump(), "t.json").encode("aa中"), "the character \"\\u4e2d\"");
}

TEST_CASE("tokenizer: a long word takes no quadratic time", "[tokenizer]") {
  std::string text(200'000, 'x');
  for (size_t i = 0; i < text.size(); i += 3) text[i] = 't', text[i + 1] = 'h';
  REQUIRE(tokenizer_of("llama2").encode(text).size() > text.size() / 10);
}

TEST_CASE("tokenizer: a file makes neither endless text of a text, nor endless work", "[tokenizer]") {
  const json doubling = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aa"}};
  const auto steps = [](const char* members, const json& step, size_t n) {
    return json{{"type", "Sequence"}, {members, std::vector<json>(n, step)}};
  };
  // Six doublings of a short text are as much as is allowed.
  Tokenizer(with("/normalizer", steps("normalizers", doubling, 6)), "t.json").encode("aaaa");
  const auto refused = [&](const std::string& path, const json& value, const std::string& part) {
    CHECK_REFUSED(Tokenizer(with(path, value), "t.json").encode("aaaa"), "t.json: ", part);
  };
  const std::string too_much = " make more than 320 bytes of a text of 4";
  refused("/normalizer", steps("normalizers", doubling, 16), "t.json: the steps of \"normalizer\"" + too_much);
  json long_one = doubling;
  long_one["content"] = std::string(600, 'b');
  refused("/normalizer", long_one, "t.json: the steps of \"normalizer\"" + too_much);
  const json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"use_regex", false}};
  refused("/pre_tokenizer", steps("pretokenizers", bytes, 16), "t.json: the steps of \"pre_tokenizer\"" + too_much);
  refused("/decoder", steps("decoders", doubling, 16),
          "t.json: the steps of \"decoder\" make more than 272 bytes of a text of 1");
  refused("/normalizer", steps("normalizers", {{"type", "NFC"}}, 17), "t.json: \"normalizer\" has more than 16 steps");

  json front = {{"type", "TemplateProcessing"}, {"single", std::vector<json>(9, {{"SpecialToken", {{"id", "x"}}}})}};
  front["special_tokens"] = {{"x", {{"ids", std::vector<int>(40, 1)}}}};
  refused("/post_processor", front, "puts more than 256 tokens before a text");

  json added = json::array();
  for (size_t i = 1; i < 256; i++) added.push_back({{"content", std::string(i, 'a') + "b"}, {"id", 1000 + i}});
  REQUIRE(Tokenizer(with("/added_tokens", added), "t.json").encode(std::string(100'000, 'a')).size() > 1000);
  // Of two that begin alike the longer one is taken where it is there.
  const json alike = {{{"content", "aab"}, {"id", 1000}}, {{"content", "aabb"}, {"id", 1001}}};
  const Tokenizer of_two(with("/added_tokens", alike), "t.json");
  REQUIRE(of_two.encode("aabbaab") == std::vector<int32_t>{1001, 1000});
  added[0]["content"] = std::string(257, 'a');
  refused("/added_tokens", added, "has 257 bytes, expected at most 256");
}

TEST_CASE("tokenizer: what a file asks for and is not known is refused, naming the key", "[tokenizer]") {
  const auto refused = [](const std::string& bytes, const std::string& why) {
    const std::string said = refusal([&] { Tokenizer(bytes, "t.json"); });
    REQUIRE(said.starts_with("t.json: "));
    REQUIRE(one_line(said, {why}));
  };
  refused("{", "t.json: it is not valid JSON");
  refused("", "t.json: it does not begin with '{'");
  refused("[]", "t.json: it does not begin with '{'");
  refused("{}", "an object with the key \"type\"");
  refused("{\"a\":" + std::string(100'000, '['), "t.json: it is nested deeper than 64 levels");
  refused(R"({"model": {"vocab": {"a": 0, "b": 1, "a": 2}}})", "t.json: it has the key \"a\" twice");
  // Rows of tests/fixtures/changed_tokenizers.json: a kind, a place in its file, what is put there, and what is said.
  for (const json& row : json::parse(std::ifstream("tests/fixtures/changed_tokenizers.json")))
    refused(with(row[1], row[2], row[0]), row[3]);
  json deep = {{"type", "NFC"}};
  for (int i = 0; i < 20; i++) deep = {{"type", "Sequence"}, {"normalizers", json::array({deep})}};
  refused(with("/normalizer", deep), "\"normalizer\" is nested deeper than 8 levels");
  REQUIRE_NOTHROW(Tokenizer(with("/model/dropout", {}), "t.json"));

  // A pattern that would search forever.
  const Tokenizer t(with("/pre_tokenizer/pretokenizers/0/pattern", {{"Regex", "(a+)+$"}}, "qwen"), "t.json");
  CHECK_REFUSED(t.encode("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab"), "match limit exceeded");

  const Folder f;
  CHECK_REFUSED(read_tokenizer(f / "absent"), "absent: cannot open: No such file");
  CHECK_REFUSED(read_tokenizer(f.path.string()), "tokenizer.json: cannot open: No such file");
  f.write("tokenizer.json", fixtures().at("gpt2").at("tokenizer").dump());
  REQUIRE(read_tokenizer(f.path.string()).vocab() == 360);
}

TEST_CASE("tokenizer: byte-pair encoding merges the first pair of the list, and of equal ones the leftmost",
          "[tokenizer]") {
  Bpe bpe;
  for (const char* token : {"a", "b", "c", "ab", "bc", "aa", "abc", "<0xC3>", "<0xA9>"})
    bpe.vocab.emplace(token, int32_t(bpe.vocab.size()));
  for (const auto& [first, second] : {std::pair("b", "c"), {"a", "b"}, {"a", "a"}, {"a", "bc"}})
    bpe.add_merge(first, second, "t");
  const auto encoded = [&](const std::string& word) {
    std::vector<int32_t> ids;
    const std::optional<size_t> without_token = bpe.encode(word, ids);
    if (without_token) ids = {-1, int32_t(*without_token)};
    return ids;
  };
  CHECK(encoded("abc") == std::vector<int32_t>{6});
  CHECK(encoded("ab") == std::vector<int32_t>{3});
  CHECK(encoded("aaa") == std::vector<int32_t>{5, 0});
  CHECK(encoded("aabcab") == std::vector<int32_t>{5, 4, 3});
  CHECK(encoded("") == std::vector<int32_t>{});
  CHECK(encoded("abé") == std::vector<int32_t>{-1, 2});
  bpe.byte_fallback = true;
  CHECK(encoded("aéc") == std::vector<int32_t>{0, 7, 8, 2});
  bpe.unknown = 2;
  CHECK(encoded("日本a") == std::vector<int32_t>{2, 2, 0});
  bpe.fuse_unknown = true;
  CHECK(encoded("日本a日") == std::vector<int32_t>{2, 0, 2});
}

TEST_CASE("tokenizer: a pattern divides a text into matches and what stands between them", "[tokenizer]") {
  const auto parts = [](const Pattern& pattern, const std::string& text) {
    std::string out;
    pattern.split(text, [&](size_t begin, size_t end, bool matches) {
      out += (matches ? "[" : "(") + text.substr(begin, end - begin) + (matches ? "]" : ")");
    });
    return out;
  };
  CHECK(parts({"b+", "t"}, "abbcb") == "(a)[bb](c)[b]");
  CHECK(parts({"b+", "t"}, "ccc") == "(ccc)");
  CHECK(parts({"b*", "t"}, "abc") == "(a)[b](c)");  // an empty match is none
  CHECK(parts({"b+", "t"}, "") == "");
  CHECK(parts({R"(\p{Lu}\p{Ll}+)", "t"}, "Ärger Über") == "[Ärger]( )[Über]");
  CHECK(parts({R"(\S+)", "t"}, "a\u00a0b\u180ec\u0085d") == "[a](\u00a0)[b\u180ec](\u0085)[d]");
  CHECK(parts(Pattern::literal("a.", "t"), "aba.") == "(ab)[a.]");
}

TEST_CASE("tokenizer: of several spaces in a row the first goes to the word before, as in the library", "[tokenizer]") {
  const Tokenizer t(
      R"({"pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious"},
                        "decoder": {"type": "ByteFallback"},
                        "model": {"type": "BPE", "vocab": {"a": 0, " ": 1, "b": 2, "a ": 3, "a  ": 4},
                                  "merges": [["a", " "], ["a ", " "]]}})",
      "t.json");
  REQUIRE(t.encode("a  b") == std::vector<int32_t>{3, 1, 2});
}

TEST_CASE("tokenizer: the bytes of characters", "[tokenizer]") {
  for (uint32_t code = 0; code <= 0x110000; code++) {
    const bool exists = code <= 0x10ffff && !(code >= 0xd800 && code < 0xe000);
    const std::string bytes = utf8_of(code);
    const Utf8Character c = utf8_front(bytes + "x");
    const bool right = exists ? c.length == bytes.size() && c.code == code && !c.cut : c.length == 0 && !c.cut;
    if (!right) FAIL(code);
    for (size_t n = 1; exists && n < bytes.size(); n++)
      if (const Utf8Character part = utf8_front(bytes.substr(0, n)); !part.cut || part.length > 0) FAIL(code);
  }
  for (const char* none :
       {"\x80", "\xc0\x80", "\xc1\xbf", "\xe0\x80", "\xe0\x9f\xbf", "\xed\xa0", "\xf0\x8f", "\xf4\x90", "\xf5"})
    REQUIRE((utf8_front(none).length == 0 && !utf8_front(none).cut));
  REQUIRE((utf8_front("").length == 0 && !utf8_front("").cut));
}
