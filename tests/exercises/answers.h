// answers: right and wrong answers to the exercises, each under its name. scripts/exercise.sh answers makes the file
// that holds them.
#pragma once
#include <string>

#include "tests/exercises/try.h"

struct Answer {
  Answer(const char* exercise, const char* answer, void (*run)(gated::Try&));
};
