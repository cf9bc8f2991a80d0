// interrupt: Ctrl-C (SIGINT), SIGTERM and SIGHUP end a run after the step that is under way. A second one ends it at once.
// tests/test_cli.cpp
#pragma once

namespace gated {

// While an object of this class lives, the first of these signals is only remembered. From then on one that comes a second or
// more later ends the program. (Within that second it is taken for the same one: GNU timeout sends its signal to a program and to
// its group.) Where none was remembered and no such object lives, a signal does what it does by default. A signal that is
// ignored, as under nohup, stays ignored. There is one such object at a time.
class CatchInterrupts {
 public:
  CatchInterrupts();
  CatchInterrupts(const CatchInterrupts&) = delete;
  ~CatchInterrupts();
};

// The signal that came; 0 where none did.
int interrupted();

}  // namespace gated
