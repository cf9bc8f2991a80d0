#include "training/process/interrupt.h"

#include <signal.h>
#include <time.h>

#include <atomic>
#include <cstdint>

namespace gated {

// A signal may interrupt any thread, and a handler may touch only what is atomic without a lock.
static std::atomic<int> caught = 0;
static std::atomic<int64_t> caught_at = 0;  // nanoseconds
static_assert(std::atomic<int64_t>::is_always_lock_free);

static void remember(int signal_number) {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  const int64_t at = now.tv_sec * int64_t{1000000000} + now.tv_nsec;
  if (!caught) {
    caught_at = at;
    caught = signal_number;
  } else if (signal_number != SIGPIPE && at - caught_at >= 1000000000) {
    signal(signal_number, SIG_DFL);
    raise(signal_number);  // it is blocked until this handler returns
  }
}

static constexpr int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE};

// Replaces one handler by another. What is ignored has neither, and stays ignored.
static void answer(void (*from)(int), void (*to)(int)) {
  for (const int number : signals) {
    struct sigaction now;
    sigaction(number, nullptr, &now);
    if (now.sa_handler == from) signal(number, to);
  }
}

CatchInterrupts::CatchInterrupts() {
  answer(SIG_DFL, remember);
}

CatchInterrupts::~CatchInterrupts() {
  if (!caught) answer(remember, SIG_DFL);
}

int interrupted() {
  return caught;
}

static std::atomic<bool> asked_to_save = false;
static_assert(std::atomic<bool>::is_always_lock_free);

void hear_save_requests() {
  struct sigaction now;
  sigaction(SIGUSR1, nullptr, &now);
  if (now.sa_handler == SIG_DFL) signal(SIGUSR1, [](int) { asked_to_save = true; });
}

bool save_requested() {
  return asked_to_save.exchange(false);
}

}  // namespace gated
