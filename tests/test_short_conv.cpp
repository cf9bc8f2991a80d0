// short_conv: the references against finite differences, the CPU's code and the kernels against the references, and what the
// state promises.
#include "kernels/short_conv.h"

#include <algorithm>

#include "tests/harness.h"

using namespace gated;

namespace {

template <class T>
struct Inputs {
  ShortConvShape s;
  std::vector<T> x, w, initial, dy, dfinal, dw0;
  explicit Inputs(const ShortConvShape& s)
      : s(s),
        x(random_values<T>(s.B * s.T * s.C, 1, 2)),
        w(random_values<T>(s.C * s.W, 2)),
        initial(random_values<T>(s.B * (s.W - 1) * s.C, 3, 2)),
        dy(random_values<T>(s.B * s.T * s.C, 4)),
        dfinal(random_values<T>(initial.size(), 5)),
        dw0(random_values<T>(w.size(), 6)) {}
};

template <class T>
struct Outputs {
  std::vector<T> y, final, dx, dw, dinitial;
};

// with_states: they come from outside and are wanted.
Outputs<float> reference(const Inputs<float>& in, bool with_states) {
  const ShortConvShape& s = in.s;
  const size_t n = in.x.size(), states = with_states ? in.initial.size() : 0;
  Outputs<float> r = {std::vector<float>(n, NAN), std::vector<float>(states, NAN), std::vector<float>(n, NAN), in.dw0,
                      std::vector<float>(states, NAN)};
  const float *initial = with_states ? in.initial.data() : nullptr, *dfinal = with_states ? in.dfinal.data() : nullptr;
  short_conv_forward_ref(r.y.data(), with_states ? r.final.data() : nullptr, in.x.data(), in.w.data(), initial, s);
  short_conv_backward_ref(r.dx.data(), r.dw.data(), with_states ? r.dinitial.data() : nullptr, in.dy.data(), dfinal,
                          in.x.data(), in.w.data(), initial, s);
  return r;
}

// S: what arrays are stored as; weights and their gradient are floats.
template <class S = float>
Outputs<float> on(Context& ctx, const Inputs<float>& in, bool with_states) {
  const ShortConvShape& s = in.s;
  GuardedOf<S> x(ctx, in.x), initial(ctx, in.initial), dy(ctx, in.dy), dfinal(ctx, in.dfinal);
  Guarded w(ctx, in.w), dw(ctx, in.dw0);
  GuardedOf<S> y(ctx, in.x.size()), dx(ctx, in.x.size());
  const size_t states = with_states ? in.initial.size() : 0;
  GuardedOf<S> final(ctx, states), dinitial(ctx, states);
  const auto wanted = [&](const GuardedOf<S>& p) -> S* {
    if (with_states) return p;
    return nullptr;
  };
  short_conv_forward(y, wanted(final), x, w, wanted(initial), s, ctx);
  short_conv_backward(dx, dw, wanted(dinitial), dy, wanted(dfinal), x, w, wanted(initial), s, ctx);
  return {y.download(), final.download(), dx.download(), dw.download(), dinitial.download()};
}

void require_same(const Outputs<float>& expected, const Outputs<float>& got) {
  REQUIRE_BITWISE(expected.y, got.y);
  REQUIRE_BITWISE(expected.final, got.final);
  REQUIRE_BITWISE(expected.dx, got.dx);
  REQUIRE_BITWISE(expected.dw, got.dw);
  REQUIRE_BITWISE(expected.dinitial, got.dinitial);
}

// Tokens t0 .. t1-1 of an array (B,T,C).
std::vector<float> tokens(const std::vector<float>& x, const ShortConvShape& s, size_t t0, size_t t1) {
  std::vector<float> part;
  for (size_t b = 0; b < s.B; b++)
    part.insert(part.end(), x.begin() + (b * s.T + t0) * s.C, x.begin() + (b * s.T + t1) * s.C);
  return part;
}

}  // namespace

TEST_CASE("short_conv: by hand") {
  // One channel, taps 1 10 100: digits of the last three tokens, oldest first. SiLU of numbers this large is the number itself.
  const std::vector<double> x = {4, 5}, w = {1, 10, 100}, initial = {2, 3};
  std::vector<double> y(2), final(2);
  short_conv_forward_ref(y.data(), final.data(), x.data(), w.data(), initial.data(), {1, 2, 1, 3});
  REQUIRE(y[0] == Approx(2 + 30 + 400));
  REQUIRE(y[1] == Approx(3 + 40 + 500));
  REQUIRE(final == x);
  short_conv_forward_ref<double>(y.data(), nullptr, x.data(), w.data(), nullptr, {1, 2, 1, 3});
  REQUIRE(y[0] == Approx(400));
  REQUIRE(y[1] == Approx(540));
}

TEST_CASE("short_conv: gradients against finite differences", "[gradcheck]") {
  for (const ShortConvShape& s : {ShortConvShape{2, 6, 3, 4}, {1, 2, 2, 4}, {2, 3, 2, 1}, {1, 4, 1, 7}}) {
    INFO("T " << s.T << " W " << s.W);
    const Inputs<double> in(s);
    std::vector<double> y(in.x.size()), final(in.initial.size()), dx(in.x.size()), dw(in.w.size(), 0.0),
        dinitial(in.initial.size());
    const auto loss = [&](const std::vector<double>& x, const std::vector<double>& w,
                          const std::vector<double>& initial) {
      short_conv_forward_ref(y.data(), final.data(), x.data(), w.data(), initial.data(), s);
      return dot(y, in.dy) + dot(final, in.dfinal);
    };
    short_conv_backward_ref(dx.data(), dw.data(), dinitial.data(), in.dy.data(), in.dfinal.data(), in.x.data(),
                            in.w.data(), in.initial.data(), s);
    check_gradient(
        "x", [&](auto& v) { return loss(v, in.w, in.initial); }, in.x, dx);
    check_gradient(
        "w", [&](auto& v) { return loss(in.x, v, in.initial); }, in.w, dw);
    check_gradient(
        "the initial state", [&](auto& v) { return loss(in.x, in.w, v); }, in.initial, dinitial);
  }
}

TEST_CASE("short_conv: CPU and kernels equal the reference bit for bit", "[bitwise]") {
  for (const ShortConvShape& s : {ShortConvShape{2, 63, 40, 4},
                                  {1, 1, 7, 4},
                                  {3, 2, 5, 4},
                                  {1, 200, 300, 4},
                                  {3, 65, 3, 2},
                                  {2, 130, 9, 1},
                                  {2, 9, 6, 11},
                                  {5, 70, 1, 3}})
    for (bool with_states : {false, true}) {
      INFO("B " << s.B << " T " << s.T << " C " << s.C << " W " << s.W << " states " << with_states);
      const Inputs<float> in(s);
      const Outputs<float> expected = reference(in, with_states);
      on_every_device([&](Context& ctx) {
        require_same(expected, on(ctx, in, with_states));
        REQUIRE(ctx.most_scratch_used() ==
                std::max(short_conv_forward_scratch(s, ctx.device), short_conv_backward_scratch(s, ctx.device)));
      });
    }
}

TEST_CASE("short_conv: over bf16, CPU and kernels equal the reference, rounded", "[bitwise]") {
  for (const ShortConvShape& s : {ShortConvShape{2, 63, 40, 4}, {1, 130, 300, 4}, {3, 2, 5, 4}, {2, 9, 6, 11}})
    for (bool with_states : {false, true}) {
      INFO("B " << s.B << " T " << s.T << " C " << s.C << " W " << s.W << " states " << with_states);
      Inputs<float> in(s);
      for (auto* x : {&in.x, &in.initial, &in.dy, &in.dfinal}) *x = stored<bf16>(*x);
      Outputs<float> expected = reference(in, with_states);
      for (auto* x : {&expected.y, &expected.dx, &expected.dinitial}) *x = stored<bf16>(*x);
      on_every_device([&](Context& ctx) { require_same(expected, on<bf16>(ctx, in, with_states)); });
    }
}

TEST_CASE("short_conv: a sequence cut anywhere, with the state carried on, has the bits of the whole", "[bitwise]") {
  const ShortConvShape s{2, 20, 5, 4};
  const Inputs<float> in(s);
  const Outputs<float> whole = reference(in, true);
  Context cpu(Device::cpu);
  for (size_t cut = 1; cut < s.T; cut++) {
    INFO("cut at " << cut);
    Inputs<float> first = in, second = in;
    first.s.T = cut, second.s.T = s.T - cut;
    first.x = tokens(in.x, s, 0, cut), first.dy = tokens(in.dy, s, 0, cut);
    second.x = tokens(in.x, s, cut, s.T), second.dy = tokens(in.dy, s, cut, s.T);
    second.initial = on(cpu, first, true).final;
    const Outputs<float> b = on(cpu, second, true);
    first.dfinal = b.dinitial;
    const Outputs<float> a = on(cpu, first, true);
    REQUIRE_BITWISE(tokens(whole.y, s, 0, cut), a.y);
    REQUIRE_BITWISE(tokens(whole.y, s, cut, s.T), b.y);
    REQUIRE_BITWISE(whole.final, b.final);
    REQUIRE_BITWISE(tokens(whole.dx, s, 0, cut), a.dx);
    REQUIRE_BITWISE(tokens(whole.dx, s, cut, s.T), b.dx);
    REQUIRE_BITWISE(whole.dinitial, a.dinitial);
  }
}

TEST_CASE("short_conv: token by token in place, and no bit depends on later tokens", "[bitwise]") {
  const ShortConvShape s{2, 9, 6, 4};
  const Inputs<float> in(s);
  const Outputs<float> whole = reference(in, true);
  on_every_device([&](Context& ctx) {
    Guarded w(ctx, in.w), state(ctx, in.initial), y(ctx, s.B * s.C);
    for (size_t t = 0; t < s.T; t++) {
      Guarded x(ctx, tokens(in.x, s, t, t + 1));
      short_conv_forward(y, state, x, w, state, {s.B, 1, s.C, s.W}, ctx);
      REQUIRE_BITWISE(tokens(whole.y, s, t, t + 1), y.download());
    }
    REQUIRE_BITWISE(whole.final, state.download());
  });
}

TEST_CASE("short_conv: what it refuses") {
  Context cpu(Device::cpu);
  float x[4] = {}, y[4] = {};
  REQUIRE_THROWS_WITH(short_conv_forward(y, nullptr, x, x, nullptr, {1, 1, 4, 0}, cpu), "short_conv_forward: no taps");
  REQUIRE_THROWS_WITH(short_conv_backward(y, y, nullptr, y, nullptr, x, x, nullptr, {1, 1, 4, 1}, cpu),
                      "short_conv_backward: dx is dy, which later tokens still need");
}
