// thread_sums: sums of a block's threads that are kept in global memory, where registers have no room for them
//
// A thread reads what it wrote itself. So its sums lie as threads load and store them: four of one thread, four of the
// next, ..., then four more of each. A warp's loads are then 512 bytes in a row, and as nothing is stored between them,
// several are on their way at a time. (Where each sum is loaded, added to and stored before the next one is, each load
// waits for the store before it.)
// kernels/bf16/matmul_bf16_tile.cuh: what the slices of a product sum to. kernels/bf16/gated_delta_bf16_backward.cu:
// what several heads give to one gradient.
#pragma once
#include "core/quad.cuh"

namespace gated {

// `sums` of each of `threads` threads.
template <int sums, int threads>
class ThreadSums {
 public:
  static constexpr size_t size = size_t{sums} * threads;  // floats

  // Number `number` of several that lie one after the other, from `all` on, a boundary of 16 bytes.
  __device__ ThreadSums(float* all, size_t number) : mine_(all + (number * size + threadIdx.x * 4)) {}

  // What is kept joins a thread's own sums, as the first summand. four(q) points to sums 4q to 4q + 3. at_once: so many
  // loads are on their way at a time.
  template <int at_once, class Four>
  __device__ void add_to(Four four) const {
    static_assert(sums % (4 * at_once) == 0);
#pragma unroll
    for (int first = 0; first < sums / 4; first += at_once) {
      Quad kept[at_once];
      for (int q = 0; q < at_once; q++) kept[q] = load_four(mine_ + size_t(first + q) * threads * 4);
      for (int q = 0; q < at_once; q++)
        for (int k = 0; k < 4; k++) four(first + q)[k] = kept[q].v[k] + four(first + q)[k];
    }
  }
  // A thread's own sums are kept, in the place of those before.
  template <class Four>
  __device__ void keep(Four four) const {
#pragma unroll
    for (int q = 0; q < sums / 4; q++)
      store_four(mine_ + size_t(q) * threads * 4, {four(q)[0], four(q)[1], four(q)[2], four(q)[3]});
  }

 private:
  float* const mine_;
};

}  // namespace gated
