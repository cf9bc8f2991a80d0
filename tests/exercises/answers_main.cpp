// answers: what is said of one answer to an exercise: PROGRAM activation off-by-one. tests/test_exercises.cpp
#include "tests/exercises/answers.h"

#include <cstdio>
#include <map>

#include "core/check.h"

static std::map<std::string, void (*)(gated::Try&)>& answers() {
  static std::map<std::string, void (*)(gated::Try&)> all;
  return all;
}

Answer::Answer(const char* exercise, const char* answer, void (*run)(gated::Try&)) {
  answers()[std::string(exercise) + " " + answer] = run;
}

int main(int argc, char** argv) {
  try {
    gated::require(argc == 3, "expected an exercise and an answer");
    const auto found = answers().find(std::string(argv[1]) + " " + argv[2]);
    gated::require(found != answers().end(), "%s has no answer %s", argv[1], argv[2]);
    const gated::Try t = gated::tried(found->second, argv[1]);
    fputs(t.said.c_str(), stdout);
    return t.verdict > gated::Verdict::rounded;
  } catch (const gated::Error& e) {
    fprintf(stderr, "%s\n", e.what());
    return 2;
  }
}
