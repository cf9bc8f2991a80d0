// describe: what a model is made of, printed without making it: tensors, the data's shapes, parameters, FLOPs, memory.
// --describe | tests/test_describe.cpp
#pragma once
#include <string>

#include "training/flags/config.h"

namespace gated {

// 1234567 as 1,234,567.
std::string with_commas(size_t n);

// The model that --from names: where it is, and the flags that it comes to.
std::string source_text(Config& config, size_t width);

// Everything about the model of `config` at its batch and context, as text.
std::string describe(const Config& config);

}  // namespace gated
