// suggestion: what somebody meant who typed a name that is not there. tests/test_flags.cpp
#pragma once
#include <string>
#include <vector>

namespace gated {

// ": did you mean NAME?" of the one of `names` that `typed` is called elsewhere, in PyTorch, nanoGPT or llm.c, or that
// is nearest to it in spelling. Empty where none is near. - and _ are the same.
std::string suggestion(std::string typed, const std::vector<std::string>& names);

}  // namespace gated
