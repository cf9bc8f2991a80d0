// shards: tokens as llm.c's data scripts write them (FineWeb and others, many files of 100M tokens), or
// scripts/tokenize.py
//   256 int32 header: magic 20240520, version 1, number of tokens, tokens in the vocabulary or 0, the rest unused;
//   then that many uint16 tokens; all little-endian, as this machine must be
//   magic 20240801, version 7: uint32 tokens, for the larger vocabularies since Llama 3
// (llm.c leaves the vocabulary 0: then it is that of GPT-2, or that of Llama 3)
// A file and the fuzzer's bytes are read the same way. Nothing is trusted: the size must fit the header to the byte,
// and each token is checked against the vocabulary when it is read. Tokens are read when they are wanted: 100 GB of
// shards cost no memory.
// --data=FILE.bin | 'dir/*_train_*.bin' | tests/test_dataloader.cpp, tests/fuzz_shards.cpp
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "dataloader/files.h"
#include "dataloader/token_stream.h"

namespace gated {

// Does it begin as a shard does, whatever its name is?
bool is_token_shard(std::string_view bytes);

// The tokens of one shard.
class Shard {
 public:
  // The header, of a file of `file_size` bytes, is checked here.
  Shard(size_t file_size, ReadBytes read, std::string name);

  size_t size() const { return size_; }
  size_t vocab() const { return vocab_; }  // of the tokenizer, as far as the header tells
  size_t token_bytes() const { return token_bytes_; }

  // n bytes of the tokens, from byte `begin` of them on.
  std::vector<unsigned char> bytes(size_t begin, size_t n) const;
  // Tokens [begin, begin+count), each of them checked to be below `vocab`.
  void copy(size_t begin, size_t count, size_t vocab, int32_t* out) const;

 private:
  ReadBytes read_;
  std::string name_;
  size_t size_, token_bytes_, vocab_;
};

// Shards end to end, in the order given; a sequence may run from one into the next. All are of one vocabulary.
class ShardCorpus : public Corpus {
 public:
  // vocab 0 means the shards' own; a larger one pads the embedding with tokens that never occur
  ShardCorpus(const std::vector<std::string>& paths, size_t vocab);

  size_t vocab() const override { return vocab_; }
  size_t size() const override { return starts_.back(); }
  bool is_text() const override { return false; }
  std::string description() const override;
  // Over every shard's size and 16 blocks of 64 KiB at equal distances, the first and the last among them; a shard of
  // up to 1 MiB is hashed as a whole. So a hundred shards of 200 MB cost 100 MiB of reading, not 20 GB. Shards of other
  // text, or of the same text in another order, differ in every block; a token changed by hand between two blocks is
  // not seen.
  std::string content_hash() const override;
  void copy(size_t begin, size_t count, int32_t* out) const override;

 private:
  std::vector<Shard> shards_;
  std::vector<size_t> starts_{0};  // shard s holds tokens [starts[s], starts[s+1]) of the stream
  size_t vocab_;
};

}  // namespace gated
