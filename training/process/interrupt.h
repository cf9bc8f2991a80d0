// interrupt: Ctrl-C (SIGINT), SIGTERM, SIGHUP, and SIGPIPE, by which nobody reads what it prints any more, end a run
// after the step that is under way. A second one ends it at once; not SIGPIPE, of which every line that is printed
// brings one. SIGUSR1 ends nothing: it asks for a checkpoint.
// tests/test_cli.cpp
#pragma once
#include "core/check.h"

namespace gated {

// While an object of this class lives, the first of these signals is only remembered. From then on one that comes a
// second or more later ends the program. (Within that second it is taken for the same one: GNU timeout sends its signal
// to a program and to its group.) Where none was remembered and no such object lives, a signal does what it does by
// default. A signal that is ignored, as under nohup, stays ignored. There is one such object at a time.
class CatchInterrupts {
 public:
  CatchInterrupts();
  CatchInterrupts(const CatchInterrupts&) = delete;
  ~CatchInterrupts();
};

// The signal that came; 0 where none did.
int interrupted();

// From here on SIGUSR1, which by default ends a program, is remembered. Where it is ignored it stays so.
void hear_save_requests();
// Whether one came since this was asked last.
bool save_requested();

// What ends work that a signal interrupted and that leaves nothing behind: main() ends as that signal would.
struct Interrupted : Error {
  using Error::Error;
};

}  // namespace gated
