// race_shadow: the record of who touched which word when, and the __tsan_ functions that feed it; what it
// finds and how it is built is in race_shadow.h. tests/test_planted_bugs.cpp
#include "core/race_shadow.h"

#include <link.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "core/check.h"
#include "core/simt.h"
#include "core/source_line.h"

namespace simt::shadow {

Listener listener = nullptr;

namespace {

using gated::format;

// ---- what is kept

struct Access {
  uint32_t pc;     // return address, relative to the static variables
  uint32_t block;  // or cluster, counted over all launches; 0: none
  uint32_t time;   // see Clock
  uint16_t thread;
  uint8_t bytes;  // of the word, as a mask; 0: this entry is free
  bool write : 1, atomic : 1;
};
static_assert(sizeof(Access) == 16);

struct alignas(64) Word {
  Access last[3];
  uint32_t written_by;    // block
  uint8_t written_bytes;  // in that block
};

// Two levels, like a page table: 2^15 directories of 2^16 pages, a page for 64 KiB of memory (47-bit
// addresses). mmap gives zeros, and memory only to what is touched.
template <class T>
T* map_zeros(size_t n) {
  void* p = mmap(nullptr, n * sizeof(T), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) gated::fail("race shadow: out of memory");
  return static_cast<T*>(p);
}
Word** directories[1 << 15];
Word& word_at(uintptr_t address) {
  Word**& directory = directories[address >> 32];
  if (!directory) directory = map_zeros<Word*>(1 << 16);
  Word*& page = directory[address >> 16 & 0xFFFF];
  if (!page) page = map_zeros<Word>(1 << 14);
  return page[address >> 2 & 0x3FFF];
}

// ---- who knows of what
// Time counts the collectives completed so far. An access is ordered before whatever another thread does
// after a collective that both took part in. So it is enough to keep, for each thread, up to what time it
// knows the accesses of the others.
struct Clock {
  uint32_t now;
  uint32_t block;              // the last block barrier: known are all accesses of the block up to it
  uint32_t warp[32];           // the last collective of all lanes of a warp
  uint32_t lane[32][32][32];   // [warp][lane][other lane]: the same after collectives of some lanes
  uint32_t some_lanes[32];     // [warp]: the last of these collectives
  std::vector<Known> learned;  // [thread][other thread]: from mbarriers; empty where there was none
};
Clock clock_;
uint32_t block_serial, first_block;  // this block; the first of the launch

struct Memory {
  const char* begin;
  size_t bytes;
};
struct {
  unsigned thread;
  Memory stack;
} current;
const void* dynamic_begin;
size_t dynamic_bytes, dynamic_piece, dynamic_capacity;  // what the launch asked for; what a block has, and all

// What no access to is recorded of: the stack of the thread that runs, and all memory while no kernel does. Only the OS
// thread inside simt::launch ever records. Most accesses end at this one comparison.
constexpr Memory everything = {nullptr, SIZE_MAX};
thread_local Memory ignored = everything;

__forceinline__ bool within(uintptr_t address, const void* begin, size_t bytes) {
  return address - uintptr_t(begin) < bytes;
}

bool is_builtin(uintptr_t address) {
  return within(address, &threadIdx, sizeof threadIdx) || within(address, &blockIdx, sizeof blockIdx) ||
         within(address, &blockDim, sizeof blockDim) || within(address, &gridDim, sizeof gridDim) ||
         within(address, &dynamic_shared, sizeof dynamic_shared);
}
// A kernel's static variables are its shared memory. They are among those of the program, or of the shared library,
// that this file is linked into: its segment that can be written.
const Memory statics = [] {
  Memory mine = {};
  const auto look = [](dl_phdr_info* module, size_t, void* found) {
    for (int i = 0; i < module->dlpi_phnum; i++) {
      const ElfW(Phdr)& segment = module->dlpi_phdr[i];
      const char* const begin = reinterpret_cast<const char*>(module->dlpi_addr + segment.p_vaddr);
      if (segment.p_type != PT_LOAD || !(segment.p_flags & PF_W)) continue;
      if (within(uintptr_t(&block_serial), begin, segment.p_memsz))
        *static_cast<Memory*>(found) = {begin, segment.p_memsz};
    }
    return 0;
  };
  dl_iterate_phdr(look, &mine);
  return mine;
}();
bool is_shared(uintptr_t address) {
  return within(address, dynamic_begin, dynamic_capacity) || within(address, statics.begin, statics.bytes);
}

bool ordered_before_now(const Access& a, bool shared) {
  if (a.block != block_serial) return shared || a.block < first_block;
  if (a.thread == current.thread || a.time <= clock_.block) return true;
  if (!clock_.learned.empty() && a.time <= clock_.learned[current.thread][a.thread]) return true;
  const unsigned w = current.thread / 32;
  return a.thread / 32 == w &&
         (a.time <= clock_.warp[w] ||
          (a.time <= clock_.some_lanes[w] && a.time <= clock_.lane[w][current.thread % 32][a.thread % 32]));
}

// ---- reports, put into words when the launch ends

enum class Fault { race, unwritten, overrun };
struct Race {
  Access before, now;
  bool shared;
  Fault fault;
  size_t times = 1;
  bool too_early = false;  // a read of what only later was written for the first time
};
std::vector<Race> found;  // one for each pair of lines, in the order of the first time

void report(const Race& race) {
  const auto again = std::find_if(found.begin(), found.end(), [&](const Race& r) {
    return r.fault == race.fault && std::minmax(r.now.pc, r.before.pc) == std::minmax(race.now.pc, race.before.pc);
  });
  // A line reads what nobody has written yet, and another line then writes it: the two are unordered. That is the
  // cause; that the read found nothing follows.
  const auto is_cause = [](const Race& race, const Race& unwritten) {
    return race.fault == Fault::race && race.shared && !race.before.write && unwritten.fault == Fault::unwritten &&
           race.before.pc == unwritten.now.pc;
  };
  const auto follows = std::find_if(found.begin(), found.end(), [&](const Race& r) { return is_cause(race, r); });
  const auto cause = std::find_if(found.begin(), found.end(), [&](const Race& r) { return is_cause(r, race); });
  if (again != found.end()) {
    again->times++;
  } else if (follows != found.end()) {
    *follows = race;
    follows->too_early = true;
  } else if (cause != found.end()) {
    cause->too_early = true;
  } else {
    found.push_back(race);
  }
}

const std::string& line_of(uint32_t pc) {
  static std::map<uint32_t, std::string> known;
  std::string& line = known[pc];
  // (the call lies before the address that it returns to)
  if (line.empty()) line = gated::source_lines(statics.begin + int32_t(pc) - 1).front();
  return line;
}

std::string in_words(const Race& race) {
  const auto who = [](const Access& a) {
    const size_t i = (a.block - first_block) * (dynamic_capacity / dynamic_piece);  // of a cluster, its first
    return format("block (%zu,%zu,%zu) thread %u", i % gridDim.x, i / gridDim.x % gridDim.y, i / gridDim.x / gridDim.y,
                  a.thread);
  };
  const Access &now = race.now, &before = race.before;
  const std::string what = format("%s %s%s in %s", who(now).c_str(), now.atomic ? "atomically " : "",
                                  now.write ? "writes" : "reads", line_of(now.pc).c_str());
  if (race.fault == Fault::overrun)
    return what + format(" past the %zu bytes of dynamic shared memory that the launch asked for", dynamic_bytes);
  if (race.fault == Fault::unwritten) return what + " shared memory that no thread of its block has written yet";
  return format("%s what %s %s%s in %s%s, unordered (%s)", what.c_str(), who(before).c_str(),
                before.atomic ? "atomically " : "", before.write ? "wrote" : "read", line_of(before.pc).c_str(),
                race.too_early ? " before anyone had written it" : "", race.shared ? "shared memory" : "global memory");
}

// ---- one access

void access_word(Word& word, const Access& now, bool shared, bool builtin) {
  Access* slot = nullptr;
  for (Access& a : word.last) {
    const bool ordered = !a.bytes || ordered_before_now(a, shared);
    if (!ordered && a.bytes & now.bytes && (a.write || now.write) && !(a.atomic && now.atomic))
      report({a, now, shared, Fault::race});
    // Whatever will be unordered with `a` is then unordered with `now` as well, and conflicts with it.
    const bool superseded = ordered && !(a.bytes & ~now.bytes) && (now.write || !a.write) && (a.atomic || !now.atomic);
    if (!slot && superseded)
      slot = &a;
    else if (superseded)
      a.bytes = 0;
  }
  if (!slot) slot = std::find_if(word.last, word.last + 2, [](const Access& a) { return !a.write; });
  *slot = now;
  if (word.written_by != block_serial) {
    word.written_by = block_serial;
    word.written_bytes = 0;
  }
  if (now.write)
    word.written_bytes |= now.bytes;
  else if (shared && !builtin && now.bytes & ~word.written_bytes)
    report({{}, now, true, Fault::unwritten});
}

enum Kind { read, write, atomic_read, atomic_write };

void record_access(uintptr_t address, size_t bytes, Kind kind, const void* pc) {
  if (address >> 47) return;
  const bool shared = is_shared(address), builtin = shared && is_builtin(address);
  Access now = {.pc = uint32_t(static_cast<const char*>(pc) - statics.begin),
                .block = block_serial,
                .time = clock_.now,
                .thread = uint16_t(current.thread),
                .bytes = 0,
                .write = kind == write || kind == atomic_write,
                .atomic = kind >= atomic_read};
  if (within(address, dynamic_begin, dynamic_capacity) &&
      (address - uintptr_t(dynamic_begin)) % dynamic_piece + bytes > dynamic_bytes) {
    report({{}, now, true, Fault::overrun});
    return;
  }
  if (!shared && listener) listener(address, bytes, now.write, pc);
  for (size_t left = bytes, n; left > 0; left -= n, address += n) {
    n = std::min(left, 4 - address % 4);
    now.bytes = ((1u << n) - 1) << address % 4;
    access_word(word_at(address), now, shared, builtin);
  }
}

__forceinline__ void access(const volatile void* p, size_t bytes, Kind kind, const void* pc) {
  if (!within(uintptr_t(p), ignored.begin, ignored.bytes)) record_access(uintptr_t(p), bytes, kind, pc);
}

}  // namespace

void launch_begins(const void* shared, size_t bytes, size_t piece, unsigned ranks) {
  dynamic_begin = shared;
  dynamic_bytes = bytes;
  dynamic_piece = piece;
  dynamic_capacity = ranks * piece;
  first_block = block_serial + 1;
  found.clear();
}

void block_begins() {
  block_serial++;
  block_synced();
}

void runs(unsigned thread, const void* stack, size_t stack_bytes) {
  current = {thread, {static_cast<const char*>(stack), stack_bytes}};
  record(true);
}

void record(bool on) {
  ignored = on ? current.stack : everything;
}

void block_synced() {
  clock_.block = clock_.now++;
}

void warp_synced(unsigned w, unsigned lanes) {
  const uint32_t time = clock_.now++;
  if (lanes == ~0u) {
    clock_.warp[w] = time;
    return;
  }
  clock_.some_lanes[w] = time;
  // Each lane brings what it knows: its own accesses up to now, and what it learned of others before.
  uint32_t known[32] = {};
  for (unsigned l = 0; l < 32; l++)
    if (lanes >> l & 1) {
      for (unsigned k = 0; k < 32; k++) known[k] = std::max(known[k], clock_.lane[w][l][k]);
      known[l] = time;
    }
  for (unsigned l = 0; l < 32; l++)
    if (lanes >> l & 1) std::copy(known, known + 32, clock_.lane[w][l]);
}

// What a thread knows through its warp goes on with what it knows of others.
void tells(Known& to) {
  constexpr unsigned most = 1024;
  if (clock_.learned.empty()) clock_.learned.assign(most, Known(most));
  to.resize(most);
  const Known& mine = clock_.learned[current.thread];
  for (unsigned other = 0; other < most; other++) to[other] = std::max(to[other], mine[other]);
  const unsigned w = current.thread / 32, lane = current.thread % 32;
  for (unsigned other = 0; other < 32; other++) {
    uint32_t& known = to[32 * w + other];
    known = std::max({known, clock_.warp[w], clock_.lane[w][lane][other]});
  }
  to[current.thread] = clock_.now++;
}

void learns(const Known& from) {
  if (from.empty()) return;
  Known& mine = clock_.learned[current.thread];
  for (size_t other = 0; other < from.size(); other++) mine[other] = std::max(mine[other], from[other]);
}

std::vector<std::string> launch_ends() {
  record(false);
  std::vector<std::string> words;
  for (const Race& race : found)
    words.push_back(in_words(race) + (race.times > 1 ? format(", %zu times", race.times) : ""));
  return words;
}

// ---- what the compiler calls

extern "C" {

#define PC __builtin_return_address(0)
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void __tsan_read_range(void* p, size_t n) {
  access(p, n, read, PC);
}
void __tsan_write_range(void* p, size_t n) {
  access(p, n, write, PC);
}

#define ACCESS(name, bytes, kind)      \
  void __tsan_##name##bytes(void* p) { \
    access(p, bytes, kind, PC);        \
  }
#define ACCESSES(bytes)               \
  ACCESS(read, bytes, read)           \
  ACCESS(write, bytes, write)         \
  ACCESS(unaligned_read, bytes, read) \
  ACCESS(unaligned_write, bytes, write)
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)

// clang 15 and later call these for memcpy and its kin.
void* __tsan_memcpy(void* to, const void* from, size_t n) {
  access(from, n, read, PC);
  access(to, n, write, PC);
  return memcpy(to, from, n);
}
void* __tsan_memmove(void* to, const void* from, size_t n) {
  access(from, n, read, PC);
  access(to, n, write, PC);
  return memmove(to, from, n);
}
void* __tsan_memset(void* to, int value, size_t n) {
  access(to, n, write, PC);
  return memset(to, value, n);
}

// These replace the atomic operation itself, in host code too.
#define UPDATE(bits, T, name, operation)                    \
  T __tsan_atomic##bits##_##name(volatile T* p, T v, int) { \
    access(p, sizeof(T), atomic_write, PC);                 \
    return operation(p, v, __ATOMIC_SEQ_CST);               \
  }
#define COMPARE_EXCHANGE(bits, T, name)                                                     \
  int __tsan_atomic##bits##_compare_exchange_##name(volatile T* p, T* e, T v, int, int) {   \
    access(p, sizeof(T), atomic_write, PC);                                                 \
    return __atomic_compare_exchange_n(p, e, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
  }
#define ATOMIC(bits, T)                                                               \
  T __tsan_atomic##bits##_load(const volatile T* p, int) {                            \
    access(p, sizeof(T), atomic_read, PC);                                            \
    return __atomic_load_n(p, __ATOMIC_SEQ_CST);                                      \
  }                                                                                   \
  T __tsan_atomic##bits##_compare_exchange_val(volatile T* p, T e, T v, int, int) {   \
    access(p, sizeof(T), atomic_write, PC);                                           \
    __atomic_compare_exchange_n(p, &e, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
    return e;                                                                         \
  }                                                                                   \
  void __tsan_atomic##bits##_store(volatile T* p, T v, int) {                         \
    access(p, sizeof(T), atomic_write, PC);                                           \
    __atomic_store_n(p, v, __ATOMIC_SEQ_CST);                                         \
  }                                                                                   \
  COMPARE_EXCHANGE(bits, T, strong)                                                   \
  COMPARE_EXCHANGE(bits, T, weak)                                                     \
  UPDATE(bits, T, exchange, __atomic_exchange_n)                                      \
  UPDATE(bits, T, fetch_add, __atomic_fetch_add)                                      \
  UPDATE(bits, T, fetch_sub, __atomic_fetch_sub)                                      \
  UPDATE(bits, T, fetch_and, __atomic_fetch_and)                                      \
  UPDATE(bits, T, fetch_or, __atomic_fetch_or)                                        \
  UPDATE(bits, T, fetch_xor, __atomic_fetch_xor)                                      \
  UPDATE(bits, T, fetch_nand, __atomic_fetch_nand)
ATOMIC(8, uint8_t)
ATOMIC(16, uint16_t)
ATOMIC(32, uint32_t)
ATOMIC(64, uint64_t)
void __tsan_atomic_thread_fence(int) {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
void __tsan_atomic_signal_fence(int) {}

}  // extern "C"
}  // namespace simt::shadow
