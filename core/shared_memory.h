// shared_memory: how much of it a block may have. What a kernel declares (static) and what its launch asks for
// (dynamic) come out of one budget, on the GPU and on the emulator. tests/test_simt.cpp
#pragma once
#include <cstddef>

#include "core/check.h"

namespace gated {

// What a block may have on the GPUs that the kernels are for, by compute capability.
constexpr size_t shared_limit_consumer = 99 << 10;  // 8.6, 8.9, 12.0: desktops and notebooks
constexpr size_t shared_limit_sm_80 = 163 << 10;    // 8.0: A100
constexpr size_t shared_limit_sm_90 = 227 << 10;    // 9.0, 10.0: H100, B200

// Must a launch ask for its dynamic bytes, as CUDA wants it from 48 KiB in all? Refused where there are too many. (For
// static ones nobody can ask.)
inline bool shared_must_be_asked_for(size_t fixed, size_t dynamic, size_t limit) {
  require(dynamic <= limit && fixed <= limit - dynamic,
          "launch: %zu bytes of static and %zu of dynamic shared memory, expected at most %zu in all: this GPU gives a "
          "block no more",
          fixed, dynamic, limit);
  constexpr size_t unasked = 48 << 10;
  require(fixed <= unasked, "launch: %zu bytes of static shared memory, expected at most %zu", fixed, unasked);
  return fixed + dynamic > unasked;
}

}  // namespace gated
