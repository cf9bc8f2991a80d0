// disk: what a run's checkpoints will take in its folder, and whether it is free there; known before the first step.
// tests/test_cli.cpp
#pragma once
#include <string>

#include "training/flags/config.h"

namespace gated {

// In bytes.
struct DiskUse {
  size_t checkpoint;  // one of them
  size_t at_once;     // how many stand there at most, one that is being written among them
  double more;        // that all of these take, beside those that are there already
  size_t free;        // what the file system gives to this user; SIZE_MAX where it does not say
};

// Of a run that has --out and saves checkpoints of so many bytes.
DiskUse disk_use(const Config& config, size_t checkpoint_bytes);

// Refuses where the next checkpoint has no room: the save would end the run, and its steps would be lost. Warns where
// the later ones have none: there may be more room by then.
void require_disk(const Config& config, const DiskUse& disk);

// A line of the header.
std::string disk_text(const Config& config, const DiskUse& disk);

}  // namespace gated
