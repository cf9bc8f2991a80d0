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

TEST_CASE("gated_delta_chunk: what it promises", "[bitwise]") {
  promises<Chunk>({64, 128});  // between chunks
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
