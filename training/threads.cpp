#include "training/threads.h"

#include <unistd.h>

#include <cstdlib>

namespace gated {

void limit_spinning(char** argv) {
  if (getenv("GOMP_SPINCOUNT") || getenv("OMP_WAIT_POLICY")) return;
  setenv("GOMP_SPINCOUNT", "20000", 0);
  execv("/proc/self/exe", argv);  // where this fails, the run is only slower
}

}  // namespace gated
