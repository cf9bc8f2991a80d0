// gated_norm: the reference against finite differences; the CPU, the kernels, and the operations that it is made of,
// one by one, against the reference.
#include "kernels/gated_norm.h"

#include "kernels/activation.h"
#include "kernels/dyt.h"
#include "kernels/matmul.h"
#include "kernels/rmsnorm.h"
#include "tests/gate_ops.h"
#include "tests/norm_cases.h"

using namespace gated;

namespace {

constexpr auto rms = NormGateBase::rmsnorm, dyt = NormGateBase::dyt;
constexpr auto elementwise = NormGateScore::elementwise, tensorwise = NormGateScore::tensorwise;

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

struct Case {
  GatedNormShape s;
  bool branch = false;
  bool rough = false;  // with clips and dropout; only then the branch has a gradient of its own
};

// Activations are stored as S.
template <class S>
struct GatedNormTrial : NormTrial<S> {
  const GatedNormShape s;
  const Array<float> r = s.base == rms ? this->out(s.N) : Array<float>(), low = this->out(s.N * s.rank),
                     parameters = this->random(parameters_size(s), 3, 0.3f),
                     gradients = this->sum(parameters_size(s), 6);
  explicit GatedNormTrial(const Case& c)
      : NormTrial<S>({c.branch, c.branch, norm_joins()[c.rough], c.rough}, c.s.N, c.s.C), s(c.s) {
    const auto weights = parameters_in<const float*>(parameters.ref, s);
    gated_norm_general_forward_ref<float>(this->y.ref, r.ref, low.ref, nullptr, {this->normed().ref}, weights, s);
    gated_norm_general_backward_ref<float>(this->dx.ref, this->dbranch.ref, parameters_in(gradients.ref, s),
                                           this->dy.ref, this->back_ref(), low.ref, r.ref, weights, s);
  }
  GatedNormWeights weights() const { return parameters_in<const float*>(parameters, s); }
  void forward(Context& ctx) const {
    gated_norm_forward(this->y, r, low, this->joined, this->joins(ctx), weights(), s, ctx);
    REQUIRE(ctx.most_scratch_used() == gated_norm_forward_scratch(s, ctx.device));
  }
  void backward(const Array<S>& to, const Array<float>& sums, const ResidualBackwardIn& in, Context& ctx) const {
    gated_norm_backward(to, this->dbranch, parameters_in<float*>(sums, s), this->dy, in, low, r, weights(), s, ctx);
  }
  void fused(Context& ctx) const {
    forward(ctx);
    backward(this->dx, gradients, this->back(ctx), ctx);
    REQUIRE(ctx.most_scratch_used() ==
            std::max(gated_norm_forward_scratch(s, ctx.device), gated_norm_backward_scratch(s, ctx.device)));
  }
};

// The operations one by one, of floats.
void composed(const GatedNormTrial<float>& t, Context& ctx) {
  const GatedNormShape& s = t.s;
  const size_t N = s.N, C = s.C, rank = s.rank, scores = s.scores(), group = C / scores;
  Buffer<float> n(ctx.device, N * C), act(ctx.device, N * rank), z(ctx.device, N * scores), dn(ctx.device, N * C),
      dz(ctx.device, N * scores), dlow(ctx.device, N * rank), row_sums(ctx.device, N);
  const GatedNormWeights w = t.weights();
  const GatedNormGradients g = parameters_in<float*>(t.gradients, s);
  if (s.base == rms)
    rmsnorm_forward({n.data(), t.r, t.joined}, t.joins(ctx), {.w = w.w, .offset = s.offset}, N, C, s.eps, ctx);
  else
    dyt_forward({n.data(), t.joined}, t.joins(ctx), w.alpha, w.w, w.b, N, C, ctx);
  matmul(t.low, n.data(), w.down, N, rank, C, Layout::nt, Accumulate::no, ctx);
  activation_forward(act.data(), t.low, N * rank, Activation::silu, ctx);
  matmul(z.data(), act.data(), w.up, N, scores, rank, Layout::nt, Accumulate::no, ctx);
  gate_forward(t.y, n.data(), z.data(), N, C, group, s.op, ctx);

  gate_backward(dn.data(), dz.data(), t.dy, n.data(), z.data(), N, C, group, s.op, ctx);
  matmul(g.up, dz.data(), act.data(), scores, rank, N, Layout::tn, Accumulate::yes, ctx);
  matmul(dlow.data(), dz.data(), w.up, N, rank, scores, Layout::nn, Accumulate::no, ctx);
  activation_backward(dlow.data(), dlow.data(), t.low, N * rank, Activation::silu, ctx);
  matmul(g.down, dlow.data(), n.data(), rank, C, N, Layout::tn, Accumulate::yes, ctx);
  matmul(dn.data(), dlow.data(), w.down, N, C, rank, Layout::nn, Accumulate::yes, ctx);
  if (s.base == rms)
    rmsnorm_backward({t.dx, t.dbranch, g.w}, dn.data(), t.back(ctx), {.w = w.w, .offset = s.offset}, t.r, N, C, ctx);
  else
    dyt_backward({t.dx, t.dbranch, g.alpha, g.w, g.b, row_sums.data()}, dn.data(), t.back(ctx), w.alpha, w.w, N, C,
                 ctx);
}

}  // namespace

TEST_CASE("gated_norm: gradients against finite differences", "[gradcheck]") {
  for (GatedNormShape s : {GatedNormShape{3, 13, 3, rms},
                           {3, 13, 3, dyt},
                           {3, 12, 2, rms, tensorwise},
                           {3, 12, 2, dyt, tensorwise},
                           {2, 1, 2, rms, tensorwise}})
    for (const Join& join : norm_joins())
      for (const GateOp& op : {gate_ops[0], gate_ops[2], gate_ops[8]}) {
        s.op = op, s.offset = s.base == rms ? 1 : 0, s.eps = 1e-6f;
        INFO(describe(s) << ", plain " << join.plain());
        NormGradients g(s.N, s.C);
        auto parameters = random_values<double>(parameters_size(s), 3);
        std::vector<double> r(s.N), low(s.N * s.rank), gradients(parameters.size(), 0.0);
        const auto weights = parameters_in<const double*>(parameters.data(), s);
        const auto loss = [&] {
          gated_norm_general_forward_ref<double>(g.y.data(), r.data(), low.data(), g.sum.data(), g.in(join), weights,
                                                 s);
          return g.loss();
        };
        loss();
        gated_norm_general_backward_ref<double>(g.dx.data(), g.dbranch.data(), parameters_in(gradients.data(), s),
                                                g.dy.data(), g.back(join), low.data(), r.data(), weights, s);
        check_gradients(loss,
                        {{"x", g.x, g.dx}, {"branch", g.branch, g.dbranch}, {"the parameters", parameters, gradients}});
      }
}

TEST_CASE("gated_norm: kernels and the CPU equal the reference bit for bit, in bf16 too; so do the five operations",
          "[bitwise]") {
  const GateOp other = {Activation::silu, true, 0.7f};
  const Case cases[] = {
      {{63, 20, 3, rms, elementwise, {}, 0, 1e-6f}},
      {{130, 131, 16, rms, elementwise, {}, 1, 1e-5f}, true},
      {{130, 200, 16, dyt, elementwise, {}}, true, true},
      {{63, 200, 20, rms, tensorwise, {}, 0, 1e-6f}, true, true},
      {{63, 131, 20, dyt, elementwise, other}},
      {{17, 1030, 16, rms, elementwise, {}, 0, 1e-6f}, true},  // two slices in the chains over the columns
      {{1, 2060, 1, dyt, elementwise, {}}},                    // three
      {{1, 1030, 3, rms, tensorwise, {}, 0, 1e-6f}},
      {{1030, 20, 16, rms, elementwise, {}, 1, 1e-6f}, true},  // two in those over the rows
      {{1030, 20, 3, dyt, tensorwise, other}, true},
      {{130, 36, 17, rms, elementwise, {}, 0, 1e-6f}},  // a rank in two pieces, down more than one tile
      {{2100, 5, 1, rms, elementwise, {Activation::tanh}, 0, 1e-6f}},
      {{7, 1, 2, rms, tensorwise, {}, 0, 1e-6f}},
      {{5, 4, 40, rms, elementwise, {Activation::ns_sigmoid}, 0, 1e-6f}},
      {{5, 132, 33, dyt, tensorwise, {Activation::identity, false, 0.75f}}},
      // Ranks at which static and dynamic shared memory together fill 48 KiB in the backward, first pass them there and
      // in the forward, and the largest of the program.
      {{5, 8, 168, rms, elementwise, {}, 0, 1e-6f}},
      {{5, 8, 169, dyt, elementwise, {}}},
      {{5, 8, 253, rms, tensorwise, {}, 0, 1e-6f}},
      {{17, 132, 512, rms, elementwise, {}, 0, 1e-6f}},
  };
  for (const Case& c : cases) {
    INFO(describe(c.s) << ", branch " << c.branch << ", rough " << c.rough);
    GatedNormTrial<float> t(c);
    Context cpu(Device::cpu);
    t.on(cpu, [&](Context& ctx) { composed(t, ctx); });
    on_every_device(
        [&](Context& ctx) { fits(c.s.rank > 440, [&] { t.on(ctx, [&](Context& ctx) { t.fused(ctx); }); }); });
    if (c.s.C <= 130 || c.s.C >= 1000 || c.s.rank > 100) continue;
    GatedNormTrial<bf16> narrow(c);
    narrow.on_every_device([&](Context& ctx) { narrow.fused(ctx); });
  }
}

#ifndef __CUDACC__
TEST_CASE("gated_norm: the ranks that fit the shared memory of a consumer's GPU", "[bitwise]") {
  const SharedLimit of_a_block(shared_limit_consumer);
  const auto run = [&](size_t rank) {
    Context kernels(kernel_device);
    GatedNormTrial<float> t(Case{{1, 4, rank, rms, elementwise, {}, 0, 1e-6f}});
    t.on(kernels, [&](Context& ctx) { t.fused(ctx); });
  };
  REQUIRE_NOTHROW(run(440));
  REQUIRE_THROWS_WITH(
      run(441),
      "simt: block (0,0,0): thread 0: launch: 16896 bytes of static and 84672 of dynamic shared memory, "
      "expected at most 101376 in all: this GPU gives a block no more");
}
#endif

TEST_CASE("gated_norm: the plain reference is the general one without its additions", "[bitwise]") {
  const GatedNormShape s = {63, 20, 3, rms, elementwise, {}, 0, 1e-6f};
  const GatedNormTrial<float> t(Case{s});
  const auto w = parameters_in<const float*>(t.parameters.ref, s);
  std::vector<float> y(s.N * s.C), r(s.N), low(s.N * s.rank), dx(y.size()), gradients = t.gradients.kept->start;
  const GatedNormGradients g = parameters_in(gradients.data(), s);
  gated_norm_forward_ref<float>(y.data(), r.data(), low.data(), t.x.ref, w.w, w.down, w.up, s.N, s.C, s.rank, s.eps);
  gated_norm_backward_ref<float>(dx.data(), g.w, g.down, g.up, t.dy.ref, t.x.ref, low.data(), r.data(), w.w, w.down,
                                 w.up, s.N, s.C, s.rank);
  require_same({t.y.values(), t.r.values(), t.low.values(), t.dx.values(), t.gradients.values()},
               {y, r, low, dx, gradients});
}

TEST_CASE("gated_norm: slices of slices down the columns", "[bitwise]") {
  GatedNormTrial<float> t(Case{{16500, 2, 1, dyt, elementwise, {}}});
  t.on_both_devices([&](Context& ctx) { t.fused(ctx); });
}

TEST_CASE("gated_norm: dx may be dresidual", "[bitwise]") {
  GatedNormTrial<float> t(Case{{63, 131, 3, rms, elementwise, {}, 0, 1e-6f}, true});
  const auto over = t.over(t.dres, t.dx), gradients = t.again(t.gradients);
  t.on_every_device([&](Context& ctx) {
    t.fused(ctx);
    ResidualBackwardIn in = t.back(ctx);
    in.dresidual = over;
    t.backward(over, gradients, in, ctx);
  });
}

TEST_CASE("gated_norm: what it refuses") {
  Context cpu(Device::cpu);
  float a[16] = {}, b[16] = {}, c[16] = {};
  const GatedNormWeights w = {nullptr, a, nullptr, a, a};
  const GatedNormGradients g = {nullptr, b, nullptr, b, b};
  for (const auto& [s, why] : std::initializer_list<std::pair<GatedNormShape, const char*>>{
           {{1, 4, 0}, "rank is 0, expected 1 to 1024"},
           {{1, 4, 1025}, "rank is 1025, expected 1 to 1024"},
           {{1, 4, 2, dyt}, "DyT has alpha and b"},
           {{1, 4, 2, rms, elementwise, {Activation::relu2}},
            "act is relu2, expected one of: sigmoid tanh silu ns-sigmoid identity"},
           {{1, 0, 2}, "rows have no columns"}})
    REQUIRE_THROWS_WITH(gated_norm_forward(b, b, b, nullptr, {a}, w, s, cpu),
                        std::string("gated_norm_forward: ") + why);
  for (const auto& [dx, dbranch] : {std::pair{c, b}, {b, c}})
    REQUIRE_THROWS_WITH(gated_norm_backward(dx, dbranch, g, c, {a, nullptr, a}, a, a, w, {1, 4, 2}, cpu),
                        "gated_norm_backward: dx or dbranch is dy, which is read again after they are written");
}
