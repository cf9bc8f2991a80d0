// gated_delta: the references against finite differences, the CPU's code and the kernels against the references, and
// what the state promises. Most cases are those of tests/gated_delta_cases.h.
#include "tests/gated_delta_cases.h"
#include "tests/refusal.h"

using namespace gated;
using namespace gated::gated_delta_cases;

TEST_CASE("gated_delta: gradients against finite differences", "[gradcheck]") {
  gradients<Recurrence>();
}

TEST_CASE("gated_delta: what it promises", "[bitwise]") {
  promises<Recurrence>({1, 64, 77, 149});  // anywhere
}

TEST_CASE("gated_delta: token by token in place, as a generation does", "[bitwise]") {
  const GatedDeltaShape s{2, 70, 1, 2, 16, 18};
  const Inputs<float> in(s, 0.1f);
  const FormTrial<Recurrence> whole(in);
  Context cpu(Device::cpu);
  std::vector<float> state = in.initial, o(s.B * s.Hv * s.Dv);
  for (size_t t = 0; t < s.T; t++) {
    const Inputs<float> token = tokens(in, t, t + 1);
    GatedDeltaIn from = token.in();
    from.initial = state.data();
    gated_delta_forward({o.data(), state.data()}, from, token.s, cpu);
    REQUIRE_BITWISE(tokens_of(whole.o.values(), s.B, s.T, t, 1), o);
  }
  REQUIRE_BITWISE(whole.final.values(), state);
}

TEST_CASE("gated_delta: what it refuses") {
  Context cpu(Device::cpu);
  float x[64] = {};
  const GatedDeltaIn in = {x, x, x, x, x};
  const auto message = [&](const GatedDeltaShape& s, float* error = nullptr) {
    return refusal([&] { gated_delta_forward({.o = x, .error = error}, in, s, cpu); });
  };
  REQUIRE(message({1, 0, 1, 1, 4, 4}) == "gated_delta_forward: no tokens");
  REQUIRE(message({1, 1, 2, 3, 4, 4}) == "gated_delta_forward: 3 value heads, expected a multiple of the 2 key heads");
  REQUIRE(message({1, 1, 1, 1, 257, 4}) == "gated_delta_forward: keys have 257 elements, expected 1 to 256");
  REQUIRE(message({1, 1, 1, 1, 4, 0}) == "gated_delta_forward: values have no elements");
  REQUIRE(message({1, 1, 2, 2, 4, 4, 7, 0}) ==
          "gated_delta_forward: strides are 7 and 8, expected at least the 8 and 8 elements of a token");
  REQUIRE(message({1, 65, 1, 1, 4, 4}, x) == "gated_delta_forward: a backward needs both error and kept");
}
