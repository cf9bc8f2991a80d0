#include "training/process/threads.h"

#include <omp.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace gated {

// Throwing, too, takes stack.
[[noreturn]] static void refuse_stack() {
  fputs("error: the limit of the stack is below 256 KiB, and may not be raised: ulimit -s 8192\n", stderr);
  _exit(1);
}

// A number of the launcher's, of OpenMPI or of SLURM.
static size_t number_of_launcher(const char* openmpi, const char* slurm) {
  const char* text = getenv(openmpi);
  if (!text) text = getenv(slurm);
  return text ? strtoul(text, nullptr, 10) : 0;
}

// The ranks of a host share its cores: each gets as many, whatever the launcher binds it to. (OpenMPI binds two ranks
// to one core each.) Whether that has changed something.
static bool take_share_of_cores() {
#ifdef __linux__
  const size_t ranks = number_of_launcher("OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_NTASKS_PER_NODE");
  const size_t rank = number_of_launcher("OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID");
  if (ranks < 2 || rank >= ranks) return false;
  cpu_set_t before = {}, all, own = {}, now = {};
  sched_getaffinity(0, sizeof before, &before);
  memset(&all, 0xFF, sizeof all);
  sched_setaffinity(0, sizeof all, &all);  // all that this process may have
  sched_getaffinity(0, sizeof all, &all);
  const size_t cores = size_t(CPU_COUNT(&all));
  for (size_t cpu = 0, i = 0; cpu < CPU_SETSIZE; cpu++)
    if (CPU_ISSET(cpu, &all) && i++ * ranks / cores == rank) CPU_SET(cpu, &own);
  if (cores < ranks) own = all;
  sched_setaffinity(0, sizeof own, &own);  // it may be refused
  sched_getaffinity(0, sizeof now, &now);
  return !CPU_EQUAL(&now, &before);
#else
  return false;
#endif
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
  const bool moved = take_share_of_cores();
  if (spins) setenv("GOMP_SPINCOUNT", "1000", 0);
  if (spins || too_small || moved) execv("/proc/self/exe", argv);  // where this fails, the run is only slower
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
