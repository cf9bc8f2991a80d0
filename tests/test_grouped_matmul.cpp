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

}  // namespace

TEST_CASE("grouped_matmul: the backward is the gradient of the forward", "[gradcheck]") {
  const Groups g({{2, 0, 1, 3}, 3, 4});
  const GroupedShape back = {g.M, g.E, g.K, g.N};
  auto x = random_values<double>(g.M * g.K, 1), w = random_values<double>(g.E * g.N * g.K, 2),
       b = random_values<double>(g.E * g.N, 3);
  const auto dy = random_values<double>(g.M * g.N, 4);
  std::vector<double> y(g.M * g.N), dx(x.size()), dw(w.size(), 0.0), db(b.size(), 0.0);
  const auto loss = [&] {
    grouped_matmul_ref(y.data(), x.data(), w.data(), g.start.data(), g, Layout::nt, Accumulate::no, b.data());
    return dot(y, dy);
  };
  grouped_matmul_ref(dx.data(), dy.data(), w.data(), g.start.data(), back, Layout::nn, Accumulate::no);
  grouped_matmul_tn_ref(dw.data(), dy.data(), x.data(), g.start.data(), g);
  grouped_bias_backward_ref(db.data(), dy.data(), g.start.data(), g.E, g.N);
  check_gradients(loss, {{"x", x, dx}, {"w", w, dw}, {"b", b, db}});
}

static void require_products(const Groups& g, Layout layout, Accumulate accumulate, bool with_bias) {
  const bool add = accumulate == Accumulate::yes;
  INFO((layout == Layout::nt ? "nt" : "nn") << (add ? " +=" : " =") << (with_bias ? " with a bias" : ""));
  Trial t;
  const auto a = t.random(g.M * g.K, 1), bias = with_bias ? t.random(g.E * g.N, 4) : Array<float>();
  const auto b = t.in(without_rows(g, random_values<float>(g.E * g.N * g.K, 2), NAN));  // which is not read
  const auto c = add ? t.sum(g.M * g.N, 3) : t.out(g.M * g.N), in_large_tiles = t.again(c);
  std::vector<float> expected = c.kept->start;
  Context cpu(Device::cpu);
  for (size_t e = 0; e < g.E; e++)  // the rows of each expert alone
    matmul(expected.data() + g.begin(e) * g.N, a.ref + g.begin(e) * g.K, b.ref + e * g.N * g.K, g.rows(e), g.N, g.K,
           layout, accumulate, cpu, with_bias ? bias.ref + e * g.N : nullptr);
  grouped_matmul_ref(c.ref, a.ref, b.ref, g.start.data(), g, layout, accumulate, bias.ref);
  REQUIRE_BITWISE(expected, c.values());
  REQUIRE(grouped_matmul_tile(g) == Tile::small);
  t.on_every_device([&](Context& ctx) {
    const Buffer<int> row_start = g.on(ctx);
    grouped_matmul(c, a, b, row_start.data(), g, layout, accumulate, ctx, bias);
    if (ctx.device == Device::cpu)  // which has no tiles
      return grouped_matmul(in_large_tiles, a, b, row_start.data(), g, layout, accumulate, ctx, bias);
    REQUIRE(ctx.most_scratch_used() == grouped_matmul_scratch(g, accumulate));
    grouped_matmul_by_tile(in_large_tiles, a, b, row_start.data(), g, layout, accumulate, Tile::large, ctx, bias);
  });
}

TEST_CASE("grouped_matmul: one product per expert, bit for bit, on every device", "[bitwise]") {
  const auto test = [](const Groups& g) {
    for (Layout layout : {Layout::nt, Layout::nn}) {
      const bool deep = g.K > matmul_slice;  // what happens between slices does not depend on the layout
      if (!deep || layout == Layout::nn) require_products(g, layout, Accumulate::yes, false);
      if (!deep || layout == Layout::nt)
        for (bool with_bias : {false, true}) require_products(g, layout, Accumulate::no, with_bias);
    }
  };
  for_every_case(ragged, test);
  for_every_case(deep, test);
}

TEST_CASE("grouped_matmul: one weight gradient per expert, bit for bit, on every device", "[bitwise]") {
  const auto test = [](const Groups& g) {
    Trial t;
    const auto a = t.random(g.M * g.N, 1), b = t.random(g.M * g.K, 2);
    // An expert without rows keeps what it has: C + 0 would not be C for -0.
    const auto c = t.sum(without_rows(g, random_values<float>(g.E * g.N * g.K, 3), -0.0f)), in_large_tiles = t.again(c);
    auto expected = c.values();
    Context cpu(Device::cpu);
    for (size_t e = 0; e < g.E; e++)
      if (g.rows(e) > 0)
        matmul(&expected[e * g.N * g.K], a.ref + g.begin(e) * g.N, b.ref + g.begin(e) * g.K, g.N, g.K, g.rows(e),
               Layout::tn, Accumulate::yes, cpu);
    grouped_matmul_tn_ref(c.ref, a.ref, b.ref, g.start.data(), g);
    REQUIRE_BITWISE(expected, c.values());
    REQUIRE(grouped_matmul_tn_tile(g) == Tile::small);
    t.on_every_device([&](Context& ctx) {
      const Buffer<int> row_start = g.on(ctx);
      grouped_matmul_tn(c, a, b, row_start.data(), g, ctx);
      if (ctx.device == Device::cpu)  // which has no tiles
        return grouped_matmul_tn(in_large_tiles, a, b, row_start.data(), g, ctx);
      REQUIRE(ctx.most_scratch_used() == (g.K ? grouped_matmul_tn_scratch(g) : 0));
      grouped_matmul_tn_by_tile(in_large_tiles, a, b, row_start.data(), g, Tile::large, ctx);
    });
  };
  for_every_case(ragged, test);
  for_every_case(tall, test);
}

template <class S>
static void require_bias_gradients(const Groups& g) {
  INFO(name_of(storage_of<S>));
  Trial t;
  const auto dy = t.random<S>(g.M * g.N, 1);
  const auto db = t.sum(without_rows(g, random_values<float>(g.E * g.N, 2), -0.0f));
  auto expected = db.values();
  for (size_t e = 0; e < g.E; e++) bias_backward_ref(&expected[e * g.N], dy.ref + g.begin(e) * g.N, g.rows(e), g.N);
  grouped_bias_backward_ref(db.ref, dy.ref, g.start.data(), g.E, g.N);
  REQUIRE_BITWISE(expected, db.values());
  t.on_every_device([&](Context& ctx) {
    const Buffer<int> row_start = g.on(ctx);
    grouped_bias_backward(db, dy, row_start.data(), g.M, g.E, g.N, ctx);
    if (ctx.device != Device::cpu) REQUIRE(ctx.most_scratch_used() == grouped_bias_backward_scratch(g.M, g.E, g.N));
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
  for_every_case(cases, [](const Groups& g) {
    const int* const start = g.start.data();
    Trial t;
    const auto a = t.random(g.M * g.K, 1), b = t.random(g.E * g.N * g.K, 2), dy = t.random(g.M * g.N, 3),
               nt = t.out(g.M * g.N), nn = t.out(g.M * g.N), dw = t.sum(b.values());
    grouped_matmul_ref(nt.ref, a.ref, b.ref, start, g, Layout::nt, Accumulate::no);
    grouped_matmul_ref(nn.ref, a.ref, b.ref, start, g, Layout::nn, Accumulate::no);
    grouped_matmul_tn_ref(dw.ref, dy.ref, a.ref, start, g);
    for (int threads : {1, 2, 3, 8}) {
      const Threads of_the_cpu(threads);
      Context cpu(Device::cpu);
      t.on(cpu, [&](Context& ctx) {
        grouped_matmul(nt, a, b, start, g, Layout::nt, Accumulate::no, ctx);
        grouped_matmul(nn, a, b, start, g, Layout::nn, Accumulate::no, ctx);
        grouped_matmul_tn(dw, dy, a, start, g, ctx);
      });
    }
  });
}

TEST_CASE("grouped_matmul: matrices may begin anywhere", "[bitwise]") {
  const Groups g({{5, 0, 70, 3}, 24, 28});  // whole quads, but the first is not on a multiple of 16 bytes
  Trial t;
  const auto a = t.random(g.M * g.K, 1), b = t.random(g.E * g.N * g.K, 2), dy = t.random(g.M * g.N, 3),
             c = t.sum(g.M * g.N, 3), dw = t.sum(g.E * g.N * g.K, 2);
  grouped_matmul_ref(c.ref, a.ref, b.ref, g.start.data(), g, Layout::nt, Accumulate::yes);
  grouped_matmul_tn_ref(dw.ref, dy.ref, a.ref, g.start.data(), g);
  for (const auto& array : {a, b, dy, c, dw}) array.widen(1, array.values().size() + 1, 1);
  t.on_both_devices([&](Context& ctx) {
    const Buffer<int> row_start = g.on(ctx);
    grouped_matmul_tn(dw, dy, a, row_start.data(), g, ctx);
    grouped_matmul(c, a, b, row_start.data(), g, Layout::nt, Accumulate::yes, ctx);
  });
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
  const auto multiply = [&](Context& ctx, size_t M, size_t E, const std::vector<int>& start, Layout layout = Layout::nt,
                            Accumulate accumulate = Accumulate::no, const float* bias = nullptr) {
    return refusal([&] {
      grouped_matmul(p, p + 16, p + 32, start.data(), {M, E, 2, 2}, layout, accumulate, ctx, bias);
    });
  };
  REQUIRE(multiply(cpu, 2, 2, start, Layout::nt, Accumulate::no, p + 48) == "");
  REQUIRE(multiply(cpu, 2, 2, start, Layout::nt, Accumulate::yes, p + 48) ==
          "grouped_matmul: a bias is for a product that is written, not accumulated");
  REQUIRE(multiply(cpu, 2, 2, start, Layout::tn, Accumulate::yes) ==
          "grouped_matmul: expected layout nt or nn; grouped_matmul_tn() is the weight gradient");
  REQUIRE(multiply(kernels, 2, 0, start) == "grouped_matmul: no experts, expected at least one");
  REQUIRE(multiply(kernels, 2147483648, 2, start) ==
          "grouped_matmul: 2147483648 rows are more than an int counts (2147483647): use a smaller batch");
  REQUIRE(multiply(cpu, 3, 2, start) == "grouped_matmul: row_start goes from 0 to 2, expected 0 to 3");
  REQUIRE(multiply(cpu, 2, 2, {0, 3, 2}) ==
          "grouped_matmul: row_start[1] is 3 and row_start[2] is 2, expected no less");
  REQUIRE(refusal([&] {
            grouped_matmul_tn(p, p, p, start.data(), {3, 2, 2, 2}, cpu);
          }) == "grouped_matmul_tn: row_start goes from 0 to 2, expected 0 to 3");
  REQUIRE(refusal([&] { grouped_bias_backward(p, p, start.data(), 3, 2, 2, cpu); }) ==
          "grouped_bias_backward: row_start goes from 0 to 2, expected 0 to 3");
  REQUIRE(refusal([&] { grouped_matmul_tn(p, p, p, start.data(), {3, 65536, 2, 2}, kernels); }) != "");
  REQUIRE(refusal([&] { grouped_bias_backward(p, p, start.data(), 2, 2, 1 << 23, kernels); }) ==
          "grouped_bias_backward: 8388608 columns are too many for a grid");
}
