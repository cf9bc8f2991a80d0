// tokenizer: text to ids and back, as a tokenizer.json says (the file of the tokenizers library, in a model's folder)
//   text -> special tokens that stand in it | the rest, normalised -> words -> tokens of each word, by byte-pair
//   encoding
// Two kinds are known. Byte-level: GPT-2, Llama 3, Qwen, gpt-oss write each byte of a word as a character (a space is
// U+0120), so that there is a token for every text. As SentencePiece: Gemma, Llama 2 write a space as U+2581, and a
// character without a token as its bytes, <0x00> to <0xFF>. What a file asks for and is not known here is refused,
// naming the key.
// --tokenizer | tests/test_tokenizer.cpp, tests/fuzz_tokenizer.cpp, scripts/tokenize.py
#pragma once
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace gated {

class Tokenizer {
 public:
  // From the bytes of a tokenizer.json; `name` begins messages.
  Tokenizer(std::string_view json, const std::string& name);

  // Every id is below vocab(). Those of a model are below model_vocab() and those above are special tokens, of which a
  // model may know fewer (Gemma 3 has one for pictures alone).
  size_t vocab() const;
  size_t model_vocab() const;

  // The tokens of a UTF-8 text. Special tokens that are spelled out in it are tokens. Refuses other bytes, and a
  // character that has no token.
  std::vector<int32_t> encode(std::string_view text) const;
  // After what the tokenizer puts before every text, such as a beginning-of-text token. What it would put after one is
  // left out: the text goes on.
  std::vector<int32_t> encode_prompt(std::string_view text) const;

  // The bytes that tokens stand for, special ones as they are spelled. One token may end inside a character.
  std::string decode(std::span<const int32_t> ids) const;
  // The same, of a token after others: the first of a text may lose the space that SentencePiece puts before every
  // text. An id that has no token is <id>.
  std::string decode_one(int32_t id, bool first) const;

 private:
  struct Parts;
  std::shared_ptr<const Parts> parts_;
};

// A tokenizer.json, or that of a folder.
std::string tokenizer_file(const std::string& path);
Tokenizer read_tokenizer(const std::string& path);

}  // namespace gated
