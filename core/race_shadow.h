// race_shadow: finds data races between the threads of an emulated launch, and finds them whatever order the threads
// happen to run in: it asks not what went wrong but whether two accesses were ordered at all.
//
// g++ -fsanitize=thread calls __tsan_readN or __tsan_writeN before each memory access. The program is not linked with
// libtsan; race_shadow.cpp supplies these functions. For every 4 bytes that a kernel touches they keep the last
// accesses: who (block, thread), when, which bytes, read or write, atomic or not, from which line. Reported are
//   - two accesses by two threads to one byte, one of them a write, not both atomic, with no __syncthreads
//     between and, within a warp, no __syncwarp that both lanes took part in (a shuffle orders no memory), and of
//     which no mbarrier says that one came before the other: the first thread arrived there after its access, and the
//     second passed that phase before its own;
//   - the same between two blocks of one launch, which nothing orders (shared memory is each block's own);
//   - a read of shared memory, static or dynamic, that no thread of the block has written;
//   - an access past the dynamic shared memory that the launch asked for.
//
// A pair of lines is reported once, with how often; the first pair that was found comes first. A read of shared memory
// that is written only later is told as the race of the two, not as a read of nothing.
//
// Three accesses a word are kept, so a race with one of many concurrent readers alone can be missed. Not understood:
// data handed over by flags (reported as a race), memcpy calls that g++ does not turn into loads and stores (not seen),
// variables that kernels only read and that are neither const nor shared memory (reported as unwritten).
//
//   flags="-std=c++20 -O1 -g1 -gdwarf-4 -fopenmp -I. -DSIMT_RACE_SHADOW"     of DWARF 5 addr2line may name another file
//   g++ $flags -fsanitize=thread -c tests/test_x.cpp tests/catch_main.cpp         every file but these two:
//   g++ $flags -c core/simt.cpp core/race_shadow.cpp
//   g++ *.o -fopenmp -lboost_context -o test_x                                    no -fsanitize=thread here
// Code outside kernels is instrumented as well, in any number of OpenMP threads; it is not recorded.
// tests/test_planted_bugs.cpp
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace simt::shadow {

// What a barrier passes on: of each thread, up to what time its accesses are known.
using Known = std::vector<uint32_t>;

#ifdef SIMT_RACE_SHADOW
// What the runtime tells: a launch begins, with its dynamic shared memory, which is the front of a larger piece, one
// behind the other for the blocks of a cluster; a block begins, or a cluster; which thread goes on, to be recorded, and
// its stack, which is its own business; whether to record what runs; who has met whom. The last one returns the
// distinct races of the launch, in words.
void launch_begins(const void* shared, size_t bytes, size_t piece, unsigned ranks);
void block_begins();
void runs(unsigned thread, const void* stack, size_t stack_bytes);
void record(bool on);
void block_synced();
void warp_synced(unsigned warp, unsigned lanes);
void tells(Known&);         // the thread that runs arrives at an mbarrier, or at a barrier of a cluster's blocks
void learns(const Known&);  // it has passed one
std::vector<std::string> launch_ends();

// Where one is set, it hears of each access of a kernel to memory that is not shared: where, how many bytes, whether it
// writes, and the address that the access returns to. tests/exercises/try.cpp
using Listener = void (*)(uintptr_t address, size_t bytes, bool write, const void* pc);
extern Listener listener;
#else
inline void launch_begins(const void*, size_t, size_t, unsigned) {}
inline void block_begins() {}
inline void runs(unsigned, const void*, size_t) {}
inline void record(bool) {}
inline void block_synced() {}
inline void warp_synced(unsigned, unsigned) {}
inline void tells(Known&) {}
inline void learns(const Known&) {}
inline std::vector<std::string> launch_ends() {
  return {};
}
#endif

}  // namespace simt::shadow
