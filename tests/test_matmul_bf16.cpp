// matmul_bf16: the reference against sums in double and against the instruction by hand; the CPU's code and the kernel
// against the reference, bit for bit.
#include "kernels/bf16/matmul_bf16.h"

#include <algorithm>

#include "kernels/bf16/matmul_wgmma.h"
#include "kernels/activation.h"
#include "kernels/bias.h"
#include "kernels/glu.h"
#include "tests/cublas.h"
#include "tests/harness.h"

using namespace gated;

// Of 132 multiprocessors: the head's dh would leave 36 idle, weight gradients would take a second wave for 12 tiles.
static_assert(matmul_wgmma_columns(4096, 768, 1, 132) == 192 && matmul_wgmma_columns(768, 768, 8, 132) == 192);
static_assert(matmul_wgmma_columns(32768, 3072, 1, 132) == 256 && matmul_wgmma_columns(16896, 256, 1, 132) == 256);

namespace {

constexpr Layout layouts[] = {Layout::nt, Layout::nn, Layout::tn};

struct Product {
  size_t M, N, K;
  Layout layout;
  std::vector<bf16> A = rounded(random_values<float>(M * K, 1)), B = rounded(random_values<float>(N * K, 2));
  std::vector<float> C = random_values<float>(M * N, 3), bias = random_values<float>(N, 4);

  // C + product in double; or |C| + the sums of the products' absolute values, which every rounding is a share of.
  std::vector<double> exact(std::vector<double> sums, bool absolute = false) const {
    for (size_t m = 0; m < M; m++)
      for (size_t n = 0; n < N; n++) {
        double& sum = sums[m * N + n];
        if (absolute) sum = std::fabs(sum);
        for (size_t k = 0; k < K; k++) {
          const double product = double(float(A[layout == Layout::tn ? k * M + m : m * K + k])) *
                                 double(float(B[layout == Layout::nt ? n * K + k : k * N + n]));
          sum += absolute ? std::fabs(product) : product;
        }
      }
    return sums;
  }
  // C is of Out, float or bf16.
  template <class Out = float>
  std::vector<float> expected(Accumulate accumulate, MmaArithmetic arithmetic, bool with_bias = false) const {
    std::vector<Out> c(C.begin(), C.end());
    matmul_bf16_ref(c.data(), A.data(), B.data(), M, N, K, layout, accumulate, arithmetic,
                    with_bias ? bias.data() : nullptr);
    return std::vector<float>(c.begin(), c.end());
  }
  template <class Out = float>
  std::vector<float> got(Accumulate accumulate, Context& ctx, bool with_bias = false) const {
    const Buffer<bf16> a(ctx.device, A), b(ctx.device, B);
    const GuardedOf<Out> c(ctx, C);
    const Guarded added(ctx, bias);
    matmul_bf16(c, a.data(), b.data(), M, N, K, layout, accumulate, ctx, with_bias ? (float*)added : nullptr);
    return c.download();
  }
};

struct Size {
  size_t M, N, K;
};

// Random factors of several products that are one sum.
struct Joined : Trial {
  const size_t M, N;
  const std::vector<size_t> depths;
  std::vector<Array<bf16>> A, B;
  Joined(size_t M, size_t N, const std::vector<size_t>& depths) : M(M), N(N), depths(depths) {
    for (size_t K : depths) {
      A.push_back(random<bf16>(M * K, 10 + A.size()));
      B.push_back(random<bf16>(K * N, 20 + B.size()));
    }
  }
  std::vector<MmaFactors> factors() const {
    std::vector<MmaFactors> all;
    for (size_t i = 0; i < depths.size(); i++) all.push_back({{A[i], depths[i]}, {B[i], N}, depths[i]});
    return all;
  }
};

}  // namespace

TEST_CASE("matmul_bf16: the reference is the product", "[matmul_bf16]") {
  for (Layout layout : layouts) {
    const Product p{5, 7, 200, layout};
    const std::vector<float> got = p.expected(Accumulate::yes, MmaArithmetic::hopper);
    REQUIRE(relative_error(p.exact(std::vector<double>(p.C.begin(), p.C.end())),
                           std::vector<double>(got.begin(), got.end())) < 1e-6);
  }
  // Slices of 4096: a 1 in the first, 2^-24 in the second and the third. In one chain, or with the last two added
  // first, the total would be more than 1.
  std::vector<bf16> a(3 * matmul_bf16_slice, bf16()), b(a.size(), bf16(1));
  a[0] = bf16(1);
  a[matmul_bf16_slice] = a[2 * matmul_bf16_slice] = bf16(std::ldexp(1.0f, -24));
  float c = NAN;
  matmul_bf16_ref(&c, a.data(), b.data(), 1, 1, a.size(), Layout::nt, Accumulate::no, MmaArithmetic::hopper, nullptr);
  REQUIRE(c == 1);
}

TEST_CASE("matmul_bf16: the CPU's code and the kernel have the bits of the reference", "[matmul_bf16][bitwise]") {
  // Two tiles with tails on every side; more strips than stages; lines off the 16-byte boundaries; nothing at all;
  // three slices of k: in nt one block goes through them; in tn they go side by side, and their totals are in scratch.
  const size_t slices = 2 * matmul_bf16_slice + 24;
  for (const Size s : {Size{136, 40, 40}, {16, 32, 136}, {31, 130, 33}, {1, 1, 1}, {3, 5, 0}, {3, 9, slices}})
    for (Layout layout : layouts) {
      INFO(s.M << " x " << s.N << " x " << s.K << ", layout " << int(layout));
      const Product p{s.M, s.N, s.K, layout};
      for (MmaArithmetic arithmetic : {MmaArithmetic::hopper, MmaArithmetic::ampere}) {
        if (arithmetic != usual_mma() && (s.M > 16 || s.K == slices)) continue;
        const std::vector<float> expected = p.expected(Accumulate::no, arithmetic, true);
        const std::vector<float> added = p.expected(Accumulate::yes, arithmetic);
        const std::vector<float> rounded = p.expected<bf16>(Accumulate::no, arithmetic, true);
        const std::vector<float> added_rounded = p.expected<bf16>(Accumulate::yes, arithmetic);
        on_every_device([&](Context& ctx) {
          if (!multiplies_as(ctx, arithmetic)) return;
          REQUIRE_BITWISE(expected, p.got(Accumulate::no, ctx, true));
          const size_t scratch = matmul_bf16_scratch(s.M, s.N, s.K, layout, ctx.device);
          REQUIRE(ctx.most_scratch_used() == scratch);
          if (s.K == slices && layout != Layout::nn && ctx.device != Device::cpu)
            REQUIRE(scratch == (layout == Layout::tn ? 3 * s.M * 12 : matmul_wgmma_totals()) * sizeof(float));
          if (s.M > 31) return;
          REQUIRE_BITWISE(added, p.got(Accumulate::yes, ctx));
          REQUIRE_BITWISE(rounded, p.got<bf16>(Accumulate::no, ctx, true));
          REQUIRE_BITWISE(added_rounded, p.got<bf16>(Accumulate::yes, ctx));
        });
      }
    }
}

TEST_CASE("matmul_bf16: matrices inside wider rows, of which the rest is neither read nor written",
          "[matmul_bf16][bitwise]") {
  // Rows `more` elements longer, which are NaN. With 11 and 3 more, lines begin on 16 bytes and end inside a chunk.
  const size_t M = 13, N = 21, K = 45;
  for (Layout layout : layouts)
    for (bool aligned : {false, true}) {
      INFO("layout " << int(layout) << ", aligned " << aligned);
      const Product p{M, N, K, layout};
      const size_t a = packed_lda(M, K, layout), b = packed_ldb(N, K, layout);
      const size_t lda = aligned ? 64 : a + 2, ldb = aligned ? 64 : b + 4, ldc = N + 5;
      Trial t;
      const auto A = t.in<bf16>(widened(p.A)), B = t.in<bf16>(widened(p.B));
      const auto bias = t.in(p.bias), C = t.expect(p.expected(Accumulate::no, usual_mma(), true));
      A.widen(M * K / a, lda, 0), B.widen(N * K / b, ldb, 0), C.widen(M, ldc, 0);
      t.on_every_device([&](Context& ctx) {
        matmul_bf16({C, ldc}, {A, lda}, {B, ldb}, M, N, K, layout, Accumulate::no, ctx, bias);
      });
    }
}

TEST_CASE("matmul_bf16: several products are one sum, rounded once", "[matmul_bf16][bitwise]") {
  struct Case {
    size_t M, N;
    std::vector<size_t> depths;
  };
  // Two tiles; depths that end inside a strip and inside an instruction; lines off the 16-byte boundaries, of one or
  // all of them; as many as there may be, and one; more than a slice, which ends inside the second.
  for (const Case& c : {Case{136, 24, {40, 64, 8}},
                        {13, 21, {33, 7, 50}},
                        {5, 16, {16, 3, 32}},
                        {3, 8, {8, 16, 24, 32, 40, 48}},
                        {9, 5, {17}},
                        {3, 8, {matmul_bf16_slice - 8, 24, 40}}}) {
    INFO(c.M << " x " << c.N << ", " << c.depths.size() << " products, the first of depth " << c.depths[0]);
    Joined t(c.M, c.N, c.depths);
    const auto written = t.out<bf16>(c.M * c.N), added = t.sum<bf16>(c.M * c.N, 3);
    const auto floats = t.out(c.M * c.N);
    t.reference([&] {
      matmul_bf16_joined_ref(+written, t.factors(), c.M, c.N, Accumulate::no, usual_mma());
      matmul_bf16_joined_ref(+floats, t.factors(), c.M, c.N, Accumulate::no, usual_mma());
      matmul_bf16_joined_ref(+added, t.factors(), c.M, c.N, Accumulate::yes, usual_mma());
    });
    t.on_every_device([&](Context& ctx) {
      const std::vector<MmaFactors> factors = t.factors();
      const size_t scratch = matmul_bf16_scratch(c.M, c.N, joined_depth(factors), Layout::nn, ctx.device);
      for (Reals C : {Reals(written), Reals(floats), Reals(added)})
        matmul_bf16_joined(C, factors, c.M, c.N, C == Reals(added) ? Accumulate::yes : Accumulate::no, ctx);
      REQUIRE(ctx.most_scratch_used() == scratch);
    });
  }
  // 2^8 + 1 + 1: rounded after each product, the ones are lost.
  const bf16 large[2] = {bf16(256), bf16(1)};
  const MmaFactors one = {{large + 1, 1}, {large + 1, 1}, 1}, factors[] = {{{large, 1}, {large + 1, 1}, 1}, one, one};
  bf16 c;
  Context cpu(Device::cpu);
  matmul_bf16_joined(&c, factors, 1, 1, Accumulate::no, cpu);
  REQUIRE(float(c) == 258);
  REQUIRE_THROWS_WITH(matmul_bf16_joined(&c, std::vector<MmaFactors>(7, one), 1, 1, Accumulate::no, cpu),
                      "matmul_bf16_joined: 7 products, expected 1 to 6");
}

TEST_CASE("matmul_bf16: an activation and its backward in a product's end have the bits of those after it",
          "[matmul_bf16][bitwise]") {
  struct Case {
    Size size;
    Activation act;
    bool gate, bias;
  };
  // Two tiles, the second with 97 rows, which ends in each half that is laid down; rows off their boundaries; two
  // slices; a product over nothing.
  for (const Case& c : {Case{{225, 40, 24}, Activation::silu, true, false},
                        {{31, 130, 33}, Activation::gelu_tanh, false, true},
                        {{5, 12, matmul_bf16_slice + 24}, Activation::relu2, false, false},
                        {{3, 5, 0}, Activation::sigmoid, true, true}}) {
    INFO(c.size.M << " x " << c.size.N << " x " << c.size.K << ", " << name_of(c.act));
    const Product p{c.size.M, c.size.N, c.size.K, Layout::nt}, q{p.M, p.N, p.K, Layout::nn};
    const std::vector<float> product = p.expected<bf16>(Accumulate::no, usual_mma(), c.bias);
    Trial t;
    const auto dA = t.in<bf16>(widened(q.A)), dB = t.in<bf16>(widened(q.B)),
               u = t.random<bf16>(product.size(), 6, c.gate ? 3e38f : 1);  // (dy*u is often infinite)
    const auto A = t.in<bf16>(widened(p.A)), B = t.in<bf16>(widened(p.B)), C = t.expect<bf16>(product),
               g = t.random<bf16>(product.size(), 5), y = t.out<bf16>(product.size());
    const auto bias = c.bias ? t.in(p.bias) : Array<float>();
    for (size_t i = 0; i < product.size(); i++)
      y.ref[i] = c.gate ? activation_value(c.act, g.ref[i]) * product[i] : activation_value(c.act, product[i]);
    const auto du = t.out<bf16>(product.size()), dg = c.gate ? t.out<bf16>(product.size()) : Array<bf16>();
    const std::vector<float> dy = q.expected<bf16>(Accumulate::no, usual_mma());
    if (c.gate)
      glu_backward_ref(dg.ref, du.ref, dy.data(), g.ref, u.ref, dy.size(), c.act);
    else
      activation_backward_ref(du.ref, dy.data(), u.ref, dy.size(), c.act);
    t.on_every_device([&](Context& ctx) {
      matmul_bf16(C, A, B, p.M, p.N, p.K, Layout::nt, Accumulate::no, ctx, bias, {y, c.gate ? +g : nullptr, c.act});
      matmul_bf16(du, dA, dB, p.M, p.N, p.K, Layout::nn, Accumulate::no, ctx, nullptr,
                  {nullptr, c.gate ? +g : nullptr, c.act, u, dg});
    });
  }
}

TEST_CASE("matmul_bf16: wgmma has the bits of the reference", "[matmul_bf16][bitwise]") {
  const SharedLimit of_an_h100(shared_limit_sm_90);
  // Two tiles both ways, with tails; more strips than stages, the last one half empty, and on a stand-in more tiles
  // than multiprocessors; two slices; less than one step.
  for (const Size s : {Size{136, 264, 88}, {520, 40, 4 * 64 + 24}, {8, 24, matmul_bf16_slice + 72}, {8, 8, 8}})
    for (int i = 0; i < 6; i++) {
      const Layout layout = layouts[i / 2];
      const int columns = i % 2 ? 192 : 256;
      INFO(s.M << " x " << s.N << " x " << s.K << ", layout " << int(layout));
      const Product p{s.M, s.N, s.K, layout};
      const std::vector<float> product = p.expected<bf16>(Accumulate::no, MmaArithmetic::hopper);
      const bool activated = layout == Layout::nt, gradient = layout == Layout::nn;
      Trial t;
      const auto A = t.in<bf16>(widened(p.A)), B = t.in<bf16>(widened(p.B)), C = t.expect<bf16>(product),
                 gate = t.random<bf16>(product.size(), 5), y = activated ? t.out<bf16>(product.size()) : Array<bf16>(),
                 u = t.random<bf16>(product.size(), 6), du = gradient ? t.out<bf16>(product.size()) : Array<bf16>(),
                 dg = gradient && columns == 256 ? t.out<bf16>(product.size()) : Array<bf16>();
      const auto bias = t.in(p.bias), added = t.sum(p.C, p.expected(Accumulate::yes, MmaArithmetic::hopper)),
                 added_by_any = t.again(added),
                 written = t.expect(p.expected(Accumulate::no, MmaArithmetic::hopper, true));
      for (size_t j = 0; j < product.size() && activated; j++)
        y.ref[j] = activation_value(Activation::silu, gate.ref[j]) * product[j];
      if (dg.ref)
        glu_backward_ref(dg.ref, du.ref, product.data(), gate.ref, u.ref, product.size(), Activation::silu);
      else if (du.ref)
        activation_backward_ref(du.ref, product.data(), u.ref, product.size(), Activation::gelu_tanh);
      on_every_device([&](Context& ctx) {
        if (ctx.device == Device::cpu || !multiplies_as(ctx, MmaArithmetic::hopper)) return;
        t.on(ctx, [&](Context& ctx) {
          const Guarded totals(ctx, matmul_wgmma_totals());
          const auto multiply = [&]<class Out>(Out* C, size_t more, Accumulate accumulate, const float* with,
                                               Activated to = {}) {
            const MmaFactors factors[] = {
                {{A, packed_lda(s.M, s.K, layout) + more}, {B, packed_ldb(s.N, s.K, layout)}, s.K}};
            return matmul_wgmma(Matrix<Out>{C, s.N}, factors, s.M, s.N, layout, accumulate, totals, with, to, ctx,
                                columns);
          };
          REQUIRE(multiply(+added, 0, Accumulate::yes, nullptr));
          REQUIRE(multiply(+written, 0, Accumulate::no, bias));
          REQUIRE(
              multiply(+C, 0, Accumulate::no, nullptr, activated ? Activated{y, gate, Activation::silu} : Activated{}));
          if (dg.ref)
            REQUIRE(multiply(+du, 0, Accumulate::no, nullptr, {nullptr, gate, Activation::silu, u, dg}));
          else if (du.ref)
            REQUIRE(multiply(+du, 0, Accumulate::no, nullptr, {nullptr, nullptr, Activation::gelu_tanh, u}));
          // matmul_bf16() takes it where it fills the device.
          matmul_bf16(added_by_any, A, B, s.M, s.N, s.K, layout, Accumulate::yes, ctx);
          // Rows off their boundaries, and a device without the shared memory, are left to others.
          REQUIRE_FALSE(multiply(+added, 4, Accumulate::no, nullptr));
#ifndef __CUDACC__
          const SharedLimit of_an_a100(shared_limit_sm_80);
          REQUIRE_FALSE(multiply(+added, 0, Accumulate::no, nullptr));
#endif
        });
      });
    }
}

TEST_CASE("matmul_bf16: several products by wgmma have the bits of the reference", "[matmul_bf16][bitwise]") {
  const SharedLimit of_an_h100(shared_limit_sm_90);
  struct Case {
    std::vector<size_t> depths;
    bool is_taken;
  };
  // Whole strips; ends inside a strip, which two products then do not share; two slices, with such ends in the last,
  // before the cut, and where they would move it; and as many strips as a slice has, and one.
  for (const Case& c : {Case{{128, 64, 192}, true},
                        {{72, 24, 8, 40, 16, 8}, true},
                        {{matmul_bf16_slice - 8, 24, 40}, true},
                        {{64, matmul_bf16_slice - 64, 8, 8}, true},
                        {{matmul_bf16_slice + 24, 40}, true},
                        {{96, matmul_bf16_slice}, false},
                        {{matmul_bf16_slice - 56, 8, 40}, false},
                        {{24, matmul_bf16_slice - 56}, false}}) {
    const size_t M = 136, N = 264;
    INFO(c.depths.size() << " products, the first of depth " << c.depths[0]);
    Joined t(M, N, c.depths);
    // What is not taken is not written.
    const auto wide = c.is_taken ? t.out(M * N) : t.random(M * N, 1), narrow = c.is_taken ? t.again(wide) : wide;
    t.reference([&] {
      if (c.is_taken) matmul_bf16_joined_ref(+wide, t.factors(), M, N, Accumulate::no, MmaArithmetic::hopper);
    });
    on_every_device([&](Context& ctx) {
      if (ctx.device == Device::cpu || !multiplies_as(ctx, MmaArithmetic::hopper)) return;
      t.on(ctx, [&](Context& ctx) {
        const Guarded totals(ctx, matmul_wgmma_totals());
        for (const auto& [C, columns] : {std::pair(wide, 256), {narrow, 192}})
          REQUIRE(c.is_taken == matmul_wgmma(Matrix<float>{C, N}, t.factors(), M, N, Layout::nn, Accumulate::no, totals,
                                             nullptr, {}, ctx, columns));
      });
    });
  }
}

TEST_CASE("matmul_bf16: the gradients of a linear layer have the bits of the product and of the bias's", "[bitwise]") {
  const size_t N = 40, out = 12, in = 20;
  const Product p{out, in, N, Layout::tn};
  Trial t;
  const auto dy = t.in<bf16>(widened(p.A)), x = t.in<bf16>(widened(p.B));
  const auto dW = t.sum(p.C, p.expected(Accumulate::yes, usual_mma())), dW_alone = t.again(dW), db = t.sum(out, 6);
  bias_backward_ref(db.ref, dy.ref, N, out);
  t.on_every_device([&](Context& ctx) {
    linear_gradients_bf16(dW, db, dy, x, N, out, in, ctx);
    linear_gradients_bf16(dW_alone, nullptr, dy, x, N, out, in, ctx);
  });
}

TEST_CASE("matmul_bf16: what is refused", "[matmul_bf16]") {
  Context ctx(Device::cpu);
  const Buffer<bf16> x(ctx.device, 6), c(ctx.device, 4), y(ctx.device, 4);
  const Buffer<float> wide(ctx.device, 4);
  const auto multiply = [&](Reals C, Layout layout, Accumulate accumulate, Activation act) {
    matmul_bf16(C, x.data(), x.data(), 2, 2, 2, layout, accumulate, ctx, nullptr, {y.data(), nullptr, act});
  };
  const auto backward = [&](Layout layout, Accumulate accumulate, Activation act) {
    matmul_bf16(c.data(), x.data(), x.data(), 2, 2, 2, layout, accumulate, ctx, nullptr,
                {nullptr, nullptr, act, y.data()});
  };
  const auto which =
      Catch::Contains("an activation is made of a C in bf16 that is written in layout nt, its backward in layout nn");
  REQUIRE_NOTHROW(multiply(c.data(), Layout::nt, Accumulate::no, Activation::silu));
  REQUIRE_THROWS_WITH(multiply(c.data(), Layout::nt, Accumulate::yes, Activation::silu), which);
  REQUIRE_THROWS_WITH(multiply(c.data(), Layout::nn, Accumulate::no, Activation::silu), which);
  REQUIRE_THROWS_WITH(multiply(wide.data(), Layout::nt, Accumulate::no, Activation::silu), which);
  REQUIRE_THROWS_WITH(multiply(c.data(), Layout::nt, Accumulate::no, Activation::tanh), Catch::Contains("tanh"));
  REQUIRE_NOTHROW(backward(Layout::nn, Accumulate::no, Activation::silu));
  REQUIRE_THROWS_WITH(backward(Layout::nn, Accumulate::yes, Activation::silu), which);
  REQUIRE_THROWS_WITH(backward(Layout::nt, Accumulate::no, Activation::silu), which);
  REQUIRE_THROWS_WITH(backward(Layout::nn, Accumulate::no, Activation::sigmoid), Catch::Contains("sigmoid"));
  REQUIRE_THROWS_WITH(
      matmul_bf16(Reals(wide.data()), x.data(), x.data(), 2, 2, 2, Layout::nt, Accumulate::yes, ctx, wide.data()),
      Catch::Contains("a bias is for a product that is written"));
  REQUIRE_THROWS_WITH(
      matmul_bf16({wide.data(), 2}, {x.data(), 3}, {x.data(), 2}, 2, 2, 3, Layout::nt, Accumulate::no, ctx),
      "matmul_bf16: leading dimensions of C, A, B are 2, 3, 2, expected at least 2, 3, 3");
}

TEST_CASE("matmul_bf16: more slices than a grid has layers are refused", "[bitwise]") {
  Context ctx(kernel_device);
  REQUIRE_THROWS_WITH(matmul_bf16(Reals(static_cast<float*>(nullptr)), nullptr, nullptr, 1, 1, 1 << 28, Layout::tn,
                                  Accumulate::yes, ctx),
                      "matmul_bf16: N 1 or K 268435456 is too large for a grid");
}

#ifdef __CUDACC__
TEST_CASE("matmul_bf16: what cuBLAS makes beside a product is near the exact engine's, and repeats itself",
          "[cublas]") {
  if (!kernels_can_run()) return;
  // y = gelu(A B^T + bias), of a bias that is bf16 already; dW += A^T x and db += the columns of A.
  const size_t M = 96, N = 128, K = 24;
  const Product p{M, N, K, Layout::nt}, gradient{K, N, M, Layout::tn};
  const std::vector<float> bias = stored<bf16>(p.bias), db(K, 1.0f);
  std::vector<double> start;
  for (size_t i = 0; i < M * N; i++) start.push_back(double(bias[i % N]));
  const std::vector<double> sums = p.exact(start), sizes = p.exact(start, true);
  const std::vector<double> dW_start(gradient.C.begin(), gradient.C.end());
  const std::vector<double> dW = gradient.exact(dW_start), dW_sizes = gradient.exact(dW_start, true);
  std::vector<double> exact_db(db.begin(), db.end()), db_sizes = exact_db;
  for (size_t i = 0; i < gradient.A.size(); i++) {
    exact_db[i % K] += double(float(gradient.A[i]));
    db_sizes[i % K] += std::fabs(double(float(gradient.A[i])));
  }
  std::vector<float> first;
  for (int run = 0; run < 3; run++) {
    Context ctx(Device::cuda);
    ctx.use_cublas(false);
    const Buffer<bf16> a(ctx.device, p.A), b(ctx.device, p.B), dy(ctx.device, gradient.A), x(ctx.device, gradient.B);
    const GuardedOf<bf16> C(ctx, M * N), y(ctx, M * N);
    const Guarded gbias(ctx, bias), gdW(ctx, gradient.C), gdb(ctx, db);
    matmul_bf16(+C, a.data(), b.data(), M, N, K, Layout::nt, Accumulate::no, ctx, gbias,
                {y, nullptr, Activation::gelu_tanh});
    linear_gradients_bf16(gdW, gdb, dy.data(), x.data(), M, K, N, ctx);
    const std::vector<float> c = C.download(), gelu = y.download(), got_dW = gdW.download(), got_db = gdb.download();
    // A sum of n terms is cut or rounded at most n + 2 times, by 2^-23 of the sum of their absolute values; what is
    // stored in bf16, which has 8 bits, is rounded by 2^-8 at most. The slope of GELU is below 1.13.
    for (size_t i = 0; i < c.size(); i++) {
      const double error = double(K + 2) * 0x1p-23 * sizes[i], value = activation_value(Activation::gelu_tanh, sums[i]);
      REQUIRE(std::fabs(double(c[i]) - sums[i]) <= error + 0x1p-8 * (std::fabs(sums[i]) + error));
      REQUIRE(std::fabs(double(gelu[i]) - value) <= 1.13 * error + 0x1p-8 * (std::fabs(value) + 1.13 * error));
    }
    for (size_t i = 0; i < dW.size(); i++)
      REQUIRE(std::fabs(double(got_dW[i]) - dW[i]) <= double(M + 2) * 0x1p-23 * dW_sizes[i]);
    for (size_t i = 0; i < K; i++)
      REQUIRE(std::fabs(double(got_db[i]) - exact_db[i]) <= double(M + 2) * 0x1p-23 * db_sizes[i]);
    REQUIRE(ctx.most_scratch_used() <=
            std::max(matmul_bf16_scratch(M, N, K, Layout::nt, Device::cuda, true),
                     matmul_bf16_scratch(K, N, M, Layout::tn, Device::cuda, true) + bias_backward_scratch(M, K)));
    for (size_t kind : {CUBLASLT_EPILOGUE_GELU_AUX_BIAS, CUBLASLT_EPILOGUE_BGRADB}) {
      bool made = false;
      for (const auto& [shape, algorithm] : ctx.cublas().algorithms)
        made |= shape[Cublas::epilogue_of_shape] == kind && algorithm;
      if (!made) WARN("cuBLASLt has no algorithm with epilogue " << kind << ": another kernel did its work");
    }
    std::vector<float> all = c;
    for (const auto& part : {gelu, got_dW, got_db}) all.insert(all.end(), part.begin(), part.end());
    if (run == 0) first = all;
    REQUIRE_BITWISE(first, all);
  }
}
#endif

TEST_CASE("matmul_bf16: cuBLAS on a GPU is near the exact engine, and repeats itself", "[cublas]") {
  if (kernel_device != Device::cuda || !kernels_can_run()) return;
  const auto compare = [](const Product& p, Accumulate accumulate, bool with_bias, auto stored) {
    using Out = decltype(stored);
    INFO(p.M << " x " << p.N << " x " << p.K << ", layout " << int(p.layout));
    std::vector<double> start(p.M * p.N, 0.0);
    for (size_t i = 0; i < start.size(); i++)
      start[i] = accumulate == Accumulate::yes ? double(p.C[i]) : with_bias ? double(p.bias[i % p.N]) : 0.0;
    const std::vector<double> size = p.exact(start, true);
    const std::vector<float> exact = p.expected<Out>(accumulate, usual_mma(), with_bias);
    std::vector<float> first, without_epilogue;
    for (int run = 0; run < 3; run++) {
      Context ctx(Device::cuda);
      ctx.use_cublas(false);
      const std::vector<float> got = p.got<Out>(accumulate, ctx, with_bias);
      REQUIRE(ctx.most_scratch_used() <= matmul_bf16_scratch(p.M, p.N, p.K, p.layout, Device::cuda, with_bias));
      if (run == 0) first = got;
      REQUIRE_BITWISE(first, got);
      if (run < 2 || !with_bias) continue;
      forget_bias_algorithms(ctx);
      without_epilogue = p.got<Out>(accumulate, ctx, with_bias);
    }
    // Either engine cuts or rounds a sum at most K + 2 times, by 2^-23; in bf16 the end and a bias are rounded, by
    // 2^-9.
    const double share = 2 * (double(p.K + 2) * 0x1p-23 + (storage_of<Out> == Storage::bf16 ? 2 * 0x1p-9 : 0.0));
    for (const auto& got : {first, without_epilogue})
      for (size_t i = 0; i < got.size(); i++) REQUIRE(std::fabs(double(got[i]) - double(exact[i])) <= share * size[i]);
  };
  for (const Size s : {Size{1, 1, 1}, {63, 65, 17}, {128, 256, 512}, {64, 64, 8192}, {8, 1000, 96}})
    for (Layout layout : layouts) {
      const Product p{s.M, s.N, s.K, layout};
      for (Accumulate accumulate : {Accumulate::no, Accumulate::yes}) {
        compare(p, accumulate, accumulate == Accumulate::no, float());
        compare(p, accumulate, accumulate == Accumulate::no, bf16());
      }
    }
}
