// gradient: the norm against a literal evaluation of its order, what the program runs against the reference.
#include "kernels/gradient.h"

#include "core/sums.h"
#include "tests/harness.h"

using namespace gated;

namespace {

// The order of core/reduce.cuh, in its words: the row sums of chunks of 16384, then the row sum of those. Rows are
// taken from RowSum, which tests/test_reduce.cpp holds to its own description.
float literal_norm(const std::vector<float>& g) {
  RowSum<float> sums;
  for (size_t at = 0; at < g.size(); at += 16384) {
    RowSum<float> chunk;
    for (size_t i = at; i < std::min(g.size(), at + 16384); i++) chunk.fma(g[i], g[i]);
    sums.add(chunk.total());
  }
  return std::sqrt(sums.total());
}

void check_norm(float expected, const std::vector<float>& values, Nan nan = Nan::refused) {
  Trial t(nan);
  const auto g = t.in(values), norm = t.out(1);
  gradient_norm_ref(norm.ref, g.ref, values.size());
  REQUIRE(bitwise_difference({expected}, norm.values(), nan) == "");
  t.on_every_device([&](Context& ctx) {
    const size_t chunks = buffer_chunks(values.size());
    const Buffer<float> sums(ctx.device, chunks);
    gradient_squares(sums.data(), g, values.size(), ctx);
    gradient_root(norm, sums.data(), chunks, ctx);
    REQUIRE(ctx.most_scratch_used() == 0);
    ctx.synchronize();
  });
}

// The last has more than 128 chunks, so that chunk sums share chains.
const size_t sizes[] = {1, 3, 128, 129, 1030, 16383, 16384, 16385, 16388, 50001, 16384 * 130 + 5};

}  // namespace

TEST_CASE("gradient norm: its order and its kernels, bit for bit", "[bitwise]") {
  for (size_t n : sizes) {
    INFO("n " << n);
    const auto g = uneven_values(n);
    const float norm = literal_norm(g);
    check_norm(norm, g);
    double sum = 0;
    for (float v : g) sum += double(v) * v;
    REQUIRE(norm == Approx(std::sqrt(sum)).epsilon(1e-6));
  }
}

TEST_CASE("gradient norm: of parts that are whole chunks, wherever they lie", "[bitwise]") {
  const size_t n = 16384 * 5 + 77, chunks = buffer_chunks(n);
  Trial t;
  const auto g = t.in(uneven_values(n)), norm = t.out(1);
  gradient_norm_ref(norm.ref, g.ref, n);
  t.on_every_device([&](Context& ctx) {
    Buffer<float> sums(ctx.device, chunks);
    const float* const at = g;
    for (const auto& [begin, end] : {std::pair<size_t, size_t>{3, 6}, {0, 1}, {1, 3}})
      gradient_squares(sums.data() + begin, at + begin * buffer_chunk,
                       std::min(n, end * buffer_chunk) - begin * buffer_chunk, ctx);
    gradient_root(norm, sums.data(), chunks, ctx);
    ctx.synchronize();
  });
}

TEST_CASE("gradient norm: what is not finite, zero and nothing", "[bitwise]") {
  auto g = random_values<float>(20000, 1);
  g[17001] = INFINITY;
  check_norm(INFINITY, g);
  g[3] = NAN;
  check_norm(NAN, g, Nan::expected);
  check_norm(INFINITY, std::vector<float>(130, 1e30f));
  check_norm(0.0f, std::vector<float>(130, -0.0f));
  check_norm(0.0f, {});
}

TEST_CASE("add_slices: what the program runs equals the reference bit for bit", "[bitwise]") {
  for (size_t n : {0, 1, 2, 3, 4, 5, 1023, 1024, 1025, 4098})
    for (size_t count : {1, 2, 3, 8})
      for (bool first : {false, true}) {
        INFO("n " << n << ", " << count << " slices, first " << first);
        const size_t step = n / 4 * 4 + 8;
        Trial t;
        const auto total = first ? t.out(n) : t.sum(n, 1);
        const auto slices = t.random(count * step, 2);
        std::vector<float> expected(n, 0.0f);
        if (!first) expected = total.values();
        for (size_t s = 0; s < count; s++)
          for (size_t i = 0; i < n; i++) expected[i] += slices.ref[s * step + i];
        add_slices_ref(total.ref, first, slices.ref, count, step, n);
        REQUIRE_BITWISE(expected, total.values());
        t.on_every_device([&](Context& ctx) {
          add_slices(total, first, slices, count, step, n, ctx);
          REQUIRE(ctx.most_scratch_used() == 0);
        });
      }
}

TEST_CASE("add_slices: no slices are refused") {
  Context cpu(Device::cpu);
  float total[1] = {};
  REQUIRE_THROWS_WITH(add_slices(total, true, total, 0, 0, 1, cpu), "add_slices: there are no slices");
}

TEST_CASE("add_slices: a sum that begins has no negative zero", "[bitwise]") {
  Trial t;
  const auto total = t.out(5), slices = t.in(std::vector<float>(5, -0.0f));
  add_slices_ref(total.ref, true, slices.ref, 1, 0, 5);
  REQUIRE_BITWISE(std::vector<float>(5, 0.0f), total.values());
  t.on_every_device([&](Context& ctx) { add_slices(total, true, slices, 1, 0, 5, ctx); });
}
