// find_tokenizer: the tokenizer that a run's text goes through
//   --tokenizer=FILE|FOLDER, or the tokenizer.json in the folder of --from, or in that of --out
// A run leaves a copy in --out. So its folder, like one of Hugging Face, has all that its text needs.
// tests/test_find_tokenizer.cpp
#pragma once
#include <optional>
#include <string>

#include "dataloader/tokenizer.h"
#include "training/flags/config.h"

namespace gated {

// Nothing where there is none. Refuses a --tokenizer that is not known here, or that has more tokens than the model; it
// may have fewer, as vocabularies are padded. One that was only found beside the model may be of no use: a line to
// stderr says why.
std::optional<Tokenizer> find_tokenizer(const Config& config);

// The tokenizer.json of the run, as it goes along with the model: any that is JSON, known here or not. Nothing where
// there is none. Refuses a --tokenizer that cannot be read; of one that was only found beside the model, a line to
// stderr says why it stays behind.
std::optional<std::string> kept_tokenizer(const Config& config);

// Refuses data that is read as bytes where the model has a tokenizer, whose tokens are none.
void require_no_tokenizer(const Config& config, const char* flag, const std::string& data);

// Writes it into a folder that has none.
void keep_tokenizer(const Config& config, const std::string& folder);

}  // namespace gated
