// choices: questions with several endings to choose from (HellaSwag, MMLU), as llm.c's evaluation shards hold them
//   256 int32 header: magic 20240522, version 1, number of questions, bytes of the longest; the rest unused. Then, in
//   uint16: 65535, bytes of the question, its number from 0, the right ending, number of endings, tokens of the
//   context, these tokens, and for each ending its number of tokens and these tokens.
// Version 2 is this project's own, for vocabularies of more than 65535 tokens: the same in uint32, with 4294967295 in
// front.
// scripts/tokenize.py --choices writes both.
// --choices | tests/test_choices.cpp, tests/fuzz_choices.cpp
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace gated {

struct ChoiceQuestion {
  std::vector<int32_t> context;               // one token or more
  std::vector<std::vector<int32_t>> endings;  // two or more, of one token or more
  size_t right;
};

// Nothing is trusted: every number is compared with the bytes that are there, every token with `vocab`. `name` begins
// messages.
std::vector<ChoiceQuestion> parse_choices(std::span<const unsigned char> file, size_t vocab, const std::string& name);

std::vector<ChoiceQuestion> read_choices(const std::string& path, size_t vocab);

}  // namespace gated
