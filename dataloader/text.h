// text: files as a stream of bytes, one token a byte (vocab 256)
//   --data=self (this program's own source) | a text file | a folder | a list of these
// Text is what holds no NUL byte. In a folder, files with one are skipped and counted; a file named outright
// is refused, and so is a token shard in a folder. Files follow one another in the order given (a folder's in byte
// order), with a newline put between two of them when the first does not end in one.
// tests/test_dataloader.cpp
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "dataloader/token_stream.h"

namespace gated {

class TextCorpus : public Corpus {
 public:
  // vocab 0 means 256; a larger one pads the embedding with tokens that never occur
  TextCorpus(const std::vector<std::string>& paths, size_t vocab);

  size_t vocab() const override { return vocab_; }
  size_t size() const override { return bytes_.size(); }
  bool is_text() const override { return true; }
  std::string description() const override;
  std::string content_hash() const override { return Hash().text("text").text(bytes_).hex(); }
  void copy(size_t begin, size_t count, int32_t* out) const override;
  const std::string& bytes() const { return bytes_; }

 private:
  void append(const std::string& path, bool may_skip);

  std::string bytes_;
  size_t vocab_, files_ = 0, skipped_ = 0, empty_ = 0;
};

// ---- --data=self

// Where the source lies: beside the running program, or else in the current folder.
std::string source_root();

// The source files by path in byte order: the parts of the house in a fixed list, so that what a build or a
// run leaves beside them never becomes training data.
std::vector<std::string> source_files(const std::string& root);

// ---- printing samples

// Bytes as one prints them: as they stand, with \xNN for what is no printable character of UTF-8.
std::string printable(std::string_view bytes);

}  // namespace gated
