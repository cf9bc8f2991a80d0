// gradient: sums over a whole buffer against a literal evaluation of their order, the kernels against the
// reference. Rows are taken from row_reduce_ref, which tests/test_reduce.cpp holds to its own description.
#include "kernels/gradient.cuh"

#include "tests/harness.h"

using namespace gated;

namespace {

// The order as gradient.cuh describes it: the row sums of chunks of 16384, then the row sum of those.
template <class Term>
float literal_buffer_sum(size_t n, Term term) {
  std::vector<float> sums;
  for (size_t begin = 0; begin < n; begin += 16384)
    sums.push_back(row_reduce_ref<float>(std::min<size_t>(16384, n - begin),
                                         [&](float acc, size_t i) { return term(acc, begin + i); }));
  return row_reduce_ref<float>(sums.size(), [&](float acc, size_t i) { return acc + sums[i]; });
}

// One value a buffer of n: computed by the reference, and on every schedule.
template <class Operation>
void check_scalar(float expected, const std::vector<float>& x, Operation operation, Nan nan = Nan::refused) {
  const std::vector<float> value = {expected};
  std::vector<float> out = {NAN};
  Context cpu(Device::cpu);
  operation(out.data(), x.data(), x.size(), cpu);
  REQUIRE(bitwise_difference(value, out, nan) == "");
  on_every_device([&](Context& ctx) {
    Guarded gx(ctx, x), gout(ctx, 1);
    operation(gout, gx, x.size(), ctx);
    REQUIRE(bitwise_difference(value, gout.download(), nan) == "");
  });
}

// Chunks of unlike sums, so that the order of adding those shows.
std::vector<float> uneven_values(size_t n) {
  auto x = random_values<float>(n, n, 2.0f);
  for (size_t i = 0; i < n; i++) x[i] = (x[i] + 2.0f) * (1.0f + 1.7f * float(i / 16384 % 7));
  return x;
}

// The last has more than 128 chunks, so that chunk sums share chains.
const size_t sizes[] = {1, 3, 128, 129, 1030, 16383, 16384, 16385, 16388, 50001, 16384 * 130 + 5};

}  // namespace

TEST_CASE("gradient_norm: its order and its kernels, bit for bit", "[bitwise]") {
  for (size_t n : sizes) {
    INFO("n " << n);
    const auto g = uneven_values(n);
    const float squares = literal_buffer_sum(n, [&](float acc, size_t i) { return std::fma(g[i], g[i], acc); });
    check_scalar(std::sqrt(squares), g, gradient_norm);
    double sum = 0;
    for (float v : g) sum += double(v) * v;
    REQUIRE(std::sqrt(squares) == Approx(std::sqrt(sum)).epsilon(1e-6));
  }
}

TEST_CASE("mean: its order and its kernels, bit for bit", "[bitwise]") {
  for (size_t n : sizes) {
    INFO("n " << n);
    const auto x = uneven_values(n);
    const float expected = literal_buffer_sum(n, [&](float acc, size_t i) { return acc + x[i]; }) / float(n);
    check_scalar(expected, x, mean);
    double sum = 0;
    for (float v : x) sum += v;
    REQUIRE(expected == Approx(sum / n).epsilon(1e-6));
  }
}

TEST_CASE("gradient: the chunks show in the bits of a sum") {
  const size_t n = 16384 * 130 + 5;
  const auto x = random_values<float>(n, n);
  auto add = [&](float acc, size_t i) { return acc + x[i]; };
  REQUIRE(literal_buffer_sum(n, add) != row_reduce_ref<float>(n, add));
  REQUIRE(literal_buffer_sum(16384, add) == row_reduce_ref<float>(16384, add));
}

TEST_CASE("gradient_norm: what is not finite, zero and nothing") {
  auto g = random_values<float>(20000, 1);
  g[17001] = INFINITY;
  check_scalar(INFINITY, g, gradient_norm);
  g[3] = NAN;
  check_scalar(NAN, g, gradient_norm, Nan::expected);
  check_scalar(INFINITY, std::vector<float>(130, 1e30f), gradient_norm);
  check_scalar(0.0f, std::vector<float>(130, -0.0f), gradient_norm);
  check_scalar(0.0f, {}, gradient_norm);
}

TEST_CASE("mean: over nothing is refused") {
  Context cpu(Device::cpu);
  float out, x = 1;
  REQUIRE_THROWS_AS(mean(&out, &x, 0, cpu), Error);
}

TEST_CASE("accumulate_gradient: kernel equals the reference bit for bit", "[bitwise]") {
  for (size_t n : {0, 1, 2, 3, 4, 5, 1023, 1024, 1025, 4098}) {
    INFO("n " << n);
    const auto start = random_values<float>(n, 1), g = random_values<float>(n, 2);
    std::vector<float> expected = start, total = start;
    for (size_t i = 0; i < n; i++) expected[i] = start[i] + g[i];
    Context cpu(Device::cpu);
    accumulate_gradient(total.data(), g.data(), n, cpu);
    REQUIRE_BITWISE(expected, total);
    on_every_device([&](Context& ctx) {
      Guarded gtotal(ctx, start), gg(ctx, g);
      accumulate_gradient(gtotal, gg, n, ctx);
      REQUIRE_BITWISE(expected, gtotal.download());
    });
  }
}
