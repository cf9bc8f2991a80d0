#include "training/threads.h"

#include <omp.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace gated {

void limit_spinning(char** argv) {
  if (getenv("GOMP_SPINCOUNT") || getenv("OMP_WAIT_POLICY")) return;
  setenv("GOMP_SPINCOUNT", "1000", 0);
  execv("/proc/self/exe", argv);  // where this fails, the run is only slower
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
