#include "dataloader/text.h"

#include <algorithm>
#include <filesystem>
#include <string_view>

#include "dataloader/files.h"
#include "dataloader/shards.h"
#include "dataloader/utf8.h"

namespace gated {

TextCorpus::TextCorpus(const std::vector<std::string>& paths, size_t vocab) : vocab_(vocab ? vocab : 256) {
  require(vocab_ >= 256, "--vocab=%zu: text needs 256, one token for each byte", vocab_);
  std::string names;
  for (const std::string& path : paths) {
    names += (names.empty() ? "" : ", ") + path;
    std::error_code error;
    if (std::filesystem::is_directory(path, error)) {
      for (const std::string& file : files_under(path)) append(file, true);
    } else {
      append(path, false);
    }
  }
  require(!bytes_.empty(), "%.200s: no text found (%zu files hold NUL bytes: binary, skipped; %zu are empty)",
          names.c_str(), skipped_, empty_);
}

std::string TextCorpus::description() const {
  return format("%zu bytes of %zu text files", bytes_.size(), files_) +
         (skipped_ ? format(" (%zu binary files skipped)", skipped_) : "");
}

void TextCorpus::copy(size_t begin, size_t count, int32_t* out) const {
  require(begin <= size() && count <= size() - begin, "text: bytes %zu to %zu asked of %zu", begin, begin + count,
          size());
  for (size_t i = 0; i < count; ++i) out[i] = static_cast<unsigned char>(bytes_[begin + i]);
}

void TextCorpus::append(const std::string& path, bool may_skip) {
  const File file(path);
  const size_t size = file.size(), before = bytes_.size();
  if (before > 0 && bytes_.back() != '\n') bytes_ += '\n';
  bytes_.resize(bytes_.size() + size);
  char* const text = bytes_.data() + bytes_.size() - size;
  file.read(text, size, 0);
  require(!may_skip || !is_token_shard({text, size}),
          "%s: is a token shard in a folder that was named for its texts: name shards by a pattern, as "
          "'%s/train_*.bin', or the texts without it",
          path.c_str(), std::filesystem::path(path).parent_path().c_str());
  const size_t nul = std::string_view(text, size).find('\0');
  require(may_skip || size > 0, "%s: empty", path.c_str());
  require(may_skip || nul == std::string_view::npos,
          "%s: byte %zu is NUL: not text (token shards are recognised by a name ending in .bin)", path.c_str(), nul);
  if (size > 0 && nul == std::string_view::npos) {
    ++files_;
  } else {
    ++(size == 0 ? empty_ : skipped_);
    bytes_.resize(before);
  }
}

// ---- --data=self

std::string source_root() {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path beside = fs::read_symlink("/proc/self/exe", error).parent_path();
  const fs::path current = fs::current_path(error);
  for (const fs::path& root : {beside, current}) {
    if (fs::is_regular_file(root / "train_gpt.cu", error)) return root.native();
  }
  fail(
      "--data=self: no train_gpt.cu beside the program (%s) nor in the current folder (%s): run it from the "
      "source folder or name a text with --data=PATH",
      beside.c_str(), current.c_str());
}

std::vector<std::string> source_files(const std::string& root) {
  namespace fs = std::filesystem;
  static constexpr std::string_view parts[] = {"Makefile", "README.md", "core",  "dataloader",   "docs",    "kernels",
                                               "layers",   "scripts",   "tests", "train_gpt.cu", "training"};
  static constexpr std::string_view suffixes[] = {".cpp", ".cu", ".cuh", ".h", ".md", ".py", ".sh", ".txt"};
  std::vector<std::string> files;
  for (const std::string_view part : parts) {
    const fs::path path = fs::path(root) / part;
    std::error_code error;
    if (fs::is_regular_file(path, error)) files.push_back(path.native());
    if (!fs::is_directory(path, error)) continue;
    for (const std::string& file : files_under(path.native())) {
      const std::string suffix = fs::path(file).extension().native();
      if (std::find(std::begin(suffixes), std::end(suffixes), suffix) != std::end(suffixes)) files.push_back(file);
    }
  }
  require(!files.empty(),
          "--data=self: no source file under %s: run from the source folder or name a text with --data=PATH",
          root.c_str());
  return files;
}

// ---- printing samples

std::string printable(std::string_view bytes) {
  std::string out;
  while (!bytes.empty()) {
    const Utf8Character c = utf8_front(bytes);
    const bool control = c.code < 0x20 || (c.code >= 0x7f && c.code < 0xa0);
    const size_t length = control && c.code != '\n' && c.code != '\t' ? 0 : c.length;
    if (length > 0)
      out += bytes.substr(0, length);
    else
      out += format("\\x%02x", unsigned(static_cast<unsigned char>(bytes[0])));
    bytes.remove_prefix(std::max<size_t>(length, 1));
  }
  return out;
}

}  // namespace gated
