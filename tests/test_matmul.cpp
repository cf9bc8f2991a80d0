// matmul: the tuned CPU product and the kernels against the reference, in every layout, size and way of
// cutting.
#include "kernels/matmul.cuh"

#include <omp.h>

#include <algorithm>

#include "tests/harness.h"

using namespace gated;

namespace {

const char* name_of(Layout l) {
  return l == Layout::nt ? "nt" : l == Layout::nn ? "nn" : "tn";
}

template <class Test>
void for_every_form(Test test) {
  for (Layout layout : {Layout::nt, Layout::nn, Layout::tn})
    for (Accumulate accumulate : {Accumulate::no, Accumulate::yes}) {
      INFO(name_of(layout) << (accumulate == Accumulate::yes ? " +=" : " ="));
      test(layout, accumulate);
    }
}

struct Size {
  size_t M, N, K;
};

}  // namespace

TEST_CASE("matmul: the reference is the product, in the documented order", "[gradcheck]") {
  // Layouts agree with each other on transposed copies, and with a plain sum in double.
  const size_t M = 5, N = 7, K = 2100;
  const auto a = random_values<double>(M * K, 1), b = random_values<double>(K * N, 2);
  std::vector<double> at(K * M), bt(N * K), nn(M * N), nt(M * N), tn(M * N), plain(M * N, 0.0);
  for (size_t m = 0; m < M; m++)
    for (size_t k = 0; k < K; k++) at[k * M + m] = a[m * K + k];
  for (size_t k = 0; k < K; k++)
    for (size_t n = 0; n < N; n++) bt[n * K + k] = b[k * N + n];
  matmul_ref(nn.data(), a.data(), b.data(), M, N, K, Layout::nn, Accumulate::no);
  matmul_ref(nt.data(), a.data(), bt.data(), M, N, K, Layout::nt, Accumulate::no);
  matmul_ref(tn.data(), at.data(), b.data(), M, N, K, Layout::tn, Accumulate::no);
  for (size_t m = 0; m < M; m++)
    for (size_t n = 0; n < N; n++)
      for (size_t k = 0; k < K; k++) plain[m * N + n] += a[m * K + k] * b[k * N + n];
  REQUIRE(relative_error(plain, nn) < 1e-13);
  REQUIRE_BITWISE(nn, nt);
  REQUIRE_BITWISE(nn, tn);
  std::vector<double> twice = nn;
  matmul_ref(twice.data(), a.data(), b.data(), M, N, K, Layout::nn, Accumulate::yes);
  for (size_t i = 0; i < M * N; i++) REQUIRE(twice[i] == nn[i] + nn[i]);

  // 2^24 swallows every 1 added to it, so that a sum tells where chains begin,
  const float big = 16777216.0f;
  std::vector<float> x(2048, 1.0f), y(2048, 1.0f), c(1);
  x[0] = big;
  matmul_ref(c.data(), x.data(), y.data(), 1, 1, 2048, Layout::nt, Accumulate::no);
  REQUIRE(c[0] == big + 1024.0f);
  // and that slices join each other before they join C.
  std::fill(x.begin(), x.end(), 0.0f);
  x[0] = x[1024] = 1.0f;
  c[0] = big;
  matmul_ref(c.data(), x.data(), y.data(), 1, 1, 2048, Layout::nt, Accumulate::yes);
  REQUIRE(c[0] == big + 2.0f);
}

TEST_CASE("matmul: the backward layouts are the gradients of the forward one", "[gradcheck]") {
  const size_t N = 3, out = 4, in = 5;
  const auto x = random_values<double>(N * in, 1), w = random_values<double>(out * in, 2);
  const auto dy = random_values<double>(N * out, 3);
  auto loss = [&](const std::vector<double>& x, const std::vector<double>& w) {
    std::vector<double> y(N * out);
    matmul_ref(y.data(), x.data(), w.data(), N, out, in, Layout::nt, Accumulate::no);
    return dot(y, dy);
  };
  std::vector<double> dx(N * in), dw(out * in, 0.0);
  matmul_ref(dx.data(), dy.data(), w.data(), N, in, out, Layout::nn, Accumulate::no);
  matmul_ref(dw.data(), dy.data(), x.data(), out, in, N, Layout::tn, Accumulate::yes);
  check_gradient(
      "x", [&](auto& v) { return loss(v, w); }, x, dx);
  check_gradient(
      "w", [&](auto& v) { return loss(x, v); }, w, dw);
}

TEST_CASE("simd: lanes do what floats do", "[bitwise]") {
  const auto a = random_values<float>(lanes, 1), b = random_values<float>(lanes, 2), c = random_values<float>(lanes, 3);
  std::vector<float> got(lanes), expected(lanes);
  store(got.data(), fma(load(a.data()), load(b.data()), load(c.data())));
  for (size_t l = 0; l < lanes; l++) expected[l] = fmaf(a[l], b[l], c[l]);
  REQUIRE_BITWISE(expected, got);
  store(got.data(), broadcast(-0.0f));
  REQUIRE_BITWISE(std::vector<float>(lanes, -0.0f), got);

  for (size_t n = 0; n <= lanes + 1; n++) {
    INFO(n << " of " << lanes << " lanes");
    std::vector<float> first(a.begin(), a.begin() + std::min(n, lanes));  // no more than may be touched
    store(got.data(), load_first(first.data(), n));
    for (size_t l = 0; l < lanes; l++) expected[l] = l < n ? a[l] : 0.0f;
    REQUIRE_BITWISE(expected, got);
    store_first(first.data(), load(b.data()), n);
    REQUIRE_BITWISE(std::vector<float>(b.begin(), b.begin() + std::min(n, lanes)), first);
  }

  const auto square = random_values<float>(lanes * lanes, 4);
  vec row[lanes];
  for (size_t i = 0; i < lanes; i++) row[i] = load(&square[i * lanes]);
  transpose(row);
  for (size_t i = 0; i < lanes; i++)
    for (size_t l = 0; l < lanes; l++) REQUIRE(row[i][l] == square[l * lanes + i]);
}

TEST_CASE("matmul: the tuned CPU product equals the reference for any number of threads", "[bitwise]") {
  const Size sizes[] = {{1, 1, 1},      {1, 50, 7},     {3, 200, 63},   {63, 65, 17},   {28, 1, 3},
                        {13, 33, 1023}, {29, 31, 1024}, {17, 47, 1025}, {64, 16, 2049}, {200, 37, 5},
                        {177, 130, 20}, {2, 1600, 3},   {40, 20, 0}};
  const int before = omp_get_max_threads();
  for (int threads : {1, 2, 3}) {
    omp_set_num_threads(threads);
    for (const Size& s : sizes) {
      INFO(threads << " threads, M " << s.M << " N " << s.N << " K " << s.K);
      for_every_form([&](Layout layout, Accumulate accumulate) {
        const auto a = random_values<float>(s.M * s.K, 1), b = random_values<float>(s.N * s.K, 2);
        const auto c = random_values<float>(s.M * s.N, 3);
        auto expected = c;
        matmul_ref(expected.data(), a.data(), b.data(), s.M, s.N, s.K, layout, accumulate);
        Context cpu(Device::cpu);
        Guarded ga(cpu, a), gb(cpu, b), got(cpu, c), fresh(cpu, c.size());
        float* to = accumulate == Accumulate::yes ? got : fresh;
        matmul(to, ga, gb, s.M, s.N, s.K, layout, accumulate, cpu);
        REQUIRE_BITWISE(expected, (accumulate == Accumulate::yes ? got : fresh).download());
      });
    }
  }
  // Threads share these in every way; between them they have two and more blocks, groups of strips, panels of
  // columns, and panels of rows with a sum of slices beside C.
  for (const Size& s : {Size{400, 300, 20}, Size{30, 2000, 40}, Size{3, 3200, 5}, Size{2100, 5, 1026}}) {
    const auto a = random_values<float>(s.M * s.K, 1), b = random_values<float>(s.N * s.K, 2);
    for_every_form([&](Layout layout, Accumulate accumulate) {
      std::vector<float> expected = random_values<float>(s.M * s.N, 3), got = expected;
      matmul_ref(expected.data(), a.data(), b.data(), s.M, s.N, s.K, layout, accumulate);
      for (int threads : {1, 2, 3}) {
        omp_set_num_threads(threads);
        auto c = got;
        matmul_cpu(c.data(), a.data(), b.data(), s.M, s.N, s.K, layout, accumulate);
        REQUIRE_BITWISE(expected, c);
      }
    });
  }
  omp_set_num_threads(before);
}

TEST_CASE("matmul: kernels equal the reference in every tile and split", "[bitwise]") {
  const Size sizes[] = {{1, 1, 1}, {63, 65, 17}, {130, 70, 33}, {64, 128, 16}, {3, 90, 1025}, {66, 20, 2050}};
  for (const Size& s : sizes) {
    INFO("M " << s.M << " N " << s.N << " K " << s.K);
    for_every_form([&](Layout layout, Accumulate accumulate) {
      const bool deep = s.K > matmul_slice;  // what happens between slices does not depend on the layout
      if (deep && layout != (accumulate == Accumulate::yes ? Layout::tn : Layout::nt)) return;
      const auto a = random_values<float>(s.M * s.K, 1), b = random_values<float>(s.N * s.K, 2);
      const auto c = random_values<float>(s.M * s.N, 3);
      auto expected = c;
      matmul_ref(expected.data(), a.data(), b.data(), s.M, s.N, s.K, layout, accumulate);
      for (Tile tile : {Tile::large, Tile::small})
        for (bool split : {false, true}) {
          INFO((tile == Tile::large ? "large tile" : "small tile") << (split ? ", split" : ""));
          auto run = [&](Context& ctx) {
            if (ctx.device == Device::cpu) return;  // which has no tiles
            Guarded ga(ctx, a), gb(ctx, b), old(ctx, c), fresh(ctx, c.size());
            const Guarded& to = accumulate == Accumulate::yes ? old : fresh;
            matmul_by_plan(to, ga, gb, s.M, s.N, s.K, layout, accumulate, {tile, split}, ctx);
            REQUIRE_BITWISE(expected, to.download());
          };
          // every thread order for one size; the natural order for the others, which are many
          if (s.M == 63) {
            on_every_device(run);
          } else {
            Context ctx(kernel_device);
            run(ctx);
          }
        }
    });
  }
}

TEST_CASE("matmul: no padding enters a chain; infinities and NaN go where the reference has them", "[bitwise]") {
  // The product of two tiny numbers of opposite sign underflows to -0: one more fmaf(0, 0, -0) would make it
  // +0.
  const size_t M = 3, N = 5, K = 3;
  for (size_t poison = 0; poison < 2; poison++) {
    auto a = random_values<float>(M * K, 1, 1e-30f), b = random_values<float>(K * N, 2, 1e-30f);
    if (poison) a[1] = INFINITY, b[2] = 0.0f, b[4] = NAN;
    for_every_form([&](Layout layout, Accumulate accumulate) {
      std::vector<float> expected(M * N, -0.0f), cpu = expected;
      matmul_ref(expected.data(), a.data(), b.data(), M, N, K, layout, accumulate);
      if (!poison && accumulate == Accumulate::no) {
        size_t negative_zeros = 0;
        for (float v : expected) negative_zeros += v == 0 && std::signbit(v);
        REQUIRE(negative_zeros > 0);
      }
      matmul_cpu(cpu.data(), a.data(), b.data(), M, N, K, layout, accumulate);
      REQUIRE(bitwise_difference(expected, cpu, Nan::expected) == "");
      Context ctx(kernel_device);
      Guarded ga(ctx, a), gb(ctx, b), gc(ctx, std::vector<float>(M * N, -0.0f));
      matmul(gc, ga, gb, M, N, K, layout, accumulate, ctx);
      REQUIRE(bitwise_difference(expected, gc.download(), Nan::expected) == "");
    });
  }
}

TEST_CASE("matmul: the plan splits only where tiles are few") {
  REQUIRE(matmul_plan(4096, 4096, 4096).tile == Tile::large);
  REQUIRE(!matmul_plan(4096, 4096, 4096).split);
  REQUIRE(matmul_plan(768, 768, 65536).split);  // a weight gradient over many tokens
  REQUIRE(!matmul_plan(2048, 768, 768).split);  // one slice: nothing to split
  // 1 GiB of slices side by side would be too much
  REQUIRE(!matmul_plan(768, 768, 1 << 20).split);
}

TEST_CASE("matmul: a bias joins every row last, on the CPU and in every tile and split", "[bitwise]") {
  for (const Size& s : {Size{5, 7, 3}, Size{70, 132, 1025}, Size{33, 20, 2050}, Size{2, 9, 0}}) {
    INFO("M " << s.M << " N " << s.N << " K " << s.K);
    const auto a = random_values<float>(s.M * s.K, 1), b = random_values<float>(s.N * s.K, 2);
    const auto bias = random_values<float>(s.N, 3);
    std::vector<float> expected(s.M * s.N), without = expected;
    matmul_ref(expected.data(), a.data(), b.data(), s.M, s.N, s.K, Layout::nt, Accumulate::no, bias.data());
    matmul_ref(without.data(), a.data(), b.data(), s.M, s.N, s.K, Layout::nt, Accumulate::no);
    for (size_t i = 0; i < expected.size(); i++) REQUIRE(expected[i] == bias[i % s.N] + without[i]);
    for (Device device : {Device::cpu, kernel_device}) {
      Context ctx(device);
      Guarded ga(ctx, a), gb(ctx, b), gbias(ctx, bias);
      Guarded c(ctx, expected.size());
      matmul(c, ga, gb, s.M, s.N, s.K, Layout::nt, Accumulate::no, ctx, gbias);
      REQUIRE_BITWISE(expected, c.download());
      if (device == Device::cpu || s.K == 0) continue;
      for (Tile tile : {Tile::large, Tile::small})
        for (bool split : {false, true}) {
          Guarded d(ctx, expected.size());
          matmul_by_plan(d, ga, gb, s.M, s.N, s.K, Layout::nt, Accumulate::no, {tile, split}, ctx, gbias);
          REQUIRE_BITWISE(expected, d.download());
        }
    }
    Context cpu(Device::cpu);
    REQUIRE_THROWS_AS(matmul(nullptr, nullptr, nullptr, 1, 1, 1, Layout::nt, Accumulate::yes, cpu, bias.data()), Error);
  }
}

TEST_CASE("matmul: empty sums are +0, and C + 0 is C but for -0", "[bitwise]") {
  for (Device device : {Device::cpu, kernel_device}) {
    INFO(gated::name_of(device));
    Context ctx(device);
    Guarded c(ctx, 6), d(ctx, std::vector<float>{3.0f, -3.0f, -0.0f, 0.0f, INFINITY, 1e-40f});
    matmul(c, nullptr, nullptr, 2, 3, 0, Layout::nn, Accumulate::no, ctx);
    matmul(d, nullptr, nullptr, 2, 3, 0, Layout::nt, Accumulate::yes, ctx);
    matmul(d, nullptr, nullptr, 0, 3, 8, Layout::nn, Accumulate::no, ctx);
    matmul(d, nullptr, nullptr, 3, 0, 8, Layout::tn, Accumulate::yes, ctx);
    REQUIRE_BITWISE(std::vector<float>(6, 0.0f), c.download());
    REQUIRE_BITWISE((std::vector<float>{3.0f, -3.0f, 0.0f, 0.0f, INFINITY, 1e-40f}), d.download());
  }
}

TEST_CASE("matmul: matrices may begin anywhere", "[bitwise]") {
  const size_t M = 20, N = 24, K = 28;  // whole float4s, but the first is not on a multiple of 16 bytes
  const auto a = random_values<float>(M * K + 1, 1), b = random_values<float>(N * K + 1, 2);
  for_every_form([&](Layout layout, Accumulate accumulate) {
    auto expected = random_values<float>(M * N + 1, 3);
    const auto c = expected;
    matmul_ref(&expected[1], &a[1], &b[1], M, N, K, layout, accumulate);
    for (Device device : {Device::cpu, kernel_device}) {
      Context ctx(device);
      Guarded ga(ctx, a), gb(ctx, b), gc(ctx, c);
      matmul(gc + 1, ga + 1, gb + 1, M, N, K, layout, accumulate, ctx);
      REQUIRE_BITWISE(expected, gc.download());
    }
  });
}
