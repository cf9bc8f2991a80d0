// token_stream: what the loader asks of a source of tokens, and the parts that every source shares
// A TokenStream is a numbered set of sequences of T+1 tokens: T inputs and, one step on, T targets.
// A Corpus is one long row of tokens, of which sequence i is the window [iT, iT+T]: neighbours share one
// token, so every token but the first is a target exactly once (the tail short of T is left out).
// A sequence depends on its number alone. One thread reads at a time: files of shards are opened and closed meanwhile.
// tests/test_dataloader.cpp
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "core/check.h"
#include "core/hash.h"

namespace gated {

struct TokenStream {
  virtual ~TokenStream() = default;
  virtual size_t vocab() const = 0;                                   // every token is in [0, vocab)
  virtual size_t sequences(size_t T) const = 0;                       // how many sequences of T+1 tokens there are
  virtual void sequence(size_t i, size_t T, int32_t* out) const = 0;  // out (T+1)
  virtual bool is_text() const = 0;                                   // tokens below 256 are bytes of text
  virtual std::string description() const = 0;                        // one line for the run header
  // 16 hex digits. Streams that have the same have the same tokens, from wherever they were read.
  virtual std::string content_hash() const = 0;
};

struct Corpus : TokenStream {
  virtual size_t size() const = 0;                                        // tokens in all
  virtual void copy(size_t begin, size_t count, int32_t* out) const = 0;  // tokens [begin, begin+count)

  size_t sequences(size_t T) const override { return size() > T ? (size() - 1) / T : 0; }
  void sequence(size_t i, size_t T, int32_t* out) const override { copy(i * T, T + 1, out); }
};

// A part of a corpus: how one corpus is divided into training and validation.
class CorpusSlice : public Corpus {
 public:
  CorpusSlice(std::shared_ptr<const Corpus> whole, size_t begin, size_t count)
      : whole_(std::move(whole)), begin_(begin), count_(count) {
    require(begin <= whole_->size() && count <= whole_->size() - begin, "corpus slice: tokens %zu to %zu asked of %zu",
            begin, begin + count, whole_->size());
  }
  size_t vocab() const override { return whole_->vocab(); }
  size_t size() const override { return count_; }
  bool is_text() const override { return whole_->is_text(); }
  std::string description() const override {
    return format("tokens %zu to %zu of ", begin_, begin_ + count_) + whole_->description();
  }
  std::string content_hash() const override {
    return Hash().text(whole_->content_hash()).number(begin_).number(count_).hex();
  }
  void copy(size_t begin, size_t count, int32_t* out) const override {
    require(begin <= count_ && count <= count_ - begin, "corpus slice: tokens %zu to %zu asked of %zu", begin,
            begin + count, count_);
    whole_->copy(begin_ + begin, count, out);
  }

 private:
  std::shared_ptr<const Corpus> whole_;
  size_t begin_, count_;
};

}  // namespace gated
