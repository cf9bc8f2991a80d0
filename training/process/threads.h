// threads: how many OpenMP threads compute, how long one that waits for work keeps its core busy, and other limits of
// the process.
//
// libgomp's threads spin while they wait, by default so long that on cores that others use too a step takes many times
// as long as with one thread: whoever spins holds the core that the thread it waits for would need. A thousand turns,
// some 40 microseconds, bridge most gaps between two operations; after them a thread sleeps. Thousands of tokens a
// second of the default model with --norm=gated --attn=g1 on two cores, medians of runs that differ by a tenth:
//
//   turns                                0   1000   20000   300000 (libgomp's)   one thread
//   nothing else runs                 17.6   18.7    18.7                             13.0
//   two other programs on two cores   12.1   11.3     6.3                              8.1
//   about ten                          6.7    5.8     1.6      0.3                     1.6
//
// tests/test_cli.cpp
#pragma once
#include <cstddef>

namespace gated {

// How long threads spin, and the size of their stacks. libgomp reads its environment, and the limit of the stack, when
// the program is loaded, so the program starts itself again with them, once. What the user set (GOMP_SPINCOUNT,
// OMP_WAIT_POLICY) stays. Of several ranks each takes its share of the host's cores. Refuses a stack that is too small
// for the program and cannot be made larger.
void set_limits(char** argv);

// As many threads as --threads says; 0 is one a core, of ranks one a core of their share. Warns where they are more
// than the cores.
void use_threads(size_t threads);

}  // namespace gated
