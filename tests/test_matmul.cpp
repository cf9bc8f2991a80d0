// matmul: the tuned CPU product and the kernels against the reference, in every layout, size and way of cutting;
// cuBLAS, where there is a GPU, against a bound.
#include "kernels/matmul.h"

#include <algorithm>

#include "core/simd.h"
#include "tests/cublas.h"
#include "tests/harness.h"
#include "tests/refusal.h"

using namespace gated;

namespace {

template <class Test>
void for_every_form(Test test) {
  for (Layout layout : {Layout::nt, Layout::nn, Layout::tn})
    for (Accumulate accumulate : {Accumulate::no, Accumulate::yes}) {
      INFO("layout " << int(layout) << (accumulate == Accumulate::yes ? " +=" : " ="));
      test(layout, accumulate);
    }
}

struct Size {
  size_t M, N, K;
};

// A product beside its reference, whose C is written, with a bias or none, or added to.
struct Product : Trial {
  const Size s;
  const Layout layout;
  const Accumulate accumulate;
  const size_t a_cols = packed_lda(s.M, s.K, layout), b_cols = packed_ldb(s.N, s.K, layout);
  const Array<float> a = random(s.M * s.K, 1), b = random(s.N * s.K, 2), bias;
  const Array<float> c = accumulate == Accumulate::yes ? sum(s.M * s.N, 3) : out(s.M * s.N);
  size_t lda = a_cols, ldb = b_cols, ldc = s.N;
  std::vector<std::pair<MatmulPlan, Array<float>>> plans;

  Product(const Size& s, Layout layout, Accumulate accumulate, bool with_bias = false)
      : s(s), layout(layout), accumulate(accumulate), bias(with_bias ? random(s.N, 4) : Array<float>()) {
    matmul_ref(c.ref, a.ref, b.ref, s.M, s.N, s.K, layout, accumulate, bias.ref);
  }
  // Rows that are longer by so much, those of A, B and C, from an element on that may stand on no boundary.
  void widen(const Size& gap, size_t at) {
    lda += gap.M, ldb += gap.N, ldc += gap.K;
    a.widen(a_cols ? s.M * s.K / a_cols : 0, lda, at), b.widen(b_cols ? s.N * s.K / b_cols : 0, ldb, at);
    c.widen(s.M, ldc, at);
  }
  // What kernels make by these plans too.
  void by(const std::vector<Tile>& tiles, const std::vector<size_t>& together) {
    for (Tile tile : tiles)
      for (size_t n : together) {
        plans.push_back({{tile, n}, again(c)});
        if (ldc > s.N) plans.back().second.widen(s.M, ldc, 0);
      }
  }
  void run(Context& ctx) const {
    matmul({c, ldc}, {a, lda}, {b, ldb}, s.M, s.N, s.K, layout, accumulate, ctx, bias);
    const bool cpu = ctx.device == Device::cpu;
    REQUIRE(ctx.most_scratch_used() == (cpu ? 0 : matmul_scratch(s.M, s.N, s.K, accumulate)));
    ctx.synchronize();
    for (const auto& [plan, to] : plans) {
      Context own(ctx.device);
      if (cpu) matmul({to, ldc}, {a, lda}, {b, ldb}, s.M, s.N, s.K, layout, accumulate, own, bias);  // has no tiles
      if (cpu) continue;
      matmul_by_plan({to, ldc}, {a, lda}, {b, ldb}, s.M, s.N, s.K, layout, accumulate, plan, own, bias);
      own.synchronize();
      REQUIRE(own.most_scratch_used() == matmul_plan_scratch(plan, s.M, s.N, s.K, accumulate));
    }
  }
  void on_every_device() {
    Trial::on_every_device([&](Context& ctx) { run(ctx); });
  }
  void on_both_devices() {
    Trial::on_both_devices([&](Context& ctx) { run(ctx); });
  }
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
  Broadcasts<> numbers{square.data()};
  Broadcasts<false> any{square.data()};
#pragma GCC unroll 16
  for (size_t j = 0; j < lanes; j++) {
    store(got.data(), numbers(j));
    REQUIRE_BITWISE(std::vector<float>(lanes, square[j]), got);
    store(got.data(), any(lanes * lanes - 1 - j));
    REQUIRE_BITWISE(std::vector<float>(lanes, square[lanes * lanes - 1 - j]), got);
  }
  vec row[lanes];
  for (size_t i = 0; i < lanes; i++) row[i] = load(&square[i * lanes]);
  transpose(row);
  for (size_t i = 0; i < lanes; i++)
    for (size_t l = 0; l < lanes; l++) REQUIRE(row[i][l] == square[l * lanes + i]);
}

TEST_CASE("matmul: the tuned CPU product equals the reference for any number of threads", "[bitwise]") {
  // Threads share the last four in every way; between them they have two and more blocks, groups of strips, panels of
  // columns, and panels of rows with a sum of slices beside C.
  const Size sizes[] = {{1, 1, 1},      {1, 50, 7},     {3, 200, 63},   {63, 65, 17},  {28, 1, 3},     {13, 33, 1023},
                        {29, 31, 1024}, {17, 47, 1025}, {64, 16, 2049}, {200, 37, 5},  {177, 130, 20}, {2, 1600, 3},
                        {40, 20, 0},    {1, 70, 2065},  {2, 37, 2049},  {3, 16, 1030}, {4, 45, 1041},  {400, 300, 20},
                        {30, 2000, 40}, {3, 3200, 5},   {2100, 5, 1026}};
  for (const Size& s : sizes)
    for_every_form([&](Layout layout, Accumulate accumulate) {
      Product p(s, layout, accumulate);
      for (int threads : {1, 2, 3}) {
        INFO(threads << " threads, M " << s.M << " N " << s.N << " K " << s.K);
        const Threads of_the_cpu(threads);
        Context cpu(Device::cpu);
        p.on(cpu, [&](Context& ctx) { p.run(ctx); });
      }
    });
}

TEST_CASE("matmul: kernels equal the reference in every tile, with slices one by one, side by side and in groups",
          "[bitwise]") {
  const Size sizes[] = {{1, 1, 1},     {63, 65, 17},   {130, 70, 33},       {64, 128, 16},
                        {3, 90, 1025}, {66, 20, 2050}, {5, 6, 5 * 1024 + 3}};
  for (const Size& s : sizes) {
    INFO("M " << s.M << " N " << s.N << " K " << s.K);
    for_every_form([&](Layout layout, Accumulate accumulate) {
      const bool deep = s.K > matmul_slice;  // what happens between slices does not depend on the layout
      if (deep && layout != (accumulate == Accumulate::yes ? Layout::tn : Layout::nt)) return;
      std::vector<size_t> together = {1, 2, 3, 6};
      std::erase_if(together, [&](size_t n) { return n > std::max<size_t>(ceil_div(s.K, matmul_slice), 2); });
      Product p(s, layout, accumulate);
      p.by({Tile::large, Tile::small}, together);
      s.M == 63 ? p.on_every_device() : p.on_both_devices();  // in one thread order those that are many
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
      Trial t(Nan::expected);
      const auto ga = t.in(a), gb = t.in(b), c = t.sum(std::vector<float>(M * N, -0.0f));
      matmul_ref(c.ref, ga.ref, gb.ref, M, N, K, layout, accumulate);
      if (!poison && accumulate == Accumulate::no)
        REQUIRE(std::ranges::any_of(c.values(), [](float v) { return v == 0 && std::signbit(v); }));
      t.on_both_devices([&](Context& ctx) { matmul(c, ga, gb, M, N, K, layout, accumulate, ctx); });
    });
  }
}

TEST_CASE("matmul: the plan splits only where tiles are few") {
  REQUIRE(matmul_plan(4096, 4096, 4096).tile == Tile::large);
  REQUIRE(matmul_plan(4096, 4096, 4096).together == 1);
  REQUIRE(matmul_plan(768, 768, 65536).together == 64);  // a weight gradient over many tokens
  REQUIRE(matmul_scratch(768, 768, 65536, Accumulate::yes) == 64 * 768 * 768 * sizeof(float));
  REQUIRE(matmul_scratch(5, 7, 1025, Accumulate::yes) == 2 * 5 * 8 * sizeof(float));  // rows of whole quads
  REQUIRE(matmul_scratch(4096, 4096, 4096, Accumulate::yes) == 4096 * 4096 * sizeof(float));
  REQUIRE(matmul_scratch(4096, 4096, 4096, Accumulate::no) == 0);
  REQUIRE(matmul_plan(2048, 768, 768).together == 1);  // one slice: nothing to split
  REQUIRE(matmul_plan(64, 64, 0).together == 1);
  // 2.3 GiB of slices side by side would be too much: groups of the same size, one matrix less after the first
  const MatmulPlan groups = matmul_plan(768, 768, 1 << 20);
  REQUIRE(groups.tile == Tile::large);
  REQUIRE(groups.together == 104);
  REQUIRE(ceil_div(1024 - 1, 104 - 1) == ceil_div(1024 - 1, 113 - 1));
}

TEST_CASE("matmul: no shape falls to the small tile for want of scratch, and scratch stays within its bound") {
  std::vector<Size> sizes;
  // A linear layer: its forward, and its two gradients.
  const auto linear = [&](size_t tokens, size_t out, size_t in) {
    sizes.insert(sizes.end(), {{tokens, out, in}, {tokens, in, out}, {out, in, tokens}});
  };
  for (size_t tokens : {1, 63, 1024, 2048, 3000, 8192, 65536}) {
    for (auto [V, C] : {std::pair<size_t, size_t>{151936, 2048}, {50257, 768}, {256, 128}})
      linear(std::min<size_t>(tokens, 1024), V, C);  // so many rows of logits at a time
    for (auto [out, in] : {std::pair<size_t, size_t>{768, 768}, {3072, 768}, {768, 3072}, {6144, 2048}, {16, 2048}})
      linear(tokens, out, in);
  }
  for (const Size& s : sizes) {
    INFO("M " << s.M << " N " << s.N << " K " << s.K);
    const MatmulPlan plan = matmul_plan(s.M, s.N, s.K);
    const size_t slices = ceil_div(s.K, matmul_slice);
    const size_t tiles = ceil_div(s.M, 128) * ceil_div(s.N, 128), blocks = tiles * slices;
    REQUIRE((plan.tile == Tile::large) == (blocks >= 264));  // two for each multiprocessor of an H200
    if (tiles < 264 && slices > 1) {
      // Every launch has enough blocks: a group, and what is left over, are not the reason for an idle GPU.
      REQUIRE((plan.together > 1 || plan.tile == Tile::small));
      if (plan.together > 1) REQUIRE(tiles * (plan.together - 1) >= std::min<size_t>(blocks - tiles, 264));
      REQUIRE(matmul_plan_scratch(plan, s.M, s.N, s.K, Accumulate::yes) <= size_t{256} << 20);
    }
  }
  const MatmulPlan head = matmul_plan(1024, 2048, 151936);  // dh of a Qwen3 head: 149 slices of 8 MiB
  REQUIRE(head.tile == Tile::large);
  REQUIRE(head.together == 31);
}

TEST_CASE("matmul: scratch for every product up to a size is the most that any of them takes") {
  // The slices of the last do not all fit, and those of a smaller M may leave less of the bound over.
  for (const Size& s : {Size{300, 70, 2500}, Size{1, 5, 1}, Size{200, 64, 5000}, Size{150, 100, 6000 * 1024}})
    for (Accumulate accumulate : {Accumulate::no, Accumulate::yes}) {
      size_t most = 0;
      for (size_t m = 1; m <= s.M; m++)
        for (size_t k = 1; k <= s.K; k += s.K > 5000 ? 1024 : 13)
          most = std::max(most, matmul_scratch(m, s.N, k, accumulate));
      REQUIRE(matmul_scratch_up_to(s.M, s.N, s.K, accumulate) == most);
    }
  REQUIRE(matmul_scratch_up_to(0, 5, 5, Accumulate::yes) == 0);
  // A run that will be refused for its size is measured too, in no time.
  REQUIRE(matmul_scratch_up_to(size_t{1} << 40, 128, size_t{1} << 40, Accumulate::no) > 0);
  // A longer product may take less: from 264 tiles on, its slices stay in the block.
  REQUIRE(matmul_scratch_up_to(4096, 2048, 2048, Accumulate::no) > matmul_scratch(4096, 2048, 2048, Accumulate::no));
}

TEST_CASE("matmul: matrices inside wider rows give the bits of matrices without gaps, and the gaps stay as they are",
          "[bitwise]") {
  // Gaps of whole quads and of parts of one, and rows that end inside a quad of an aligned line, or a column before a
  // tile of the CPU's does, which has no bias to add there.
  const Size sizes[] = {{5, 7, 3}, {66, 70, 33}, {6, 9, 1030}, {20, 24, 28}, {20, 95, 28}};
  const Size gaps[] = {{0, 0, 4}, {4, 8, 0}, {4, 8, 4}, {3, 1, 2}, {57, 55, 95}};  // after the rows of A, B, C
  for (const Size& s : sizes)
    for (const Size& gap : gaps) {
      INFO("M " << s.M << " N " << s.N << " K " << s.K << ", gaps " << gap.M << " " << gap.N << " " << gap.K);
      for_every_form([&](Layout layout, Accumulate accumulate) {
        Product p(s, layout, accumulate, accumulate == Accumulate::no && s.N != 95);
        p.widen(gap, gap.K == gap.M);  // those of one size begin on no boundary
        if (s.K > matmul_slice) p.by({Tile::large}, {1, 2});
        const std::vector<float> packed = p.c.values();
        p.reference([&] {
          matmul_strided_ref<float>({p.c, p.ldc}, {p.a, p.lda}, {p.b, p.ldb}, s.M, s.N, s.K, layout, accumulate,
                                    p.bias);
        });
        REQUIRE_BITWISE(packed, p.c.values());
        s.M == 5 ? p.on_every_device() : p.on_both_devices();
      });
    }
}

TEST_CASE("matmul: rows that are shorter than their matrix are refused") {
  Context cpu(Device::cpu);
  std::vector<float> x(64);
  auto multiply = [&](size_t ldc, size_t lda, size_t ldb) {
    matmul({x.data(), ldc}, {x.data() + 16, lda}, {x.data() + 32, ldb}, 2, 3, 4, Layout::nt, Accumulate::no, cpu);
  };
  REQUIRE_NOTHROW(multiply(3, 4, 4));
  REQUIRE_THROWS_AS(multiply(2, 4, 4), Error);
  REQUIRE_THROWS_AS(multiply(3, 3, 4), Error);
  REQUIRE_THROWS_AS(multiply(3, 4, 3), Error);
}

TEST_CASE("matmul: slices that another kernel left side by side are added in ascending order", "[bitwise]") {
  if (!kernels_can_run()) return;
  Context ctx(kernel_device);
  for (size_t n : {1, 5, 64, 70}) {
    const size_t count = 3;
    Trial t;
    const auto slices = t.random(count * n, 1), c = t.sum(n, 2);
    const float* s = slices.ref;
    for (size_t i = 0; i < n; i++) c.ref[i] += (s[i] + s[n + i]) + s[2 * n + i];
    t.on(ctx, [&](Context& ctx) { matmul_add_slices(c, slices, count, n, ctx); });
  }
}

TEST_CASE("matmul: a bias joins every row last, on the CPU and in every tile and grouping", "[bitwise]") {
  for (const Size& s : {Size{5, 7, 3}, Size{70, 132, 1025}, Size{33, 20, 2050}, Size{2, 9, 0}, Size{4, 19, 1030}}) {
    INFO("M " << s.M << " N " << s.N << " K " << s.K);
    Product p(s, Layout::nt, Accumulate::no, true);
    const Product without(s, Layout::nt, Accumulate::no);
    for (size_t i = 0; i < s.M * s.N; i++) REQUIRE(p.c.ref[i] == p.bias.ref[i % s.N] + without.c.ref[i]);
    p.by({Tile::large, Tile::small}, {1, 2, 3});
    p.on_both_devices();
    Context cpu(Device::cpu);
    REQUIRE_THROWS_AS(matmul(nullptr, nullptr, nullptr, 1, 1, 1, Layout::nt, Accumulate::yes, cpu, p.bias.ref), Error);
  }
}

TEST_CASE("matmul: empty sums are +0, and C + 0 is C but for -0", "[bitwise]") {
  Trial t;
  const auto c = t.expect(std::vector<float>(6, 0.0f)),
             d = t.sum({3.0f, -3.0f, -0.0f, 0.0f, INFINITY, 1e-40f}, {3.0f, -3.0f, 0.0f, 0.0f, INFINITY, 1e-40f});
  t.on_both_devices([&](Context& ctx) {
    matmul(c, nullptr, nullptr, 2, 3, 0, Layout::nn, Accumulate::no, ctx);
    matmul(d, nullptr, nullptr, 2, 3, 0, Layout::nt, Accumulate::yes, ctx);
    matmul(d, nullptr, nullptr, 0, 3, 8, Layout::nn, Accumulate::no, ctx);
    matmul(d, nullptr, nullptr, 3, 0, 8, Layout::tn, Accumulate::yes, ctx);
  });
}

TEST_CASE("matmul: cuBLAS is refused where there is no GPU, and the exact product stays", "[cublas]") {
  for (Device device : {Device::cpu, kernel_device}) {
    if (device == Device::cuda) continue;
    Context ctx(device);
    REQUIRE(refusal([&] { ctx.use_cublas(false); }) ==
            std::string("cuBLAS computes on a GPU only, and this run is on ") + gated::name_of(device));
    REQUIRE(ctx.matmul_engine() == MatmulEngine::exact);
    REQUIRE(ctx.matmul_engine_bytes() == 0);
  }
}

TEST_CASE("matmul: cuBLAS on a GPU keeps to its bound, repeats itself, and leaves the gaps of wider rows alone",
          "[cublas]") {
  if (kernel_device != Device::cuda || !kernels_can_run()) return;
  const Size sizes[] = {{1, 1, 1}, {63, 65, 17}, {128, 256, 512}, {64, 64, 8192}, {1, 1000, 96}, {300, 5, 2049}};
  for (const Size& s : sizes)
    for (size_t gap : {0, 3, 8})
      for (bool tf32 : {false, true})
        for_every_form([&](Layout layout, Accumulate accumulate) {
          INFO("M " << s.M << " N " << s.N << " K " << s.K << " gap " << gap << (tf32 ? " tf32" : " fp32"));
          const bool add = accumulate == Accumulate::yes;
          const size_t lda = packed_lda(s.M, s.K, layout) + gap, ldb = packed_ldb(s.N, s.K, layout) + gap;
          const size_t ldc = s.N + gap;
          const size_t a_rows = layout == Layout::tn ? s.K : s.M, b_rows = layout == Layout::nt ? s.N : s.K;
          const auto a = random_values<float>(a_rows * lda, 1), b = random_values<float>(b_rows * ldb, 2);
          const auto c = random_values<float>(s.M * ldc, 3), bias = random_values<float>(s.N, 4);

          // The exact sum, and the sum of absolute values that every rounding is a share of.
          auto in_double = [](std::vector<float> v, bool absolute) {
            if (absolute)
              for (float& x : v) x = std::fabs(x);
            return std::vector<double>(v.begin(), v.end());
          };
          std::vector<double> sums[2];
          for (bool absolute : {false, true}) {
            const auto x = in_double(a, absolute), y = in_double(b, absolute), z = in_double(bias, absolute);
            sums[absolute] = in_double(c, absolute);
            matmul_strided_ref<double>({sums[absolute].data(), ldc}, {x.data(), lda}, {y.data(), ldb}, s.M, s.N, s.K,
                                       layout, accumulate, add ? nullptr : z.data());
          }
          // fp32: K + 2 roundings of 2^-24 at most. TF32 also cuts both operands to 10 bits.
          const double share = double(s.K + 2) * 0x1p-24 + (tf32 ? 2 * 0x1p-10 : 0.0);

          std::vector<float> first, without_epilogue;
          for (int run = 0; run < 3; run++) {  // a context of its own each: the algorithm is chosen again
            Context ctx(Device::cuda);
            ctx.use_cublas(tf32);
            REQUIRE(ctx.matmul_engine_bytes() == cublas_workspace_bytes);
            Guarded ga(ctx, a), gb(ctx, b), gc(ctx, c), gbias(ctx, bias);
            matmul({gc, ldc}, {ga, lda}, {gb, ldb}, s.M, s.N, s.K, layout, accumulate, ctx, add ? nullptr : +gbias);
            REQUIRE(ctx.most_scratch_used() == 0);
            const auto got = gc.download();
            if (run == 0) first = got;
            REQUIRE_BITWISE(first, got);
            if (run < 2 || add) continue;
            // As if cuBLASLt had no algorithm that adds a bias.
            forget_bias_algorithms(ctx);
            const Guarded again(ctx, c);
            matmul({again, ldc}, {ga, lda}, {gb, ldb}, s.M, s.N, s.K, layout, accumulate, ctx, gbias);
            without_epilogue = again.download();
          }
          for (const auto& got : {first, without_epilogue})
            for (size_t i = 0; i < got.size(); i++) {
              if (i % ldc >= s.N) REQUIRE(got[i] == c[i]);
              if (i % ldc < s.N) REQUIRE(std::fabs(double(got[i]) - sums[0][i]) <= 1.01 * share * sums[1][i]);
            }
        });
}
