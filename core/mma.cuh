// mma: the instructions that feed and run a tensor core, each with a twin for the emulator. What they compute:
// core/mma.h.
//
// A warp multiplies a tile of A (16,16) by a tile of B (16,8) and adds it to C (16,8). Its 32 lanes hold the tiles
// among them, in registers; with g = lane / 4 and t = lane % 4 a lane has
//
//        A, k:  2t 2t+1      2t+8 2t+9            B, column g, k:            C, column:  2t  2t+1
//   row g      x[0].lo .hi   x[2].lo .hi            2t   x[0].lo        row g          x[0]  x[1]
//   row g+8    x[1].lo .hi   x[3].lo .hi            2t+1 x[0].hi        row g+8        x[2]  x[3]
//                                                   2t+8 x[1].lo
//                                                   2t+9 x[1].hi
//
// lo and hi are the halves of a 32-bit register. Of A, neighbours in a register are neighbours in k: a tile in shared
// memory with k contiguous is loaded by ldmatrix as it lies; one with k down the columns is transposed on the way. The
// same holds for B, whose columns are ldmatrix' rows.
//
// ldmatrix loads four 8x8 tiles: lane i brings the address of row i % 8 of tile i / 8, and gets of each tile two
// neighbours of row g, or, transposed, of column g. Eight rows that lie 16 bytes apart from one another in the 128
// bytes of all banks are read at once.
//
// cp.async copies 16 bytes from global to shared memory, past the registers, while the thread goes on. What a thread
// has asked for is there when it has waited for it; for other threads, when they have met it at a barrier after that
// wait.
// tests/test_mma.cpp, tests/test_planted_bugs.cpp
#pragma once
#include "core/context.cuh"
#include "core/mma.h"
#ifndef __CUDACC__
#include "core/mma_lanes.h"
#endif

namespace gated {

struct MmaA {
  uint32_t x[4];
};
struct MmaB {
  uint32_t x[2];
};
struct MmaC {
  float x[4];
};

#ifdef __CUDACC__

// c += a b
__device__ inline void mma(MmaC& c, const MmaA& a, const MmaB& b) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(c.x[0]), "+f"(c.x[1]), "+f"(c.x[2]), "+f"(c.x[3])
      : "r"(a.x[0]), "r"(a.x[1]), "r"(a.x[2]), "r"(a.x[3]), "r"(b.x[0]), "r"(b.x[1]));
}

__device__ inline unsigned shared_address(const void* p) {
  return unsigned(__cvta_generic_to_shared(p));
}

// Four tiles; `row` is on a 16-byte boundary in shared memory.
template <bool transposed>
__device__ inline void ldmatrix(uint32_t (&x)[4], const bf16* row) {
  if constexpr (transposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(shared_address(row))
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// Hides from the compiler how x was made. So it does not make it again in every turn of a loop, nor knows that an
// address ends in zeros, for which nvcc splits a store of four numbers into four.
__device__ inline void keep_in_register(int& x) {
  asm volatile("" : "+r"(x));
}
__device__ inline void keep_in_register(size_t& x) {
  asm volatile("" : "+l"(x));
}

// A thread's copies from global to shared memory.
class AsyncCopies {
 public:
  // 16 bytes, both sides on a 16-byte boundary: the first `bytes` of them (whole bf16) from global memory, the others
  // 0.
  __device__ void copy16(void* shared, const void* global, unsigned bytes = 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global), "r"(bytes)
                 : "memory");
  }
  // What was asked for since the last commit is one group.
  __device__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
  // Until all groups but the newest `pending` are there.
  template <int pending>
  __device__ void wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
  }
};

#else

// Which generation the emulator is. A host's variable, which kernels only see through this function: the race shadow
// takes what a kernel reads of static memory for shared memory.
inline MmaArithmetic emulated_mma = MmaArithmetic::hopper;
__attribute__((no_sanitize("thread"), noinline)) inline bool emulates_hopper() {
  return emulated_mma == MmaArithmetic::hopper;
}

namespace detail {

inline bf16 half_of(uint32_t pair, size_t which) {
  return bf16::from_bits(uint16_t(pair >> (16 * which)));
}

// What lane i has of A, where it belongs.
inline void put_lane(bf16 (*A)[mma_depth], size_t i, const MmaA& a) {
  for (size_t half = 0; half < 2; half++)
    for (size_t j = 0; j < 4; j++) A[i / 4 + j % 2 * 8][2 * (i % 4) + half + j / 2 * 8] = half_of(a.x[j], half);
}

struct MmaRecord {
  MmaC* c;
  MmaA a;
  MmaB b;
};

// A GPU says nothing of a lane that is not there, and the result is anything.
inline void require_whole_warp(const char* instruction, void* const* records) {
  for (int i = 0; i < warpSize; i++)
    require(records[i], "%s: lane %d has returned; expected all 32 lanes of the warp", instruction, i);
}

template <MmaArithmetic arithmetic>
void mma_of_warp(void* const* records) {
  require_whole_warp("mma", records);
  MmaRecord* lane[warpSize];
  for (int i = 0; i < warpSize; i++) lane[i] = static_cast<MmaRecord*>(records[i]);
  bf16 A[16][mma_depth], B[8][mma_depth];
  float C[8][16];
  for (size_t i = 0; i < 32; i++) {
    const size_t g = i / 4, t = i % 4;
    put_lane(A, i, lane[i]->a);
    for (size_t half = 0; half < 2; half++)
      for (size_t j = 0; j < 2; j++) B[g][2 * t + half + j * 8] = half_of(lane[i]->b.x[j], half);
    for (size_t j = 0; j < 4; j++) C[2 * t + j % 2][g + j / 2 * 8] = lane[i]->c->x[j];
  }
  mma_sixteen_rows<arithmetic>(C, A, B, 8);
  for (size_t i = 0; i < 32; i++)
    for (size_t j = 0; j < 4; j++) lane[i]->c->x[j] = C[2 * (i % 4) + j % 2][i / 4 + j / 2 * 8];
}

}  // namespace detail

inline void mma(MmaC& c, const MmaA& a, const MmaB& b, simt::Place at = simt::Place::here()) {
  detail::MmaRecord record{&c, a, b};
  simt::collective(
      ~0u, &record,
      emulates_hopper() ? detail::mma_of_warp<MmaArithmetic::hopper> : detail::mma_of_warp<MmaArithmetic::ampere>, at);
}

inline void require_boundary(const char* instruction, const void* p) {
  require(uintptr_t(p) % 16 == 0, "%s: the address %p, expected one on a 16-byte boundary", instruction, p);
}

template <bool transposed>
inline void ldmatrix(uint32_t (&x)[4], const bf16* row, simt::Place at = simt::Place::here()) {
  require_boundary("ldmatrix", row);
  struct Record {
    const bf16 *row, *rows[warpSize];  // this lane's, and what it needs: everybody's
  } record{row, {}};
  simt::collective(
      ~0u, &record,
      [](void* const* records) {
        detail::require_whole_warp("ldmatrix", records);
        for (int to = 0; to < warpSize; to++)
          for (int from = 0; from < warpSize; from++)
            static_cast<Record*>(records[to])->rows[from] = static_cast<Record*>(records[from])->row;
      },
      at);
  const unsigned g = simt::lane() / 4, t = simt::lane() % 4;
  for (unsigned j = 0; j < 4; j++) {
    const bf16* const* const rows = record.rows + 8 * j;  // of tile j
    const bf16 one = transposed ? rows[2 * t][g] : rows[g][2 * t];
    const bf16 two = transposed ? rows[2 * t + 1][g] : rows[g][2 * t + 1];
    x[j] = one.bits | uint32_t(two.bits) << 16;
  }
}

inline void keep_in_register(int&) {}
inline void keep_in_register(size_t&) {}

// From when a copy is asked for until it is waited for, nobody may count on what its destination holds: it is NaN.
class AsyncCopies {
 public:
  void copy16(void* shared, const void* global, unsigned bytes = 16) {
    require_boundary("cp.async", shared);
    require_boundary("cp.async", global);
    require(bytes <= 16 && bytes % 2 == 0, "cp.async: %u bytes, expected an even number up to 16", bytes);
    require(asked_ - done_ < most, "cp.async: a thread has %zu copies under way, expected at most %zu", asked_ - done_,
            most);
    const Copy copy = {static_cast<Word*>(shared), static_cast<const Word*>(global), bytes, group_};
    // A GPU reads between this call and the wait. The emulator reads at the wait; this extra read shows the access to
    // ASan and to the race shadow.
    for (size_t i = 0; i < bytes / 2; i++) (void)*(static_cast<const volatile Half*>(global) + i);
    for (size_t i = 0; i < 4; i++) copy.to[i] = ~0u;
    copies_[asked_++ % most] = copy;
  }
  void commit() { group_++; }
  template <int pending>
  void wait() {
    for (; done_ < asked_ && copies_[done_ % most].group + pending < group_; done_++) {
      const Copy& copy = copies_[done_ % most];
      for (unsigned i = 0; i < 4; i++)
        copy.to[i] = copy.bytes >= 4 * i + 4   ? copy.from[i]
                     : copy.bytes == 4 * i + 2 ? *reinterpret_cast<const Half*>(copy.from + i)
                                               : 0;
    }
  }

 private:
  static constexpr size_t most = 128;
  using Word = uint32_t __attribute__((may_alias));  // of whatever the kernel copies
  using Half = uint16_t __attribute__((may_alias));
  struct Copy {
    Word* to;
    const Word* from;
    size_t bytes, group;
  };
  Copy copies_[most];  // a ring
  size_t asked_ = 0, done_ = 0, group_ = 0;
};

#endif

// Tells the emulator which tensor core it is. A launcher says it before its kernel; a GPU knows.
inline void emulate_mma([[maybe_unused]] Context& ctx) {
#ifndef __CUDACC__
  ctx.enqueue([arithmetic = ctx.mma_arithmetic] { emulated_mma = arithmetic; });
#endif
}

}  // namespace gated
