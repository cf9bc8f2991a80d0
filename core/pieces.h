// pieces: scratch cut into arrays, one after the other. A Memory is a struct of them, made as Memory(pieces, sizes...):
// its constructor is the one place that says how large it is.
#pragma once
#include <omp.h>

#include <algorithm>

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
  template <class T>
  T* take_zeros(size_t n) {
    T* const piece = take<T>(n);
    if (piece) std::fill_n(piece, n, T(0));
    return piece;
  }
  size_t used() const { return used_; }

 private:
  unsigned char* const memory_;
  size_t used_ = 0;
};

// Bytes of a Memory; of one for every thread that OpenMP has now; and that of the calling thread, in scratch for them.
template <class Memory, class... Sizes>
size_t bytes_of_memory(const Sizes&... sizes) {
  Pieces counted(nullptr);
  Memory(counted, sizes...);
  return counted.used();
}
template <class Memory, class... Sizes>
size_t bytes_for_threads(const Sizes&... sizes) {
  return bytes_of_memory<Memory>(sizes...) * omp_get_max_threads();
}
template <class Memory, class... Sizes>
Memory memory_of_thread(unsigned char* scratch, const Sizes&... sizes) {
  Pieces pieces(scratch + bytes_of_memory<Memory>(sizes...) * omp_get_thread_num());
  return Memory(pieces, sizes...);
}

}  // namespace gated
