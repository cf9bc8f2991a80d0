// pieces: scratch cut into arrays, one after the other. The CPU's twins of kernels lay their memory out so.
#pragma once
#include "core/device.cuh"

namespace gated {

// Each piece begins on a cache line. Without memory it only counts.
class Pieces {
 public:
  explicit Pieces(unsigned char* memory) : memory_(memory) {}
  template <class T>
  T* take(size_t n) {
    T* const piece = memory_ ? reinterpret_cast<T*>(memory_ + used_) : nullptr;
    used_ += round_up(n * sizeof(T), 128);
    return piece;
  }
  size_t used() const { return used_; }

 private:
  unsigned char* const memory_;
  size_t used_ = 0;
};

}  // namespace gated
