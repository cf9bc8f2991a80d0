#include "dataloader/tokenizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "core/check.h"
#include "dataloader/bpe.h"
#include "dataloader/files.h"
#include "dataloader/pattern.h"
#include "dataloader/quote.h"
#include "dataloader/strict_json.h"
#include "dataloader/utf8.h"

namespace gated {

using json = nlohmann::json;

namespace {

// ---- bytes as characters: printable ASCII and Latin-1 stand for themselves, the others are U+0100 and on

struct ByteCharacters {
  std::array<std::string, 256> of_byte;
  std::unordered_map<uint32_t, unsigned char> byte_of;

  ByteCharacters() {
    uint32_t next = 256;
    for (uint32_t b = 0; b < 256; b++) {
      const bool itself = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
      const uint32_t code = itself ? b : next++;
      of_byte[b] = utf8_of(code);
      byte_of[code] = static_cast<unsigned char>(b);
    }
  }
};

const ByteCharacters& byte_characters() {
  static const ByteCharacters table;
  return table;
}

std::string bytes_as_characters(std::string_view text) {
  std::string out;
  for (const char c : text) out += byte_characters().of_byte[static_cast<unsigned char>(c)];
  return out;
}

// A token with a character that stands for no byte is as it is spelled.
std::string characters_as_bytes(const std::string& token) {
  std::string out;
  for (std::string_view rest = token; !rest.empty();) {
    const Utf8Character c = utf8_front(rest);
    const auto byte = byte_characters().byte_of.find(c.code);
    if (c.length == 0 || byte == byte_characters().byte_of.end()) return token;
    out += char(byte->second);
    rest.remove_prefix(c.length);
  }
  return out;
}

// ---- steps

// A file that nobody vouches for may ask for steps that each double a text. So there is a bound of steps, and of what
// they make.
constexpr size_t most_steps = 16, most_growth = 16;  // (compatibility forms of Unicode grow a text 11 times)
struct Room {
  const char *name, *part;  // what a refusal begins with, and the steps
  size_t text;              // bytes
  void check(size_t made) const {
    require(made <= most_growth * text + 256, "%s: the steps of \"%s\" make more than %zu bytes of a text of %zu", name,
            part, most_growth * text + 256, text);
  }
};
using Rewrite = std::function<std::string(const std::string&, const Room&)>;
using Words = std::vector<std::string>;
using Split = std::function<void(std::string_view, Words&)>;  // appends the words of a text

// <0xE2> is the byte.
std::string fallen_back_byte(const std::string& token, const Room&) {
  const auto digit = [&](size_t at) {
    const char c = token[at];
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
  };
  const bool is_byte =
      token.size() == 6 && token.starts_with("<0x") && token[5] == '>' && digit(3) >= 0 && digit(4) >= 0;
  return is_byte ? std::string(1, char(16 * digit(3) + digit(4))) : token;
}

Rewrite replacing(std::string from, std::string to) {
  return [from, to](const std::string& text, const Room& room) {
    std::string out;
    for (size_t at = 0;;) {
      const size_t found = text.find(from, at);
      out.append(text, at, found - at);
      if (found == text.npos) return out;
      out += to;
      room.check(out.size());
      at = found + from.size();
    }
  };
}

// By utf8proc's tables (2.8: Unicode 15). Those of the tokenizers library are older: a few marks that are younger, such
// as U+A82C, stay where they are there, and move to the place of their class here.
std::string composed(const std::string& text, const Room&) {
  utf8proc_uint8_t* mapped = nullptr;
  const utf8proc_ssize_t length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), utf8proc_ssize_t(text.size()), &mapped,
                   utf8proc_option_t(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, void (*)(void*)> freed(mapped, std::free);
  require(length >= 0, "a text cannot be normalised: %s", utf8proc_errmsg(length));
  return {reinterpret_cast<const char*>(mapped), size_t(length)};
}

enum class Behaviour { isolated, removed, merged_with_previous };

Split splitting(const Pattern& pattern, Behaviour behaviour, bool invert) {
  return [=](std::string_view text, Words& words) {
    bool matched_before = false, any = false;
    pattern.split(text, [&](size_t begin, size_t end, bool matches) {
      matches ^= invert;
      const std::string_view part = text.substr(begin, end - begin);
      const bool joins = behaviour == Behaviour::merged_with_previous && matches && !matched_before && any;
      if (joins) {
        words.back() += part;
      } else if (behaviour != Behaviour::removed || !matches) {
        words.emplace_back(part);
        any = true;
      }
      matched_before = matches;
    });
  };
}

const char* const gpt2_words = R"re('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)re";

// Tokens that are looked for in a text before anything else is done to it. Of those that begin at one place the longest
// counts. A tree of their bytes: what is looked at of a text is as long as the longest of them.
class Spelled {
 public:
  static constexpr size_t longest = 256;  // bytes

  void add(const std::string& content, int32_t id) {
    uint64_t node = 0;
    for (const char c : content) {
      const auto [at, is_new] = children_.emplace(child(node, c), ids_.size());
      if (is_new) ids_.push_back(none);
      node = at->second;
    }
    ids_[node] = id;
  }
  // Calls text(part) and token(id), in order.
  void split(std::string_view all, const std::function<void(std::string_view)>& text,
             const std::function<void(int32_t)>& token) const {
    size_t begin = 0;
    for (size_t at = 0; at < all.size();) {
      const auto [length, id] = token_at(all.substr(at));
      if (length == 0) {
        at++;
        continue;
      }
      if (at > begin) text(all.substr(begin, at - begin));
      token(id);
      begin = at += length;
    }
    if (begin < all.size()) text(all.substr(begin));
  }

 private:
  static constexpr int32_t none = -1;
  static uint64_t child(uint64_t node, char c) { return node << 8 | static_cast<unsigned char>(c); }

  std::pair<size_t, int32_t> token_at(std::string_view text) const {
    std::pair<size_t, int32_t> found = {0, none};
    uint64_t node = 0;
    for (size_t i = 0; i < text.size(); i++) {
      const auto next = children_.find(child(node, text[i]));
      if (next == children_.end()) break;
      node = next->second;
      if (ids_[node] != none) found = {i + 1, ids_[node]};
    }
    return found;
  }
  std::unordered_map<uint64_t, uint64_t> children_;
  std::vector<int32_t> ids_ = {none};  // by node
};

// ---- reading a tokenizer.json

constexpr int32_t largest_id = (1 << 20) - 1;
constexpr size_t most_before = 256, json_depth = 64;

class Reader {
 public:
  Reader(const std::string& name, const json& root) : name_(name), root_(root) {}

  // The value of a key, or null.
  const json& at(const json& object, const char* key) const {
    static const json null;
    require(object.is_object(), "%s: a list or a value where an object with the key \"%s\" is expected", name(), key);
    const auto found = object.find(key);
    return found == object.end() ? null : *found;
  }
  std::string text(const json& object, const char* key) const {
    const json& value = at(object, key);
    require(value.is_string(), "%s: \"%s\" is %s, expected a text", name(), key, shown(value).c_str());
    return value.get<std::string>();
  }
  bool flag(const json& object, const char* key, bool otherwise = false) const {
    const json& value = at(object, key);
    require(value.is_boolean() || value.is_null(), "%s: \"%s\" is %s, expected true or false", name(), key,
            shown(value).c_str());
    return value.is_null() ? otherwise : value.get<bool>();
  }
  int32_t id(const json& value, const std::string& of) const {
    require(value.is_number_integer() && value >= 0 && value <= largest_id,
            "%s: the id of %s is %s, expected a number from 0 to %d", name(), of.c_str(), shown(value).c_str(),
            largest_id);
    return value.get<int32_t>();
  }
  const json& list(const json& object, const char* key) const {
    const json& value = at(object, key);
    require(value.is_array(), "%s: \"%s\" is %s, expected a list", name(), key, shown(value).c_str());
    return value;
  }
  static std::string shown(const json& value) {
    if (value.is_null()) return "missing";
    if (value.is_structured()) return value.is_array() ? "a list" : "an object";
    return value.is_string() ? quote(value.get<std::string>()) : value.dump();
  }
  const char* name() const { return name_.c_str(); }

  // A step, or those of a Sequence, whose key of its own is `members`.
  void steps(const char* part, const char* members,
             const std::function<void(const json&, const std::string&)>& step) const {
    const json& whole = at(root_, part);
    size_t steps = 0;
    const auto counted = [&](const json& one, const std::string& type) {
      require(++steps <= most_steps, "%s: \"%s\" has more than %zu steps", name(), part, most_steps);
      step(one, type);
    };
    if (!whole.is_null()) steps_of(whole, part, members, counted, 0);
  }
  [[noreturn]] void unknown(const char* part, const std::string& type, const char* known) const {
    fail("%s: \"%s\" has a step of type %s, expected %s", name(), part, quote(type).c_str(), known);
  }
  // A pattern is {"String": ...} or {"Regex": ...}.
  Pattern pattern(const json& step, const char* part) const {
    const json& value = at(step, "pattern");
    const std::string where = format("%s: \"%s\"", name(), part);
    if (!at(value, "Regex").is_null()) return Pattern(text(value, "Regex"), where);
    return Pattern::literal(not_empty(text(value, "String"), part), where);
  }
  std::string not_empty(const std::string& value, const char* part) const {
    require(!value.empty(), "%s: \"%s\" looks for an empty text", name(), part);
    return value;
  }

 private:
  void steps_of(const json& step, const char* part, const char* members,
                const std::function<void(const json&, const std::string&)>& visit, int depth) const {
    const std::string type = text(step, "type");
    if (type != "Sequence") return visit(step, type);
    require(depth < 8, "%s: \"%s\" is nested deeper than 8 levels", name(), part);
    for (const json& inner : list(step, members)) steps_of(inner, part, members, visit, depth + 1);
  }

  std::string name_;
  const json& root_;
};

}  // namespace

struct Tokenizer::Parts {
  std::string name;                 // of the file
  std::vector<std::string> tokens;  // by id, as decode() gives them; "" where an id has no token
  size_t model_vocab = 0;
  Spelled raw, normalised;  // added tokens: looked for in the text, and in what the normaliser leaves of it
  std::vector<Rewrite> normaliser;
  std::vector<Split> words;
  Bpe bpe;
  std::vector<int32_t> before;  // what the template puts before a text
  bool strips_first_space = false, writes_bytes = false;

  Parts(const Reader& r, const json& root);
  std::string normalise(const std::string& text) const { return rewritten(text, normaliser, "normalizer"); }
  void encode_words(std::string_view text, std::vector<int32_t>& ids) const;
  std::string character_at(const std::string& word, size_t at) const;

 private:
  std::string rewritten(std::string text, const std::vector<Rewrite>& steps, const char* part) const {
    const Room room = {name.c_str(), part, text.size()};
    for (const Rewrite& step : steps) {
      text = step(text, room);
      room.check(text.size());
    }
    return text;
  }
  void read_normaliser(const Reader& r);
  void read_words(const Reader& r);
  void read_model(const Reader& r, const json& model);
  void read_template(const Reader& r);
  void read_added_tokens(const Reader& r, const json& root);
  void read_decoder(const Reader& r);
};

Tokenizer::Parts::Parts(const Reader& r, const json& root) : name(r.name()) {
  read_normaliser(r);
  read_words(r);
  read_model(r, r.at(root, "model"));
  read_template(r);
  read_added_tokens(r, root);
  read_decoder(r);
}

void Tokenizer::Parts::read_normaliser(const Reader& r) {
  r.steps("normalizer", "normalizers", [&](const json& step, const std::string& type) {
    if (type == "NFC") {
      normaliser.push_back(composed);
    } else if (type == "Prepend") {
      normaliser.push_back([front = r.text(step, "prepend")](const std::string& text, const Room&) {
        return text.empty() ? text : front + text;
      });
    } else if (type == "Replace") {
      const Pattern pattern = r.pattern(step, "normalizer");
      normaliser.push_back([pattern, content = r.text(step, "content")](const std::string& text, const Room& room) {
        std::string out;
        pattern.split(text, [&](size_t begin, size_t end, bool matches) {
          out += matches ? content : text.substr(begin, end - begin);
          room.check(out.size());
        });
        return out;
      });
    } else {
      r.unknown("normalizer", type, "NFC, Prepend, Replace or Sequence");
    }
  });
}

void Tokenizer::Parts::read_words(const Reader& r) {
  static const std::map<std::string, Behaviour> known = {{"Isolated", Behaviour::isolated},
                                                         {"Removed", Behaviour::removed},
                                                         {"MergedWithPrevious", Behaviour::merged_with_previous}};
  r.steps("pre_tokenizer", "pretokenizers", [&](const json& step, const std::string& type) {
    if (type == "Split") {
      const std::string behaviour = r.text(step, "behavior");
      require(known.count(behaviour),
              "%s: \"pre_tokenizer\" has a Split with behavior %s, expected Isolated, Removed or MergedWithPrevious",
              r.name(), quote(behaviour).c_str());
      words.push_back(splitting(r.pattern(step, "pre_tokenizer"), known.at(behaviour), r.flag(step, "invert")));
    } else if (type == "ByteLevel") {
      if (r.flag(step, "add_prefix_space", true))
        words.push_back([](std::string_view text, Words& out) {
          out.push_back((text.starts_with(' ') ? "" : " ") + std::string(text));
        });
      if (r.flag(step, "use_regex", true))
        words.push_back(splitting(Pattern(gpt2_words, r.name()), Behaviour::isolated, false));
      words.push_back([](std::string_view text, Words& out) { out.push_back(bytes_as_characters(text)); });
      writes_bytes = true;
    } else {
      r.unknown("pre_tokenizer", type, "Split, ByteLevel or Sequence");
    }
  });
}

void Tokenizer::Parts::read_model(const Reader& r, const json& model) {
  const json& type = r.at(model, "type");  // files of 2019 have none
  require(type.is_null() || type == "BPE", "%s: \"model\" is of type %s, expected BPE", r.name(),
          Reader::shown(type).c_str());
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix", "dropout"}) {
    const json& value = r.at(model, key);
    require(value.is_null() || value == "" || value == 0, "%s: \"%s\" of the model is %s, expected none", r.name(), key,
            Reader::shown(value).c_str());
  }
  const json& vocab = r.at(model, "vocab");
  require(vocab.is_object() && !vocab.empty(), "%s: \"vocab\" of the model is %s, expected tokens with their ids",
          r.name(), Reader::shown(vocab).c_str());
  for (const auto& [token, value] : vocab.items()) {
    const int32_t id = r.id(value, quote(token));
    require(!token.empty(), "%s: \"vocab\" has an empty token", r.name());
    if (size_t(id) >= tokens.size()) tokens.resize(size_t(id) + 1);
    require(tokens[size_t(id)].empty(), "%s: %s and %s both have the id %d", r.name(), quote(token).c_str(),
            quote(tokens[size_t(id)]).c_str(), id);
    tokens[size_t(id)] = token;
    bpe.vocab.emplace(token, id);
  }
  model_vocab = tokens.size();
  if (!r.at(model, "unk_token").is_null()) {
    const auto unknown = bpe.vocab.find(r.text(model, "unk_token"));
    if (unknown != bpe.vocab.end()) bpe.unknown = unknown->second;
  }
  bpe.fuse_unknown = r.flag(model, "fuse_unk");
  bpe.byte_fallback = r.flag(model, "byte_fallback");
  bpe.ignore_merges = r.flag(model, "ignore_merges");
  size_t number = 0;
  for (const json& merge : r.list(model, "merges")) {
    const std::string where = format("%s: merge %zu", r.name(), number++);
    // "a b", or ["a", "b"] in newer files, whose parts may hold spaces.
    const bool is_pair = merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string();
    require(is_pair || merge.is_string(), "%s is %s, expected two tokens", where.c_str(), Reader::shown(merge).c_str());
    if (is_pair) {
      bpe.add_merge(merge[0].get<std::string>(), merge[1].get<std::string>(), where);
      continue;
    }
    const std::string both = merge.get<std::string>();
    const size_t space = both.find(' ');
    require(space != both.npos && both.find(' ', space + 1) == both.npos,
            "%s is %s, expected two tokens with a space between", where.c_str(), quote(both).c_str());
    bpe.add_merge(both.substr(0, space), both.substr(space + 1), where);
  }
}

void Tokenizer::Parts::read_template(const Reader& r) {
  r.steps("post_processor", "processors", [&](const json& step, const std::string& type) {
    if (type == "ByteLevel") return;  // it is about places in the text alone
    if (type != "TemplateProcessing") r.unknown("post_processor", type, "TemplateProcessing, ByteLevel or Sequence");
    for (const json& piece : r.list(step, "single")) {
      if (!r.at(piece, "Sequence").is_null()) break;  // the text
      const std::string special = r.text(r.at(piece, "SpecialToken"), "id");
      for (const json& id : r.list(r.at(r.at(step, "special_tokens"), special.c_str()), "ids"))
        before.push_back(r.id(id, quote(special)));
      require(before.size() <= most_before, "%s: \"post_processor\" puts more than %zu tokens before a text", r.name(),
              most_before);
    }
  });
}

void Tokenizer::Parts::read_added_tokens(const Reader& r, const json& root) {
  if (r.at(root, "added_tokens").is_null()) return;
  for (const json& token : r.list(root, "added_tokens")) {
    const std::string content = r.text(token, "content");
    require(!content.empty(), "%s: \"added_tokens\" has an empty token", r.name());
    require(content.size() <= Spelled::longest, "%s: the added token %s has %zu bytes, expected at most %zu", r.name(),
            quote(content).c_str(), content.size(), Spelled::longest);
    for (const char* key : {"single_word", "lstrip", "rstrip"})
      require(!r.flag(token, key), "%s: \"%s\" of the added token %s is true, expected false", r.name(), key,
              quote(content).c_str());
    const int32_t id = r.id(r.at(token, "id"), quote(content));
    if (size_t(id) >= tokens.size()) tokens.resize(size_t(id) + 1);
    std::string& there = tokens[size_t(id)];
    require(there.empty() || there == content, "%s: %s and the added token %s both have the id %d", r.name(),
            quote(there).c_str(), quote(content).c_str(), id);
    there = content;
    const bool is_normalised = r.flag(token, "normalized");
    const std::string found_as = is_normalised ? normalise(content) : content;
    if (!found_as.empty()) (is_normalised ? normalised : raw).add(found_as, id);
  }
}

// A token is decoded alone, whatever came before. So steps that look at several are told apart: joining them (Fuse) is
// what decode() does anyway, and the space that is taken from the front of a text is the first token's.
void Tokenizer::Parts::read_decoder(const Reader& r) {
  std::vector<Rewrite> decoder;
  r.steps("decoder", "decoders", [&](const json& step, const std::string& type) {
    if (type == "ByteLevel") {
      decoder.push_back([](const std::string& token, const Room&) { return characters_as_bytes(token); });
    } else if (type == "Replace") {
      decoder.push_back(
          replacing(r.not_empty(r.text(r.at(step, "pattern"), "String"), "decoder"), r.text(step, "content")));
    } else if (type == "ByteFallback") {
      decoder.push_back(fallen_back_byte);
    } else if (type == "Strip") {
      require(r.text(step, "content") == " " && r.at(step, "start") == 1 && r.at(step, "stop") == 0,
              "%s: \"decoder\" has a Strip of other than one space at the start", r.name());
      strips_first_space = true;
    } else if (type != "Fuse") {
      r.unknown("decoder", type, "ByteLevel, Replace, ByteFallback, Fuse, Strip or Sequence");
    }
  });
  require(!decoder.empty(), "%s: \"decoder\" is missing, expected ByteLevel or a Sequence", r.name());
  for (std::string& token : tokens) token = rewritten(token, decoder, "decoder");
}

// The character of the text whose token is looked for at byte `at` of a word. Where bytes are written as characters, it
// is that of which the byte is a part.
std::string Tokenizer::Parts::character_at(const std::string& word, size_t at) const {
  if (!writes_bytes) return word.substr(at, std::max<size_t>(utf8_front(std::string_view(word).substr(at)).length, 1));
  const std::string bytes = characters_as_bytes(word), before = characters_as_bytes(word.substr(0, at));
  for (std::string_view rest = bytes; !rest.empty();) {
    const size_t length = std::max<size_t>(utf8_front(rest).length, 1);
    if (bytes.size() - rest.size() + length > before.size()) return std::string(rest.substr(0, length));
    rest.remove_prefix(length);
  }
  return bytes;
}

void Tokenizer::Parts::encode_words(std::string_view text, std::vector<int32_t>& ids) const {
  Words now = {std::string(text)}, next;
  const Room room = {name.c_str(), "pre_tokenizer", text.size()};
  for (const Split& split : words) {
    next.clear();
    size_t made = 0, counted = 0;
    for (const std::string& word : now) {
      split(word, next);
      for (; counted < next.size(); counted++) made += next[counted].size();
      room.check(made);
    }
    now.swap(next);
  }
  for (const std::string& word : now)
    if (const std::optional<size_t> at = bpe.encode(word, ids))
      fail("the character %s has no token", quote(character_at(word, *at)).c_str());
}

// ----

Tokenizer::Tokenizer(std::string_view bytes, const std::string& name) {
  const json root = parse_strict_json(name, "", std::string(bytes), json_depth);
  parts_ = std::make_shared<Parts>(Reader(name, root), root);
}

size_t Tokenizer::vocab() const {
  return parts_->tokens.size();
}

size_t Tokenizer::model_vocab() const {
  return parts_->model_vocab;
}

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  for (std::string_view rest = text; !rest.empty();) {
    const size_t length = utf8_front(rest).length;
    require(length > 0, "byte %zu of the text is not UTF-8", text.size() - rest.size());
    rest.remove_prefix(length);
  }
  std::vector<int32_t> ids;
  const auto token = [&](int32_t id) { ids.push_back(id); };
  const auto words = [&](std::string_view part) { parts_->encode_words(part, ids); };
  parts_->raw.split(
      text,
      [&](std::string_view part) { parts_->normalised.split(parts_->normalise(std::string(part)), words, token); },
      token);
  return ids;
}

std::vector<int32_t> Tokenizer::encode_prompt(std::string_view text) const {
  std::vector<int32_t> ids = encode(text);
  ids.insert(ids.begin(), parts_->before.begin(), parts_->before.end());
  return ids;
}

std::string Tokenizer::decode_one(int32_t id, bool first) const {
  const bool known = id >= 0 && size_t(id) < vocab() && !parts_->tokens[size_t(id)].empty();
  if (!known) return format("<%d>", int(id));
  const std::string& token = parts_->tokens[size_t(id)];
  return first && parts_->strips_first_space && token[0] == ' ' ? token.substr(1) : token;
}

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  for (size_t i = 0; i < ids.size(); i++) text += decode_one(ids[i], i == 0);
  return text;
}

std::string tokenizer_file(const std::string& path) {
  std::error_code error;
  const bool folder = std::filesystem::is_directory(path, error);
  return folder ? (std::filesystem::path(path) / "tokenizer.json").native() : path;
}

Tokenizer read_tokenizer(const std::string& path) {
  const std::string file = tokenizer_file(path);
  return Tokenizer(read_file(file), file);
}

}  // namespace gated
