#include "training/process/threads.h"

#include <omp.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace gated {

// Throwing, too, takes stack.
[[noreturn]] static void refuse_stack() {
  fputs("error: the limit of the stack is below 256 KiB, and may not be raised: ulimit -s 8192\n", stderr);
  _exit(1);
}

void set_limits(char** argv) {
  constexpr rlim_t least_stack = 256 * 1024, usual_stack = 8 * 1024 * 1024;
  rlimit stack = {};
  getrlimit(RLIMIT_STACK, &stack);
  const bool too_small = stack.rlim_cur < least_stack;
  if (stack.rlim_max < least_stack) refuse_stack();
  stack.rlim_cur = std::min(usual_stack, stack.rlim_max);
  if (too_small) setrlimit(RLIMIT_STACK, &stack);
  const bool spins = !getenv("GOMP_SPINCOUNT") && !getenv("OMP_WAIT_POLICY");
  if (spins) setenv("GOMP_SPINCOUNT", "1000", 0);
  if (spins || too_small) execv("/proc/self/exe", argv);  // where this fails, the run is only slower
  if (too_small) refuse_stack();
}

void use_threads(size_t threads) {
  if (threads == 0) return;
  const size_t cores = size_t(omp_get_num_procs());
  if (threads > cores)
    fprintf(
        stderr,
        "warning: --threads=%zu is more than the %zu core%s of this machine: threads that share a core wait for each "
        "other; --threads=0 takes one a core\n",
        threads, cores, cores == 1 ? "" : "s");
  omp_set_num_threads(int(threads));
}

}  // namespace gated
