// simt_config: the emulator's configuration, for tests that change it.
#pragma once
#include "core/simt.h"

namespace gated {

// Puts back, at its end, what was configured at its beginning.
struct KeepsSimtConfig {
  const simt::Config before = simt::config;
  ~KeepsSimtConfig() { simt::config = before; }
};

// What a block has of shared memory, until this ends.
struct SharedLimit : KeepsSimtConfig {
  explicit SharedLimit(size_t bytes) { simt::config.shared_limit = bytes; }
};

}  // namespace gated
