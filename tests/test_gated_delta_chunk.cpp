// gated_delta_chunk: the cases of tests/gated_delta_cases.h, and how far the chunk form is from the recurrence.
#include "kernels/gated_delta_chunk.h"

#include "tests/gated_delta_cases.h"

using namespace gated;
using namespace gated::gated_delta_cases;

namespace {

struct Chunk {
  static constexpr auto forward = gated_delta_chunk_forward;
  static constexpr auto backward = gated_delta_chunk_backward;
  static constexpr auto forward_scratch = gated_delta_chunk_forward_scratch,
                        backward_scratch = gated_delta_chunk_backward_scratch;
  template <class T>
  static constexpr auto forward_ref = gated_delta_chunk_forward_ref<T>;
  template <class T>
  static constexpr auto backward_ref = gated_delta_chunk_backward_ref<T>;
};

}  // namespace

TEST_CASE("gated_delta_chunk: gradients against finite differences", "[gradcheck]") {
  gradients<Chunk>();
}

TEST_CASE("gated_delta_chunk: CPU and kernels equal the reference bit for bit", "[bitwise]") {
  bits<Chunk>();
}

TEST_CASE("gated_delta_chunk: products that underflow to -0 are links like others", "[bitwise]") {
  underflow<Chunk>();
}

TEST_CASE("gated_delta_chunk: without a state before, after or wanted", "[bitwise]") {
  without_states<FormTrial<Chunk>>(Inputs<float>({1, 70, 1, 2, 24, 18}));
}

TEST_CASE(
    "gated_delta_chunk: heads inside wider rows give the bits of packed ones, and nothing between them is touched",
    "[bitwise]") {
  wider_rows<FormTrial<Chunk>>(Inputs<float>({2, 66, 1, 2, 24, 20}), 7, 5, 3);
}

TEST_CASE("gated_delta_chunk: a sequence cut between chunks, with the state carried on, has the bits of the whole",
          "[bitwise]") {
  cut_sequence<FormTrial<Chunk>>(Inputs<float>({2, 150, 1, 2, 16, 18}, 0.1f), {64, 128});
}

TEST_CASE("gated_delta_chunk: how far it is from the recurrence in float", "[bound]") {
  for (size_t T : {64, 200, 2048})
    for (float decay : {0.0f, 0.001f, 0.1f, 3.0f, 30.0f}) {
      INFO("T " << T << ", g down to " << -decay);
      const Inputs<float> in({1, T, 1, 2, 64, 32}, decay);
      const Outputs<float> a = reference<Recurrence>(in), b = reference<Chunk>(in);
      for (const auto& [name, x] : a.by_name()) {
        INFO(name);
        REQUIRE(relative_error(x, b.by_name().at(name)) < (name == "o" || name == "final" ? 2e-6 : 1e-5));
      }
    }
}
