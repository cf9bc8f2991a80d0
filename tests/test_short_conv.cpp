// short_conv: the references against finite differences, the CPU's code and the kernels against the references, and
// what the state promises.
#include "kernels/short_conv.h"

#include <algorithm>

#include "tests/harness.h"

using namespace gated;

namespace {

// Arrays of S; weights and their gradient are floats. with_states: they come from outside and are wanted.
template <class S = float>
struct ConvTrial : Trial {
  const ShortConvShape s;
  const bool with_states;
  const size_t n = s.B * s.T * s.C, states = s.B * (s.W - 1) * s.C;
  const Array<S> x, initial, dy, dfinal;
  const Array<S> y = out<S>(n), dx = out<S>(n), final = state(), dinitial = state();
  const Array<float> w = random(s.C * s.W, 2), dw = sum(s.C * s.W, 6);
  ConvTrial(const ShortConvShape& s, bool with_states)
      : ConvTrial(s, with_states, random_values<float>(s.B * s.T * s.C, 1, 2),
                  random_values<float>(s.B * (s.W - 1) * s.C, 3, 2), random_values<float>(s.B * s.T * s.C, 4),
                  random_values<float>(s.B * (s.W - 1) * s.C, 5)) {}
  ConvTrial(const ShortConvShape& s, bool with_states, const std::vector<float>& x, const std::vector<float>& initial,
            const std::vector<float>& dy, const std::vector<float>& dfinal)
      : s(s), with_states(with_states), x(in<S>(x)), initial(state(initial)), dy(in<S>(dy)), dfinal(state(dfinal)) {
    short_conv_forward_ref(y.ref, final.ref, this->x.ref, w.ref, this->initial.ref, s);
    short_conv_backward_ref(dx.ref, dw.ref, dinitial.ref, this->dy.ref, this->dfinal.ref, this->x.ref, w.ref,
                            this->initial.ref, s);
  }
  void run(Context& ctx) const {
    short_conv_forward(y, final, x, w, initial, s, ctx);
    short_conv_backward(dx, dw, dinitial, dy, dfinal, x, w, initial, s, ctx);
  }

 private:
  Array<S> state() { return with_states ? out<S>(states) : Array<S>(); }
  Array<S> state(const std::vector<float>& values) { return with_states ? in<S>(values) : Array<S>(); }
};

// Tokens t0 .. t1-1 of an array (B,T,C).
std::vector<float> tokens(const std::vector<float>& x, const ShortConvShape& s, size_t t0, size_t t1) {
  std::vector<float> part;
  for (size_t b = 0; b < s.B; b++)
    part.insert(part.end(), x.begin() + (b * s.T + t0) * s.C, x.begin() + (b * s.T + t1) * s.C);
  return part;
}

}  // namespace

TEST_CASE("short_conv: gradients against finite differences", "[gradcheck]") {
  for (const ShortConvShape& s : {ShortConvShape{2, 6, 3, 4}, {1, 2, 2, 4}, {2, 3, 2, 1}, {1, 4, 1, 7}}) {
    INFO("T " << s.T << " W " << s.W);
    const size_t n = s.B * s.T * s.C, states = s.B * (s.W - 1) * s.C;
    auto x = random_values<double>(n, 1, 2), w = random_values<double>(s.C * s.W, 2),
         initial = random_values<double>(states, 3, 2);
    const auto dy = random_values<double>(n, 4), dfinal = random_values<double>(states, 5);
    std::vector<double> y(n), final(states), dx(n), dw(w.size(), 0.0), dinitial(states);
    const auto loss = [&] {
      short_conv_forward_ref(y.data(), final.data(), x.data(), w.data(), initial.data(), s);
      return dot(y, dy) + dot(final, dfinal);
    };
    short_conv_backward_ref(dx.data(), dw.data(), dinitial.data(), dy.data(), dfinal.data(), x.data(), w.data(),
                            initial.data(), s);
    check_gradients(loss, {{"x", x, dx}, {"w", w, dw}, {"the initial state", initial, dinitial}});
  }
}

TEST_CASE("short_conv: CPU and kernels equal the reference bit for bit, over bf16 rounded", "[bitwise]") {
  const auto require_bits = [](auto stored, const ShortConvShape& s) {
    for (bool with_states : {false, true}) {
      INFO("B " << s.B << " T " << s.T << " C " << s.C << " W " << s.W << " states " << with_states << ", "
                << name_of(storage_of<decltype(stored)>));
      ConvTrial<decltype(stored)> t(s, with_states);
      t.on_every_device([&](Context& ctx) {
        t.run(ctx);
        REQUIRE(ctx.most_scratch_used() ==
                std::max(short_conv_forward_scratch(s, ctx.device), short_conv_backward_scratch(s, ctx.device)));
      });
    }
  };
  const ShortConvShape of_floats[] = {{2, 63, 40, 4}, {1, 1, 7, 4},   {3, 2, 5, 4},  {1, 200, 300, 4}, {3, 65, 3, 4},
                                      {3, 65, 3, 2},  {2, 130, 9, 1}, {2, 9, 6, 11}, {5, 70, 1, 3}},
                       of_bf16[] = {{2, 63, 40, 4}, {1, 130, 300, 4}, {3, 65, 3, 4}, {2, 9, 6, 11}};
  for (const ShortConvShape& s : of_floats) require_bits(float(), s);
  for (const ShortConvShape& s : of_bf16) require_bits(bf16(), s);
}

// The second part begins with the state that the first one leaves, the first one's gradient ends with the second one's.
TEST_CASE("short_conv: a sequence cut anywhere, with the state carried on, has the bits of the whole", "[bitwise]") {
  const ShortConvShape s{2, 20, 5, 4};
  const ConvTrial<> whole(s, true);
  Context cpu(Device::cpu);
  for (size_t cut = 1; cut < s.T; cut++) {
    INFO("cut at " << cut);
    const auto part = [&](size_t t0, size_t t1, const std::vector<float>& initial, const std::vector<float>& dfinal) {
      return std::make_unique<ConvTrial<>>(ShortConvShape{s.B, t1 - t0, s.C, s.W}, true,
                                           tokens(whole.x.values(), s, t0, t1), initial,
                                           tokens(whole.dy.values(), s, t0, t1), dfinal);
    };
    const std::vector<float> state = part(0, cut, whole.initial.values(), whole.dfinal.values())->final.values();
    const auto b = part(cut, s.T, state, whole.dfinal.values());
    const auto a = part(0, cut, whole.initial.values(), b->dinitial.values());
    a->on(cpu, [&](Context& ctx) { a->run(ctx); });
    b->on(cpu, [&](Context& ctx) { b->run(ctx); });
    REQUIRE_BITWISE(tokens(whole.y.values(), s, 0, cut), a->y.values());
    REQUIRE_BITWISE(tokens(whole.y.values(), s, cut, s.T), b->y.values());
    REQUIRE_BITWISE(whole.final.values(), b->final.values());
    REQUIRE_BITWISE(tokens(whole.dx.values(), s, 0, cut), a->dx.values());
    REQUIRE_BITWISE(tokens(whole.dx.values(), s, cut, s.T), b->dx.values());
    REQUIRE_BITWISE(whole.dinitial.values(), a->dinitial.values());
  }
}

TEST_CASE("short_conv: token by token in place, and no bit depends on later tokens", "[bitwise]") {
  const ShortConvShape s{2, 9, 6, 4};
  const ConvTrial<> whole(s, true);
  on_every_device([&](Context& ctx) {
    Guarded w(ctx, whole.w.values()), state(ctx, whole.initial.values()), y(ctx, s.B * s.C);
    for (size_t t = 0; t < s.T; t++) {
      Guarded x(ctx, tokens(whole.x.values(), s, t, t + 1));
      short_conv_forward(y, state, x, w, state, {s.B, 1, s.C, s.W}, ctx);
      REQUIRE_BITWISE(tokens(whole.y.values(), s, t, t + 1), y.download());
    }
    REQUIRE_BITWISE(whole.final.values(), state.download());
  });
}

TEST_CASE("short_conv: what it refuses") {
  Context cpu(Device::cpu);
  float x[4] = {}, y[4] = {}, dw[4] = {};
  for (size_t taps : {0, 1})
    REQUIRE_THROWS_WITH(
        short_conv_forward(y, nullptr, x, x, nullptr, {1, 1 - taps, 4, taps}, cpu),
        format("short_conv_forward: %zu taps over %zu tokens, expected at least 1 of each", taps, 1 - taps));
  REQUIRE_THROWS_WITH(short_conv_forward(x, nullptr, x, y, nullptr, {1, 1, 4, 1}, cpu),
                      "short_conv_forward: y is x, which later tokens still need");
  float dx[4] = {}, dfinal[4] = {};
  for (const auto& [wrong_dx, dinitial] : {std::pair(x, dw), {y, dw}, {dfinal, dw}, {dx, x}, {dx, y}, {dx, dfinal}})
    REQUIRE_THROWS_WITH(short_conv_backward(wrong_dx, dw, dinitial, y, dfinal, x, x, nullptr, {1, 1, 4, 1}, cpu),
                        "short_conv_backward: dx or dinitial is dy, x or dfinal, which other tokens still need");
}
