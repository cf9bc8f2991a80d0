// bpe: byte-pair encoding, from a word to ids (Sennrich et al. 2016, arXiv 1508.07909)
//   A word begins as its characters. As long as two neighbours stand in the list of merges, the pair that comes first
//   in the list is merged, and of equal pairs the leftmost. What is left are tokens.
// The pairs that can be merged wait in a heap, so a word of n characters takes n log n steps: where nothing splits a
// text into words (Gemma), the text is the word.
// tests/test_tokenizer.cpp
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace gated {

class Bpe {
 public:
  std::unordered_map<std::string, int32_t> vocab;
  std::optional<int32_t> unknown;  // what a character becomes that has no token
  bool fuse_unknown = false;       // one of them for a run of such characters
  bool byte_fallback = false;      // or the tokens <0x00> to <0xFF> of its bytes, where all of them are there
  bool ignore_merges = false;      // a word that is a token as a whole is that token

  // The next pair of the list; one that stands there twice counts where it stands last. Refuses, beginning with
  // `where`, parts or a whole that are no tokens.
  void add_merge(const std::string& first, const std::string& second, const std::string& where);

  // Appends the tokens of a word, or none and says where in it a character begins that has no token, where there is no
  // unknown one either.
  std::optional<size_t> encode(std::string_view word, std::vector<int32_t>& ids) const;

 private:
  struct Merge {
    size_t rank;
    int32_t whole;
  };
  const Merge* find(int32_t first, int32_t second) const;
  std::optional<int32_t> id_of(const std::string& token) const;

  std::unordered_map<uint64_t, Merge> merges_;
  size_t rank_ = 0;
};

}  // namespace gated
