// grouped_matmul: one product per expert, bit for bit, however many rows each has.
#include "kernels/grouped_matmul.h"

#include <thread>

#include "kernels/bias.h"
#include "tests/grouped_cases.h"
#include "tests/refusal.h"

using namespace gated;

namespace {

const GroupedCase ragged[] = {
    {{0, 1, 127, 129, 0}, 33, 17},  // odd, so that rows begin anywhere
    {{5, 4, 0, 8}, 132, 36},        // whole quads, and more than one tile of columns
    {{130}, 5, 7},
    {{0, 0, 3}, 1, 1},
    {{1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, 20, 4},
    {{64, 63, 65}, 64, 16},
    {{2, 3}, 6, 0},
};

// Several slices of K, and several of an expert's rows, with as many experts as may have them and with more.
const GroupedCase deep[] = {{{3, 0, 5}, 9, 1030}, {{1, 1}, 8, 2052}};
const GroupedCase tall[] = {
    {{1025, 0, 1025}, 5, 6}, {{2048, 0, 1025}, 3, 5}, {{1500, 20, 1024, 0, 2100}, 4, 8}, {{3000}, 7, 3}};

// What matmul() makes of the rows of each expert alone.
std::vector<float> one_by_one(const Groups& g, Layout layout, Accumulate accumulate, const std::vector<float>& c,
                              const std::vector<float>& a, const std::vector<float>& b, const float* bias) {
  std::vector<float> result = c;
  Context cpu(Device::cpu);
  for (size_t e = 0; e < g.s.E; e++)
    matmul(result.data() + g.begin(e) * g.s.N, a.data() + g.begin(e) * g.s.K, b.data() + e * g.s.N * g.s.K, g.rows(e),
           g.s.N, g.s.K, layout, accumulate, cpu, bias ? bias + e * g.s.N : nullptr);
  return result;
}

}  // namespace

TEST_CASE("grouped_matmul: a case by hand", "[bitwise]") {
  // Two experts of three have rows: 2 and 1 of them. N 2, K 2.
  const std::vector<int> start = {0, 2, 2, 3};
  const std::vector<float> x = {1, 2, 3, 4, 5, 6}, bias = {10, 20, NAN, NAN, 30, 40};
  const std::vector<float> w = {1, 0, 0, 2, NAN, NAN, NAN, NAN, 1, 1, 2, 1};  // of expert 0: (1 0 / 0 2)
  on_every_device([&](Context& ctx) {
    const GroupedShape s = {3, 3, 2, 2};
    const Buffer<int> row_start(ctx.device, start);
    Guarded gx(ctx, x), gw(ctx, w), gb(ctx, bias), y(ctx, 6), dx(ctx, 6);
    grouped_matmul(y, gx, gw, row_start.data(), s, Layout::nt, Accumulate::no, ctx, gb);
    REQUIRE_BITWISE((std::vector<float>{11, 24, 13, 28, 41, 56}), y.download());
    grouped_matmul(dx, gx, gw, row_start.data(), s, Layout::nn, Accumulate::no, ctx);
    REQUIRE_BITWISE((std::vector<float>{1, 4, 3, 8, 17, 11}), dx.download());
    const std::vector<float> dy = {1, 0, 0, 1, 2, 3};
    Guarded gdy(ctx, dy), dw(ctx, std::vector<float>(12, 100)), db(ctx, std::vector<float>(6, 100));
    grouped_matmul_tn(dw, gdy, gx, row_start.data(), s, ctx);
    REQUIRE_BITWISE((std::vector<float>{101, 102, 103, 104, 100, 100, 100, 100, 110, 112, 115, 118}), dw.download());
    grouped_bias_backward(db, gdy, row_start.data(), 3, 3, 2, ctx);
    REQUIRE_BITWISE((std::vector<float>{101, 101, 100, 100, 102, 103}), db.download());
  });
}

TEST_CASE("grouped_matmul: the backward is the gradient of the forward", "[gradcheck]") {
  const Groups g({{2, 0, 1, 3}, 3, 4});
  const GroupedShape &s = g.s, back = {s.M, s.E, s.K, s.N};
  const auto x = random_values<double>(s.M * s.K, 1), w = random_values<double>(s.E * s.N * s.K, 2);
  const auto b = random_values<double>(s.E * s.N, 3), dy = random_values<double>(s.M * s.N, 4);
  auto loss = [&](const std::vector<double>& x, const std::vector<double>& w, const std::vector<double>& b) {
    std::vector<double> y(s.M * s.N);
    grouped_matmul_ref(y.data(), x.data(), w.data(), g.start.data(), s, Layout::nt, Accumulate::no, b.data());
    return dot(y, dy);
  };
  std::vector<double> dx(x.size()), dw(w.size(), 0.0), db(b.size(), 0.0);
  grouped_matmul_ref(dx.data(), dy.data(), w.data(), g.start.data(), back, Layout::nn, Accumulate::no);
  grouped_matmul_tn_ref(dw.data(), dy.data(), x.data(), g.start.data(), s);
  grouped_bias_backward_ref(db.data(), dy.data(), g.start.data(), s.E, s.N);
  check_gradient(
      "x", [&](auto& v) { return loss(v, w, b); }, x, dx);
  check_gradient(
      "w", [&](auto& v) { return loss(x, v, b); }, w, dw);
  check_gradient(
      "b", [&](auto& v) { return loss(x, w, v); }, b, db);
}

TEST_CASE("grouped_matmul: one product per expert, bit for bit, on every device", "[bitwise]") {
  auto test = [](const Groups& g) {
    const GroupedShape& s = g.s;
    const auto a = random_values<float>(s.M * s.K, 1), c = random_values<float>(s.M * s.N, 3);
    const auto bias = random_values<float>(s.E * s.N, 4);
    auto b = random_values<float>(s.E * s.N * s.K, 2);
    for (size_t e = 0; e < s.E; e++)  // what belongs to an expert without rows is not read
      if (g.rows(e) == 0) std::fill_n(b.begin() + ptrdiff_t(e * s.N * s.K), s.N * s.K, NAN);
    for (Layout layout : {Layout::nt, Layout::nn})
      for (Accumulate accumulate : {Accumulate::no, Accumulate::yes}) {
        const bool add = accumulate == Accumulate::yes;
        // (what happens between slices does not depend on the layout)
        if (s.K > matmul_slice && add != (layout == Layout::nn)) continue;
        INFO((layout == Layout::nt ? "nt" : "nn") << (add ? " +=" : " ="));
        for (bool with_bias : {false, true}) {
          if (with_bias && add) continue;
          const auto expected = one_by_one(g, layout, accumulate, c, a, b, with_bias ? bias.data() : nullptr);
          auto reference = c;
          grouped_matmul_ref(reference.data(), a.data(), b.data(), g.start.data(), s, layout, accumulate,
                             with_bias ? bias.data() : nullptr);
          REQUIRE_BITWISE(expected, reference);
          on_every_device([&](Context& ctx) {
            const Buffer<int> row_start = g.on(ctx);
            Guarded ga(ctx, a), gb(ctx, b), gbias(ctx, bias), old(ctx, c), fresh(ctx, c.size());
            const Guarded& to = add ? old : fresh;
            grouped_matmul(to, ga, gb, row_start.data(), s, layout, accumulate, ctx, with_bias ? +gbias : nullptr);
            REQUIRE_BITWISE(expected, to.download());
            if (ctx.device == Device::cpu) return;
            REQUIRE(ctx.most_scratch_used() == grouped_matmul_scratch(s, accumulate));
            REQUIRE(grouped_matmul_tile(s) == Tile::small);
            if (!with_bias && !add) return;
            Guarded old_again(ctx, c), fresh_again(ctx, c.size());
            const Guarded& again = add ? old_again : fresh_again;
            grouped_matmul_by_tile(again, ga, gb, row_start.data(), s, layout, accumulate, Tile::large, ctx,
                                   with_bias ? +gbias : nullptr);
            REQUIRE_BITWISE(expected, again.download());
          });
        }
      }
  };
  for_every_case(ragged, test);
  for_every_case(deep, test);
}

TEST_CASE("grouped_matmul: one weight gradient per expert, bit for bit, on every device", "[bitwise]") {
  auto test = [](const Groups& g) {
    const GroupedShape& s = g.s;
    const auto a = random_values<float>(s.M * s.N, 1), b = random_values<float>(s.M * s.K, 2);
    auto c = random_values<float>(s.E * s.N * s.K, 3);
    for (size_t e = 0; e < s.E; e++)  // an expert without rows keeps what it has: C + 0 would not be C for -0
      if (g.rows(e) == 0) std::fill_n(c.begin() + ptrdiff_t(e * s.N * s.K), s.N * s.K, -0.0f);
    auto expected = c, reference = c;
    Context cpu(Device::cpu);
    for (size_t e = 0; e < s.E; e++)
      if (g.rows(e) > 0)
        matmul(expected.data() + e * s.N * s.K, a.data() + g.begin(e) * s.N, b.data() + g.begin(e) * s.K, s.N, s.K,
               g.rows(e), Layout::tn, Accumulate::yes, cpu);
    grouped_matmul_tn_ref(reference.data(), a.data(), b.data(), g.start.data(), s);
    REQUIRE_BITWISE(expected, reference);
    on_every_device([&](Context& ctx) {
      const Buffer<int> row_start = g.on(ctx);
      Guarded ga(ctx, a), gb(ctx, b), gc(ctx, c);
      grouped_matmul_tn(gc, ga, gb, row_start.data(), s, ctx);
      REQUIRE_BITWISE(expected, gc.download());
      if (ctx.device == Device::cpu) return;
      REQUIRE(ctx.most_scratch_used() == (s.K ? grouped_matmul_tn_scratch(s) : 0));
      REQUIRE(grouped_matmul_tn_tile(s) == Tile::small);
      Guarded again(ctx, c);
      grouped_matmul_tn_by_tile(again, ga, gb, row_start.data(), s, Tile::large, ctx);
      REQUIRE_BITWISE(expected, again.download());
    });
  };
  for_every_case(ragged, test);
  for_every_case(tall, test);
}

template <class S>
static void require_bias_gradients(const Groups& g) {
  INFO(name_of(storage_of<S>));
  const GroupedShape& s = g.s;
  const auto dy = stored<S>(random_values<float>(s.M * s.N, 1));
  auto db = random_values<float>(s.E * s.N, 2);
  for (size_t e = 0; e < s.E; e++)
    if (g.rows(e) == 0) std::fill_n(db.begin() + ptrdiff_t(e * s.N), s.N, -0.0f);
  auto expected = db, reference = db;
  for (size_t e = 0; e < s.E; e++)
    bias_backward_ref(expected.data() + e * s.N, dy.data() + g.begin(e) * s.N, g.rows(e), s.N);
  grouped_bias_backward_ref(reference.data(), dy.data(), g.start.data(), s.E, s.N);
  REQUIRE_BITWISE(expected, reference);
  on_every_device([&](Context& ctx) {
    const Buffer<int> row_start = g.on(ctx);
    const GuardedOf<S> gdy(ctx, dy);
    const Guarded gdb(ctx, db);
    grouped_bias_backward(gdb, gdy, row_start.data(), s.M, s.E, s.N, ctx);
    REQUIRE_BITWISE(expected, gdb.download());
    if (ctx.device != Device::cpu) REQUIRE(ctx.most_scratch_used() == grouped_bias_backward_scratch(s.M, s.E, s.N));
  });
}

TEST_CASE("grouped_matmul: one bias gradient per expert, bit for bit, on every device", "[bitwise]") {
  for_every_case(ragged, require_bias_gradients<float>);
  for_every_case(ragged, require_bias_gradients<bf16>);
  const GroupedCase long_columns[] = {{{70, 16384, 20000, 0, 1}, 2, 0}, {{300, 256}, 140, 0}};  // slices of slices
  for_every_case(long_columns, require_bias_gradients<float>);
}

TEST_CASE("grouped_matmul: threads share experts and parts of one in every way", "[bitwise]") {
  // Work for several threads, balanced, with one expert that has most of the rows, and with few rows for each.
  const GroupedCase cases[] = {
      {{90, 100, 110, 100}, 130, 70}, {{7, 400, 5, 0, 9}, 70, 130}, {{400}, 65, 80}, {std::vector<int>(60, 6), 96, 50}};
  const int before = omp_get_max_threads();
  for_every_case(cases, [](const Groups& g) {
    const GroupedShape& s = g.s;
    const auto a = random_values<float>(s.M * s.K, 1), b = random_values<float>(s.E * s.N * s.K, 2);
    const auto dy = random_values<float>(s.M * s.N, 3);
    for (Layout layout : {Layout::nt, Layout::nn}) {
      std::vector<float> expected(s.M * s.N);
      grouped_matmul_ref(expected.data(), a.data(), b.data(), g.start.data(), s, layout, Accumulate::no);
      for (int threads : {1, 2, 3, 8}) {
        omp_set_num_threads(threads);
        std::vector<float> got(s.M * s.N, NAN);
        grouped_matmul_cpu(got.data(), a.data(), b.data(), g.start.data(), s, layout, Accumulate::no);
        REQUIRE_BITWISE(expected, got);
      }
    }
    auto expected = b;
    grouped_matmul_tn_ref(expected.data(), dy.data(), a.data(), g.start.data(), s);
    for (int threads : {1, 2, 3, 8}) {
      omp_set_num_threads(threads);
      auto got = b;
      grouped_matmul_tn_cpu(got.data(), dy.data(), a.data(), g.start.data(), s);
      REQUIRE_BITWISE(expected, got);
    }
  });
  omp_set_num_threads(before);
}

TEST_CASE("grouped_matmul: matrices may begin anywhere", "[bitwise]") {
  const Groups g({{5, 0, 70, 3}, 24, 28});  // whole quads, but the first is not on a multiple of 16 bytes
  const GroupedShape& s = g.s;
  const auto a = random_values<float>(s.M * s.K + 1, 1), b = random_values<float>(s.E * s.N * s.K + 1, 2);
  const auto c = random_values<float>(s.M * s.N + 1, 3);
  auto y = c, dw = b;
  grouped_matmul_ref(&y[1], &a[1], &b[1], g.start.data(), s, Layout::nt, Accumulate::yes);
  grouped_matmul_tn_ref(&dw[1], &c[1], &a[1], g.start.data(), s);
  for (Device device : {Device::cpu, kernel_device}) {
    if (device == Device::cuda && !kernels_can_run()) continue;
    Context ctx(device);
    const Buffer<int> row_start = g.on(ctx);
    Guarded ga(ctx, a), gb(ctx, b), gc(ctx, c), gdw(ctx, b);
    grouped_matmul_tn(gdw + 1, gc + 1, ga + 1, row_start.data(), s, ctx);
    REQUIRE_BITWISE(dw, gdw.download());
    grouped_matmul(gc + 1, ga + 1, gb + 1, row_start.data(), s, Layout::nt, Accumulate::yes, ctx);
    REQUIRE_BITWISE(y, gc.download());
  }
}

TEST_CASE("grouped_matmul: how rows lie changes neither what is allocated nor the scratch") {
  const size_t M = 2200, N = 6, K = 5;
  const GroupedShape s = {M, 3, N, K};
  const auto a = random_values<float>(M * N, 1), b = random_values<float>(M * K, 2);
  std::vector<float> c(3 * N * K), w(3 * N * K), y(M * N);
  std::vector<size_t> allocated;
  std::thread([&] {  // which has no memory of earlier products
    Context cpu(Device::cpu);
    for (const std::vector<int>& start :
         {std::vector<int>{0, 733, 1466, 2200}, {0, 2200, 2200, 2200}, {0, 10, 20, 2200}}) {
      grouped_matmul_tn(c.data(), a.data(), b.data(), start.data(), s, cpu);
      grouped_matmul(y.data(), b.data(), w.data(), start.data(), s, Layout::nt, Accumulate::no, cpu);
      allocated.push_back(allocations);
    }
  })
      .join();
  REQUIRE(allocated[1] == allocated[0]);
  REQUIRE(allocated[2] == allocated[0]);
  // One matrix for each expert that can have more than 1024 rows, and none that has no expert.
  REQUIRE(grouped_matmul_tn_scratch({1024, 4, 5, 6}) == 0);
  REQUIRE(grouped_matmul_tn_scratch({2 * 1025 - 1, 4, 5, 6}) == 1 * 5 * 8 * sizeof(float));
  REQUIRE(grouped_matmul_tn_scratch({2 * 1025, 4, 5, 6}) == 2 * 5 * 8 * sizeof(float));
  REQUIRE(grouped_matmul_tn_scratch({100000, 4, 5, 6}) == 4 * 5 * 8 * sizeof(float));
}

TEST_CASE("grouped_matmul: large tiles where there is work for them") {
  REQUIRE(grouped_matmul_tile({65536, 128, 768, 2048}) == Tile::large);
  REQUIRE(grouped_matmul_tile({8192, 128, 768, 2048}) == Tile::small);  // 64 rows an expert
  REQUIRE(grouped_matmul_tile({4096, 8, 384, 128}) == Tile::small);     // 96 large tiles
  REQUIRE(grouped_matmul_tn_tile({4096, 8, 768, 2048}) == Tile::large);
  REQUIRE(grouped_matmul_tn_tile({4096, 8, 384, 128}) == Tile::small);
}

TEST_CASE("grouped_matmul: what cannot be is refused", "[bitwise]") {
  Context cpu(Device::cpu), kernels(kernel_device);
  std::vector<float> x(64);
  float* p = x.data();
  const std::vector<int> start = {0, 1, 2};
  auto multiply = [&](size_t M, size_t E, const std::vector<int>& start, Layout layout, Accumulate accumulate,
                      Context& ctx, const float* bias) {
    return refusal([&] {
      grouped_matmul(p, p + 16, p + 32, start.data(), {M, E, 2, 2}, layout, accumulate, ctx, bias);
    });
  };
  REQUIRE(multiply(2, 2, start, Layout::nt, Accumulate::no, cpu, p + 48) == "");
  REQUIRE(multiply(2, 2, start, Layout::nt, Accumulate::yes, cpu, p + 48) ==
          "grouped_matmul: a bias is for a product that is written, not accumulated");
  REQUIRE(multiply(2, 2, start, Layout::tn, Accumulate::yes, cpu, nullptr) ==
          "grouped_matmul: expected layout nt or nn; grouped_matmul_tn() is the weight gradient");
  REQUIRE(multiply(2, 0, start, Layout::nt, Accumulate::no, kernels, nullptr) ==
          "grouped_matmul: no experts, expected at least one");
  REQUIRE(multiply(2147483648, 2, start, Layout::nt, Accumulate::no, kernels, nullptr) ==
          "grouped_matmul: 2147483648 rows are more than an int counts (2147483647): use a smaller batch");
  REQUIRE(multiply(3, 2, start, Layout::nt, Accumulate::no, cpu, nullptr) ==
          "grouped_matmul: row_start goes from 0 to 2, expected 0 to 3");
  REQUIRE(multiply(2, 2, {0, 3, 2}, Layout::nt, Accumulate::no, cpu, nullptr) ==
          "grouped_matmul: row_start[1] is 3 and row_start[2] is 2, expected no less");
  REQUIRE(refusal([&] {
            grouped_matmul_tn(p, p, p, start.data(), {3, 2, 2, 2}, cpu);
          }) == "grouped_matmul_tn: row_start goes from 0 to 2, expected 0 to 3");
  REQUIRE(refusal([&] { grouped_bias_backward(p, p, start.data(), 3, 2, 2, cpu); }) ==
          "grouped_bias_backward: row_start goes from 0 to 2, expected 0 to 3");
  REQUIRE(refusal([&] { grouped_matmul_tn(p, p, p, start.data(), {3, 65536, 2, 2}, kernels); }) != "");
}
