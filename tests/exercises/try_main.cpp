// make try OP=...: runs one exercise and says what came of it. The exit status is 0 where the answer is right.
#include <cstdio>
#include <fstream>

#include "core/check.h"
#include "tests/exercises/try.h"

void exercise(gated::Try&);

int main(int argc, char** argv) {
  try {
    gated::require(argc == 3, "expected the name of the exercise, and where to write what came of it");
    const gated::Try t = gated::tried(exercise, argv[1]);
    fputs(t.said.c_str(), stdout);
    std::ofstream(argv[2]) << t.said;
    return t.verdict > gated::Verdict::rounded;
  } catch (const gated::Error& e) {
    fprintf(stderr, "%s\n", e.what());
    return 2;
  }
}
