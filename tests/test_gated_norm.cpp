// gated_norm: the reference against finite differences; the CPU, the kernels, and the operations that it is made of, one by
// one, against the reference.
#include "kernels/gated_norm.h"

#include "kernels/activation.h"
#include "kernels/dyt.h"
#include "kernels/matmul.h"
#include "kernels/rmsnorm.h"
#include "tests/gate_ops.h"
#include "tests/harness.h"

using namespace gated;

namespace {

constexpr auto rms = NormGateBase::rmsnorm, dyt = NormGateBase::dyt;
constexpr auto elementwise = NormGateScore::elementwise, tensorwise = NormGateScore::tensorwise;
const Join& rough() {
  static const Join join = {0.7f, 1.4f, {0.3f, 11, read_by_all(12)}};
  return join;
}

std::string describe(const GatedNormShape& s) {
  return format("N %zu C %zu rank %zu, %s, %s, gate %s", s.N, s.C, s.rank, s.base == dyt ? "dyt" : "rmsnorm",
                s.score == tensorwise ? "tensorwise" : "elementwise", describe(s.op).c_str());
}

// The parameters, one array after the other, so that a device has them as one.
template <class P>
GatedNormParameters<P> parameters_in(P p, const GatedNormShape& s) {
  const P alpha = p, w = alpha + 4, b = w + s.C, down = b + s.C, up = down + s.rank * s.C;
  if (s.base == rms) return {nullptr, w, nullptr, down, up};
  return {alpha, w, b, down, up};
}
size_t parameters_size(const GatedNormShape& s) {
  return 4 + 2 * s.C + s.rank * (s.C + s.scores());
}

// What a case computes.
struct Results {
  std::vector<float> y, r, low, sum, dx, dbranch, gradients;
};

// Activations are stored as S.
template <class S>
struct CaseOf {
  GatedNormShape s;
  bool branch = false;
  Join join = {};
  const std::vector<float> x = stored<S>(random_values<float>(s.N * s.C, 1, 3.0f));
  const std::vector<float> branch_values = stored<S>(random_values<float>(s.N * s.C, 2));
  const std::vector<float> parameters = random_values<float>(parameters_size(s), 3, 0.3f);
  const std::vector<float> dy = stored<S>(random_values<float>(s.N * s.C, 4));
  const std::vector<float> dresidual = stored<S>(random_values<float>(s.N * s.C, 5));
  const std::vector<float> gradients = random_values<float>(parameters_size(s), 6);

  // forward(y, r, low, sum, in, weights) and backward(dx, dbranch, gradients, dy, in, low, r, weights) on a device's
  // memory, with activations of A.
  template <class A, class Forward, class Backward>
  Results run(Context& ctx, Forward forward, Backward backward) const {
    const size_t n = s.N * s.C;
    GuardedOf<A> y(ctx, n), sum(ctx, n), dx(ctx, n), dbranch(ctx, n);
    GuardedOf<A> x0(ctx, x), b(ctx, branch_values), d(ctx, dy), dres(ctx, dresidual);
    Guarded r(ctx, s.N), low(ctx, s.N * s.rank), dparameters(ctx, gradients), p(ctx, parameters);
    const auto weights = parameters_in<const float*>(p, s);
    ResidualIn in = {x0};
    ResidualBackwardIn back = {x0};
    A *sum_out = nullptr, *dbranch_out = nullptr;
    if (branch) {
      in = {x0, b, join};
      back = {sum, dres, b, join};
      sum_out = sum;
      if (!join.plain()) dbranch_out = dbranch;
    }
    forward(y, r, low, sum_out, in, weights);
    backward(dx, dbranch_out, parameters_in<float*>(dparameters, s), d, back, low, r, weights);
    Results results = {y.download(), {}, low.download(), {}, dx.download(), {}, dparameters.download()};
    if (s.base == rms) results.r = r.download();
    if (branch) results.sum = sum.download();
    if (dbranch_out) results.dbranch = dbranch.download();
    return results;
  }

  // The operations one by one, of floats.
  Results composed(Context& ctx) const {
    const size_t scores = s.scores(), group = s.C / scores;
    Buffer<float> n(ctx.device, s.N * s.C), act(ctx.device, s.N * s.rank), z(ctx.device, s.N * scores);
    Buffer<float> dn(ctx.device, s.N * s.C), dz(ctx.device, s.N * scores), dlow(ctx.device, s.N * s.rank),
        row_sums(ctx.device, s.N);
    return run<float>(
        ctx,
        [&](float* y, float* r, float* low, float* sum, const ResidualIn& in, const GatedNormWeights& w) {
          if (s.base == rms)
            rmsnorm_forward({n.data(), r, sum}, in, {.w = w.w, .offset = s.offset}, s.N, s.C, s.eps, ctx);
          else
            dyt_forward({n.data(), sum}, in, w.alpha, w.w, w.b, s.N, s.C, ctx);
          matmul(low, n.data(), w.down, s.N, s.rank, s.C, Layout::nt, Accumulate::no, ctx);
          activation_forward(act.data(), low, s.N * s.rank, Activation::silu, ctx);
          matmul(z.data(), act.data(), w.up, s.N, scores, s.rank, Layout::nt, Accumulate::no, ctx);
          gate_forward(y, n.data(), z.data(), s.N, s.C, group, s.op, ctx);
        },
        [&](float* dx, float* dbranch, const GatedNormGradients& g, const float* dy, const ResidualBackwardIn& in,
            const float* low, const float* r, const GatedNormWeights& w) {
          gate_backward(dn.data(), dz.data(), dy, n.data(), z.data(), s.N, s.C, group, s.op, ctx);
          matmul(g.up, dz.data(), act.data(), scores, s.rank, s.N, Layout::tn, Accumulate::yes, ctx);
          matmul(dlow.data(), dz.data(), w.up, s.N, s.rank, scores, Layout::nn, Accumulate::no, ctx);
          activation_backward(dlow.data(), dlow.data(), low, s.N * s.rank, Activation::silu, ctx);
          matmul(g.down, dlow.data(), n.data(), s.rank, s.C, s.N, Layout::tn, Accumulate::yes, ctx);
          matmul(dn.data(), dlow.data(), w.down, s.N, s.C, s.rank, Layout::nn, Accumulate::yes, ctx);
          if (s.base == rms)
            rmsnorm_backward({dx, dbranch, g.w}, dn.data(), in, {.w = w.w, .offset = s.offset}, r, s.N, s.C, ctx);
          else
            dyt_backward({dx, dbranch, g.alpha, g.w, g.b, row_sums.data()}, dn.data(), in, w.alpha, w.w, s.N, s.C, ctx);
        });
  }

  Results fused_by(Context& ctx) const {
    return run<S>(
        ctx, [&](auto&&... a) { gated_norm_forward(a..., s, ctx); },
        [&](auto&&... a) { gated_norm_backward(a..., s, ctx); });
  }

  // In bf16 it is that of the sum as it is stored, and what it writes is rounded.
  Results reference() const {
    Context cpu(Device::cpu);
    Results results = run<float>(
        cpu,
        [&](float* y, float* r, float* low, float* sum, const ResidualIn& in, const GatedNormWeights& w) {
          ResidualInOf<float> of = in.as<float>();
          if (branch) {
            residual_join_forward_ref(sum, of, s.N, s.C);
            for (size_t i = 0; i < s.N * s.C; i++) sum[i] = S(sum[i]);
            of = {sum};
          }
          gated_norm_general_forward_ref<float>(y, r, low, nullptr, of, w, s);
        },
        [&](float* dx, float* dbranch, const GatedNormGradients& g, const float* dy, const ResidualBackwardIn& in,
            const float* low, const float* r, const GatedNormWeights& w) {
          ResidualBackwardInOf<float> of = in.as<float>();
          of.join.clip_sum = S(join.clip_sum);
          gated_norm_general_backward_ref<float>(dx, dbranch, g, dy, of, low, r, w, s);
        });
    for (auto* v : {&results.y, &results.dx, &results.dbranch}) *v = stored<S>(*v);
    return results;
  }
};
using Case = CaseOf<float>;

void require_alike(const Results& expected, const Results& got) {
  REQUIRE_BITWISE(expected.y, got.y);
  REQUIRE_BITWISE(expected.r, got.r);
  REQUIRE_BITWISE(expected.low, got.low);
  REQUIRE_BITWISE(expected.sum, got.sum);
  REQUIRE_BITWISE(expected.dx, got.dx);
  REQUIRE_BITWISE(expected.dbranch, got.dbranch);
  REQUIRE_BITWISE(expected.gradients, got.gradients);
}

}  // namespace

TEST_CASE("gated_norm: gradients against finite differences", "[gradcheck]") {
  const Join joins[] = {{}, rough()};
  for (GatedNormShape s : {GatedNormShape{3, 13, 3, rms},
                           {3, 13, 3, dyt},
                           {3, 12, 2, rms, tensorwise},
                           {3, 12, 2, dyt, tensorwise},
                           {2, 1, 2, rms, tensorwise}})
    for (const Join& join : joins)
      for (const GateOp& op : {gate_ops[0], gate_ops[2], gate_ops[8]}) {
        s.op = op, s.offset = s.base == rms ? 1 : 0, s.eps = 1e-6f;
        INFO(describe(s) << ", plain " << join.plain());
        const size_t n = s.N * s.C;
        const auto x = random_values<double>(n, 1), branch = random_values<double>(n, 2),
                   parameters = random_values<double>(parameters_size(s), 3);
        const auto dy = random_values<double>(n, 4), dres = random_values<double>(n, 5);
        std::vector<double> y(n), r(s.N), low(s.N * s.rank), sum(n);
        // loss = <y, dy> + <sum, dresidual>: the residual stream goes on past the norm.
        auto loss = [&](const std::vector<double>& x, const std::vector<double>& branch,
                        const std::vector<double>& parameters) {
          gated_norm_general_forward_ref<double>(y.data(), r.data(), low.data(), sum.data(),
                                                 {x.data(), branch.data(), join}, parameters_in(parameters.data(), s),
                                                 s);
          return dot(y, dy) + dot(sum, dres);
        };
        loss(x, branch, parameters);
        std::vector<double> dx(n), dbranch(n), gradients(parameters_size(s), 0.0);
        gated_norm_general_backward_ref<double>(dx.data(), dbranch.data(), parameters_in(gradients.data(), s),
                                                dy.data(), {sum.data(), dres.data(), branch.data(), join}, low.data(),
                                                r.data(), parameters_in(parameters.data(), s), s);
        check_gradient(
            "x", [&](auto& v) { return loss(v, branch, parameters); }, x, dx);
        check_gradient(
            "branch", [&](auto& v) { return loss(x, v, parameters); }, branch, dbranch);
        check_gradient(
            "the parameters", [&](auto& v) { return loss(x, branch, v); }, parameters, gradients);
      }
}

TEST_CASE("gated_norm: kernels and the CPU equal the reference bit for bit, and so do the five operations",
          "[bitwise]") {
  const GateOp other = {Activation::silu, true, 0.7f};
  const Case cases[] = {
      {{63, 20, 3, rms, elementwise, {}, 0, 1e-6f}},
      {{130, 131, 16, rms, elementwise, {}, 1, 1e-5f}, true},
      {{130, 200, 16, dyt, elementwise, {}}, true, rough()},
      {{63, 200, 20, rms, tensorwise, {}, 0, 1e-6f}, true, rough()},
      {{63, 131, 20, dyt, elementwise, other}},
      {{17, 1030, 16, rms, elementwise, {}, 0, 1e-6f}, true},  // two slices in the chains over the columns
      {{1, 2060, 1, dyt, elementwise, {}}},                    // three
      {{1, 1030, 3, rms, tensorwise, {}, 0, 1e-6f}},
      {{1030, 20, 16, rms, elementwise, {}, 1, 1e-6f}, true},  // two in those over the rows
      {{1030, 20, 3, dyt, tensorwise, other}, true},
      {{2100, 5, 1, rms, elementwise, {Activation::tanh}, 0, 1e-6f}},
      {{7, 1, 2, rms, tensorwise, {}, 0, 1e-6f}},
      {{5, 4, 40, rms, elementwise, {Activation::ns_sigmoid}, 0, 1e-6f}},
      {{5, 132, 33, dyt, tensorwise, {Activation::identity, false, 0.75f}}},
      // Ranks at which static and dynamic shared memory together first pass 48 KiB in one of the kernels, and the largest
      // of the program.
      {{5, 8, 112, rms, elementwise, {}, 0, 1e-6f}},
      {{5, 8, 128, rms, elementwise, {}, 0, 1e-6f}},
      {{5, 8, 256, dyt, elementwise, {}}},
      {{5, 8, 384, rms, tensorwise, {}, 0, 1e-6f}},
      {{17, 132, 512, rms, elementwise, {}, 0, 1e-6f}},
  };
  for (const Case& test : cases) {
    INFO(describe(test.s) << ", branch " << test.branch << ", plain " << test.join.plain());
    const Results expected = test.reference();
    Context cpu(Device::cpu);
    require_alike(expected, test.composed(cpu));
    on_every_device([&](Context& ctx) {
      if (!fits(test.s.rank > 484, [&] { require_alike(expected, test.fused_by(ctx)); })) return;
      const size_t forward = gated_norm_forward_scratch(test.s, ctx.device);
      const size_t backward = gated_norm_backward_scratch(test.s, ctx.device);
      REQUIRE(ctx.most_scratch_used() == std::max(forward, backward));
    });
  }
}

TEST_CASE("gated_norm: in bf16 too", "[bitwise]") {
  const CaseOf<bf16> cases[] = {
      {{130, 131, 16, rms, elementwise, {}, 1, 1e-5f}, true},
      {{17, 200, 16, dyt, elementwise, {}}, true, rough()},
      {{63, 200, 20, rms, tensorwise, {}, 0, 1e-6f}},
      {{9, 132, 3, dyt, tensorwise, {Activation::silu, true, 0.7f}}},
  };
  for (const auto& test : cases) {
    INFO(describe(test.s) << ", branch " << test.branch << ", plain " << test.join.plain());
    const Results expected = test.reference();
    on_every_device([&](Context& ctx) { require_alike(expected, test.fused_by(ctx)); });
  }
}

#ifndef __CUDACC__
TEST_CASE("gated_norm: the ranks that fit the shared memory of a consumer's GPU", "[bitwise]") {
  const simt::Config before = simt::config;
  simt::config.shared_limit = shared_limit_consumer;
  Context kernels(kernel_device);
  const auto run = [&](size_t rank) { Case{{1, 4, rank, rms, elementwise, {}, 0, 1e-6f}}.fused_by(kernels); };
  REQUIRE_NOTHROW(run(484));
  REQUIRE_THROWS_WITH(run(485),
                      "simt: block (0,0,0): thread 0: launch: 8448 bytes of static and 93120 of dynamic shared memory, "
                      "expected at most "
                      "101376 in all: this GPU gives a block no more");
  simt::config = before;
}
#endif

TEST_CASE("gated_norm: the plain reference is the general one without its additions", "[bitwise]") {
  const Case test = {{63, 20, 3, rms, elementwise, {}, 0, 1e-6f}};
  const GatedNormShape& s = test.s;
  Context cpu(Device::cpu);
  const Results plain = test.run<float>(
      cpu,
      [&](float* y, float* r, float* low, float*, const ResidualIn& in, const GatedNormWeights& w) {
        gated_norm_forward_ref<float>(y, r, low, in.x.as<float>(), w.w, w.down, w.up, s.N, s.C, s.rank, s.eps);
      },
      [&](float* dx, float*, const GatedNormGradients& g, const float* dy, const ResidualBackwardIn& in,
          const float* low, const float* r, const GatedNormWeights& w) {
        gated_norm_backward_ref<float>(dx, g.w, g.down, g.up, dy, in.x.as<float>(), low, r, w.w, w.down, w.up, s.N, s.C,
                                       s.rank);
      });
  require_alike(plain, test.reference());
}

TEST_CASE("gated_norm: the forward takes the scratch that it says", "[bitwise]") {
  const GatedNormShape s = {3, 40, 7, rms, elementwise, {}, 0, 1e-6f};
  on_every_device([&](Context& ctx) {
    Guarded y(ctx, s.N * s.C), r(ctx, s.N), low(ctx, s.N * s.rank), x(ctx, random_values<float>(s.N * s.C, 1));
    Guarded parameters(ctx, random_values<float>(parameters_size(s), 2));
    gated_norm_forward(y, r, low, nullptr, {x}, parameters_in<const float*>(parameters, s), s, ctx);
    REQUIRE(ctx.most_scratch_used() == gated_norm_forward_scratch(s, ctx.device));
  });
}

TEST_CASE("gated_norm: slices of slices down the columns", "[bitwise]") {
  const Case test = {{16500, 2, 1, dyt, elementwise, {}}};
  const Results expected = test.reference();
  Context cpu(Device::cpu), kernels(kernel_device);
  require_alike(expected, test.fused_by(cpu));
  require_alike(expected, test.fused_by(kernels));
}

TEST_CASE("gated_norm: dx may be dresidual", "[bitwise]") {
  const Case test = {{63, 131, 3, rms, elementwise, {}, 0, 1e-6f}, true};
  const Results expected = test.reference();
  auto in_place = [&](Context& ctx) {
    Guarded dx(ctx, test.dresidual);
    test.run<float>(
        ctx, [&](auto&&... a) { gated_norm_forward(a..., test.s, ctx); },
        [&](float*, float* dbranch, const GatedNormGradients& g, const float* dy, ResidualBackwardIn in, auto&&... a) {
          in.dresidual = dx;
          gated_norm_backward(dx, dbranch, g, dy, in, a..., test.s, ctx);
        });
    return dx.download();
  };
  on_every_device([&](Context& ctx) { REQUIRE_BITWISE(expected.dx, in_place(ctx)); });
}

TEST_CASE("gated_norm: what it refuses") {
  Context cpu(Device::cpu);
  float a[16] = {}, b[16] = {}, c[16] = {};
  const GatedNormWeights w = {nullptr, a, nullptr, a, a};
  const GatedNormGradients g = {nullptr, b, nullptr, b, b};
  REQUIRE_THROWS_WITH(gated_norm_forward(b, b, b, nullptr, {a}, w, {1, 4, 0}, cpu),
                      "gated_norm_forward: rank is 0, expected 1 to 1024");
  REQUIRE_THROWS_WITH(gated_norm_forward(b, b, b, nullptr, {a}, w, {1, 4, 1025}, cpu),
                      "gated_norm_forward: rank is 1025, expected 1 to 1024");
  REQUIRE_THROWS_WITH(gated_norm_forward(b, b, b, nullptr, {a}, w, {1, 4, 2, dyt}, cpu),
                      "gated_norm_forward: DyT has alpha and b");
  REQUIRE_THROWS_WITH(
      gated_norm_forward(b, b, b, nullptr, {a}, w, {1, 4, 2, rms, elementwise, {Activation::relu2}}, cpu),
      "gated_norm_forward: act is relu2, expected one of: sigmoid tanh silu ns-sigmoid identity");
  REQUIRE_THROWS_WITH(gated_norm_forward(b, b, b, nullptr, {a}, w, {1, 0, 2}, cpu),
                      "gated_norm_forward: rows have no columns");
  REQUIRE_THROWS_WITH(gated_norm_backward(c, nullptr, g, c, {a}, a, a, w, {1, 4, 2}, cpu),
                      "gated_norm_backward: dx is dy, which is read again after dx is written");
}
