// generate: what a model writes after a prompt, several samples side by side. --generate prints it as it comes, and a
// run's sample at the end comes from the same loop.
// --generate --prompt --prompt-tokens --tokens --samples --temperature --top-k --top-p | tests/test_generate.cpp
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "dataloader/tokenizer.h"
#include "layers/model.h"
#include "training/flags/config.h"
#include "training/text/sampler.h"

namespace gated {

// May sequences grow past the context? With windows in every layer, or without softmax attention, nothing that is kept
// grows. Learned positions end.
bool grows_forever(const ModelConfig& config);

// Writes `count` tokens after each of the sequences, which are equally long and not empty, with a cache. `each` sees
// the newest token of every sequence, and ends it by false. Sequence i draws from stream i of the sampler's seed, its
// token t from index t. Where a sequence grows past the context and the model does not (grows_forever), a token sees
// the `context` tokens before it, as positions 0 to context - 1: they are read anew for each. The model has memory for
// as many at once, or else for the prompt.
void continue_sequences(std::vector<std::vector<int>>& sequences, size_t count, Model& model, const Sampler& sampler,
                        const std::function<bool()>& each);

// ---- text and tokens

// Does this model read bytes? Its data are text, and it has a token for each byte.
bool reads_bytes(const Config& config);

// The prompt of --prompt, in tokens of the tokenizer or, without one, bytes; or of --prompt-tokens. Refuses what the
// model has no tokens for.
std::vector<int> prompt_tokens(const Config& config, const Tokenizer* tokenizer = nullptr);

// Tokens as one reads them, in pieces: a character is printed when all of its bytes are there. Tokens are what the
// tokenizer says; without one they are bytes, and <id> above, or else numbers.
class TokenPrinter {
 public:
  // Prints by calling print(text).
  TokenPrinter(bool bytes, std::function<void(const std::string&)> print, const Tokenizer* tokenizer = nullptr)
      : bytes_(bytes), print_(std::move(print)), tokenizer_(tokenizer) {}
  void add(int token);
  void end() { print_open(true); }  // what is still open is printed as it is

 private:
  void print_open(bool all);

  bool bytes_, first_ = true;
  std::function<void(const std::string&)> print_;
  const Tokenizer* tokenizer_;
  std::string open_;
};

// The same of all at once.
std::string text_of(const std::vector<int>& tokens, bool bytes, const Tokenizer* tokenizer = nullptr);

// --generate. Returns the program's exit code.
int generate(Config& config, Context& ctx);

}  // namespace gated
