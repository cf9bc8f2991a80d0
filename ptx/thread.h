// thread: what the C++ of a kernel is made of: ptx/translate.py writes a kernel as one function of a Thread, a register
// of PTX as a variable, an instruction as a line. Arithmetic stands in those lines; what touches memory or meets other
// threads stands here.
//
//   global    device memory: addresses that nobody but the machine can follow (ptx/machine.h)
//   shared    32-bit addresses from 0, of the block; `shared_window` before them makes generic addresses of them. Those
//             of another block of the cluster have its number, from 1, above 24 bits
//   local     the thread's own, on its stack
//   generic   one of the three, told apart by its value; `parameter_window` before a kernel's parameters makes
//             addresses of them, which tensor maps have
//
// Every access is checked: inside one live allocation, shared variable or local array, and on a boundary of its own
// size. `line` is the line of the kernel's C++, where a fault finds the instruction and the line of the source.
//   (PTX ISA 9.0: 5.1 State spaces, 9.7 Instructions)
// tests/test_ptx.cpp
#pragma once
#include <stdint.h>

namespace ptx {

// ---- where memory is: constants, so that a check costs a few instructions

constexpr uint64_t device_begin = 0x100000000000, device_bytes = uint64_t{1} << 36;
constexpr uint64_t storage_begin = device_begin + 2 * device_bytes, live_begin = device_begin + 4 * device_bytes;
constexpr uint64_t shared_window = 0x0e0000000000, parameter_window = 0x0d0000000000, window_bytes = uint64_t{1} << 32;
constexpr uint64_t cluster_window = uint64_t{1} << 24;

constexpr unsigned most_cluster = 8;  // blocks

// An allocation begins on a boundary of 256 bytes. A table has for each 64 bytes of device memory how many of them,
// from the first on, are inside a live allocation; another has for each 16 bytes of a block's shared memory a bit for
// each byte: is it in a variable?
constexpr uint64_t global_granule = 64, shared_granule = 16;

enum class Space { global, shared, local, generic, parameter };
enum class WarpOp { sync, shuffle, ballot, ldmatrix, mma, wgmma, registers };

struct Index {
  uint32_t x, y, z;
};
struct Thread;
struct Wgmma;

// What the machine does for a thread.
struct Services {
  // Both end the launch.
  [[noreturn]] virtual void fault(Thread&, Space, uint64_t address, unsigned bytes, unsigned line) = 0;
  [[noreturn]] virtual void refuse(Thread&, const char* why, unsigned line) = 0;
  // Waits for the threads of the block, or for the lanes in `mask`; then `record` holds what came of it.
  virtual void barrier(Thread&, uint32_t number, unsigned line) = 0;
  virtual void arrive_at_cluster(Thread&, unsigned line) = 0;
  virtual void wait_for_cluster(Thread&, unsigned line) = 0;
  virtual void meet(Thread&, WarpOp, uint32_t mask, void* record, unsigned line) = 0;
  // Tells the watch for races of an access to shared or global memory.
  virtual void watch(Thread&, Space, uint64_t address, unsigned bytes, bool write, unsigned line) = 0;
  // 16 bytes from global to shared memory, of which the first `bytes` are copied and the others 0.
  virtual void copy_async(Thread&, uint64_t to, uint64_t from, uint32_t bytes, unsigned line) = 0;
  virtual void commit_copies(Thread&) = 0;
  virtual void wait_copies(Thread&, uint32_t pending) = 0;
  // A warpgroup's product, which is made at its wait; the sums become marks until then.
  virtual void multiply_async(Thread&, Wgmma&, unsigned line) = 0;
  virtual void fence_products(Thread&) = 0;
  virtual void commit_products(Thread&) = 0;
  virtual void wait_products(Thread&, uint32_t pending, unsigned line) = 0;
  virtual float arrived(Thread&, float mark) = 0;
  // What the thread has written to shared memory may be read by wgmma, and a barrier that it made be used by copies.
  virtual void fence_proxy(Thread&) = 0;
  // Other blocks of the cluster may come to a barrier that it made.
  virtual void fence_mbarrier_init(Thread&) = 0;
  // A barrier (mbarrier) in shared memory. A try is false once before the thread waits for good.
  virtual void make_mbarrier(Thread&, uint64_t address, uint32_t arrivals, unsigned line) = 0;
  virtual void arrive_at_mbarrier(Thread&, uint64_t address, uint32_t announced_bytes, unsigned line) = 0;
  virtual bool try_mbarrier(Thread&, uint64_t address, uint32_t parity, unsigned line) = 0;
  // A box of a matrix into shared memory, from element x of line y on; its bytes count at a barrier. Where `ranks` is
  // not 0, into those blocks of the cluster, a bit for each, at the same place.
  virtual void copy_box(Thread&, uint64_t to, uint64_t map, int32_t x, int32_t y, uint64_t mbarrier, uint32_t ranks,
                        unsigned line) = 0;
  // The first lane of a warp begins a basic block.
  virtual void pass(unsigned line) = 0;
};

struct Thread {
  Index tid, ctaid, ntid, nctaid;
  uint32_t lane, warp;   // (of the cluster's warps)
  uint32_t rank, ranks;  // of its block in the cluster, and how many there are
  const unsigned char* parameters;
  unsigned char* shared;
  const uint16_t* shared_live;
  uint32_t shared_bytes;
  bool watched;
  uint32_t volatile_loads;
  uint64_t local_begin;
  uint32_t local_bytes;
  Services* machine;
};

inline void passed(Thread& t, unsigned line) {
  if (t.watched && t.lane == 0) [[unlikely]]
    t.machine->pass(line);
}

inline uint32_t warp_of_block(const Thread& t) {
  return (t.tid.x + t.ntid.x * (t.tid.y + t.ntid.y * t.tid.z)) / 32;
}

// ---- memory

template <class T, unsigned n>
inline T* global(Thread& t, uint64_t address, bool write, unsigned line) {
  constexpr unsigned bytes = n * sizeof(T);
  const uint64_t offset = address - device_begin;
  const auto* const live = reinterpret_cast<const unsigned char*>(live_begin);
  if (offset >= device_bytes || offset % bytes || offset % global_granule + bytes > live[offset / global_granule])
      [[unlikely]]
    t.machine->fault(t, Space::global, address, bytes, line);
  if (t.watched) [[unlikely]]
    t.machine->watch(t, Space::global, address, bytes, write, line);
  return reinterpret_cast<T*>(address + (storage_begin - device_begin));
}

template <class T, unsigned n>
inline T* shared(Thread& t, uint64_t address, bool write, unsigned line) {
  constexpr unsigned bytes = n * sizeof(T);
  if (address >= t.shared_bytes || address % bytes ||
      ((1u << bytes) - 1) << address % shared_granule & ~t.shared_live[address / shared_granule]) [[unlikely]]
    t.machine->fault(t, Space::shared, address, bytes, line);
  if (t.watched) [[unlikely]]
    t.machine->watch(t, Space::shared, address, bytes, write, line);
  return reinterpret_cast<T*>(t.shared + address);
}

template <class T, unsigned n>
inline T* local(Thread& t, uint64_t address, unsigned line) {
  constexpr unsigned bytes = n * sizeof(T);
  if (address - t.local_begin > t.local_bytes - bytes || t.local_bytes < bytes || address % bytes) [[unlikely]]
    t.machine->fault(t, Space::local, address, bytes, line);
  return reinterpret_cast<T*>(address);
}

template <class T, unsigned n>
inline T* generic(Thread& t, uint64_t address, bool write, unsigned line) {
  if (address - device_begin < device_bytes) return global<T, n>(t, address, write, line);
  if (address - shared_window < window_bytes) return shared<T, n>(t, address - shared_window, write, line);
  return local<T, n>(t, address, line);
}

// A kernel's arguments. `all` is how many bytes of them there are.
template <class T, unsigned n>
inline const T* parameter(Thread& t, uint64_t address, uint64_t all, unsigned line) {
  constexpr unsigned bytes = n * sizeof(T);
  if (bytes > all || address > all - bytes || address % bytes) [[unlikely]]
    t.machine->fault(t, Space::parameter, address, bytes, line);
  return reinterpret_cast<const T*>(t.parameters + address);
}

// A block that waits for another would read such memory again and again. Blocks run one after another: it would never
// end.
inline void count_volatile_load(Thread& t, unsigned line) {
  if (++t.volatile_loads > 1u << 24) [[unlikely]]
    t.machine->refuse(t, "a thread reads volatile memory without end: blocks must not wait for one another", line);
}

// (9.7.9.24) The same place in another block of the cluster.
inline uint32_t mapa(Thread& t, uint32_t address, uint32_t rank, unsigned line) {
  if (rank >= t.ranks) [[unlikely]]
    t.machine->refuse(t, "mapa: the cluster has no such block", line);
  return uint32_t((rank + 1) * cluster_window) + address;
}

// ---- arithmetic that C++ has no one operation for

template <class To, class From>
inline To as(From x) {
  static_assert(sizeof(To) == sizeof(From));
  return __builtin_bit_cast(To, x);
}

// The one NaN of operations on floats (9.7.3).
inline float number(float x) {
  return x == x ? x : as<float>(0x7fffffffu);
}

// Shifts by more than all bits are shifts by all (9.7.8.6, 9.7.8.7).
template <class T>
inline T shl(T x, uint32_t n) {
  return n < 8 * sizeof(T) ? T(x << n) : T(0);
}
template <class T>
inline T shr(T x, uint32_t n) {
  return T(x >> (n < 8 * sizeof(T) ? n : 8 * sizeof(T) - 1) >> (n < 8 * sizeof(T) ? 0 : 1));
}
// Division by 0 gives a value that PTX does not name; GPUs are known to give all bits 1.
template <class T>
inline T div(T a, T b) {
  return b == 0 ? T(-1) : b == T(-1) && T(-1) < T(0) ? T(-uint64_t(a)) : T(a / b);
}
template <class T>
inline T rem(T a, T b) {
  return b == 0 ? a : b == T(-1) && T(-1) < T(0) ? T(0) : T(a % b);
}
// The upper half of a product.
inline uint32_t mul_hi(uint32_t a, uint32_t b) {
  return uint32_t(uint64_t(a) * b >> 32);
}
inline int32_t mul_hi(int32_t a, int32_t b) {
  return int32_t(int64_t(a) * b >> 32);
}
inline uint64_t mul_hi(uint64_t a, uint64_t b) {
  return uint64_t((unsigned __int128)(a)*b >> 64);
}
inline int64_t mul_hi(int64_t a, int64_t b) {
  return int64_t((__int128)(a)*b >> 64);
}
// The number that is not NaN (9.7.3.11); of two zeros the larger is +0.
inline float max_f32(float a, float b) {
  if (a != a || b != b) return a == a ? a : number(b);
  return a > b || (a == b && !__builtin_signbit(a)) ? a : b;
}
inline float min_f32(float a, float b) {
  if (a != a || b != b) return a == a ? a : number(b);
  return a < b || (a == b && __builtin_signbit(a)) ? a : b;
}
// b with the sign of a (9.7.3.4).
inline float copysign_f32(float a, float b) {
  return as<float>((as<uint32_t>(a) & 0x80000000u) | (as<uint32_t>(b) & 0x7fffffffu));
}
// `count` low bits of a in the place of those of b from `from` on (9.7.1.20).
template <class Word>
inline Word bfi(Word a, Word b, uint32_t from, uint32_t count) {
  constexpr uint32_t bits = 8 * sizeof(Word);
  from &= 255, count &= 255;
  if (from >= bits || count == 0) return b;
  const Word mask = (count < bits ? (Word{1} << count) - 1 : ~Word{0}) << from;
  return (b & ~mask) | ((a << from) & mask);
}
// How far the highest 1 is from the top; all bits 1 where there is none (9.7.1.17).
inline uint32_t bfind_shiftamt(uint32_t a) {
  return a ? uint32_t(__builtin_clz(a)) : ~0u;
}
inline uint32_t brev(uint32_t x) {
  uint32_t y = 0;
  for (int i = 0; i < 32; i++) y |= (x >> i & 1) << (31 - i);
  return y;
}
// Four bytes of the eight in b:a, each chosen by four bits of c; the highest of these spreads a byte's sign (9.7.9.7).
inline uint32_t prmt(uint32_t a, uint32_t b, uint32_t c) {
  const uint64_t bytes = uint64_t(b) << 32 | a;
  uint32_t d = 0;
  for (int i = 0; i < 4; i++) {
    const uint32_t choice = c >> (4 * i) & 15, byte = uint32_t(bytes >> (8 * (choice & 7))) & 255;
    d |= (choice & 8 ? (byte & 128 ? 255u : 0u) : byte) << (8 * i);
  }
  return d;
}
// To an integer, towards zero; what does not fit becomes the nearest that does, and NaN 0, or of 64 bits the highest
// alone (9.7.9.21).
template <class T>
inline T to_integer(float x) {
  constexpr T most = T(-1) < T(0) ? T((uint64_t{1} << (8 * sizeof(T) - 1)) - 1) : T(-1);
  constexpr T least = T(-1) < T(0) ? T(-most - 1) : T(0);
  constexpr T nan = sizeof(T) == 8 ? T(uint64_t{1} << 63) : T(0);
  return x != x ? nan : x >= float(most) ? most : x <= float(least) ? least : T(x);
}
// A float's bits as bf16, to nearest, ties to even; NaN is 0x7fff.
inline uint32_t to_bf16(float x) {
  const uint32_t u = as<uint32_t>(x);
  return x != x ? 0x7fff : (u + 0x7fff + (u >> 16 & 1)) >> 16;
}

// ---- instructions of a warp: what a lane brings, and what it takes away

struct Shuffle {
  enum Mode { up, down, butterfly, index } mode;
  uint32_t value, b, c, result;
  bool inside;
};
struct Ballot {
  bool mine;
  uint32_t result;
};
struct LdMatrix {
  bool transposed;
  unsigned tiles;
  uint64_t row;
  uint32_t result[4];
};
struct Mma {
  uint32_t a[4], b[2];
  float c[4];
};

inline Shuffle shuffle(Thread& t, Shuffle::Mode mode, uint32_t value, uint32_t b, uint32_t c, uint32_t mask,
                       unsigned line) {
  Shuffle record{mode, value, b, c, 0, false};
  t.machine->meet(t, WarpOp::shuffle, mask, &record, line);
  return record;
}
inline uint32_t ballot(Thread& t, bool mine, uint32_t mask, unsigned line) {
  Ballot record{mine, 0};
  t.machine->meet(t, WarpOp::ballot, mask, &record, line);
  return record.result;
}
inline LdMatrix ldmatrix(Thread& t, bool transposed, unsigned tiles, uint64_t row, unsigned line) {
  LdMatrix record{transposed, tiles, row, {}};
  t.machine->meet(t, WarpOp::ldmatrix, ~0u, &record, line);
  return record;
}
inline void mma(Thread& t, Mma& record, unsigned line) {
  t.machine->meet(t, WarpOp::mma, ~0u, &record, line);
}
// From here on each thread of the warp has so many registers: more than before, or fewer.
struct Registers {
  uint32_t count;
  bool more;
};
inline void set_registers(Thread& t, uint32_t count, bool more, unsigned line) {
  Registers record{count, more};
  t.machine->meet(t, WarpOp::registers, ~0u, &record, line);
}

// A sum that wgmma has under way is a mark: a NaN whose upper ten bits no operation gives, and which says in the others
// what it stands for. So it can be moved from register to register, as nvcc does with sums that are under way, and
// whoever calculates with one, or stores it, has a NaN. After a wait each register that may hold a mark is asked.
struct Wgmma {
  uint64_t a, b;
  bool add, a_along, b_along;  // do rows of A, columns of B run along the lines?
  uint32_t columns;
  bool in_registers;  // A: of the warp's 16 rows what this lane has of mma's
  uint32_t registers[4];
  float sums[128];  // columns / 2 of them
};
constexpr uint32_t mark_begin = 0xff800000u, mark_bits = 0x003fffffu;
inline bool is_mark(float x) {
  return (as<uint32_t>(x) & ~mark_bits) == mark_begin && as<uint32_t>(x) != mark_begin;
}
inline float arrived(Thread& t, float x) {
  return is_mark(x) ? t.machine->arrived(t, x) : x;
}

// ---- what a kernel's library says of itself

struct Description {
  void (*code)(Thread&);
  const uint32_t* parameters;  // offset and bytes of each
  uint32_t parameter_count;
  const uint32_t* loaded;  // the same of what its instructions load of them
  uint32_t loaded_count, parameter_bytes;
  uint32_t static_shared;     // bytes, as a GPU lays it out
  const uint32_t* variables;  // of shared memory, as the machine lays them out: where and how many bytes
  uint32_t variable_count, dynamic_at;
  uint32_t local_bytes, most_threads;
};

}  // namespace ptx
