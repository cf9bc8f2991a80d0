// simt_config: the emulator's configuration, for tests that change it.
#pragma once
#include "core/simt.h"

namespace gated {

// Puts back, at its end, what was configured at its beginning.
struct KeepsSimtConfig {
  const simt::Config before = simt::config;
  ~KeepsSimtConfig() { simt::config = before; }
};

}  // namespace gated
