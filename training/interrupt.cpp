#include "training/interrupt.h"

#include <signal.h>

namespace gated {

static volatile sig_atomic_t caught = 0;

static void remember(int signal_number) {
  caught = signal_number;
  signal(SIGINT, SIG_DFL);
  signal(SIGTERM, SIG_DFL);
}

void catch_interrupts() {
  signal(SIGINT, remember);
  signal(SIGTERM, remember);
}

int interrupted() {
  return caught;
}

}  // namespace gated
