// gated_delta_cases: what the tests of gated_delta and gated_delta_chunk share: inputs, and the cases that both ways to
// compute the gated delta rule must pass.
#pragma once
#include <algorithm>

#include "kernels/gated_delta.h"
#include "tests/harness.h"

namespace gated::gated_delta_cases {

struct Sizes {
  GatedDeltaShape s;
  size_t qk = s.B * s.T * s.Hk * s.Dk, v = s.B * s.T * s.Hv * s.Dv, number = s.B * s.T * s.Hv,
         state = s.B * s.Hv * s.Dk * s.Dv;
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
          kept = Numbers(n.s.kept_size(), T(NAN)), dq = Numbers(n.qk, T(NAN)), dk = dq, dg = Numbers(n.number, T(NAN)),
          dbeta = dg;

  explicit Outputs(const GatedDeltaShape& s) : n(s) {}
  GatedDeltaOutOf<T> out() { return {o.data(), final.data(), error.data(), kept.data()}; }
  GatedDeltaGradientsOf<T> gradients() {
    return {dq.data(), dk.data(), dv.data(), dg.data(), dbeta.data(), dinitial.data()};
  }
};

// The two ways to compute it.
struct Form {
  decltype(&gated_delta_forward) forward;
  decltype(&gated_delta_backward) backward;
  decltype(&gated_delta_forward_scratch) forward_scratch, backward_scratch;
  decltype(&gated_delta_forward_ref<float>) forward_ref;
  decltype(&gated_delta_backward_ref<float>) backward_ref;
  decltype(&gated_delta_forward_ref<double>) forward_ref_double;
  decltype(&gated_delta_backward_ref<double>) backward_ref_double;

  template <class T>
  auto forward_reference() const {
    if constexpr (std::is_same_v<T, float>) return forward_ref;
    if constexpr (std::is_same_v<T, double>) return forward_ref_double;
  }
  template <class T>
  auto backward_reference() const {
    if constexpr (std::is_same_v<T, float>) return backward_ref;
    if constexpr (std::is_same_v<T, double>) return backward_ref_double;
  }
};

inline const Form recurrence = {gated_delta_forward,
                                gated_delta_backward,
                                gated_delta_forward_scratch,
                                gated_delta_backward_scratch,
                                gated_delta_forward_ref<float>,
                                gated_delta_backward_ref<float>,
                                gated_delta_forward_ref<double>,
                                gated_delta_backward_ref<double>};

template <class T>
Outputs<T> reference(const Form& form, const Inputs<T>& in) {
  Outputs<T> r(in.s);
  form.forward_reference<T>()(r.out(), in.in(), in.s);
  form.backward_reference<T>()(r.gradients(), {in.dout.data(), in.dfinal.data(), r.error.data(), r.kept.data()},
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
};
// What is the same for the tokens of two trials, or of one and a part of it, is looked at one array after the other.
template <class Delta>
std::vector<std::vector<float>> gradients_of(const Delta& t) {
  return {t.dq.values(), t.dk.values(), t.dv.values(), t.dg.values(), t.dbeta.values()};
}

// The reference of a form of floats beside what the program runs.
struct FormTrial : DeltaTrial<float> {
  const Form form;
  const Array<float> error = out(Sizes(s).v), kept = out(s.kept_size());

  FormTrial(const Form& form, const Inputs<float>& in, bool states = true, size_t at = 0)
      : DeltaTrial(in, states, at, Nan::refused), form(form) {
    reference([&] { call(form.forward_ref, form.backward_ref); });
  }
  GatedDeltaIn from() const { return {q, k, v, g, beta, initial}; }
  template <class Forward, class Backward>
  void call(Forward forward, Backward backward) const {
    forward({o, final, error, kept}, from(), s);
    backward({dq, dk, dv, dg, dbeta, dinitial}, {dout, dfinal, error, kept}, from(), s);
  }
  void run(Context& ctx) const {
    form.forward({o, final, error, kept}, from(), s, ctx);
    form.backward({dq, dk, dv, dg, dbeta, dinitial}, {dout, dfinal, error, kept}, from(), s, ctx);
    REQUIRE(ctx.most_scratch_used() ==
            std::max(form.forward_scratch(s, ctx.device), form.backward_scratch(s, ctx.device)));
  }
  void on_cpu() {
    Context cpu(Device::cpu);
    on(cpu, [&](Context& ctx) { run(ctx); });
  }
  void on_every_device() {
    Trial::on_every_device([&](Context& ctx) { run(ctx); });
  }
  // Of every token.
  std::vector<std::vector<float>> by_token() const {
    auto all = gradients_of(*this);
    all.push_back(o.values()), all.push_back(error.values());
    return all;
  }
};

// Tokens t0 .. t1-1 of an array (B,T,width), and of several.
inline std::vector<float> tokens(const std::vector<float>& x, size_t B, size_t T, size_t t0, size_t t1) {
  const size_t width = x.size() / (B * T);
  std::vector<float> part;
  for (size_t b = 0; b < B; b++)
    part.insert(part.end(), x.begin() + (b * T + t0) * width, x.begin() + (b * T + t1) * width);
  return part;
}
inline std::vector<std::vector<float>> tokens(std::vector<std::vector<float>> arrays, size_t B, size_t T, size_t t0,
                                              size_t t1) {
  for (auto& x : arrays) x = tokens(x, B, T, t0, t1);
  return arrays;
}
inline Inputs<float> tokens(const Inputs<float>& in, size_t t0, size_t t1) {
  Inputs<float> part = in;
  part.s.T = t1 - t0;
  for (auto x : {&Inputs<float>::q, &Inputs<float>::k, &Inputs<float>::v, &Inputs<float>::g, &Inputs<float>::beta,
                 &Inputs<float>::dout})
    part.*x = tokens(in.*x, in.s.B, in.s.T, t0, t1);
  return part;
}

// ---- cases

inline void gradients(const Form& form) {
  for (const GatedDeltaShape& s : {GatedDeltaShape{2, 5, 1, 2, 3, 4}, {1, 4, 2, 2, 18, 17}, {1, 3, 1, 4, 2, 3}}) {
    INFO("T " << s.T << " Dk " << s.Dk << " Dv " << s.Dv);
    Inputs<double> in(s);
    // loss = <o, dout> + <final, dfinal>
    const auto loss = [&] {
      Outputs<double> r(s);
      form.forward_ref_double(r.out(), in.in(), s);
      return dot(r.o, in.dout) + dot(r.final, in.dfinal);
    };
    const Outputs<double> r = reference(form, in);
    check_gradients(loss, {{"q", in.q, r.dq},
                           {"k", in.k, r.dk},
                           {"v", in.v, r.dv},
                           {"g", in.g, r.dg},
                           {"beta", in.beta, r.dbeta},
                           {"the initial state", in.initial, r.dinitial}});
  }
}

inline void bits(const Form& form) {
  const struct {
    GatedDeltaShape s;
    float decay;
  } cases[] = {{{1, 1, 1, 1, 16, 16}, 0.5f},  {{2, 63, 1, 2, 24, 20}, 0.5f},  {{1, 65, 2, 2, 16, 40}, 0.02f},
               {{1, 200, 1, 4, 8, 9}, 30.0f}, {{1, 66, 1, 1, 128, 33}, 0.1f}, {{1, 3, 2, 4, 5, 130}, 1.0f},
               {{2, 64, 1, 1, 33, 1}, 0.0f},  {{1, 2, 1, 1, 200, 17}, 0.5f},  {{1, 129, 1, 2, 48, 16}, 100.0f},
               {{1, 70, 1, 2, 24, 20}, 0.5f}, {{2, 5, 2, 2, 8, 16}, 0.5f}};
  for (const auto& [s, decay] : cases) {
    INFO("B " << s.B << " T " << s.T << " heads " << s.Hk << ", " << s.Hv << " Dk " << s.Dk << " Dv " << s.Dv);
    FormTrial(form, Inputs<float>(s, decay)).on_every_device();
  }
}

inline void underflow(const Form& form) {
  Inputs<float> in({1, 3, 1, 2, 21, 19}, 0.5f, 1e-25f);
  for (auto x : {&Inputs<float>::q, &Inputs<float>::dout, &Inputs<float>::dfinal})
    for (float& y : in.*x) y = std::fabs(y);
  for (auto x : {&Inputs<float>::k, &Inputs<float>::initial})
    for (float& y : in.*x) y = -std::fabs(y);
  FormTrial t(form, in);
  REQUIRE(std::ranges::any_of(t.dv.values(), [](float x) { return x == 0 && std::signbit(x); }));
  t.on_every_device();
}

inline void without_states(const Form& form) {
  const GatedDeltaShape s{1, 70, 1, 2, 24, 18};
  Inputs<float> in(s);
  std::fill(in.initial.begin(), in.initial.end(), 0.0f);
  std::fill(in.dfinal.begin(), in.dfinal.end(), 0.0f);
  FormTrial t(form, in, false);
  require_same(FormTrial(form, in).by_token(), t.by_token());
  const auto o_alone = t.again(t.o);
  t.Trial::on_every_device([&](Context& ctx) {
    form.forward({o_alone}, t.from(), s, ctx);
    t.run(ctx);
  });
}

inline void wider_rows(const Form& form) {
  const GatedDeltaShape packed{2, 66, 1, 2, 24, 20};
  GatedDeltaShape s = packed;
  s.qk_stride = packed.qk_step() + 7;
  s.v_stride = packed.v_step() + 5;
  const FormTrial expected(form, Inputs<float>(packed));
  FormTrial t(form, Inputs<float>(s), true, 3);
  require_same(expected.by_token(), t.by_token());
  REQUIRE_BITWISE(expected.final.values(), t.final.values());
  REQUIRE_BITWISE(expected.dinitial.values(), t.dinitial.values());
  t.on_every_device();
}

inline void cut_sequence(const Form& form, std::initializer_list<size_t> cuts) {
  const GatedDeltaShape s{2, 150, 1, 2, 16, 18};
  const Inputs<float> in(s, 0.1f);
  const FormTrial whole(form, in);
  for (size_t cut : cuts) {
    INFO("cut at " << cut);
    // The state goes forwards over the cut, its gradient backwards.
    Inputs<float> first = tokens(in, 0, cut), second = tokens(in, cut, s.T);
    second.initial = FormTrial(form, first).final.values();
    FormTrial b(form, second);
    first.dfinal = b.dinitial.values();
    FormTrial a(form, first);
    REQUIRE_BITWISE(whole.final.values(), b.final.values());
    REQUIRE_BITWISE(whole.dinitial.values(), a.dinitial.values());
    require_same(tokens(whole.by_token(), s.B, s.T, 0, cut), a.by_token());
    require_same(tokens(whole.by_token(), s.B, s.T, cut, s.T), b.by_token());
    a.on_cpu(), b.on_cpu();
  }
}

inline void causality(const Form& form) {
  const GatedDeltaShape s{1, 100, 1, 2, 16, 20};
  const size_t t = 70;
  const Inputs<float> in(s);
  Inputs<float> other = in;
  const size_t qk = t * s.Hk * s.Dk, v = t * s.Hv * s.Dv, number = t * s.Hv;
  for (size_t i = qk; i < in.q.size(); i++) other.q[i] = other.k[i] = 0.25f;
  for (size_t i = v; i < in.v.size(); i++) other.v[i] = -3;
  for (size_t i = number; i < in.g.size(); i++) other.g[i] = -9, other.beta[i] = 0.125f;
  const auto before_t = [&](const Array<float>& x) { return tokens(x.values(), 1, s.T, 0, t); };
  const auto from_t = [&](const Array<float>& x) { return tokens(x.values(), 1, s.T, t, s.T); };
  FormTrial a(form, in), b(form, other);
  REQUIRE_BITWISE(before_t(a.o), before_t(b.o));
  REQUIRE_BITWISE(before_t(a.error), before_t(b.error));
  REQUIRE(bitwise_difference(from_t(a.o), from_t(b.o)) != "");

  other = in;
  for (size_t i = 0; i < v; i++) other.dout[i] = 5;
  FormTrial c(form, other);
  require_same(tokens(gradients_of(a), 1, s.T, t, s.T), tokens(gradients_of(c), 1, s.T, t, s.T));
  a.on_cpu(), b.on_cpu(), c.on_cpu();
}

// Without decay, with beta = 1 and orthonormal keys the state recalls values: the inputs, and o as it must be.
struct Recall {
  Inputs<float> in;
  std::vector<float> o;

  // Rows of a Hadamard matrix over 4 are orthonormal, and exact in bf16. Every query asks for the key of an earlier
  // token; the same key is later given another value.
  explicit Recall(size_t Dv) : in({1, 24, 1, 1, 16, Dv}), o(in.v.size()) {
    const size_t D = in.s.Dk;
    std::fill(in.g.begin(), in.g.end(), 0.0f);
    std::fill(in.beta.begin(), in.beta.end(), 1.0f);
    std::fill(in.initial.begin(), in.initial.end(), 0.0f);
    const auto key = [&](size_t t, size_t i) { return __builtin_parityll(t % D & i) ? -0.25f : 0.25f; };
    for (size_t t = 0; t < in.s.T; t++) {
      for (size_t i = 0; i < D; i++) {
        in.k[t * D + i] = key(t, i);
        in.q[t * D + i] = key(t / 2, i);
      }
      const size_t last = t >= D + t / 2 ? D + t / 2 : t / 2;  // who wrote that key last
      std::copy_n(&in.v[last * Dv], Dv, &o[t * Dv]);
    }
  }
};

inline void recall(const Form& form) {
  const Recall task(5);
  FormTrial t(form, task.in);
  REQUIRE(relative_error(task.o, t.o.values()) < 4e-7);
  t.on_cpu();
}

}  // namespace gated::gated_delta_cases
