// run_metadata: what a checkpoint remembers of its run beside its tensors: every flag that shapes the result, and the
// data. A run goes on from a checkpoint only where they are the same.
// tests/test_checkpoint.cpp, tests/test_cli.cpp
#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dataloader/loader.h"
#include "training/checkpoint/checkpoint.h"
#include "training/flags/config.h"

namespace gated {

using RunMetadata = std::map<std::string, std::string>;  // "flag--norm": "gated", "data": "...", "hash--data": "..."

RunMetadata run_metadata(Config& config, const Data& data);

// Refuses a flag that no file could remember: metadata are UTF-8, and a path need not be.
void require_utf8(const RunMetadata& metadata);

// The flags that it has a value of which is not the default, as they would be typed.
std::vector<std::string> changed_flags(const RunMetadata& metadata);

// Every flag that it remembers, as it would be typed, whether it is the default or not. Refuses flags that this program
// does not have: what they chose cannot be built. `path` is named in the refusal.
std::vector<std::string> flags_of_run(const std::string& path, RunMetadata metadata);

// What of it an evaluation must have in common with its run: neither --context nor --precision nor how it was trained.
RunMetadata needed_by_evaluation(RunMetadata metadata);

// The --context that it was trained with.
size_t trained_context(const RunMetadata& metadata);

// Refuses to go on with the checkpoint at `path`, which remembers `then`, where a flag or the content of the data has
// changed. Where the data lies may change. A checkpoint from before there were hashes is held to the data's path and
// size; a flag that is younger than the checkpoint was at its default.
// evaluates: the refusal says what --evaluate can do instead.
void require_same_run(const std::string& path, RunMetadata then, const RunMetadata& now, bool evaluates = false);

// The newest checkpoint of --out, which is of a run with this metadata. Nothing where there is none. With
// --change-precision the checkpoint may be of the other --precision.
std::optional<Checkpoint> newest_checkpoint(const Config& config, RunMetadata metadata);

}  // namespace gated
