// find_tokenizer: the tokenizer that a run's text goes through
//   --tokenizer=FILE|FOLDER, or the tokenizer.json in the folder of --from, or in that of --out
// A run leaves a copy in --out. So its folder, like one of Hugging Face, has all that its text needs.
// tests/test_find_tokenizer.cpp
#pragma once
#include <optional>

#include "dataloader/tokenizer.h"
#include "training/config.h"

namespace gated {

// Nothing where there is none. Refuses a --tokenizer that is not known here, or that has more tokens than the model; it may have
// fewer, as vocabularies are padded. One that was only found beside the model may be of no use: a line to stderr says why.
std::optional<Tokenizer> find_tokenizer(const Config& config);

// Copies the tokenizer.json of the run, where it has one, into a folder that has none.
void keep_tokenizer(const Config& config, const std::string& folder);

}  // namespace gated
