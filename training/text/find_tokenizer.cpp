#include "training/text/find_tokenizer.h"

#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "dataloader/files.h"
#include "dataloader/strict_json.h"
#include "training/checkpoint/checkpoint.h"

namespace gated {

namespace fs = std::filesystem;

constexpr size_t deepest_tokenizer = 64;  // levels of its JSON; real ones have ten

// "" where there is none.
static std::string tokenizer_path(const Config& c) {
  if (!c.tokenizer.empty()) return c.tokenizer;
  std::error_code error;
  std::vector<fs::path> folders;
  const fs::path from = c.from;
  if (!from.empty()) folders.push_back(fs::is_directory(from, error) ? from : from.parent_path());
  if (!c.out.empty()) folders.push_back(c.out);  // which a new run has not made yet
  for (const fs::path& folder : folders) {
    const fs::path file = folder / "tokenizer.json";
    if (is_there(file.native())) return file.native();
  }
  return "";
}

static void require_room(const std::string& path, size_t tokens, size_t vocab) {
  require(tokens <= vocab,
          "--tokenizer=%s: has %zu tokens, but the model has %zu: name the tokenizer of its data, or set --vocab",
          path.c_str(), tokens, vocab);
}

static Tokenizer fitting(const std::string& path, size_t vocab) {
  const Tokenizer tokenizer = read_tokenizer(path);
  require_room(path, tokenizer.model_vocab(), vocab);
  return tokenizer;
}

std::optional<Tokenizer> find_tokenizer(const Config& c) {
  const std::string path = tokenizer_path(c);
  if (path.empty()) return {};
  if (!c.tokenizer.empty()) return as_flag_names("--tokenizer", path, [&] { return fitting(path, c.model.vocab); });
  try {
    return fitting(path, c.model.vocab);
  } catch (const Error& e) {
    fprintf(stderr, "note: no text without a tokenizer: %s\n", e.what());
    return {};
  }
}

std::optional<std::string> kept_tokenizer(const Config& c) {
  const std::string path = tokenizer_path(c);
  if (path.empty()) return {};
  try {
    std::string text = read_file(tokenizer_file(path));
    const nlohmann::json root = parse_strict_json(path, "", text, deepest_tokenizer);
    const auto model = root.find("model");
    require(root.is_object() && model != root.end() && model->is_object(),
            "%s: has no object \"model\", expected a tokenizer.json", path.c_str());
    require_room(path, model->contains("vocab") ? model->at("vocab").size() : 0, c.model.vocab);
    return text;
  } catch (const Error& e) {
    if (!c.tokenizer.empty()) throw;
    fprintf(stderr, "note: the tokenizer does not go along: %s\n", e.what());
    return {};
  }
}

void require_no_tokenizer(const Config& c, const char* flag, const std::string& data) {
  const std::string path = tokenizer_path(c);
  require(path.empty(),
          "%s=%s: is text, read byte by byte, but %s says that the model's tokens are no bytes: make tokens of it, "
          "scripts/tokenize.py TEXT --tokenizer=%s --out=FOLDER, and name these, --data='FOLDER/train_*.bin' "
          "--val-data='FOLDER/val_*.bin'",
          flag, data.c_str(), path.c_str(), path.c_str());
}

void keep_tokenizer(const Config& c, const std::string& folder) {
  const std::string copy = (fs::path(folder) / "tokenizer.json").native();
  if (is_there(copy)) return;
  if (const auto text = kept_tokenizer(c)) write_text(copy, *text);
}

}  // namespace gated
