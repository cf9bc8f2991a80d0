// gated_delta_chunk: the cases of tests/gated_delta_cases.h, and how far the chunk form is from the recurrence.
#include "kernels/gated_delta_chunk.h"

#include "tests/gated_delta_cases.h"

using namespace gated;
using namespace gated::gated_delta_cases;

namespace {

const Form chunk = {gated_delta_chunk_forward,
                    gated_delta_chunk_backward,
                    gated_delta_chunk_forward_scratch,
                    gated_delta_chunk_backward_scratch,
                    gated_delta_chunk_forward_ref<float>,
                    gated_delta_chunk_backward_ref<float>,
                    gated_delta_chunk_forward_ref<double>,
                    gated_delta_chunk_backward_ref<double>};

}  // namespace

TEST_CASE("gated_delta_chunk: gradients against finite differences", "[gradcheck]") {
  gradients(chunk);
}

TEST_CASE("gated_delta_chunk: CPU and kernels equal the reference bit for bit", "[bitwise]") {
  bits(chunk);
}

TEST_CASE("gated_delta_chunk: products that underflow to -0 are links like others", "[bitwise]") {
  underflow(chunk);
}

TEST_CASE("gated_delta_chunk: without a state before, after or wanted", "[bitwise]") {
  without_states(chunk);
}

TEST_CASE(
    "gated_delta_chunk: heads inside wider rows give the bits of packed ones, and nothing between them is touched",
    "[bitwise]") {
  wider_rows(chunk);
}

TEST_CASE("gated_delta_chunk: a sequence cut between chunks, with the state carried on, has the bits of the whole",
          "[bitwise]") {
  cut_sequence(chunk, {64, 128});
}

TEST_CASE("gated_delta_chunk: no bit depends on later tokens, and no gradient on outputs before", "[bitwise]") {
  causality(chunk);
}

TEST_CASE("gated_delta_chunk: without decay and with beta = 1, orthonormal keys recall their values", "[property]") {
  recall(chunk);
}

TEST_CASE("gated_delta_chunk: in double it is the recurrence") {
  for (double decay : {0.0, 0.01, 1.0, 30.0}) {
    INFO("g down to " << -decay);
    const Inputs<double> in({1, 150, 1, 2, 24, 20}, decay);
    const Outputs<double> a = reference(recurrence, in), b = reference(chunk, in);
    for (auto x : {&Outputs<double>::o, &Outputs<double>::final, &Outputs<double>::error, &Outputs<double>::dq,
                   &Outputs<double>::dk, &Outputs<double>::dv, &Outputs<double>::dg, &Outputs<double>::dbeta,
                   &Outputs<double>::dinitial})
      REQUIRE(relative_error(a.*x, b.*x) < 1e-12);
  }
}

TEST_CASE("gated_delta_chunk: how far it is from the recurrence in float", "[bound]") {
  const struct {
    const char* name;
    std::vector<float> Outputs<float>::*x;
    double bound;
  } arrays[] = {{"o", &Outputs<float>::o, 2e-6},         {"the final state", &Outputs<float>::final, 2e-6},
                {"dq", &Outputs<float>::dq, 1e-5},       {"dk", &Outputs<float>::dk, 1e-5},
                {"dv", &Outputs<float>::dv, 1e-5},       {"dg", &Outputs<float>::dg, 1e-5},
                {"dbeta", &Outputs<float>::dbeta, 1e-5}, {"dinitial", &Outputs<float>::dinitial, 1e-5}};
  for (size_t T : {64, 200, 2048})
    for (float decay : {0.0f, 0.001f, 0.1f, 3.0f, 30.0f}) {
      INFO("T " << T << ", g down to " << -decay);
      const Inputs<float> in({1, T, 1, 2, 64, 32}, decay);
      const Outputs<float> a = reference(recurrence, in), b = reference(chunk, in);
      for (const auto& [name, x, bound] : arrays) {
        INFO(name);
        REQUIRE(relative_error(a.*x, b.*x) < bound);
      }
    }
}
