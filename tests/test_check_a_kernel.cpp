// docs/check_a_kernel.cpp: the program of the manual compiles, and finds the gradients right.
#define main check_a_kernel
#include "docs/check_a_kernel.cpp"
#undef main

#include "tests/catch.h"

TEST_CASE("check_a_kernel: the program of the manual finds RMSNorm's gradients right") {
  REQUIRE(check_a_kernel() == 0);
}
