#include "dataloader/shards.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace gated {

static_assert(std::endian::native == std::endian::little, "shards are read in place");

namespace {

struct ShardFormat {
  int32_t magic, version;
  size_t token_bytes, vocab;  // of GPT-2, of Llama 3
};
constexpr ShardFormat shard_formats[] = {{20240520, 1, 2, 50257}, {20240801, 7, 4, 128256}};

}  // namespace

void Shard::copy(size_t begin, size_t count, size_t vocab, int32_t* out) const {
  require(begin <= size() && count <= size() - begin, "%s: tokens %zu to %zu asked of %zu", name_.c_str(), begin,
          begin + count, size());
  for (size_t i = 0; i < count; ++i) {
    uint32_t token = 0;
    std::memcpy(&token, bytes_.data() + token_bytes_ * (begin + i), token_bytes_);
    require(token < vocab && token <= INT32_MAX,
            "%s: token %zu is %u, expected below the vocabulary, %zu: set --vocab as the tokenizer has it",
            name_.c_str(), begin + i, unsigned(token), vocab);
    out[i] = int32_t(token);
  }
}

Shard parse_shard(std::span<const unsigned char> file, const std::string& name) {
  constexpr size_t header_bytes = 256 * sizeof(int32_t);
  require(file.size() >= header_bytes, "%s: %zu bytes, expected a header of %zu: truncated, or not a token shard",
          name.c_str(), file.size(), header_bytes);
  int32_t header[4];
  std::memcpy(header, file.data(), sizeof header);
  const int32_t magic = header[0], version = header[1], count = header[2], vocab = header[3];
  const ShardFormat* f = std::find_if(std::begin(shard_formats), std::end(shard_formats),
                                      [&](const ShardFormat& f) { return f.magic == magic; });
  require(f != std::end(shard_formats),
          "%s: magic number %d, expected 20240520 (16-bit tokens) or 20240801 (32-bit tokens): not a token shard",
          name.c_str(), magic);
  require(version == f->version, "%s: version %d, expected %d with magic number %d", name.c_str(), version, f->version,
          magic);
  require(count > 0, "%s: the header announces %d tokens, expected at least 1", name.c_str(), count);
  require(vocab >= 0, "%s: the header announces a vocabulary of %d tokens, expected at least 0", name.c_str(), vocab);
  const size_t expected = header_bytes + f->token_bytes * size_t(count);
  require(file.size() == expected, "%s: %zu bytes, expected %zu for %d tokens: %s", name.c_str(), file.size(), expected,
          count, file.size() < expected ? "truncated" : "trailing bytes");
  return {file.subspan(header_bytes), f->token_bytes, vocab ? size_t(vocab) : f->vocab, name};
}

ShardCorpus::ShardCorpus(const std::vector<std::string>& paths, size_t vocab) : vocab_(vocab) {
  for (const std::string& path : paths) {
    files_.emplace_back(path);
    shards_.push_back(parse_shard(files_.back().bytes(), path));
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
    const std::span<const unsigned char> bytes = shard.bytes();
    hash.number(bytes.size());
    if (bytes.size() <= block * blocks) {
      hash.bytes(bytes.data(), bytes.size());
      continue;
    }
    for (size_t i = 0; i < blocks; i++) {
      const size_t begin = (bytes.size() - block) / (blocks - 1) * i;
      hash.bytes(bytes.data() + (i + 1 < blocks ? begin : bytes.size() - block), block);
    }
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
