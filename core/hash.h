// hash: H, XXH3-64 (Y. Collet, xxhash.com), over whatever enters, in 16 hex digits: of a run's weights, of its data,
// and of the metadata of a checkpoint. Numbers enter as 64-bit little endian and strings after their length, so that no
// two contents spell the same bytes. tests/test_checkpoint.cpp
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "core/check.h"

#define XXH_STATIC_LINKING_ONLY  // the size of XXH3_state_t
#include <xxhash.h>

namespace gated {

class Hash {
 public:
  Hash() { XXH3_64bits_reset(&state_); }
  Hash& bytes(const void* data, size_t n) {
    XXH3_64bits_update(&state_, data, n);
    return *this;
  }
  Hash& number(uint64_t value) { return bytes(&value, sizeof value); }
  Hash& text(std::string_view s) { return number(s.size()).bytes(s.data(), s.size()); }
  std::string hex() const { return format("%016llx", static_cast<unsigned long long>(XXH3_64bits_digest(&state_))); }

 private:
  XXH3_state_t state_;
};

}  // namespace gated
