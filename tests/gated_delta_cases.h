// gated_delta_cases: what the tests of gated_delta, gated_delta_chunk and gated_delta_bf16 share: inputs, and the cases
// that the ways to compute the gated delta rule must pass.
#pragma once
#include <algorithm>
#include <map>

#include "kernels/gated_delta.h"
#include "tests/harness.h"

namespace gated::gated_delta_cases {

struct Sizes {
  GatedDeltaShape s;
  size_t qk = s.B * s.T * s.Hk * s.Dk, v = s.B * s.T * s.Hv * s.Dv, number = s.B * s.T * s.Hv,
         state = s.B * s.Hv * s.Dk * s.Dv, kept = s.kept() * state;
  explicit Sizes(const GatedDeltaShape& s) : s(s) {}
};

// Keys of about length 1, as the norm in front of the operation leaves them.
template <class T>
struct Inputs {
  GatedDeltaShape s;
  T decay, scale;
  Sizes n = Sizes(s);
  std::vector<T> q = random_values<T>(n.qk, 1, scale),
                 k = random_values<T>(n.qk, 2, scale*T(1.7) / T(std::sqrt(double(s.Dk)))),
                 v = random_values<T>(n.v, 3, scale), g = random_values<T>(n.number, 4, decay),
                 beta = random_values<T>(n.number, 5, T(0.5)), initial = random_values<T>(n.state, 6, scale),
                 dout = random_values<T>(n.v, 7, scale), dfinal = random_values<T>(n.state, 8, scale);

  explicit Inputs(const GatedDeltaShape& s, T decay = 0.5, T scale = 1) : s(s), decay(decay), scale(scale) {
    for (T& x : g) x = -std::fabs(x);
    for (T& x : beta) x = x + T(0.5);
  }
  GatedDeltaInOf<T> in() const { return {q.data(), k.data(), v.data(), g.data(), beta.data(), initial.data()}; }
};

template <class T>
struct Outputs {
  using Numbers = std::vector<T>;
  Sizes n;
  Numbers o = Numbers(n.v, T(NAN)), error = o, dv = o, final = Numbers(n.state, T(NAN)), dinitial = final,
          kept = Numbers(n.kept, T(NAN)), dq = Numbers(n.qk, T(NAN)), dk = dq, dg = Numbers(n.number, T(NAN)),
          dbeta = dg;

  explicit Outputs(const GatedDeltaShape& s) : n(s) {}
  GatedDeltaOutOf<T> out() { return {o.data(), final.data(), error.data(), kept.data()}; }
  GatedDeltaGradientsOf<T> gradients() {
    return {dq.data(), dk.data(), dv.data(), dg.data(), dbeta.data(), dinitial.data()};
  }
  // Of both ways, and of attention in bf16 too.
  std::map<std::string, Numbers> by_name() const {
    return {{"o", o},   {"final", final}, {"dq", dq},       {"dk", dk},
            {"dv", dv}, {"dg", dg},       {"dbeta", dbeta}, {"dinitial", dinitial}};
  }
};

// A way to compute it in floats. (The other: tests/test_gated_delta_chunk.cpp)
struct Recurrence {
  static constexpr auto forward = gated_delta_forward;
  static constexpr auto backward = gated_delta_backward;
  static constexpr auto forward_scratch = gated_delta_forward_scratch, backward_scratch = gated_delta_backward_scratch;
  template <class T>
  static constexpr auto forward_ref = gated_delta_forward_ref<T>;
  template <class T>
  static constexpr auto backward_ref = gated_delta_backward_ref<T>;
};

template <class Form, class T>
Outputs<T> reference(const Inputs<T>& in) {
  Outputs<T> r(in.s);
  Form::template forward_ref<T>(r.out(), in.in(), in.s);
  Form::template backward_ref<T>(r.gradients(), {in.dout.data(), in.dfinal.data(), r.error.data(), r.kept.data()},
                                 in.in(), in.s);
  return r;
}

// What every form reads and writes, of S; with or without states before and after. Where the shape says so, heads lie
// in wider rows, from element `at` on.
template <class S>
struct DeltaTrial : Trial {
  const Inputs<float> x;
  const bool states;
  const GatedDeltaShape s = x.s;
  const size_t v_size = x.v.size(), qk_size = x.q.size(), numbers = x.g.size();
  const Array<S> q = in<S>(x.q), k = in<S>(x.k), v = in<S>(x.v), dout = in<S>(x.dout), o = out<S>(v_size),
                 dq = out<S>(qk_size), dk = out<S>(qk_size), dv = out<S>(v_size);
  const Array<float> g = in(x.g), beta = in(x.beta), dg = out(numbers), dbeta = out(numbers), none,
                     initial = states ? in(x.initial) : none, dfinal = states ? in(x.dfinal) : none,
                     final = states ? out(x.initial.size()) : none, dinitial = states ? out(x.initial.size()) : none;

  DeltaTrial(const Inputs<float>& x, bool states, size_t at, Nan nan) : Trial(nan), x(x), states(states) {
    widen<S>({q, k, dq, dk}, s.B * s.T, s.qk_stride, at);
    widen<S>({v, dv}, s.B * s.T, s.v_stride, at);
  }
  virtual void on_device(Context& ctx) = 0;
  void on_cpu() {
    Context cpu(Device::cpu);
    on_device(cpu);
  }
  void on_every_device() {
    gated::on_every_device([&](Context& ctx) { on_device(ctx); });
  }
  // What is of single tokens: of the forward, and of the backward too.
  virtual std::vector<std::vector<float>> of_forward() const = 0;
  std::vector<std::vector<float>> by_token() const {
    auto all = of_forward();
    for (const auto& gradient : {dq.values(), dk.values(), dv.values(), dg.values(), dbeta.values()})
      all.push_back(gradient);
    return all;
  }
};

// The reference of a form of floats beside what the program runs.
template <class Form>
struct FormTrial : DeltaTrial<float> {
  const Array<float> error = out(Sizes(s).v), kept = out(Sizes(s).kept);

  explicit FormTrial(const Inputs<float>& in, bool states = true, size_t at = 0)
      : DeltaTrial(in, states, at, Nan::refused) {
    reference([&] {
      Form::template forward_ref<float>({o, final, error, kept}, from(), s);
      Form::template backward_ref<float>({dq, dk, dv, dg, dbeta, dinitial}, {dout, dfinal, error, kept}, from(), s);
    });
  }
  GatedDeltaIn from() const { return {q, k, v, g, beta, initial}; }
  void run(Context& ctx) const {
    Form::forward({o, final, error, kept}, from(), s, ctx);
    Form::backward({dq, dk, dv, dg, dbeta, dinitial}, {dout, dfinal, error, kept}, from(), s, ctx);
    REQUIRE(ctx.most_scratch_used() ==
            std::max(Form::forward_scratch(s, ctx.device), Form::backward_scratch(s, ctx.device)));
  }
  void run_without_backward(const Array<float>& to, Context& ctx) const { Form::forward({to}, from(), s, ctx); }
  void on_device(Context& ctx) override {
    on(ctx, [&](Context& ctx) { run(ctx); });
  }
  std::vector<std::vector<float>> of_forward() const override { return {o.values(), error.values()}; }
};

// Tokens t0 to t1 - 1.
inline std::vector<std::vector<float>> tokens(std::vector<std::vector<float>> arrays, size_t B, size_t T, size_t t0,
                                              size_t t1) {
  for (auto& x : arrays) x = tokens_of(x, B, T, t0, t1 - t0);
  return arrays;
}
inline Inputs<float> tokens(const Inputs<float>& in, size_t t0, size_t t1) {
  Inputs<float> part = in;
  part.s.T = t1 - t0;
  for (auto x : {&Inputs<float>::q, &Inputs<float>::k, &Inputs<float>::v, &Inputs<float>::g, &Inputs<float>::beta,
                 &Inputs<float>::dout})
    part.*x = tokens_of(in.*x, in.s.B, in.s.T, t0, t1 - t0);
  return part;
}

// ---- cases

template <class Form>
void gradients() {
  for (const GatedDeltaShape& s : {GatedDeltaShape{2, 5, 1, 2, 3, 4}, {1, 4, 2, 2, 18, 17}, {1, 3, 1, 4, 2, 3}}) {
    INFO("T " << s.T << " Dk " << s.Dk << " Dv " << s.Dv);
    Inputs<double> in(s);
    // loss = <o, dout> + <final, dfinal>
    const auto loss = [&] {
      Outputs<double> r(s);
      Form::template forward_ref<double>(r.out(), in.in(), s);
      return dot(r.o, in.dout) + dot(r.final, in.dfinal);
    };
    const Outputs<double> r = reference<Form>(in);
    check_gradients(loss, {{"q", in.q, r.dq}, {"k", in.k, r.dk}, {"v", in.v, r.dv}});
    check_gradients(loss,
                    {{"g", in.g, r.dg}, {"beta", in.beta, r.dbeta}, {"the initial state", in.initial, r.dinitial}});
  }
}

// Without a state before, after or wanted.
template <class Delta>
void without_states(Inputs<float> in) {
  std::ranges::fill(in.initial, 0.0f);
  std::ranges::fill(in.dfinal, 0.0f);
  Delta t(in, false);
  require_same(Delta(in).by_token(), t.by_token());
  const auto o_alone = t.again(t.o);
  t.Trial::on_every_device([&](Context& ctx) {
    t.run(ctx);
    t.run_without_backward(o_alone, ctx);
  });
}

// Heads inside wider rows, which are so much longer and begin at `at`.
template <class Delta>
void wider_rows(Inputs<float> in, size_t qk, size_t v, size_t at) {
  const Delta expected(in);
  in.s.qk_stride = in.s.qk_step() + qk, in.s.v_stride = in.s.v_step() + v;
  Delta t(in, true, at);
  require_same(expected.by_token(), t.by_token());
  require_same({expected.final.values(), expected.dinitial.values()}, {t.final.values(), t.dinitial.values()});
  t.on_every_device();
}

// A sequence that is cut, with the state carried on, has the bits of the whole.
template <class Delta>
void cut_sequence(const Inputs<float>& in, std::initializer_list<size_t> cuts) {
  const auto [B, T] = std::pair(in.s.B, in.s.T);
  const Delta whole(in);
  for (size_t cut : cuts) {
    INFO("cut at " << cut);
    // The state goes forwards over the cut, its gradient backwards.
    Inputs<float> first = tokens(in, 0, cut), second = tokens(in, cut, T);
    second.initial = Delta(first).final.values();
    Delta b(second);
    first.dfinal = b.dinitial.values();
    Delta a(first);
    require_same({whole.final.values(), whole.dinitial.values()}, {b.final.values(), a.dinitial.values()});
    require_same(tokens(whole.by_token(), B, T, 0, cut), a.by_token());
    require_same(tokens(whole.by_token(), B, T, cut, T), b.by_token());
    a.on_cpu(), b.on_cpu();
  }
}

// What a form of floats promises. It may be cut at these tokens.
template <class Form>
void promises(std::initializer_list<size_t> cuts) {
  SECTION("CPU and kernels equal the reference bit for bit") {
    const std::pair<GatedDeltaShape, float> cases[] = {
        {{1, 1, 1, 1, 16, 16}, 0.5f},  {{2, 63, 1, 2, 24, 20}, 0.5f},  {{1, 65, 2, 2, 16, 40}, 0.02f},
        {{1, 200, 1, 4, 8, 9}, 30.0f}, {{1, 66, 1, 1, 128, 33}, 0.1f}, {{1, 3, 2, 4, 5, 130}, 1.0f},
        {{2, 64, 1, 1, 33, 1}, 0.0f},  {{1, 2, 1, 1, 200, 17}, 0.5f},  {{1, 129, 1, 2, 48, 16}, 100.0f},
        {{1, 70, 1, 2, 24, 20}, 0.5f}, {{2, 5, 2, 2, 8, 16}, 0.5f}};
    for (const auto& [s, decay] : cases) {
      INFO("B " << s.B << " T " << s.T << " heads " << s.Hk << ", " << s.Hv << " Dk " << s.Dk << " Dv " << s.Dv);
      FormTrial<Form>(Inputs<float>(s, decay)).on_every_device();
    }
  }
  SECTION("products that underflow to -0 join the chains of rows that exist, and no others") {
    Inputs<float> in({1, 3, 1, 2, 21, 19}, 0.5f, 1e-25f);
    for (auto* x : {&in.q, &in.dout, &in.dfinal})
      for (float& y : *x) y = std::fabs(y);
    for (auto* x : {&in.k, &in.initial})
      for (float& y : *x) y = -std::fabs(y);
    FormTrial<Form> t(in);
    REQUIRE(std::ranges::any_of(t.dv.values(), [](float x) { return x == 0 && std::signbit(x); }));
    t.on_every_device();
  }
  SECTION("without a state before, after or wanted") {
    without_states<FormTrial<Form>>(Inputs<float>({1, 70, 1, 2, 24, 18}));
  }
  SECTION("heads inside wider rows give the bits of packed ones, and nothing between them is touched") {
    wider_rows<FormTrial<Form>>(Inputs<float>({2, 66, 1, 2, 24, 20}), 7, 5, 3);
  }
  SECTION("a sequence that is cut, with the state carried on, has the bits of the whole") {
    cut_sequence<FormTrial<Form>>(Inputs<float>({2, 150, 1, 2, 16, 18}, 0.1f), cuts);
  }
}

}  // namespace gated::gated_delta_cases
