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
  if (join.plain() && with_dy && !with_dres && storage_of<S> == Storage::fp32) {  // an addition
    std::vector<float> plain(n), dx_plain(n), dbranch_plain(n);
    residual_forward_ref<float>(plain.data(), x.ref, branch.ref, N, C);
    residual_backward_ref<float>(dx_plain.data(), dbranch_plain.data(), dy.ref, N, C);
    require_same({plain, dx_plain, dbranch_plain}, {sum.values(), dx.values(), dbranch.values()});
  }
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

// A row by hand. Without x the branch replaces the stream, without a branch nothing joins, however it would: then `sum`
// is what the backward is given. A gradient comes from the norm, or from the stream.
struct ByHand {
  const char* what;
  Join join;
  std::vector<float> x, branch, d, sum, dx, dbranch;
};
template <class S>
static void require_by_hand(const ByHand& c, bool from_norm) {
  INFO(c.what << ", " << name_of(storage_of<S>) << ", from the norm " << from_norm);
  const size_t C = c.d.size();
  const auto some = [&](auto array, const std::vector<float>& x) { return x.empty() ? Array<S>() : array(x); };
  Trial t;
  const auto in = [&](const std::vector<float>& x) { return t.in<S>(x); };
  const auto out = [&](const std::vector<float>& x) { return t.expect<S>(x); };
  const auto x = some(in, c.x), branch = some(in, c.branch), d = in(c.d), dx = out(c.dx),
             dbranch = some(out, c.dbranch), sum = c.branch.empty() ? in(c.sum) : out(c.sum);
  t.on_every_device([&](Context& ctx) {
    const Join join = on_device(ctx, c.join);
    if (!c.branch.empty()) residual_forward(sum, {x, branch, join}, 1, C, ctx);
    residual_backward(dx, dbranch, from_norm ? d : Array<S>(), {sum, from_norm ? Array<S>() : d, branch, join}, 1, C,
                      ctx);
  });
}

TEST_CASE("residual: rows by hand", "[bitwise]") {
  static const uint64_t stream = 2;
  const Join off, high = {0x1.8p127f, INFINITY, {}};
  REQUIRE((off.plain() && !high.plain()));
  using Row = std::vector<float>;
  // An infinite element of a sum that is not clipped passes its gradient.
  const Row x = {-0.0f, 0x1p127f, 1}, branch = {-0.0f, 0x1p127f, 0x1p-24f}, sum = {-0.0f, INFINITY, 1},
            d = {-0.0f, 2, 3};
  const Row x2 = {0.5f, -0.5f, 0.5f, 0, 0}, branch2 = {0.5f, -0.5f, 0.4375f, 0.75f, -0.75f}, d2(5, 1.0f),
            sum2 = {1, -1, 0.9375f, 0.75f, -0.75f};
  const Row alone = {-0.0f, 2, -5, 0.5f}, d3 = {1, 2, 3, 4}, d3_clipped = {1, 2, 0, 4};
  // The bound of a clip of bf16 lies between two neighbours, and the sum is stored as the one below it.
  const float cut = bf16(0.7f);
  REQUIRE(cut < 0.7f);
  const Row x4 = {0.5f, -0.5f, 0.25f}, branch4 = {1, -1, 0.25f}, sum4 = {cut, -cut, 0.5f}, d4 = {0, 0, 3};
  for (bool from_norm : {false, true}) {
    for (const ByHand& c :
         {ByHand{"off", off, x, branch, d, sum, d, d},
          {"a high clip", high, x, branch, d, sum, d, d},
          {"on the bound", {0.75f, 1, {}}, x2, branch2, d2, sum2, {0, 0, 1, 1, 1}, {0, 0, 1, 0, 0}},
          {"no stream", off, {}, alone, d3, alone, d3, d3},
          {"no stream, clips", {4, 3, {}}, {}, alone, d3, {-0.0f, 2, -3, 0.5f}, d3_clipped, d3_clipped},
          {"no branch", {1, 1, {0.5f, 1, &stream}}, {}, {}, d, {5, -7, 1}, d, {}}})
      require_by_hand<float>(c, from_norm);
    require_by_hand<bf16>({"cut", {INFINITY, 0.7f, {}}, x4, branch4, {1, 2, 3}, sum4, d4, d4}, from_norm);
  }
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
