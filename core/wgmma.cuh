// wgmma: the instructions by which a warpgroup, four warps, multiplies from shared memory, each with a twin for the
// emulator. Where the operands lie: core/wgmma.h. For compute capability 9.0 alone, in code that is built for sm_90a.
//
// A warpgroup multiplies 64 rows of A by 32, 64, 128, 192 or 256 columns of B, 16 k, and adds the products to sums in
// its registers. Warp w has rows 16w to 16w + 15; with g = lane / 4 and t = lane % 4, of each eight columns
//
//                 column  2t  2t+1
//   row 16w + g          x[4j] x[4j+1]           columns 8j to 8j + 7, j = 0, 1, ...: a thread has columns / 2 sums
//   row 16w + g + 8    x[4j+2] x[4j+3]           (the same as of mma, one tile of 16 x 8 after the other)
//
// A may come from registers, too: each warp's 16 rows as mma has them (core/mma.cuh). So the sums of two tiles,
// rounded, are 16 k of the next product's left factor where they stand.
//
// The multiplication is asynchronous: the instruction only asks for it, and until it is waited for nobody may touch the
// sums, nor write to what it reads.
//
//   fence()       wgmma.fence: what this thread has done to its sums is done before what is asked for next
//   multiply()    x = A B or x + A B, later. Those of one thread are done in the order in which they were asked for.
//   commit()      what was asked for since the last commit is one group; commit(sums, ...) where it is for several
//   wait<n>()     until all groups but the newest n are done: their operands may be written over. The sums may be
//                 touched after wait<0>() alone, since later groups add to the same.
//   wait_for_all<n>(sums, ...)   the same for several. The newest n groups, by default none, must be of other sums.
//   in_use(A)     comes behind the wait of a product whose A is in registers: until there they keep it.
//
// A kernel gives each thread the same number of registers. give_registers<n>() leaves n to each of a warpgroup, and
// take_registers<n>() waits until there are n for each: all threads of the warpgroup come there (setmaxnreg).
//
// The tensor core reads shared memory by a way of its own (the async proxy). What a thread has written itself, by
// stores or by cp.async, is seen there after its fence_proxy_async(), and the barrier that any reader needs.
//   (PTX ISA 9.0, 9.7.15: asynchronous warpgroup level matrix instructions)
// tests/test_wgmma.cpp
#pragma once
#include "core/mma.cuh"
#include "core/wgmma.h"

namespace gated {

// Has this device wgmma, in this run's arithmetic? GATED_WGMMA=off leaves all products to mma, which has the same bits:
// to see which of the two is at fault, or what wgmma gains.
inline bool runs_wgmma(const Context& ctx) {
  if (const char* const wanted = getenv("GATED_WGMMA"); wanted && !strcmp(wanted, "off")) return false;
#ifdef __CUDACC__
  if (compute_capability() != 90) return false;
#endif
  return ctx.mma_arithmetic == MmaArithmetic::hopper;
}

// f(sum i, its row in the 64, its column) for sums `first` to `last` - 1 of this thread.
template <class F>
__device__ __forceinline__ void for_wgmma_sums(int first, int last, F f) {
  const int warp = int(threadIdx.x) % wgmma_threads / 32, lane = int(threadIdx.x) % 32;
#pragma unroll
  for (int i = first; i < last; i++) f(i, 16 * warp + lane / 4 + i / 2 % 2 * 8, i / 4 * 8 + lane % 4 * 2 + i % 2);
}

#ifdef __CUDACC__

__device__ inline void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

template <int registers>
__device__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}
template <int registers>
__device__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}

template <int columns>
class WgmmaSums {
 public:
  static constexpr int count = columns / 2;  // a thread's
  float x[count];

  __device__ void fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
  __device__ void commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
  template <int pending>
  __device__ void wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
    if constexpr (pending == 0) change();
  }
  // (for the compiler: the sums change here)
  __device__ void change() {
#pragma unroll
    for (int i = 0; i < count; i++) asm volatile("" : "+f"(x[i])::"memory");
  }

  // x = A B, or x + A B. Do rows of A, and columns of B, run along the lines?
  template <bool a_along, bool b_along>
  __device__ void multiply(uint64_t a, uint64_t b, bool add) {
    static_assert(columns == 32 || columns == 64 || columns == 192 || columns == 256);
#define ASK(n, sums, a, b, add, signs_and_ways)                                                                  \
  "{\n\t.reg .pred %%scale_d;\n\tsetp.ne.u32 %%scale_d, " add                                                    \
  ", 0;\n\t"                                                                                                     \
  "wgmma.mma_async.sync.aligned.m64n" n "k16.f32.bf16.bf16 {" sums "}, " a ", " b ", %%scale_d, " signs_and_ways \
  ";\n\t}"
#define EIGHT(i)                                                                                              \
  "+f"(x[i]), "+f"(x[i + 1]), "+f"(x[i + 2]), "+f"(x[i + 3]), "+f"(x[i + 4]), "+f"(x[i + 5]), "+f"(x[i + 6]), \
      "+f"(x[i + 7])
#define THIRTY_TWO(i) EIGHT(i), EIGHT(i + 8), EIGHT(i + 16), EIGHT(i + 24)
#define SUMS_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define SUMS_32 \
  SUMS_16       \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define SUMS_64                                                                        \
  SUMS_32                                                                              \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define SUMS_96                                                                        \
  SUMS_64                                                                              \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define SUMS_128                                                                                   \
  SUMS_96                                                                                          \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define OF_SHARED "l"(a), "l"(b), "n"(int(a_along)), "n"(int(b_along)), "r"(unsigned(add)) : "memory"
    if constexpr (columns == 256)
      asm volatile(ASK("256", SUMS_128, "%128", "%129", "%132", "1, 1, %130, %131")
                   : THIRTY_TWO(0), THIRTY_TWO(32), THIRTY_TWO(64), THIRTY_TWO(96)
                   : OF_SHARED);
    else if constexpr (columns == 192)
      asm volatile(ASK("192", SUMS_96, "%96", "%97", "%100", "1, 1, %98, %99")
                   : THIRTY_TWO(0), THIRTY_TWO(32), THIRTY_TWO(64)
                   : OF_SHARED);
    else if constexpr (columns == 64)
      asm volatile(ASK("64", SUMS_32, "%32", "%33", "%36", "1, 1, %34, %35") : THIRTY_TWO(0) : OF_SHARED);
    else
      asm volatile(ASK("32", SUMS_16, "%16", "%17", "%20", "1, 1, %18, %19") : EIGHT(0), EIGHT(8) : OF_SHARED);
  }
  // The same with A in registers.
  template <bool b_along>
  __device__ void multiply(const MmaA& a, uint64_t b, bool add) {
    static_assert(columns == 64 || columns == 128 || columns == 256);
#define OF_REGISTERS \
  "r"(a.x[0]), "r"(a.x[1]), "r"(a.x[2]), "r"(a.x[3]), "l"(b), "n"(int(b_along)), "r"(unsigned(add)) : "memory"
    if constexpr (columns == 256)
      asm volatile(ASK("256", SUMS_128, "{%128, %129, %130, %131}", "%132", "%134", "1, 1, %133")
                   : THIRTY_TWO(0), THIRTY_TWO(32), THIRTY_TWO(64), THIRTY_TWO(96)
                   : OF_REGISTERS);
    else if constexpr (columns == 128)
      asm volatile(ASK("128", SUMS_64, "{%64, %65, %66, %67}", "%68", "%70", "1, 1, %69")
                   : THIRTY_TWO(0), THIRTY_TWO(32)
                   : OF_REGISTERS);
    else
      asm volatile(ASK("64", SUMS_32, "{%32, %33, %34, %35}", "%36", "%38", "1, 1, %37")
                   : THIRTY_TWO(0)
                   : OF_REGISTERS);
#undef OF_REGISTERS
#undef OF_SHARED
#undef SUMS_128
#undef SUMS_96
#undef SUMS_64
#undef SUMS_32
#undef SUMS_16
#undef THIRTY_TWO
#undef EIGHT
#undef ASK
  }
};

template <class Sums, class... More>
__device__ void commit(Sums& sums, More&...) {
  sums.commit();
}
template <int newest = 0, class... Sums>
__device__ void wait_for_all(Sums&... sums) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(newest) : "memory");
  (sums.change(), ...);
}
template <int count>
__device__ void in_use(const MmaA (&a)[count]) {
#pragma unroll
  for (int i = 0; i < count; i++) asm volatile("" ::"r"(a[i].x[0]), "r"(a[i].x[1]), "r"(a[i].x[2]), "r"(a[i].x[3]));
}

#else

// What a missing one does is seen in the rehearsal (ptx/machine.h).
inline void fence_proxy_async() {}
// (and what too many do)
template <int registers>
void give_registers() {}
template <int registers>
void take_registers() {}

// An address of shared memory. It begins at 128, as a GPU's does on no larger boundary than DYNAMIC_SHARED asks for.
constexpr uint32_t emulated_shared_begin = 128;
inline uint32_t shared_address(const void* p) {
  return emulated_shared_begin + uint32_t(static_cast<const unsigned char*>(p) - simt::dynamic_shared);
}

// From when a product is asked for until it is waited for, nobody may count on what the sums are: they are NaN. Its
// operands are read at the wait: each warp makes its own rows of what stands there then.
template <int columns>
class WgmmaSums {
 public:
  static constexpr int count = columns / 2;
  float x[count];

  void fence() {
    fenced_ = true;
    if (done_ == asked_) memcpy(under_way_, x, sizeof x);
  }
  void commit() { group_++; }

  template <bool a_along, bool b_along>
  void multiply(uint64_t a, uint64_t b, bool add) {
    ask({.a = a, .b = b, .a_along = a_along, .b_along = b_along, .add = add});
  }
  template <bool b_along>
  void multiply(const MmaA& a, uint64_t b, bool add) {
    ask({.a = wgmma_descriptor(0, 0, 0), .b = b, .b_along = b_along, .add = add, .in_registers = &a, .registers = a});
  }

  template <int pending>
  void wait(simt::Place at = simt::Place::here()) {
    fenced_ = false;
    if (done_ == asked_) return;
    WgmmaSums* record = this;
    for (; done_ < asked_ && oldest().group + pending < group_; done_++) {
      require(!oldest().in_registers || !memcmp(oldest().in_registers, &oldest().registers, sizeof(MmaA)),
              "wgmma: a factor in registers was written over before its product was waited for");
      simt::collective(~0u, record, multiply_of_warp, at);
      if (simt::under_race_shadow && simt::lane() == 0) read_operands(oldest());
    }
    if (done_ == asked_) memcpy(x, under_way_, sizeof x);
  }

 private:
  struct Product {
    uint64_t a, b;
    bool a_along = false, b_along, add;
    size_t group = 0;
    const MmaA* in_registers = nullptr;  // A: this lane's part of it, and what it was when it was asked for
    MmaA registers = {};
    bool is_of_same_warp(const Product& p) const {
      return a == p.a && b == p.b && a_along == p.a_along && b_along == p.b_along && add == p.add && group == p.group &&
             !in_registers == !p.in_registers;
    }
  };
  void ask(Product p) {
    for (uint64_t descriptor : {p.a, p.b})
      if (const char* const wrong = wgmma_refuses(descriptor)) fail("%s: %016zx", wrong, size_t(descriptor));
    if (done_ == asked_) {
      require(fenced_ && !memcmp(under_way_, x, sizeof x),
              "wgmma: a thread's sums were in its own hands, expected a fence before they are added to");
      memset(x, 0xff, sizeof x);
    }
    for (float sum : x) require(float_bits(sum) == ~0u, "wgmma: sums were written to before they were waited for");
    require(asked_ - done_ < most, "wgmma: %zu products under way, expected at most %zu", asked_ - done_, most);
    p.group = group_;
    products_[asked_++ % most] = p;
  }
  static const bf16* at(uint32_t address) {
    return reinterpret_cast<const bf16*>(simt::dynamic_shared + (address - emulated_shared_begin));
  }
  template <class At>
  static void load_operands(const Product& p, bf16 (*A)[mma_depth], bf16 (*B)[mma_depth], At at) {
    if (!p.in_registers) wgmma_load(A, p.a, p.a_along, threadIdx.x % wgmma_threads / 32 * 16, 16, at);
    wgmma_load(B, p.b, p.b_along, 0, columns, at);
  }
  // For the race shadow, which does not see what is done for all lanes at once.
  static void read_operands(const Product& p) {
    bf16 A[16][mma_depth], B[columns][mma_depth];
    load_operands(p, A, B, [](uint32_t address) {
      const bf16* const chunk = at(address);
      for (int i = 0; i < 8; i += 2) (void)*reinterpret_cast<const volatile uint32_t*>(chunk + i);
      return chunk;
    });
  }
  // The oldest product that every lane waits for.
  static void multiply_of_warp(void* const* records) {
    detail::require_whole_warp("wgmma", records);
    WgmmaSums* lane[warpSize];
    for (int i = 0; i < warpSize; i++) lane[i] = static_cast<WgmmaSums*>(records[i]);
    const Product& p = lane[0]->oldest();
    for (int i = 1; i < warpSize; i++)
      require(lane[i]->oldest().is_of_same_warp(p), "wgmma: lane %d multiplies something else", i);
    bf16 A[16][mma_depth], B[columns][mma_depth];
    load_operands(p, A, B, at);
    for (int i = 0; i < warpSize && p.in_registers; i++) detail::put_lane(A, i, lane[i]->oldest().registers);
    float C[columns][16];
    const auto for_all = [&](auto f) {  // f(a lane's sum, its place in C)
      for (int i = 0; i < warpSize; i++)
        for (int j = 0; j < count; j++)
          f(lane[i]->under_way_[j], C[j / 4 * 8 + i % 4 * 2 + j % 2][i / 4 + j / 2 % 2 * 8]);
    };
    for_all([&](float sum, float& c) { c = p.add ? sum : 0; });
    mma_sixteen_rows<MmaArithmetic::hopper>(C, A, B, columns);
    for_all([](float& sum, float c) { sum = c; });
  }
  const Product& oldest() const { return products_[done_ % most]; }

  static constexpr size_t most = 64;  // products
  float under_way_[count];
  Product products_[most];  // a ring
  size_t asked_ = 0, done_ = 0, group_ = 0;
  bool fenced_ = false;
};

template <class... Sums>
void commit(Sums&... sums) {
  (sums.commit(), ...);
}
template <int newest = 0, class... Sums>
void wait_for_all(Sums&... sums) {
  (sums.template wait<0>(), ...);
}
template <int count>
void in_use(const MmaA (&)[count]) {}

#endif

// The first boundary of a group of lines in shared memory.
__device__ inline unsigned char* group_boundary(unsigned char* shared) {
  return shared + (-shared_address(shared) & (wgmma_group_bytes - 1));
}

}  // namespace gated
