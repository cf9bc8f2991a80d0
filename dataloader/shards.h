// shards: tokens as llm.c's data scripts write them (FineWeb and others, many files of 100M tokens), or scripts/tokenize.py
//   256 int32 header: magic 20240520, version 1, number of tokens, tokens in the vocabulary or 0, the rest unused;
//   then that many uint16 tokens; all little-endian, as this machine must be
//   magic 20240801, version 7: uint32 tokens, for the larger vocabularies since Llama 3
// (llm.c leaves the vocabulary 0: then it is that of GPT-2, or that of Llama 3)
// parse_shard works on bytes in memory: mmap and the fuzzer come the same way. Nothing is trusted: the size
// must fit the header to the byte, and each token is checked against the vocabulary when it is read.
// --data=FILE.bin | 'dir/*_train_*.bin' | tests/test_dataloader.cpp, tests/fuzz_shards.cpp
#pragma once
#include <span>
#include <string>
#include <vector>

#include "dataloader/files.h"
#include "dataloader/token_stream.h"

namespace gated {

// The tokens of one shard, in place; possibly at an odd address, so they are read by memcpy.
class Shard {
 public:
  // token_bytes: 2 or 4
  Shard(std::span<const unsigned char> tokens, size_t token_bytes, size_t vocab, std::string name)
      : bytes_(tokens), token_bytes_(token_bytes), vocab_(vocab), name_(std::move(name)) {}
  size_t size() const { return bytes_.size() / token_bytes_; }
  size_t vocab() const { return vocab_; }  // of the tokenizer, as far as the header tells
  size_t token_bytes() const { return token_bytes_; }
  std::span<const unsigned char> bytes() const { return bytes_; }

  // Tokens [begin, begin+count), each of them checked to be below `vocab`.
  void copy(size_t begin, size_t count, size_t vocab, int32_t* out) const;

 private:
  std::span<const unsigned char> bytes_;
  size_t token_bytes_, vocab_;
  std::string name_;
};

Shard parse_shard(std::span<const unsigned char> file, const std::string& name);

// Shards end to end, in the order given; a sequence may run from one into the next. All are of one vocabulary.
class ShardCorpus : public Corpus {
 public:
  // vocab 0 means the shards' own; a larger one pads the embedding with tokens that never occur
  ShardCorpus(const std::vector<std::string>& paths, size_t vocab);

  size_t vocab() const override { return vocab_; }
  size_t size() const override { return starts_.back(); }
  bool is_text() const override { return false; }
  std::string description() const override;
  // Over every shard's size and 16 blocks of 64 KiB at equal distances, the first and the last among them; a shard of up to
  // 1 MiB is hashed as a whole. So a hundred shards of 200 MB cost 100 MiB of reading, not 20 GB. Shards of other text, or of
  // the same text in another order, differ in every block; a token changed by hand between two blocks is not seen.
  std::string content_hash() const override;
  void copy(size_t begin, size_t count, int32_t* out) const override;

 private:
  std::vector<MappedFile> files_;
  std::vector<Shard> shards_;
  std::vector<size_t> starts_{0};  // shard s holds tokens [starts[s], starts[s+1]) of the stream
  size_t vocab_;
};

}  // namespace gated
