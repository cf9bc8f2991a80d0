#include "dataloader/shards.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace gated {

static constexpr size_t gpt2_vocab = 50257;

static_assert(std::endian::native == std::endian::little, "shards are read in place");

void Shard::copy(size_t begin, size_t count, size_t vocab, int32_t* out) const {
  require(begin <= size() && count <= size() - begin, "%s: tokens %zu to %zu asked of %zu", name_.c_str(), begin,
          begin + count, size());
  for (size_t i = 0; i < count; ++i) {
    uint16_t token;
    std::memcpy(&token, bytes_.data() + 2 * (begin + i), 2);
    require(token < vocab,
            "%s: token %zu is %d, expected below the vocabulary, %zu: set --vocab as the tokenizer has it",
            name_.c_str(), begin + i, int(token), vocab);
    out[i] = token;
  }
}

Shard parse_shard(std::span<const unsigned char> file, const std::string& name) {
  constexpr size_t header_bytes = 256 * sizeof(int32_t);
  require(file.size() >= header_bytes, "%s: %zu bytes, expected a header of %zu: truncated, or not a token shard",
          name.c_str(), file.size(), header_bytes);
  int32_t header[3];
  std::memcpy(header, file.data(), sizeof header);
  const auto [magic, version, count] = header;
  require(magic == 20240520, "%s: magic number %d, expected 20240520: not a GPT-2 token shard", name.c_str(), magic);
  require(version == 1, "%s: version %d, expected 1", name.c_str(), version);
  require(count > 0, "%s: the header announces %d tokens, expected at least 1", name.c_str(), count);
  const size_t expected = header_bytes + 2 * size_t(count);
  require(file.size() == expected, "%s: %zu bytes, expected %zu for %d tokens: %s", name.c_str(), file.size(), expected,
          count, file.size() < expected ? "truncated" : "trailing bytes");
  return {file.subspan(header_bytes), name};
}

ShardCorpus::ShardCorpus(const std::vector<std::string>& paths, size_t vocab) : vocab_(vocab ? vocab : gpt2_vocab) {
  for (const std::string& path : paths) {
    files_.emplace_back(path);
    shards_.push_back(parse_shard(files_.back().bytes(), path));
    starts_.push_back(starts_.back() + shards_.back().size());
  }
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
    begin += here, count -= here, out += here;
  }
}

}  // namespace gated
