// grouped_matmul_bf16: the bits of one product of bf16 matrices per expert, however many rows each has.
#include "kernels/bf16/grouped_matmul_bf16.h"
#include "kernels/bf16/matmul_wgmma.h"

#include "kernels/glu.h"
#include "tests/grouped_cases.h"

using namespace gated;

namespace {

const GroupedCase ragged[] = {
    {{0, 1, 63, 65, 0}, 40, 48},  // nobody, one row, around half of a tile
    {{5, 4, 0, 8}, 33, 17},       // lines off the 16-byte boundaries
    {{2, 200, 0, 3}, 136, 24},    // most rows to one expert: two tiles of rows, and two of columns
    {{1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, 24, 8},
    {{0, 0, 3}, 1, 1},
    {{2, 3}, 6, 0},
};

// By wgmma, in pieces of 256 rows: pieces that end in either of their tiles, nobody, two tiles of columns that end
// inside, k that ends inside a strip, with NaN behind it; two slices.
const GroupedCase wide[] = {{{300, 0, 90}, 264, 128}, {{1, 256, 130, 0, 257}, 24, 72}, {{260}, 24, 4096 + 64}};

// Several slices of K, and several of an expert's rows: with as many experts as may have them, and with more; three, by
// wgmma.
const GroupedCase deep[] = {{{3, 0, 1}, 9, 4096 + 24}};
const GroupedCase tall[] = {{{4097, 0, 4100}, 16, 8}, {{8200}, 16, 8}, {{4100}, 5, 3}};

void require_products(const Groups& g, Layout layout, Accumulate accumulate, MmaArithmetic arithmetic) {
  const bool add = accumulate == Accumulate::yes;
  INFO((layout == Layout::nt ? "nt" : "nn") << (add ? " +=, " : " =, ") << name_of(arithmetic));
  const bool biased = !add && layout == Layout::nt;
  Trial t;
  const auto a = t.random<bf16>(g.M * g.K, 1),  // what belongs to an expert without rows is not read
      b = t.in<bf16>(without_rows(g, random_values<float>(g.E * g.N * g.K, 2), NAN)),
             c = add ? t.sum<bf16>(g.M * g.N, 3) : t.out<bf16>(g.M * g.N);
  const auto bias = biased ? t.random(g.E * g.N, 4) : Array<float>();
  t.reference([&] {  // the rows of each expert alone
    Context cpu(Device::cpu);
    cpu.use_mma(arithmetic);
    for (size_t e = 0; e < g.E; e++)
      matmul_bf16(c + g.begin(e) * g.N, a + g.begin(e) * g.K, b + e * g.N * g.K, g.rows(e), g.N, g.K, layout,
                  accumulate, cpu, biased ? bias + e * g.N : nullptr);
  });
  const std::vector<float> expected = c.values();
  t.reference([&] { grouped_matmul_bf16_ref(c, a, b, g.start.data(), g, layout, accumulate, arithmetic, bias); });
  REQUIRE_BITWISE(expected, c.values());
  Array<bf16> gate, y, product;  // SiLU of a gate, times the product
  if (biased) {
    gate = t.random<bf16>(g.M * g.N, 3), y = t.out<bf16>(g.M * g.N), product = t.again(c);
    for (size_t i = 0; i < g.M * g.N; i++) y.ref[i] = activation_value(Activation::silu, gate.ref[i]) * expected[i];
  }
  t.on_every_device(arithmetic, [&](Context& ctx) {
    const Buffer<int> row_start = g.on(ctx);
    grouped_matmul_bf16(c, a, b, row_start.data(), g, layout, accumulate, ctx, bias);
    if (biased)
      grouped_matmul_bf16(product, a, b, row_start.data(), g, layout, accumulate, ctx, bias,
                          {y, gate, Activation::silu});
    REQUIRE(ctx.most_scratch_used() <= grouped_matmul_bf16_scratch(g, ctx.device));
    if (ctx.device != Device::cpu) REQUIRE(ctx.most_scratch_used() == grouped_matmul_bf16_scratch(g, ctx.device));
  });
}

void require_weight_gradients(const Groups& g, MmaArithmetic arithmetic) {
  INFO(name_of(arithmetic));
  Trial t;
  const auto a = t.random<bf16>(g.M * g.N, 1), b = t.random<bf16>(g.M * g.K, 2);
  // An expert without rows keeps what it has: C + 0 would not be C for -0.
  const auto c = t.sum(without_rows(g, random_values<float>(g.E * g.N * g.K, 3), -0.0f));
  t.reference([&] {
    Context cpu(Device::cpu);
    cpu.use_mma(arithmetic);
    for (size_t e = 0; e < g.E; e++)
      if (g.rows(e) > 0)
        matmul_bf16(c + e * g.N * g.K, a + g.begin(e) * g.N, b + g.begin(e) * g.K, g.N, g.K, g.rows(e), Layout::tn,
                    Accumulate::yes, cpu);
  });
  const std::vector<float> expected = c.values();
  t.reference([&] { grouped_matmul_bf16_tn_ref(+c, +a, +b, g.start.data(), g, arithmetic); });
  REQUIRE_BITWISE(expected, c.values());
  t.on_every_device(arithmetic, [&](Context& ctx) {
    const Buffer<int> row_start = g.on(ctx);
    grouped_matmul_bf16_tn(c, a, b, row_start.data(), g, ctx);
    REQUIRE(ctx.most_scratch_used() <= grouped_matmul_bf16_tn_scratch(g, ctx.device));
    if (ctx.device != Device::cpu)
      REQUIRE(ctx.most_scratch_used() == (g.K ? grouped_matmul_bf16_tn_scratch(g, ctx.device) : 0));
  });
}

// Two products of each expert's rows that are one sum.
void require_joined(const Groups& g, size_t second_K) {
  Trial t;
  const auto a0 = t.random<bf16>(g.M * g.K, 1), a1 = t.random<bf16>(g.M * second_K, 2),
             b0 = t.in<bf16>(without_rows(g, random_values<float>(g.E * g.N * g.K, 3), NAN)),
             b1 = t.in<bf16>(without_rows(g, random_values<float>(g.E * g.N * second_K, 4), NAN)),
             c = t.sum<bf16>(g.M * g.N, 5), gate = t.random<bf16>(g.M * g.N, 6), u = t.random<bf16>(g.M * g.N, 7),
             dy = t.out<bf16>(g.M * g.N), dg = t.out<bf16>(g.M * g.N), du = t.out<bf16>(g.M * g.N);
  t.reference([&] {
    for (size_t e = 0; e < g.E; e++) {
      const size_t row = g.begin(e), rows = g.rows(e);
      const MmaFactors factors[] = {{{a0 + row * g.K, g.K}, {b0 + e * g.N * g.K, g.N}, g.K},
                                    {{a1 + row * second_K, second_K}, {b1 + e * g.N * second_K, g.N}, second_K}};
      if (rows) matmul_bf16_joined_ref(c + row * g.N, factors, rows, g.N, Accumulate::yes, usual_mma());
      if (rows) matmul_bf16_joined_ref(dy + row * g.N, factors, rows, g.N, Accumulate::no, usual_mma());
    }
  });
  glu_backward_ref(dg.ref, du.ref, dy.ref, gate.ref, u.ref, g.M * g.N, Activation::silu);
  t.on_every_device([&](Context& ctx) {
    const Buffer<int> row_start = g.on(ctx);
    const MmaFactors factors[] = {{{a0, g.K}, {b0, g.N}, g.K}, {{a1, second_K}, {b1, g.N}, second_K}};
    grouped_matmul_bf16_joined(c, factors, row_start.data(), g, Accumulate::yes, ctx);
    grouped_matmul_bf16_joined(dy, factors, row_start.data(), g, Accumulate::no, ctx);
    grouped_matmul_bf16_joined(du, factors, row_start.data(), g, Accumulate::no, ctx,
                               {nullptr, gate, Activation::silu, u, dg});
    REQUIRE(ctx.most_scratch_used() <= grouped_matmul_bf16_scratch({g.M, g.E, g.N, joined_depth(factors)}, ctx.device));
  });
}

}  // namespace

TEST_CASE("grouped_matmul_bf16: two products of an expert are one sum, bit for bit, on every device", "[bitwise]") {
  require_joined(Groups(ragged[0]), 40);
  require_joined(Groups(ragged[1]), 5);
  require_joined(Groups(deep[0]), 24);
}

TEST_CASE("grouped_matmul_bf16: one product per expert, bit for bit, on every device", "[bitwise]") {
  for_every_case(ragged, [](const Groups& g) {
    for (Layout layout : {Layout::nt, Layout::nn}) {
      require_products(g, layout, Accumulate::no, usual_mma());
      if (g.N < 100) require_products(g, layout, Accumulate::yes, usual_mma());
    }
  });
  for_every_case(deep, [](const Groups& g) {
    require_products(g, Layout::nt, Accumulate::no, usual_mma());
    require_products(g, Layout::nn, Accumulate::yes, usual_mma());
  });
  require_products(Groups(ragged[1]), Layout::nt, Accumulate::no, MmaArithmetic::ampere);
}

TEST_CASE("grouped_matmul_bf16: one product per expert by wgmma, bit for bit", "[bitwise]") {
  const SharedLimit hopper(shared_limit_sm_90);
  for_every_case(wide, [](const Groups& g) {
    require_products(g, Layout::nt, Accumulate::no, MmaArithmetic::hopper);
    require_products(g, Layout::nn, Accumulate::yes, MmaArithmetic::hopper);
  });
  for_every_case(wide, [](const Groups& g) { require_weight_gradients(g, MmaArithmetic::hopper); });
  for_every_case(tall, [](const Groups& g) { require_weight_gradients(g, MmaArithmetic::hopper); });
  require_joined(Groups(wide[0]), 64);
  require_joined(Groups(wide[1]), 40);
  require_joined(Groups(wide[2]), 40);
}

TEST_CASE("grouped_matmul_bf16: one weight gradient per expert, bit for bit, on every device", "[bitwise]") {
  for_every_case(ragged, [](const Groups& g) { require_weight_gradients(g, usual_mma()); });
  for_every_case(tall, [](const Groups& g) { require_weight_gradients(g, usual_mma()); });
  require_weight_gradients(Groups(ragged[1]), MmaArithmetic::ampere);
}

TEST_CASE("grouped_matmul_bf16: a NaN stays with its expert", "[bitwise]") {
  const SharedLimit hopper(shared_limit_sm_90);
  const Groups g(GENERATE(GroupedCase{{5, 7, 3}, 8, 16}, GroupedCase{{130, 150, 140}, 8, 16}));  // (by wgmma)
  auto x = random_values<float>(g.M * g.K, 1), dy = random_values<float>(g.M * g.N, 2);
  const auto w = random_values<float>(g.E * g.N * g.K, 3);
  std::fill_n(x.begin() + ptrdiff_t(g.begin(1) * g.K), g.rows(1) * g.K, NAN);
  std::fill_n(dy.begin() + ptrdiff_t(g.begin(1) * g.N), g.rows(1) * g.N, NAN);
  on_every_device([&](Context& ctx) {
    const Buffer<int> row_start = g.on(ctx);
    const GuardedOf<bf16> gx(ctx, x), gdy(ctx, dy), gw(ctx, w), gy(ctx, g.M * g.N);
    const Guarded gdw(ctx, std::vector<float>(w.size(), 1.0f));
    grouped_matmul_bf16(gy, gx, gw, row_start.data(), g, Layout::nt, Accumulate::no, ctx);
    grouped_matmul_bf16_tn(gdw, gdy, gx, row_start.data(), g, ctx);
    const std::vector<float> y = gy.download(), dw = gdw.download();
    for (size_t i = 0; i < y.size(); i++) REQUIRE(std::isnan(y[i]) == (i / g.N >= g.begin(1) && i / g.N < g.begin(2)));
    for (size_t i = 0; i < dw.size(); i++) REQUIRE(std::isnan(dw[i]) == (i / (g.N * g.K) == 1));
  });
}

TEST_CASE("grouped_matmul_bf16: there is scratch for the experts that can have more rows than a slice", "[bitwise]") {
  REQUIRE(grouped_matmul_bf16_scratch({100, 4, 5, 4096}, kernel_device) == 0);
  REQUIRE(grouped_matmul_bf16_scratch({100, 4, 5, 4097}, kernel_device) == matmul_wgmma_totals() * sizeof(float));
  constexpr size_t tile = 128 * 128 * sizeof(float);
  REQUIRE(grouped_matmul_bf16_scratch({10000, 4, 5000, 4097}, kernel_device) == (78 + 4) * 40 * tile);
  REQUIRE(grouped_matmul_bf16_tn_scratch({4096, 4, 5000, 6000}, kernel_device) == 0);
  REQUIRE(grouped_matmul_bf16_tn_scratch({2 * 4097 - 1, 4, 5000, 6000}, kernel_device) == 1 * 40 * 47 * tile);
  REQUIRE(grouped_matmul_bf16_tn_scratch({2 * 4097, 4, 5000, 6000}, kernel_device) == 2 * 40 * 47 * tile);
  REQUIRE(grouped_matmul_bf16_tn_scratch({100000, 4, 5000, 6000}, kernel_device) == 4 * 40 * 47 * tile);
}

TEST_CASE("grouped_matmul_bf16: what cannot be is refused", "[bitwise]") {
  Context cpu(Device::cpu), kernels(kernel_device);
  std::vector<bf16> x(64);
  std::vector<float> f(64);
  bf16* p = x.data();
  const std::vector<int> start = {0, 1, 2};
  const auto multiply = [&](const GroupedShape& s, Layout layout, Accumulate accumulate, Context& ctx,
                            const float* bias) {
    grouped_matmul_bf16(p, p + 16, p + 32, start.data(), s, layout, accumulate, ctx, bias);
  };
  const GroupedShape s = {2, 2, 2, 2};
  REQUIRE_NOTHROW(multiply(s, Layout::nt, Accumulate::no, cpu, f.data()));
  REQUIRE_THROWS_WITH(multiply(s, Layout::nt, Accumulate::yes, cpu, f.data()),
                      "grouped_matmul_bf16: a bias is for a product that is written in layout nt, not accumulated");
  REQUIRE_THROWS_WITH(multiply(s, Layout::tn, Accumulate::yes, cpu, nullptr),
                      "grouped_matmul_bf16: expected layout nt or nn; grouped_matmul_bf16_tn() is the weight gradient");
  REQUIRE_THROWS_WITH(multiply({3, 2, 2, 2}, Layout::nt, Accumulate::no, cpu, nullptr),
                      "grouped_matmul_bf16: row_start goes from 0 to 2, expected 0 to 3");
  REQUIRE_THROWS_WITH(grouped_matmul_bf16_tn(f.data(), p, p, start.data(), {3, 2, 2, 2}, cpu),
                      "grouped_matmul_bf16_tn: row_start goes from 0 to 2, expected 0 to 3");
  REQUIRE_THROWS_AS(grouped_matmul_bf16_tn(f.data(), p, p, start.data(), {2, 65536, 2, 2}, kernels), Error);
}
