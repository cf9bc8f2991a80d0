// residual: the join and its gradients against finite differences and a literal evaluation, dropout's draws,
// the CPU's code and the kernels against the reference.
#include "kernels/residual.h"

#include "core/philox.cuh"
#include "tests/norm_cases.h"

using namespace gated;

namespace {

const std::vector<Join>& joins() {
  static const uint64_t streams[] = {12, 14, 16};
  static const std::vector<Join> all = {{},
                                        {0.7f, INFINITY, {}},
                                        {INFINITY, 1.1f, {}},
                                        {INFINITY, INFINITY, {0.3f, 11, &streams[0]}},
                                        {0.7f, 1.1f, {0.5f, 13, &streams[1]}},
                                        {0.7f, 0.9f, {0.3f, 15, &streams[2]}}};
  return all;
}

// Central differences step 2e-3 to either side: away from the bounds of a clip, where it has no derivative.
bool away_from(const std::vector<double>& values, double bound) {
  for (double v : values)
    if (std::fabs(std::fabs(v) - bound) < 0.003) return false;
  return true;
}

// Gradients of a branch that joins a stream, or replaces it.
void check_residual_gradients(const Join& join, bool with_stream) {
  INFO("clip " << join.clip_branch << " " << join.clip_sum << " dropout " << join.dropout.p);
  const size_t N = 3, C = 13;
  auto x = random_values<double>(N * C, 1), branch = random_values<double>(N * C, with_stream ? 2 : 4);
  const auto dy = random_values<double>(N * C, 3), dres = random_values<double>(N * C, 4);
  std::vector<double> sum(N * C), dx(N * C), dbranch(N * C);
  const ResidualInOf<double> in = {with_stream ? x.data() : nullptr, branch.data(), join};
  ResidualInOf<double> unbounded = in;
  unbounded.join.clip_sum = INFINITY;
  residual_join_forward_ref(sum.data(), unbounded, N, C);
  REQUIRE((away_from(branch, join.clip_branch) && away_from(sum, join.clip_sum)));
  const auto loss = [&] {
    residual_join_forward_ref(sum.data(), in, N, C);
    return dot(sum, dy) + (with_stream ? dot(sum, dres) : 0);
  };
  loss();
  residual_join_backward_ref<double>(dx.data(), dbranch.data(), dy.data(),
                                     {sum.data(), with_stream ? dres.data() : nullptr, branch.data(), join}, N, C);
  check_gradients(loss, {{"branch", branch, dbranch}});
  if (with_stream) check_gradients(loss, {{"x", x, dx}});
}

}  // namespace

TEST_CASE("residual: gradients against finite differences; without a stream the branch's alone", "[gradcheck]") {
  for (const Join& join : joins())
    for (bool with_stream : {true, false}) check_residual_gradients(join, with_stream);
}

TEST_CASE("residual: forward and backward as they are described", "[bitwise]") {
  const size_t N = 5, C = 7;
  Context cpu(Device::cpu);
  const auto x = random_values<float>(N * C, 1, 2.0f), branch = random_values<float>(N * C, 2, 2.0f);
  const auto dy = random_values<float>(N * C, 3), dres = random_values<float>(N * C, 4);
  const float clip_branch = 1.5f, clip_sum = 2.0f, p = 0.3f;
  const uint64_t stream = 6;
  const Join join = {clip_branch, clip_sum, {p, 5, &stream}};
  std::vector<float> sum(N * C), dx(N * C), dbranch(N * C), sum_expected, dx_expected, dbranch_expected;
  size_t on_branch = 0, on_sum = 0, dropped = 0;
  for (size_t row = 0; row < N; row++) {
    for (size_t c = 0; c < C; c++) {
      const size_t i = row * C + c;
      const bool kept = uniform_float(5, stream, row * 8 + c) >= p;  // seven columns take two blocks of four draws
      const float b = std::min(std::max(branch[i], -clip_branch), clip_branch);
      const float dropout = kept ? b * (1 / (1 - p)) : 0.0f;
      const float h = std::min(std::max(x[i] + dropout, -clip_sum), clip_sum);
      const float d = std::fabs(h) < clip_sum ? dres[i] + dy[i] : 0.0f;
      sum_expected.push_back(h);
      dx_expected.push_back(d);
      dbranch_expected.push_back(std::fabs(branch[i]) < clip_branch ? kept ? d * (1 / (1 - p)) : d * 0 : 0.0f);
      on_branch += std::fabs(b) == clip_branch, on_sum += std::fabs(h) == clip_sum, dropped += !kept;
    }
  }
  REQUIRE((on_branch > 0 && on_sum > 0 && dropped > 0));
  residual_forward(sum.data(), {x.data(), branch.data(), join}, N, C, cpu);
  residual_backward(dx.data(), dbranch.data(), dy.data(), {sum.data(), dres.data(), branch.data(), join}, N, C, cpu);
  REQUIRE_BITWISE(sum_expected, sum);
  REQUIRE_BITWISE(dx_expected, dx);
  REQUIRE_BITWISE(dbranch_expected, dbranch);
}

TEST_CASE("residual: what is off changes no bit") {
  Context cpu(Device::cpu);
  const float x[] = {-0.0f, 0x1p127f, 1.0f}, branch[] = {-0.0f, 0x1p127f, 0x1p-24f};
  const float d[] = {-0.0f, 2.0f, 3.0f};
  float sum[3], dx[3], dbranch[3];
  REQUIRE(Join{}.plain());
  residual_forward(sum, {x, branch}, 1, 3, cpu);
  REQUIRE_BITWISE((std::vector<float>{-0.0f, INFINITY, 1.0f}), std::vector<float>(sum, sum + 3));
  // An infinite element of a sum that is not clipped passes its gradient, with or without the clip of the
  // branch.
  for (float clip_branch : {INFINITY, 0x1.8p127f}) {
    const Join join = {clip_branch, INFINITY, {}};
    REQUIRE(join.plain() == (clip_branch == INFINITY));
    residual_backward(dx, dbranch, nullptr, {sum, d, branch, join}, 1, 3, cpu);
    REQUIRE_BITWISE(std::vector<float>(d, d + 3), std::vector<float>(dx, dx + 3));
    REQUIRE_BITWISE(std::vector<float>(d, d + 3), std::vector<float>(dbranch, dbranch + 3));
  }
}

TEST_CASE("residual: a value on its bound is clipped") {
  Context cpu(Device::cpu);
  const float x[] = {0.5f, -0.5f, 0.5f, 0.0f, 0.0f}, branch[] = {0.5f, -0.5f, 0.4375f, 0.75f, -0.75f},
              d[] = {1, 1, 1, 1, 1};
  float sum[5], dx[5], dbranch[5];
  const Join join = {0.75f, 1.0f, {}};
  residual_forward(sum, {x, branch, join}, 1, 5, cpu);
  residual_backward(dx, dbranch, nullptr, {sum, d, branch, join}, 1, 5, cpu);
  REQUIRE_BITWISE((std::vector<float>{1, -1, 0.9375f, 0.75f, -0.75f}), std::vector<float>(sum, sum + 5));
  REQUIRE_BITWISE((std::vector<float>{0, 0, 1, 1, 1}), std::vector<float>(dx, dx + 5));
  REQUIRE_BITWISE((std::vector<float>{0, 0, 1, 0, 0}), std::vector<float>(dbranch, dbranch + 5));
}

TEST_CASE("residual: a branch that replaces the stream is all that is left", "[bitwise]") {
  Trial t;
  const auto branch = t.in({-0.0f, 2.0f, -5.0f, 0.5f}), d = t.in({1, 2, 3, 4});
  const auto plain = t.expect(branch.values()), sum = t.expect({-0.0f, 2.0f, -3.0f, 0.5f}), dx = t.expect({1, 2, 0, 4}),
             dbranch = t.expect({1, 2, 0, 4});
  const Join join = {.clip_branch = 4, .clip_sum = 3, .dropout = {}};
  t.on_every_device([&](Context& ctx) {
    residual_forward(plain, ResidualIn{nullptr, branch}, 1, 4, ctx);
    residual_forward(sum, {nullptr, branch, join}, 1, 4, ctx);
    residual_backward(dx, dbranch, d, {.x = sum, .branch = branch, .join = join}, 1, 4, ctx);
  });
}

TEST_CASE("residual: a plain join is an addition, to the bit", "[bitwise]") {
  const size_t N = 9, C = 131;
  auto x0 = random_values<float>(N * C, 1), branch0 = random_values<float>(N * C, 2);
  x0[0] = branch0[0] = -0.0f;
  const auto d = random_values<float>(N * C, 3);
  Trial t;
  const auto x = t.in(x0), branch = t.in(branch0), sum = t.out(N * C);
  std::vector<float> joined(N * C), dx(N * C), dbranch(N * C), dx_joined(N * C), dbranch_joined(N * C);
  residual_forward_ref<float>(sum.ref, x.ref, branch.ref, N, C);
  residual_join_forward_ref<float>(joined.data(), {x.ref, branch.ref}, N, C);
  REQUIRE_BITWISE(sum.values(), joined);
  residual_backward_ref<float>(dx.data(), dbranch.data(), d.data(), N, C);
  residual_join_backward_ref<float>(dx_joined.data(), dbranch_joined.data(), d.data(),
                                    {.x = sum.ref, .branch = branch.ref}, N, C);
  REQUIRE_BITWISE(dx, dx_joined);
  REQUIRE_BITWISE(dbranch, dbranch_joined);
  t.on_every_device([&](Context& ctx) { residual_forward(sum, {x, branch}, N, C, ctx); });
}

// In bf16 the reference is given what is stored: inputs, and in the backward the sum, and the bound of the sum too.
template <class S>
static void require_residual_bits(size_t N, size_t C, const Join& join, bool with_dy, bool with_dres) {
  INFO("N " << N << " C " << C << " clip " << join.clip_branch << " " << join.clip_sum << " dropout " << join.dropout.p
            << ", " << name_of(storage_of<S>));
  const size_t n = N * C;
  Trial t;
  const auto x = t.random<S>(n, 1), branch = t.random<S>(n, 2), none = Array<S>();
  const auto dy = with_dy ? t.random<S>(n, 3) : none, dres = with_dres ? t.random<S>(n, 4) : none;
  const auto sum = t.out<S>(n), dx = t.out<S>(n), dbranch = t.out<S>(n);
  const auto dx_over_dres = with_dres ? t.over(dres, dx) : none, dbranch_again = with_dres ? t.again(dbranch) : none;
  Join back = join;
  back.clip_sum = S(join.clip_sum);
  residual_join_forward_ref<float>(sum.ref, {x.ref, branch.ref, join}, N, C);
  sum.store();
  residual_join_backward_ref<float>(dx.ref, dbranch.ref, dy.ref, {sum.ref, dres.ref, branch.ref, back}, N, C);
  t.on_every_device([&](Context& ctx) {
    const Join here = on_device(ctx, join);
    residual_forward(sum, {x, branch, here}, N, C, ctx);
    residual_backward(dx, dbranch, dy, {sum, dres, branch, here}, N, C, ctx);
    if (with_dres) residual_backward(dx_over_dres, dbranch_again, dy, {sum, dx_over_dres, branch, here}, N, C, ctx);
  });
}

TEST_CASE("residual: CPU and kernels equal the reference bit for bit", "[bitwise]") {
  const struct { size_t N, C; } sizes[] = {{63, 200}, {5, 1}, {9, 131}, {1, 1030}};
  for (auto [N, C] : sizes)
    for (const Join& join : joins())
      for (int with : {1, 2, 3}) {  // dy, dresidual, both
        require_residual_bits<float>(N, C, join, with & 1, with & 2);
        if (N != 63) require_residual_bits<bf16>(N, C, join, with & 1, with & 2);
      }
}

// The bound lies between two neighbouring bf16, and the sum is stored as the one below it.
TEST_CASE("residual: a sum in bf16 that was cut has no gradient", "[bitwise]") {
  const Join join = {.clip_sum = 0.7f, .dropout = {}};
  const float cut = bf16(0.7f);
  REQUIRE(cut < 0.7f);
  Trial t;
  const auto x = t.in<bf16>({0.5f, -0.5f, 0.25f}), branch = t.in<bf16>({1.0f, -1.0f, 0.25f}), d = t.in<bf16>({1, 2, 3});
  const auto sum = t.expect<bf16>({cut, -cut, 0.5f}), dx = t.expect<bf16>({0, 0, 3}),
             dbranch = t.expect<bf16>({0, 0, 3});
  t.on_every_device([&](Context& ctx) {
    residual_forward(sum, {x, branch, join}, 1, 3, ctx);
    residual_backward(dx, dbranch, d, {.x = sum, .branch = branch, .join = join}, 1, 3, ctx);
  });
}

TEST_CASE("residual: without a branch nothing joins, however it would") {
  Context cpu(Device::cpu);
  const uint64_t stream = 2;
  const float x[] = {5.0f, -7.0f}, d[] = {1.0f, 2.0f};
  float dx[2];
  residual_backward(dx, nullptr, d, {.x = x, .join = {1.0f, 1.0f, {0.5f, 1, &stream}}}, 1, 2, cpu);
  REQUIRE_BITWISE(std::vector<float>(d, d + 2), std::vector<float>(dx, dx + 2));
}

TEST_CASE("residual: what it refuses") {
  Context cpu(Device::cpu);
  float a[4] = {}, b[4] = {}, c[4] = {};
  REQUIRE_THROWS_WITH(residual_forward(nullptr, {a, b}, 1, 4, cpu),
                      "residual_forward: a residual branch and its sum come together");
  REQUIRE_THROWS_WITH(residual_forward(c, {a}, 1, 4, cpu),
                      "residual_forward: a residual branch and its sum come together");
  REQUIRE_THROWS_WITH(residual_forward(nullptr, {a}, 1, 4, cpu), "residual_forward: there is no branch to join");
  REQUIRE_THROWS_WITH(residual_forward(c, {a, b}, 1, 0, cpu), "residual_forward: rows have no columns");
  REQUIRE_THROWS_WITH(residual_forward(c, {a, b, {0.0f, 1.0f, {}}}, 1, 4, cpu),
                      "residual_forward: a clip of 0, expected more than 0");
  for (float p : {1.0f, -0.5f})
    REQUIRE_THROWS_WITH(residual_forward(c, {a, b, {1.0f, 1.0f, {p}}}, 1, 4, cpu),
                        format("residual_forward: dropout is %g, expected 0 <= p < 1", double(p)));
  REQUIRE_THROWS_WITH(residual_backward(a, nullptr, a, {.x = b, .branch = c, .join = {1.0f, 1.0f, {}}}, 1, 4, cpu),
                      "residual_backward: with clip or dropout a branch has a gradient of its own");
  REQUIRE_THROWS_WITH(residual_backward(a, c, a, {.x = b}, 1, 4, cpu), "residual_backward: dbranch without a branch");
  REQUIRE_THROWS_WITH(residual_backward(a, c, a, {.x = nullptr, .branch = b, .join = {INFINITY, 1.0f, {}}}, 1, 4, cpu),
                      "residual_backward: a clipped sum is read again");
  REQUIRE_THROWS_WITH(residual_backward(a, nullptr, nullptr, {.x = b}, 1, 4, cpu),
                      "residual_backward: neither dy nor dresidual");
}
