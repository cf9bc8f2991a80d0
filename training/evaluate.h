// evaluate: a look at a model that is trained: its validation loss, by position too, and its measures; the loss in the
// numbers of --quantize; questions with endings; what it finds again. It trains nothing.
// --evaluate --quantize --choices --probe --yarn | tests/test_cli.cpp, tests/test_quantized_model.cpp,
// tests/test_choices.cpp
#pragma once
#include "training/flags/config.h"
#include "training/flags/run_metadata.h"
#include "training/ranks/ranks.h"

namespace gated {

// Of the model that --from names, or of the newest checkpoint of --out. Prints what it sees, and writes the arrays of
// --out anew.
void evaluate(Config& config, const RunMetadata& metadata, const TokenLoader& loader, Context& ctx,
              const Ranks& ranks = {});

}  // namespace gated
