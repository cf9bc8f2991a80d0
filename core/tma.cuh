// tma: copies of whole boxes of a matrix into shared memory, asked for by one thread, and the barriers that say when
// they are there; each with a twin for the emulator. What a box is and what a barrier counts: core/tma.h. For compute
// capability 9.0 alone, in code that is built for sm_90a.
//
// A box needs no registers on its way and no thread that waits: one thread asks for it, names a barrier, and goes on.
// The hardware takes the box's bytes off what is awaited at that barrier as they arrive. So of a stage of shared memory
// that one warp fills and others read, two barriers tell all:
//
//   producer                                        consumers
//     empty.wait(...)  nobody reads the stage         full.wait(...)  its bytes are there, and seen
//     full.arrive(n)   n bytes will come              read it
//     tma_copy(...)    here they come                 empty.arrive()  have read it
//
//   Mbarrier::init(n)         a phase of it takes n arrivals. Before copies or other threads come to it: the thread's
//                             fence_proxy_async() (core/wgmma.cuh), and then a barrier of the block
//   Mbarrier::arrive(bytes)   one arrival, which announces so many bytes of copies. What the thread has done before is
//                             seen by whoever passes this phase
//   Mbarrier::wait(parity)    until the phase of that parity is over, the present one or the one before
//   tma_copy(...)             a box into shared memory, on a boundary of 1024 bytes. All of its bytes count, those too
//                             that lie outside of the matrix and come as 0
//
// Blocks of a cluster, neighbours that run at once (launch_clusters(), core/launch.cuh), reach each other's shared
// memory: what two of them read of a matrix comes from L2 once, and into both.
//
//   cluster_rank()             which one of the cluster's blocks this is
//   cluster_barrier()          all threads of all of them meet. Once before the first of what follows, behind the
//                              fence_mbarrier_init() of whoever has made barriers; once behind the last, since a block
//                              must not end while others may still write to it
//   Mbarrier::arrive_at(rank)  one arrival, at that block's barrier in the same place. It says that this thread has
//                              read: what it has written another block may not have seen yet (that would take a fence)
//   tma_copy_to_all<n>(...)    a box into each of n blocks, in the same place; its bytes count at the barrier of each
//
// Copies write by the async proxy, by which wgmma reads: between them the barrier is enough. So it is between products
// that have been waited for and the next copy over what they have read.
// A block must not end before its copies have arrived: their bytes would come into the shared memory of another.
//   (PTX ISA 9.0, 9.7.9.27.1: cp.async.bulk.tensor; 9.7.13.4: barrier.cluster; 9.7.13.15: mbarrier)
// tests/test_tma.cpp
#pragma once
#include "core/context.cuh"
#include "core/tma.h"
#ifdef __CUDACC__
#include <cuda.h>  // (types alone)
#else
#include "core/simt_mbarrier.h"
#endif
#include "core/wgmma.cuh"

namespace gated {

// A matrix of `lines` lines of `length` elements, `ld` from one to the next, of which a copy takes 64 of each of
// box_lines.
inline TmaMatrix tma_matrix(const bf16* data, size_t ld, size_t length, size_t lines, int box_lines) {
  return {uintptr_t(data), length, lines, ld * sizeof(bf16), size_t(box_lines)};
}

#ifdef __CUDACC__

// What the hardware reads of it, as a kernel's `const __grid_constant__` parameter.
using TensorMap = CUtensorMap;

// The driver encodes it. Its function is asked for by name, so that nothing more is linked.
inline TensorMap tensor_map(const TmaMatrix& m) {
  using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                              const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                              CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
  static const Encode encode = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult answer;
#if CUDART_VERSION >= 12050
    CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &answer));
#else
    CUDA_CHECK(cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &found, cudaEnableDefault, &answer));
#endif
    require(answer == cudaDriverEntryPointSuccess && found, "CUDA's driver has no cuTensorMapEncodeTiled (answer %d)",
            int(answer));
    return reinterpret_cast<Encode>(found);
  }();
  // (In a struct, for else it would be the return value itself, which g++ 12 puts on no boundary beyond that of the
  // widest vector, 32 bytes with AVX2. The driver demands 64.)
  struct {
    TensorMap map;
  } own;
  const cuuint64_t extents[] = {m.length, m.lines}, pitch[] = {m.pitch};
  const cuuint32_t box[] = {cuuint32_t(wgmma_line), cuuint32_t(m.box_lines)}, every[] = {1, 1};
  const CUresult answer = encode(&own.map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, reinterpret_cast<void*>(m.address),
                                 extents, pitch, box, every, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  require(answer == CUDA_SUCCESS, "cuTensorMapEncodeTiled: error %d of a matrix of %zu lines of %zu, %zu bytes apart",
          int(answer), size_t(m.lines), size_t(m.length), size_t(m.pitch));
  return own.map;
}

class Mbarrier {
 public:
  __device__ void init(unsigned arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address()), "r"(arrivals) : "memory");
  }
  __device__ void arrive() { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address()) : "memory"); }
  __device__ void arrive(unsigned announced_bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address()), "r"(announced_bytes)
                 : "memory");
  }
  __device__ void arrive_at(unsigned rank) {
    asm volatile(
        "{\n\t.reg .b32 %%there;\n\tmapa.shared::cluster.u32 %%there, %0, %1;\n\t"
        "mbarrier.arrive.shared::cluster.b64 _, [%%there];\n\t}" ::"r"(address()),
        "r"(rank)
        : "memory");
  }
  // (try_wait sleeps a while in the hardware, and may wake up too early)
  __device__ void wait(unsigned parity) {
    unsigned is_over;
    do {
      asm volatile(
          "{\n\t.reg .pred %%is_over;\n\tmbarrier.try_wait.parity.shared::cta.b64 %%is_over, [%1], %2;\n\t"
          "selp.u32 %0, 1, 0, %%is_over;\n\t}"
          : "=r"(is_over)
          : "r"(address()), "r"(parity)
          : "memory");
    } while (!is_over);
  }
  __device__ unsigned address() { return shared_address(this); }

 private:
  uint64_t word_;
};

// The box from element x of line y on.
__device__ inline void tma_copy(unsigned char* to, const TensorMap& map, int x, int y, Mbarrier& counts_there) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
          shared_address(to)),
      "l"(&map), "r"(x), "r"(y), "r"(counts_there.address())
      : "memory");
}
template <int ranks>
__device__ inline void tma_copy_to_all(unsigned char* to, const TensorMap& map, int x, int y, Mbarrier& counts_there) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(to)),
      "l"(&map), "r"(x), "r"(y), "r"(counts_there.address()), "h"(uint16_t((1 << ranks) - 1))
      : "memory");
}

__device__ inline unsigned cluster_rank() {
  unsigned rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ inline void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release;\n\tbarrier.cluster.wait.acquire;" ::: "memory");
}
__device__ inline void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

#else

#define __grid_constant__
using TensorMap = TmaMatrix;

inline TensorMap tensor_map(const TmaMatrix& m) {
  if (const char* const wrong = tma_refuses(m)) fail("%s", wrong);
  return m;
}

class Mbarrier {
 public:
  void init(unsigned arrivals, simt::Place at = simt::Place::here()) {
    word_ = 0;
    simt::mbarrier_init(this, arrivals, at);
  }
  void arrive(simt::Place at = simt::Place::here()) { arrive(0, at); }
  void arrive(unsigned announced_bytes, simt::Place at = simt::Place::here()) {
    touch();
    simt::mbarrier_arrive(this, announced_bytes, at);
  }
  void arrive_at(unsigned rank, simt::Place at = simt::Place::here()) { of_rank(rank).arrive(0, at); }
  Mbarrier& of_rank(unsigned rank) {
    return *reinterpret_cast<Mbarrier*>(reinterpret_cast<unsigned char*>(this) + simt::way_to_rank(rank));
  }
  void wait(unsigned parity, simt::Place at = simt::Place::here()) {
    touch();
    simt::mbarrier_wait(this, parity, at);
  }
  // (the race shadow sees who comes before its init())
  void touch() const { (void)*const_cast<const volatile uint64_t*>(&word_); }

 private:
  uint64_t word_;
};

// From when a copy is asked for until its barrier is waited for, nobody may count on what stands there: it is NaN. A
// GPU reads the matrix in between; the emulator does at the wait, and here for ASan and the race shadow to see.
inline void tma_copy(unsigned char* to, const TensorMap& map, int x, int y, Mbarrier& counts_there,
                     simt::Place at = simt::Place::here()) {
  using Word = uint64_t __attribute__((may_alias));
  using Half = uint16_t __attribute__((may_alias));
  require(shared_address(to) % wgmma_group_bytes == 0, "tma: a copy to %u in shared memory, off a boundary of 1024",
          shared_address(to));
  counts_there.touch();
  tma_copy_box(map, x, y, [&](uint32_t place, uint64_t source, uint32_t elements) {
    for (uint32_t i = 0; i < elements; i++) (void)*(reinterpret_cast<const volatile Half*>(source) + i);
    for (uint32_t i = 0; i < 2; i++) reinterpret_cast<volatile Word*>(to + place)[i] = ~Word{0};
  });
  simt::mbarrier_copy(&counts_there, to, map, x, y, at);
}
template <int ranks>
void tma_copy_to_all(unsigned char* to, const TensorMap& map, int x, int y, Mbarrier& counts_there,
                     simt::Place at = simt::Place::here()) {
  for (unsigned rank = 0; rank < ranks; rank++)
    tma_copy(to + simt::way_to_rank(rank), map, x, y, counts_there.of_rank(rank), at);
}

inline unsigned cluster_rank() {
  return simt::cluster_rank();
}
inline void cluster_barrier(simt::Place at = simt::Place::here()) {
  simt::cluster_barrier(at);
}
// What a missing one does is seen in the rehearsal (ptx/machine.h).
inline void fence_mbarrier_init() {}

#endif

}  // namespace gated
