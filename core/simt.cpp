// simt: how the fibers of one block take turns; what it promises is in simt.h. tests/test_simt.cpp
//
// A thread that must wait switches straight to the next runnable thread's fiber, without a scheduler in between. A
// fiber whose thread returns takes up the next thread that has not begun, so a block that never waits runs on one
// fiber. When a fault is found the fiber that found it switches back to the launching stack, which resumes each waiting
// fiber once to throw Unwind through its kernel: destructors run and the fibers can be used again.
#include "core/simt.h"

#include <boost/context/fiber.hpp>
#include <boost/context/protected_fixedsize_stack.hpp>
#include <algorithm>
#include <atomic>
#include <bit>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <memory>

#include "core/check.h"
#include "core/race_shadow.h"
#include "core/simt_mbarrier.h"
#include "core/source_line.h"

// (g++ and clang say in different ways that AddressSanitizer watches a build.)
#ifdef __has_feature
#if __has_feature(address_sanitizer)
#define SIMT_ASAN
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define SIMT_ASAN
#endif
#ifdef SIMT_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define ASAN(...) __VA_ARGS__
#else
#define ASAN(...)
#endif

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace simt {

using gated::fail;
using gated::format;
using gated::require;

unsigned char* dynamic_shared;
#ifdef SIMT_ASAN
const bool under_asan = true;
#else
const bool under_asan = false;
#endif
#ifdef SIMT_RACE_SHADOW
const bool under_race_shadow = true;
#else
const bool under_race_shadow = false;
#endif

namespace {

// ---- configuration

Config config_from_environment() {
  Config c;
  if (const char* order = getenv("SIMT_ORDER")) {
    const char* const names[] = {"forward", "reverse", "random", "priority"};
    const auto name = std::find_if(std::begin(names), std::end(names), [&](auto n) { return !strcmp(n, order); });
    require(name != std::end(names), "SIMT_ORDER=%s, expected forward, reverse, random or priority", order);
    c.order = Order(name - names);
  }
  if (const char* seed = getenv("SIMT_SEED")) {
    const char* end = seed + strlen(seed);
    const auto [stop, error] = std::from_chars(seed, end, c.seed);
    require(error == std::errc() && stop == end, "SIMT_SEED=%s, expected an integer from 0 to 2^64-1", seed);
  }
  if (const char* gpu = getenv("SIMT_SHARED")) {
    const std::pair<const char*, size_t> limits[] = {{"consumer", gated::shared_limit_consumer},
                                                     {"sm_80", gated::shared_limit_sm_80},
                                                     {"sm_90", gated::shared_limit_sm_90}};
    const auto limit =
        std::find_if(std::begin(limits), std::end(limits), [&](auto l) { return !strcmp(l.first, gpu); });
    require(limit != std::end(limits), "SIMT_SHARED=%s, expected consumer, sm_80 or sm_90", gpu);
    c.shared_limit = limit->second;
  }
  return c;
}

// ---- fibers

struct Fiber {
  boost::context::fiber context;  // where it goes on; empty while it runs
  const void* stack = nullptr;    // its low end
  size_t stack_bytes = 0;
  void* fake_stack = nullptr;   // ASan's, saved while the fiber is suspended
  const void* entry = nullptr;  // the frame of run_threads on it
};

Fiber launching;  // the stack simt::launch was called on
Fiber* leaving;   // the fiber that the present one was switched to from

// The first half of a switch, on the old stack, and the second, on the new one. ASan must be told about both.
__forceinline__ void leave(Fiber& from, [[maybe_unused]] const Fiber& to) {
  leaving = &from;
  ASAN(__sanitizer_start_switch_fiber(&from.fake_stack, to.stack, to.stack_bytes);)
}
__forceinline__ void arrive([[maybe_unused]] void* fake_stack, boost::context::fiber&& from) {
  ASAN(__sanitizer_finish_switch_fiber(fake_stack, &leaving->stack, &leaving->stack_bytes);)
  leaving->context = std::move(from);
}
__forceinline__ void switch_fiber(Fiber& from, Fiber& to) {
  leave(from, to);
  boost::context::fiber previous = std::move(to.context).resume();
  arrive(from.fake_stack, std::move(previous));
}

[[noreturn]] void run_threads(Fiber& me);

Fiber* make_fiber() {
  // Most kernels need a few hundred bytes; ASan's frames and printf more. Untouched pages cost nothing.
  constexpr size_t stack_bytes = 256 * 1024;
  struct Keep {
    boost::context::stack_context allocate() { return {}; }
    void deallocate(boost::context::stack_context&) {}
  };
  // If all stacks began at the same offset in their pages they would share a few cache sets: 38 ns a switch
  // among 1024 fibers, against 9 when each begins some lines further down.
  static size_t made = 0;
  auto stack = boost::context::protected_fixedsize_stack(stack_bytes).allocate();
  const size_t shift = made++ * 832 % 4096;
  stack.sp = static_cast<char*>(stack.sp) - shift;
  stack.size -= shift;
  auto* f = new Fiber;
  f->stack = static_cast<char*>(stack.sp) - stack.size;
  f->stack_bytes = stack.size;
  f->context = boost::context::fiber(std::allocator_arg, boost::context::preallocated(stack.sp, stack.size, stack),
                                     Keep(), [f](boost::context::fiber&& from) -> boost::context::fiber {
                                       arrive(nullptr, std::move(from));
                                       run_threads(*f);
                                     });
  return f;
}

std::vector<Fiber*>& idle = *new std::vector<Fiber*>;  // never destroyed, so that no fiber counts as leaked

Fiber* take_fiber() {
  if (idle.empty()) return make_fiber();
  Fiber* f = idle.back();
  idle.pop_back();
  return f;
}

// ---- the block that runs

constexpr unsigned max_threads = 1024, max_warps = max_threads / warpSize;

enum class State : uint8_t { runnable, at_barrier, at_collective, at_mbarrier, returned };

struct Mbarrier {
  gated::MbarrierCount count;
  struct Copy {
    unsigned char* to;
    gated::TmaMatrix from;
    int x, y;
  };
  std::vector<Copy> copies;      // that have not arrived, oldest first
  shadow::Known gathered, over;  // from those who arrived in this phase, and in the one before
};

struct Meeting;

struct Thread {
  uint3 index;
  unsigned rank;  // of its block in the cluster
  State state;
  Fiber* fiber;  // null until the thread begins
  Place at;      // where it waits
  // at a barrier:
  const Meeting* meeting;
  const void* frame;  // barrier's own, from which the calls that led there can be followed
  uint64_t calls;     // a hash of them; 0: not known
  // in a warp collective:
  unsigned mask;
  void* record;
  Combine combine;
  // at an mbarrier:
  const Mbarrier* mbarrier;
  unsigned parity;
};

struct Warp {
  unsigned live, waiting;  // lanes that have not returned; lanes in a collective
};

// A barrier of a block, or of the cluster.
struct Meeting {
  unsigned live = 0;        // of its threads, those that have not returned
  unsigned coming = 0;      // of these, those that have come
  Thread* first = nullptr;  // of those who have come
  shadow::Known gathered{}, over{};
};

struct Unwind {};  // thrown through the kernels of a block given up

uint64_t random_state;
uint64_t random_bits() {  // splitmix64 (Steele, Lea, Flood 2014)
  uint64_t z = random_state += 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// The runnable threads: two levels of bit sets, in which bit r stands for the warp or lane of rank r.
class Runnable {
 public:
  void begin_block() {
    warps_ = 0;
    std::fill(std::begin(lanes_), std::end(lanes_), 0);
    for (Ranks* ranks : {&warp_, &lane_}) ranks->draw();
  }
  bool empty() const { return warps_ == 0; }
  void add(unsigned thread) {
    const unsigned w = thread / warpSize;
    lanes_[w] |= 1u << lane_.rank[thread % warpSize];
    warps_ |= 1u << warp_.rank[w];
  }
  __forceinline__ unsigned take() {
    const unsigned warp_rank = choose(warps_), w = warp_.at[warp_rank], lane_rank = choose(lanes_[w]);
    lanes_[w] &= ~(1u << lane_rank);
    if (!lanes_[w]) warps_ &= ~(1u << warp_rank);
    return w * warpSize + lane_.at[lane_rank];
  }

 private:
  struct Ranks {
    uint8_t rank[32], at[32];  // rank[at[r]] == r
    void draw() {
      for (int r = 0; r < 32; r++) at[r] = config.order == Order::reverse ? 31 - r : r;
      if (config.order == Order::priority)
        for (int r = 31; r > 0; r--) std::swap(at[r], at[random_bits() % (r + 1)]);
      for (int r = 0; r < 32; r++) rank[at[r]] = r;
    }
  };
  __forceinline__ static unsigned choose(unsigned bits) {
    if (config.order == Order::random)
      for (unsigned skip = random_bits() % std::popcount(bits); skip; skip--) bits &= bits - 1;
    return __builtin_ctz(bits);  // never empty
  }
  Ranks warp_, lane_;
  unsigned warps_, lanes_[max_warps];
};

struct StaticArray {
  void* begin;
  size_t bytes;
  bool filled;  // in this block
};

// A block, or those of a cluster, which run together: the threads of the first one, then those of the next.
struct Block {
  Thread threads[max_threads];
  Warp warps[max_warps];
  Runnable runnable;
  Thread* current;
  unsigned ranks, size;  // blocks; threads of all of them
  Meeting cluster, meetings[max_warps];
  void (*body)(void*);
  void* argument;
  unsigned first_x;                        // blockIdx.x of the first
  unsigned char* shared;                   // its dynamic shared memory
  size_t dynamic_bytes, shared_pitch;      // of each; from one's to the next one's
  std::vector<StaticArray> static_arrays;  // those that threads of this launch have come past
  std::map<const void*, Mbarrier> mbarriers;
  std::string fault;  // what ended it; empty while all is well
};
Block block;
std::atomic<bool> running;
std::vector<std::string> races_found;

unsigned index_of(const Thread& t) {
  return &t - block.threads;
}

__forceinline__ void become(Thread& t) {
  block.current = &t;
  threadIdx = t.index;
  if (block.ranks > 1) {
    blockIdx.x = block.first_x + t.rank;
    dynamic_shared = block.shared + t.rank * block.shared_pitch;
  }
  shadow::runs(index_of(t), t.fiber->stack, t.fiber->stack_bytes);
}

void make_runnable(Thread& t) {
  t.state = State::runnable;
  block.runnable.add(index_of(t));
}

// ---- faults

bool same_place(const Place& a, const Place& b) {
  return a.line == b.line && (a.file == b.file || !strcmp(a.file, b.file));
}

// visit(return address) for every call between the kernel's launch and the barrier, innermost first. False where code
// without frame pointers lies between.
template <class Visit>
bool each_call(const Thread& t, Visit visit) {
  const Fiber& fiber = *t.fiber;
  const void* frame = t.frame;
  while (frame != fiber.entry) {
    if (uintptr_t(frame) - uintptr_t(fiber.stack) > fiber.stack_bytes - 16 || uintptr_t(frame) % sizeof(void*))
      return false;
    const void* const* pair = static_cast<const void* const*>(frame);  // the caller's frame, and where it goes on
    visit(pair[1]);
    if (pair[0] <= frame) return false;
    frame = pair[0];
  }
  return true;
}

uint64_t hash_of_calls(const Thread& t) {
  uint64_t hash = 1;
  const bool known =
      each_call(t, [&](const void* address) { hash = (hash ^ uintptr_t(address)) * 0x9E3779B97F4A7C15u; });
  return known ? hash : 0;
}

// ", called from f.cu:30" for every call above the barrier's own line; "" where none is known. A compiler may copy a
// call, so addresses say too much: lines are what the programmer wrote.
const std::string& calls_of(const Thread& t) {
  static std::map<uint64_t, std::string> known{{0, ""}};
  const auto [entry, is_new] = known.try_emplace(t.calls);
  if (!is_new) return entry->second;
  std::vector<std::string> lines;
  each_call(t, [&](const void* address) {
    for (std::string& line : gated::source_lines(static_cast<const char*>(address) - 1))
      if (line.find("core/simt.") == std::string::npos && line[0] != '/' && line.find(':') != std::string::npos)
        lines.push_back(std::move(line));
  });
  const std::string barrier = format("%s:%d", t.at.file, t.at.line);
  for (const std::string& line : lines)
    if (line != barrier) entry->second += ", called from " + line;
  return entry->second;
}

// "0-31, 40, 42"; at most eight ranges are spelled out.
std::string ranges(const std::vector<unsigned>& threads) {
  std::string text;
  int spelled = 0;
  for (size_t from = 0, to; from < threads.size(); from = to) {
    for (to = from + 1; to < threads.size() && threads[to] == threads[to - 1] + 1;) to++;
    if (spelled++) text += ", ";
    if (spelled > 8) return text + format("... (%zu in all)", threads.size());
    text += to - from == 1 ? format("%u", threads[from]) : format("%u-%u", threads[from], threads[to - 1]);
  }
  return text;
}

bool same_barrier(const Thread& a, const Thread& b) {
  return same_place(a.at, b.at) && (a.calls == b.calls || !a.calls || !b.calls || calls_of(a) == calls_of(b));
}

// "at a block barrier in f.cuh:12: threads 0-31; returned: threads 32-63"
std::string who_waits_where() {
  std::vector<std::pair<std::string, std::vector<unsigned>>> groups;
  for (unsigned i = 0; i < block.size; i++) {
    const Thread& t = block.threads[i];
    std::string where = "returned";
    if (t.state == State::runnable) continue;
    if (t.state == State::at_barrier)
      where = format("at a %s barrier in %s:%d%s", t.meeting == &block.cluster ? "cluster" : "block", t.at.file,
                     t.at.line, calls_of(t).c_str());
    if (t.state == State::at_collective)
      where = format("at a warp collective of lanes 0x%08x in %s:%d", t.mask, t.at.file, t.at.line);
    if (t.state == State::at_mbarrier)
      where = format("at an mbarrier in its phase %u, for one of parity %u, in %s:%d", t.mbarrier->count.phase(),
                     t.parity, t.at.file, t.at.line);
    auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g.first == where; });
    if (group == groups.end()) group = groups.insert(group, {where, {}});
    group->second.push_back(i);
  }
  std::string text;
  for (const auto& [where, threads] : groups)
    text += format("%s%s: threads %s", text.empty() ? "" : "; ", where.c_str(), ranges(threads).c_str());
  return text;
}

void give_up(const std::string& what) {
  block.fault = format("simt: block (%u,%u,%u): %s", blockIdx.x, blockIdx.y, blockIdx.z, what.c_str());
  shadow::record(false);
}

// ---- waiting and going on

// Of those who wait there, lets go whoever may. `before`: its phase was that when something came.
void pass_mbarrier(Mbarrier& b, unsigned before) {
  if (b.count.phase() == before) return;
  b.over = std::exchange(b.gathered, {});
  for (Thread* t = block.threads; t != block.threads + block.size; t++)
    if (t->state == State::at_mbarrier && t->mbarrier == &b && b.count.is_over(t->parity)) make_runnable(*t);
}

void require_allowed(const char* wrong, Place at) {
  if (wrong) fail("%s, at %s:%d", wrong, at.file, at.line);
}

// Nobody can go on: the copies that somebody waits for arrive, and nothing else.
void land_copies() {
  shadow::record(false);
  for (auto& [address, b] : block.mbarriers) {
    if (!b.count.awaits_bytes_alone()) continue;
    const unsigned phase = b.count.phase();
    for (const Mbarrier::Copy& copy : std::exchange(b.copies, {})) {
      gated::tma_copy_box(copy.from, copy.x, copy.y, [&](uint32_t place, uint64_t source, uint32_t elements) {
        memset(copy.to + place, 0, 16);
        memcpy(copy.to + place, reinterpret_cast<const void*>(source), elements * sizeof(gated::bf16));
      });
      if (const char* wrong = b.count.land(gated::tma_box_bytes(copy.from.box_lines))) fail("%s", wrong);
    }
    pass_mbarrier(b, phase);
  }
  shadow::record(true);
}

__forceinline__ void wait_for_turn() {
  if (block.runnable.empty()) land_copies();
  if (block.runnable.empty()) fail("deadlock; %s", who_waits_where().c_str());
  Thread& me = *block.current;
  Thread& next = block.threads[block.runnable.take()];
  if (&next != &me) {
    if (!next.fiber) next.fiber = take_fiber();
    become(next);
    switch_fiber(*me.fiber, *next.fiber);
    if (!block.fault.empty()) throw Unwind();
  }
}

// Where all have come who are left, they go on.
void try_meeting(Meeting& m) {
  if (m.live == 0 || m.coming < m.live) return;
  m.coming = 0;
  m.over = std::exchange(m.gathered, {});
  if (block.ranks == 1) shadow::block_synced();
  for (Thread* t = block.threads; t != block.threads + block.size; t++)
    if (t->state == State::at_barrier && t->meeting == &m) make_runnable(*t);
}

__forceinline__ void meet(Meeting& m, Place at) {
  Thread& me = *block.current;
  me.at = at;
  me.meeting = &m;
  me.frame = __builtin_frame_address(0);
  me.calls = hash_of_calls(me);
  me.state = State::at_barrier;
  if (!m.coming) m.first = &me;
  if (&m != &block.cluster && !same_barrier(*m.first, me))  // (that one is not .aligned)
    fail("threads of one block meet at different barriers; %s", who_waits_where().c_str());
  m.coming++;
  if (block.ranks > 1) shadow::tells(m.gathered);
  try_meeting(m);
  wait_for_turn();
  if (block.ranks > 1) shadow::learns(m.over);
}

// If all live lanes of `mask` wait for each other: combine their records and let them go.
void try_collective(unsigned w, unsigned mask) {
  Warp& warp = block.warps[w];
  Thread* const lanes = block.threads + w * warpSize;
  const unsigned group = mask & warp.live;
  if ((warp.waiting & group) != group) return;
  void* records[warpSize] = {};
  for (unsigned bits = group; bits; bits &= bits - 1) {
    const unsigned lane = std::countr_zero(bits);
    if (lanes[lane].mask != mask) return;  // it waits for others first
    records[lane] = lanes[lane].record;
  }
  for (unsigned bits = group; bits; bits &= bits - 1) make_runnable(lanes[std::countr_zero(bits)]);
  warp.waiting &= ~group;
  const Combine combine = lanes[std::countr_zero(group)].combine;
  if (!combine) shadow::warp_synced(w, group);
  if (combine) {
    shadow::record(false);  // the last lane works on the other lanes' stacks
    combine(records);
    shadow::record(true);
  }
}

// A thread that has returned is waited for no longer.
void thread_returned(Thread& me) {
  const unsigned i = index_of(me), w = i / warpSize;
  Warp& warp = block.warps[w];
  me.state = State::returned;
  warp.live &= ~(1u << i % warpSize);
  for (Meeting* m : {&block.meetings[me.rank], &block.cluster}) {
    m->live--;
    try_meeting(*m);
  }
  for (unsigned bits = warp.waiting; bits; bits &= bits - 1)
    if (warp.waiting & bits & -bits) try_collective(w, block.threads[w * warpSize + std::countr_zero(bits)].mask);
}

void run_threads(Fiber& me) {
  me.entry = __builtin_frame_address(0);
  for (;;) {
    Thread& thread = *block.current;
    try {
      block.body(block.argument);
      thread_returned(thread);
      if (block.cluster.live && block.runnable.empty()) land_copies();
      if (block.cluster.live && block.runnable.empty()) fail("deadlock; %s", who_waits_where().c_str());
    } catch (const Unwind&) {
    } catch (const std::exception& e) {
      give_up(format("thread %u: %s", index_of(thread), e.what()));
    } catch (...) {
      give_up(format("thread %u: an exception that is no std::exception", index_of(thread)));
    }
    thread.state = State::returned;
    Fiber* to = &launching;
    if (block.fault.empty() && block.cluster.live) {
      Thread& next = block.threads[block.runnable.take()];
      if (!next.fiber) next.fiber = &me;
      become(next);
      to = next.fiber;
    }
    if (to == &me) continue;
    idle.push_back(&me);
    switch_fiber(me, *to);
  }
}

void run_block() {
  block.mbarriers.clear();
  block.cluster = {.live = block.size};
  for (unsigned rank = 0; rank < block.ranks; rank++) block.meetings[rank] = {.live = block.size / block.ranks};
  block.runnable.begin_block();
  for (unsigned i = 0; i < block.size; i++) {
    block.threads[i].fiber = nullptr;
    make_runnable(block.threads[i]);
  }
  for (unsigned w = 0; w * warpSize < block.size; w++) {
    const unsigned lanes = std::min<unsigned>(block.size - w * warpSize, warpSize);
    block.warps[w] = {~0u >> (warpSize - lanes), 0};
  }
  shadow::block_begins();
  Thread& first = block.threads[block.runnable.take()];
  first.fiber = take_fiber();
  become(first);
  switch_fiber(launching, *first.fiber);
  for (const auto& [address, b] : block.mbarriers)
    if (block.fault.empty() && !b.copies.empty())
      give_up("it has ended, and copies are under way into its shared memory");
  if (block.fault.empty()) return;
  for (Thread* t = block.threads; t != block.threads + block.size; t++)
    if (t->fiber && t->state != State::returned) {
      become(*t);
      switch_fiber(launching, *t->fiber);
    }
  throw gated::Error(block.fault);
}

// Shared memory of a launch: of each block of a cluster the dynamic part and a margin after it, all NaN, so that
// reading past the end shows too, and the static arrays, each of which is filled when the block's first thread comes
// past it.
class SharedMemory {
 public:
  SharedMemory(size_t bytes, unsigned ranks) {
    block.dynamic_bytes = bytes;
    block.shared_pitch = (config.shared_limit + margin + 1023) / 1024 * 1024;
    block.static_arrays.clear();
    if (const size_t all = ranks * block.shared_pitch; all > capacity) {
      free(block.shared);
      capacity = 0;  // (where there is no memory for more)
      block.shared = static_cast<unsigned char*>(aligned_alloc(1024, all));
      require(block.shared, "simt: no memory for %zu bytes of dynamic shared memory", all);
      capacity = all;
    }
    dynamic_shared = block.shared;
    for (unsigned rank = 0; rank < ranks; rank++) {
      memset(of(rank) + bytes, 0xFF, margin);
      ASAN(ASAN_POISON_MEMORY_REGION(of(rank) + bytes, block.shared_pitch - bytes);)
    }
    shadow::launch_begins(block.shared, bytes, block.shared_pitch, ranks);
  }
  ~SharedMemory() { ASAN(ASAN_UNPOISON_MEMORY_REGION(block.shared, capacity);) }
  void fill() {
    for (unsigned rank = 0; rank < block.ranks; rank++) memset(of(rank), 0xFF, block.dynamic_bytes);
    for (StaticArray& a : block.static_arrays) a.filled = false;
  }
  void check_margin() {
    ASAN(return;)  // the write has ended the process
    for (unsigned rank = 0; rank < block.ranks; rank++) {
      const unsigned char *begin = of(rank), *behind = begin + block.dynamic_bytes, *end = behind + margin;
      const auto* byte = std::find_if(behind, end, [](unsigned char b) { return b != 0xFF; });
      require(byte == end, "simt: block (%u,%u,%u) wrote byte %zu of %zu bytes of dynamic shared memory",
              block.first_x + rank, blockIdx.y, blockIdx.z, size_t(byte - begin), block.dynamic_bytes);
    }
  }

 private:
  static unsigned char* of(unsigned rank) { return block.shared + rank * block.shared_pitch; }
  static constexpr size_t margin = 512;
  static inline size_t capacity = 0;
};

}  // namespace

Config config = [] {
  try {
    return config_from_environment();
  } catch (const gated::Error& e) {
    fprintf(stderr, "%s\n", e.what());
    exit(1);
  }
}();

const std::vector<std::string>& races() {
  return races_found;
}

void enter_static_shared(void* begin, size_t bytes) {
  require(block.ranks == 1,
          "simt: static shared memory in a cluster; expected DYNAMIC_SHARED, of which each block has one");
  size_t total = bytes;
  for (StaticArray& a : block.static_arrays) {
    if (a.begin == begin) {
      if (!std::exchange(a.filled, true)) memset(begin, 0xFF, bytes);
      return;
    }
    total += a.bytes;
  }
  gated::shared_must_be_asked_for(total, block.dynamic_bytes, config.shared_limit);
  block.static_arrays.push_back({begin, bytes, true});
  memset(begin, 0xFF, bytes);
}

void barrier(Place at) {
  meet(block.meetings[block.current->rank], at);
}

void cluster_barrier(Place at) {
  meet(block.cluster, at);
}

unsigned cluster_rank() {
  return block.current->rank;
}

ptrdiff_t way_to_rank(unsigned rank) {
  require(rank < block.ranks, "simt: shared memory of block %u of a cluster of %u", rank, block.ranks);
  return ptrdiff_t(rank * block.shared_pitch) - ptrdiff_t(block.current->rank * block.shared_pitch);
}

void collective(unsigned mask, void* record, Combine combine, Place at) {
  Thread& me = *block.current;
  const unsigned w = index_of(me) / warpSize, lane = index_of(me) % warpSize;
  Warp& warp = block.warps[w];
  me.at = at;
  me.state = State::at_collective;
  me.mask = mask;
  me.record = record;
  me.combine = combine;
  require(mask >> lane & 1, "lane %u is not in its own mask 0x%08x at %s:%d", lane, mask, at.file, at.line);
  // Groups of lanes may wait side by side, and one lane may be far ahead of another; but two lanes that wait for each
  // other must do so in the same way. As the lanes of a group agree already, the first one speaks for all.
  for (unsigned bits = warp.waiting & mask; bits; bits &= bits - 1) {
    const unsigned other_lane = std::countr_zero(bits);
    const Thread& other = block.threads[w * warpSize + other_lane];
    if (!(other.mask >> lane & 1)) continue;
    if (other.mask != mask)
      fail("lanes %u and %u of warp %u meet with masks 0x%08x and 0x%08x; %s", other_lane, lane, w, other.mask, mask,
           who_waits_where().c_str());
    if (other.combine != combine || !same_place(other.at, at))
      fail("lanes %u and %u of warp %u meet at different collectives; %s", other_lane, lane, w,
           who_waits_where().c_str());
    break;
  }
  warp.waiting |= 1u << lane;
  try_collective(w, mask);
  wait_for_turn();
}

static Mbarrier& mbarrier_at(const void* barrier, Place at) {
  const auto found = block.mbarriers.find(barrier);
  require(found != block.mbarriers.end(), "no barrier was made at this address, %s:%d", at.file, at.line);
  if (block.ranks > 1) {
    const size_t rank = size_t(static_cast<const unsigned char*>(barrier) - block.shared) / block.shared_pitch;
    require(block.meetings[rank].live > 0, "block %zu of the cluster has ended, and its barrier is come to, %s:%d",
            rank, at.file, at.line);
  }
  return found->second;
}

void mbarrier_init(const void* barrier, unsigned arrivals, Place at) {
  require_allowed(block.mbarriers[barrier].count.init(arrivals), at);
}

void mbarrier_arrive(const void* barrier, unsigned announced_bytes, Place at) {
  Mbarrier& b = mbarrier_at(barrier, at);
  const unsigned phase = b.count.phase();
  shadow::tells(b.gathered);
  require_allowed(b.count.arrive(announced_bytes), at);
  pass_mbarrier(b, phase);
}

void mbarrier_wait(const void* barrier, unsigned parity, Place at) {
  Mbarrier& b = mbarrier_at(barrier, at);
  if (!b.count.is_over(parity)) {
    Thread& me = *block.current;
    me.at = at;
    me.mbarrier = &b;
    me.parity = parity;
    me.state = State::at_mbarrier;
    wait_for_turn();
  }
  shadow::learns(b.over);
}

void mbarrier_copy(const void* barrier, unsigned char* to, const gated::TmaMatrix& from, int x, int y, Place at) {
  Mbarrier& b = mbarrier_at(barrier, at);
  shadow::tells(b.gathered);
  b.copies.push_back({to, from, x, y});
}

void missing_lane(unsigned source, Place at) {
  fail("a shuffle at %s:%d reads lane %u, which is not in its mask or has returned", at.file, at.line, source);
}

void run_grid(dim3 grid, dim3 shape, unsigned ranks, size_t shared_bytes, void (*body)(void*), void* argument) {
  const uint64_t threads = uint64_t(shape.x) * shape.y * shape.z;
  require(threads >= 1 && threads <= max_threads && shape.x <= 1024 && shape.y <= 1024 && shape.z <= 64,
          "simt: a block of (%u,%u,%u) threads, expected 1 to %u in all and at most 64 in z", shape.x, shape.y, shape.z,
          max_threads);
  require(grid.x >= 1 && grid.y >= 1 && grid.z >= 1 && grid.x <= 0x7FFFFFFF && grid.y <= 65535 && grid.z <= 65535,
          "simt: a grid of (%u,%u,%u) blocks, expected (1,1,1) to (2147483647,65535,65535)", grid.x, grid.y, grid.z);
  require(ranks >= 1 && grid.x % ranks == 0,
          "simt: a grid of (%u,%u,%u) blocks, expected a multiple of the cluster's %u", grid.x, grid.y, grid.z, ranks);
  require(ranks == 1 || (ranks <= 8 && threads % warpSize == 0 && ranks * threads <= max_threads),
          "simt: clusters of %u blocks of %zu threads, expected at most 8 blocks, whole warps, and %u threads", ranks,
          size_t(threads), max_threads);
  gated::shared_must_be_asked_for(0, shared_bytes, config.shared_limit);
  require(!running.exchange(true), "simt: a launch while a kernel runs (in a kernel, or on a second OS thread)");
  struct Finish {
    ~Finish() {
      shadow::record(false);
      running = false;
    }
  } finish;
  blockDim = shape;
  gridDim = grid;
  block.ranks = ranks;
  block.size = ranks * threads;
  block.body = body;
  block.argument = argument;
  block.fault.clear();
  random_state = config.seed;
  for (unsigned i = 0; i < block.size; i++) {
    const unsigned in_block = i % threads;
    block.threads[i].index = {in_block % shape.x, in_block / shape.x % shape.y, in_block / shape.x / shape.y};
    block.threads[i].rank = i / threads;
  }
  races_found.clear();
  SharedMemory shared(shared_bytes, ranks);
  for (unsigned z = 0; z < grid.z; z++)
    for (unsigned y = 0; y < grid.y; y++)
      for (unsigned x = 0; x < grid.x; x += ranks) {
        blockIdx = {block.first_x = x, y, z};
        shared.fill();
        run_block();
        shared.check_margin();
      }
  races_found = shadow::launch_ends();
  if (races_found.empty()) return;
  constexpr size_t spelled = 3;
  const size_t n = races_found.size();
  std::string text =
      n == 1 ? "simt: a data race: " : format("simt: %zu data races. The first, which others may follow from: ", n);
  for (size_t i = 0; i < std::min(n, spelled); i++) text += (i == 0 ? "" : i == 1 ? ". Then: " : "; ") + races_found[i];
  if (n > spelled) text += format("; and %zu more", n - spelled);
  fail("%s", text.c_str());
}

}  // namespace simt
