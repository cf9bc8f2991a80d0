// interrupt: Ctrl-C (SIGINT) and SIGTERM end a run after the step that is under way. A second one ends it at once.
// tests/test_cli.cpp
#pragma once

namespace gated {

// From here on the first of these signals is only remembered.
void catch_interrupts();

// The signal that came; 0 where none did.
int interrupted();

}  // namespace gated
