#include "dataloader/shards.h"

#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <list>
#include <map>
#include <memory>

namespace gated {

static_assert(std::endian::native == std::endian::little, "shards are little endian, read without swapping");

namespace {

struct ShardFormat {
  int32_t magic, version;
  size_t token_bytes, vocab;  // of GPT-2, of Llama 3
};
constexpr size_t header_bytes = 256 * sizeof(int32_t);
constexpr ShardFormat shard_formats[] = {{20240520, 1, 2, 50257}, {20240801, 7, 4, 128256}};

const ShardFormat* format_of(int32_t magic) {
  return std::find_if(std::begin(shard_formats), std::end(shard_formats),
                      [&](const ShardFormat& f) { return f.magic == magic; });
}

}  // namespace

bool is_token_shard(std::string_view bytes) {
  int32_t magic = 0;
  if (bytes.size() < header_bytes) return false;
  std::memcpy(&magic, bytes.data(), sizeof magic);
  return format_of(magic) != std::end(shard_formats);
}

Shard::Shard(size_t file_size, ReadBytes read, std::string name) : read_(std::move(read)), name_(std::move(name)) {
  const char* const at = name_.c_str();
  require(file_size >= header_bytes, "%s: %zu bytes, expected a header of %zu: truncated, or not a token shard", at,
          file_size, header_bytes);
  int32_t header[4];
  read_(header, sizeof header, 0);
  const int32_t magic = header[0], version = header[1], count = header[2], vocab = header[3];
  const ShardFormat* f = format_of(magic);
  require(f != std::end(shard_formats),
          "%s: magic number %d, expected 20240520 (16-bit tokens) or 20240801 (32-bit tokens): not a token shard", at,
          magic);
  require(version == f->version, "%s: version %d, expected %d with magic number %d", at, version, f->version, magic);
  require(count > 0, "%s: the header announces %d tokens, expected at least 1", at, count);
  require(vocab >= 0, "%s: the header announces a vocabulary of %d tokens, expected at least 0", at, vocab);
  const size_t expected = header_bytes + f->token_bytes * size_t(count);
  require(file_size == expected, "%s: %zu bytes, expected %zu for %d tokens: %s", at, file_size, expected, count,
          file_size < expected ? "truncated" : "trailing bytes");
  size_ = size_t(count);
  token_bytes_ = f->token_bytes;
  vocab_ = vocab ? size_t(vocab) : f->vocab;
}

std::vector<unsigned char> Shard::bytes(size_t begin, size_t n) const {
  std::vector<unsigned char> bytes(n);
  if (n > 0) read_(bytes.data(), n, header_bytes + begin);
  return bytes;
}

void Shard::copy(size_t begin, size_t count, size_t vocab, int32_t* out) const {
  require(begin <= size() && count <= size() - begin, "%s: tokens %zu to %zu asked of %zu", name_.c_str(), begin,
          begin + count, size());
  const std::vector<unsigned char> tokens = bytes(token_bytes_ * begin, token_bytes_ * count);
  for (size_t i = 0; i < count; ++i) {
    uint32_t token = 0;
    std::memcpy(&token, tokens.data() + token_bytes_ * i, token_bytes_);
    require(token < vocab && token <= INT32_MAX,
            "%s: token %zu is %u, expected below the vocabulary, %zu: set --vocab as the tokenizer has it",
            name_.c_str(), begin + i, unsigned(token), vocab);
    out[i] = int32_t(token);
  }
}

namespace {

// Files of which the last few that were read stay open: there may be more of them than a process may hold. One that is
// opened again has to be what it was.
class FewOpenFiles {
 public:
  const File& get(const std::string& path) {
    const auto at = std::find_if(open_.begin(), open_.end(), [&](const File& f) { return f.path() == path; });
    if (at != open_.end()) {
      open_.splice(open_.begin(), open_, at);
    } else {
      File file(path);
      require_same(file);
      open_.push_front(std::move(file));
      if (open_.size() > most) open_.pop_back();
    }
    return open_.front();
  }

 private:
  static constexpr size_t most = 8;

  void require_same(const File& file) {
    struct stat now;
    if (::fstat(file.descriptor(), &now) != 0) fail_errno(file.path(), "stat");
    const struct stat& first = first_.emplace(file.path(), now).first->second;
    require(now.st_size >= first.st_size,
            "%s: ends at byte %zu, expected more, to byte %zu: it was cut short after it was opened",
            file.path().c_str(), size_t(now.st_size), size_t(first.st_size));
    require(now.st_dev == first.st_dev && now.st_ino == first.st_ino && now.st_size == first.st_size &&
                now.st_mtim.tv_sec == first.st_mtim.tv_sec && now.st_mtim.tv_nsec == first.st_mtim.tv_nsec,
            "%s: was changed or replaced after it was opened", file.path().c_str());
  }

  std::list<File> open_;                     // the last read first
  std::map<std::string, struct stat> first_;  // of every file
};

}  // namespace

ShardCorpus::ShardCorpus(const std::vector<std::string>& paths, size_t vocab) : vocab_(vocab) {
  const auto files = std::make_shared<FewOpenFiles>();
  for (const std::string& path : paths) {
    const auto read = [files, path](void* dst, size_t n, size_t offset) { files->get(path).read(dst, n, offset); };
    shards_.emplace_back(files->get(path).size(), read, path);
    starts_.push_back(starts_.back() + shards_.back().size());
    const size_t here = shards_.back().vocab(), first = shards_[0].vocab();
    require(here == first, "%s: of a vocabulary of %zu tokens, but %s is of one of %zu: give shards of one tokenizer",
            path.c_str(), here, paths[0].c_str(), first);
  }
  if (vocab_ == 0) vocab_ = shards_[0].vocab();
}

std::string ShardCorpus::description() const {
  return format("%zu tokens of %zu shards, vocabulary %zu", size(), shards_.size(), vocab_);
}

std::string ShardCorpus::content_hash() const {
  constexpr size_t block = size_t{1} << 16, blocks = 16;
  Hash hash;
  hash.text("shards").number(shards_.size());
  for (const Shard& shard : shards_) {
    const size_t size = shard.token_bytes() * shard.size();
    const auto add = [&](size_t begin, size_t n) { hash.bytes(shard.bytes(begin, n).data(), n); };
    hash.number(size);
    if (size <= block * blocks) {
      add(0, size);
      continue;
    }
    for (size_t i = 0; i + 1 < blocks; i++) add((size - block) / (blocks - 1) * i, block);
    add(size - block, block);
  }
  return hash.hex();
}

void ShardCorpus::copy(size_t begin, size_t count, int32_t* out) const {
  require(begin <= size() && count <= size() - begin, "shards: tokens %zu to %zu asked of %zu", begin, begin + count,
          size());
  size_t s = size_t(std::upper_bound(starts_.begin(), starts_.end(), begin) - starts_.begin()) - 1;
  for (; count > 0; ++s) {
    const size_t here = std::min(count, starts_[s + 1] - begin);
    shards_[s].copy(begin - starts_[s], here, vocab_, out);
    begin += here;
    count -= here;
    out += here;
  }
}

}  // namespace gated
