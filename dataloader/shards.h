// shards: GPT-2 tokens as llm.c's data scripts write them: FineWeb and others, many files of 100M tokens
//   256 int32 header: magic 20240520, version 1, number of tokens, the rest unused;
//   then that many uint16 tokens; all little-endian, as this machine must be
// parse_shard works on bytes in memory: mmap and the fuzzer come the same way. Nothing is trusted: the size
// must fit the header to the byte, and each token is checked against the vocabulary when it is read.
// --data=FILE.bin | 'dir/*_train_*.bin' | tests/test_dataloader.cpp, tests/fuzz_shards.cpp
#pragma once
#include <bit>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "dataloader/files.h"
#include "dataloader/token_stream.h"

namespace gated {

static_assert(std::endian::native == std::endian::little, "shards are read in place");

constexpr size_t gpt2_vocab = 50257;

// The tokens of one shard, in place; possibly at an odd address, so they are read by memcpy.
class Shard {
 public:
  Shard(std::span<const unsigned char> tokens, std::string name) : bytes_(tokens), name_(std::move(name)) {}
  size_t size() const { return bytes_.size() / 2; }

  void copy(size_t begin, size_t count, size_t vocab, int32_t* out) const {
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

 private:
  std::span<const unsigned char> bytes_;
  std::string name_;
};

inline Shard parse_shard(std::span<const unsigned char> file, const std::string& name) {
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

// Shards end to end, in the order given; a sequence may run from one into the next.
class ShardCorpus : public Corpus {
 public:
  ShardCorpus(const std::vector<std::string>& paths, size_t vocab) : vocab_(vocab ? vocab : gpt2_vocab) {
    for (const std::string& path : paths) {
      files_.emplace_back(path);
      shards_.push_back(parse_shard(files_.back().bytes(), path));
      starts_.push_back(starts_.back() + shards_.back().size());
    }
  }

  size_t vocab() const override { return vocab_; }
  size_t size() const override { return starts_.back(); }
  bool is_text() const override { return false; }
  std::string description() const override {
    return format("%zu tokens of %zu shards, vocabulary %zu", size(), shards_.size(), vocab_);
  }
  void copy(size_t begin, size_t count, int32_t* out) const override {
    require(begin <= size() && count <= size() - begin, "shards: tokens %zu to %zu asked of %zu", begin, begin + count,
            size());
    size_t s = size_t(std::upper_bound(starts_.begin(), starts_.end(), begin) - starts_.begin()) - 1;
    for (; count > 0; ++s) {
      const size_t here = std::min(count, starts_[s + 1] - begin);
      shards_[s].copy(begin - starts_[s], here, vocab_, out);
      begin += here, count -= here, out += here;
    }
  }

 private:
  std::vector<MappedFile> files_;
  std::vector<Shard> shards_;
  std::vector<size_t> starts_{0};  // shard s holds tokens [starts[s], starts[s+1]) of the stream
  size_t vocab_;
};

}  // namespace gated
