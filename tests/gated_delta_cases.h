// gated_delta_cases: what the tests of gated_delta and gated_delta_chunk share: inputs, and the cases that both ways to compute
// the gated delta rule must pass.
#pragma once
#include <algorithm>

#include "kernels/gated_delta.h"
#include "tests/harness.h"
#include "tests/wide_rows.h"

namespace gated::gated_delta_cases {

struct Sizes {
  size_t qk, v, number, state;
  explicit Sizes(const GatedDeltaShape& s)
      : qk(s.B * s.T * s.Hk * s.Dk),
        v(s.B * s.T * s.Hv * s.Dv),
        number(s.B * s.T * s.Hv),
        state(s.B * s.Hv * s.Dk * s.Dv) {}
};

// Keys of about length 1, as the norm in front of the operation leaves them.
template <class T>
struct Inputs {
  GatedDeltaShape s;
  std::vector<T> q, k, v, g, beta, initial, dout, dfinal;

  explicit Inputs(const GatedDeltaShape& s, T decay = 0.5, T scale = 1)
      : s(s),
        q(random_values<T>(Sizes(s).qk, 1, scale)),
        k(random_values<T>(Sizes(s).qk, 2, scale * T(1.7) / T(std::sqrt(double(s.Dk))))),
        v(random_values<T>(Sizes(s).v, 3, scale)),
        g(random_values<T>(Sizes(s).number, 4, decay)),
        beta(random_values<T>(Sizes(s).number, 5, T(0.5))),
        initial(random_values<T>(Sizes(s).state, 6, scale)),
        dout(random_values<T>(Sizes(s).v, 7, scale)),
        dfinal(random_values<T>(Sizes(s).state, 8, scale)) {
    for (T& x : g) x = -std::fabs(x);
    for (T& x : beta) x = x + T(0.5);
  }
  GatedDeltaInOf<T> in() const { return {q.data(), k.data(), v.data(), g.data(), beta.data(), initial.data()}; }
};

template <class T>
struct Outputs {
  std::vector<T> o, final, error, kept, dq, dk, dv, dg, dbeta, dinitial;

  explicit Outputs(const GatedDeltaShape& s, T fill = T(NAN))
      : o(Sizes(s).v, fill),
        final(Sizes(s).state, fill),
        error(o),
        kept(s.kept_size(), fill),
        dq(Sizes(s).qk, fill),
        dk(dq),
        dv(o),
        dg(Sizes(s).number, fill),
        dbeta(dg),
        dinitial(final) {}
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

  void reference_forward(const GatedDeltaOutOf<float>& out, const GatedDeltaInOf<float>& in,
                         const GatedDeltaShape& s) const {
    forward_ref(out, in, s);
  }
  void reference_forward(const GatedDeltaOutOf<double>& out, const GatedDeltaInOf<double>& in,
                         const GatedDeltaShape& s) const {
    forward_ref_double(out, in, s);
  }
  void reference_backward(const GatedDeltaGradientsOf<float>& out, const GatedDeltaBackwardInOf<float>& back,
                          const GatedDeltaInOf<float>& in, const GatedDeltaShape& s) const {
    backward_ref(out, back, in, s);
  }
  void reference_backward(const GatedDeltaGradientsOf<double>& out, const GatedDeltaBackwardInOf<double>& back,
                          const GatedDeltaInOf<double>& in, const GatedDeltaShape& s) const {
    backward_ref_double(out, back, in, s);
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
  form.reference_forward(r.out(), in.in(), in.s);
  form.reference_backward(r.gradients(), {in.dout.data(), in.dfinal.data(), r.error.data(), r.kept.data()}, in.in(),
                          in.s);
  return r;
}

inline Outputs<float> on(Context& ctx, const Form& form, const Inputs<float>& in) {
  const GatedDeltaShape& s = in.s;
  const Sizes n(s);
  Guarded q(ctx, in.q), k(ctx, in.k), v(ctx, in.v), g(ctx, in.g), beta(ctx, in.beta), initial(ctx, in.initial);
  Guarded dout(ctx, in.dout), dfinal(ctx, in.dfinal), o(ctx, n.v), final(ctx, n.state), error(ctx, n.v),
      kept(ctx, s.kept_size());
  Guarded dq(ctx, n.qk), dk(ctx, n.qk), dv(ctx, n.v), dg(ctx, n.number), dbeta(ctx, n.number), dinitial(ctx, n.state);
  const GatedDeltaIn from = {q, k, v, g, beta, initial};
  form.forward({o, final, error, kept}, from, s, ctx);
  form.backward({dq, dk, dv, dg, dbeta, dinitial}, {dout, dfinal, error, kept}, from, s, ctx);
  Outputs<float> r(s);
  r.o = o.download(), r.final = final.download(), r.error = error.download(), r.kept = kept.download();
  r.dq = dq.download(), r.dk = dk.download(), r.dv = dv.download(), r.dg = dg.download(), r.dbeta = dbeta.download();
  r.dinitial = dinitial.download();
  return r;
}

inline void require_same(const Outputs<float>& expected, const Outputs<float>& got) {
  REQUIRE_BITWISE(expected.o, got.o);
  REQUIRE_BITWISE(expected.final, got.final);
  REQUIRE_BITWISE(expected.error, got.error);
  REQUIRE_BITWISE(expected.kept, got.kept);
  REQUIRE_BITWISE(expected.dinitial, got.dinitial);
  REQUIRE_BITWISE(expected.dv, got.dv);
  REQUIRE_BITWISE(expected.dq, got.dq);
  REQUIRE_BITWISE(expected.dk, got.dk);
  REQUIRE_BITWISE(expected.dbeta, got.dbeta);
  REQUIRE_BITWISE(expected.dg, got.dg);
}

// Tokens t0 .. t1-1 of an array (B,T,width).
inline std::vector<float> tokens(const std::vector<float>& x, size_t B, size_t T, size_t t0, size_t t1) {
  const size_t width = x.size() / (B * T);
  std::vector<float> part;
  for (size_t b = 0; b < B; b++)
    part.insert(part.end(), x.begin() + (b * T + t0) * width, x.begin() + (b * T + t1) * width);
  return part;
}

// ---- cases

inline void gradients(const Form& form) {
  for (const GatedDeltaShape& s : {GatedDeltaShape{2, 5, 1, 2, 3, 4}, {1, 4, 2, 2, 18, 17}, {1, 3, 1, 4, 2, 3}}) {
    INFO("T " << s.T << " Dk " << s.Dk << " Dv " << s.Dv);
    const Inputs<double> in(s);
    // loss = <o, dout> + <final, dfinal>
    const auto loss = [&](const Inputs<double>& x) {
      Outputs<double> r(s);
      form.reference_forward(r.out(), x.in(), s);
      return dot(r.o, in.dout) + dot(r.final, in.dfinal);
    };
    Outputs<double> r = reference(form, in);
    const struct {
      const char* name;
      std::vector<double> Inputs<double>::*input;
      const std::vector<double>& gradient;
    } cases[] = {{"q", &Inputs<double>::q, r.dq},          {"k", &Inputs<double>::k, r.dk},
                 {"v", &Inputs<double>::v, r.dv},          {"g", &Inputs<double>::g, r.dg},
                 {"beta", &Inputs<double>::beta, r.dbeta}, {"the initial state", &Inputs<double>::initial, r.dinitial}};
    for (const auto& c : cases)
      check_gradient(
          c.name,
          [&](const std::vector<double>& x) {
            Inputs<double> at = in;
            at.*c.input = x;
            return loss(at);
          },
          in.*c.input, c.gradient);
  }
}

inline void bits(const Form& form) {
  const struct {
    GatedDeltaShape s;
    float decay;
  } cases[] = {{{1, 1, 1, 1, 16, 16}, 0.5f},  {{2, 63, 1, 2, 24, 20}, 0.5f},  {{1, 65, 2, 2, 16, 40}, 0.02f},
               {{1, 200, 1, 4, 8, 9}, 30.0f}, {{1, 66, 1, 1, 128, 33}, 0.1f}, {{1, 3, 2, 4, 5, 130}, 1.0f},
               {{2, 64, 1, 1, 33, 1}, 0.0f},  {{1, 2, 1, 1, 200, 17}, 0.5f},  {{1, 129, 1, 2, 48, 16}, 100.0f}};
  for (const auto& [s, decay] : cases) {
    INFO("B " << s.B << " T " << s.T << " heads " << s.Hk << ", " << s.Hv << " Dk " << s.Dk << " Dv " << s.Dv);
    const Inputs<float> in(s, decay);
    const Outputs<float> expected = reference(form, in);
    on_every_device([&](Context& ctx) { require_same(expected, on(ctx, form, in)); });
  }
}

inline void underflow(const Form& form) {
  Inputs<float> in({1, 3, 1, 2, 21, 19}, 0.5f, 1e-25f);
  for (auto x : {&Inputs<float>::q, &Inputs<float>::dout, &Inputs<float>::dfinal})
    for (float& y : in.*x) y = std::fabs(y);
  for (auto x : {&Inputs<float>::k, &Inputs<float>::initial})
    for (float& y : in.*x) y = -std::fabs(y);
  const Outputs<float> expected = reference(form, in);
  REQUIRE(std::any_of(expected.dv.begin(), expected.dv.end(), [](float x) { return x == 0 && std::signbit(x); }));
  on_every_device([&](Context& ctx) { require_same(expected, on(ctx, form, in)); });
}

inline void without_states(const Form& form) {
  const GatedDeltaShape s{1, 70, 1, 2, 24, 18};
  Inputs<float> in(s);
  std::fill(in.initial.begin(), in.initial.end(), 0.0f);
  std::fill(in.dfinal.begin(), in.dfinal.end(), 0.0f);
  const Outputs<float> expected = reference(form, in);
  const Sizes n(s);
  on_every_device([&](Context& ctx) {
    Guarded q(ctx, in.q), k(ctx, in.k), v(ctx, in.v), g(ctx, in.g), beta(ctx, in.beta), dout(ctx, in.dout);
    Guarded o(ctx, n.v), error(ctx, n.v), kept(ctx, s.kept_size()), alone(ctx, n.v);
    Guarded dq(ctx, n.qk), dk(ctx, n.qk), dv(ctx, n.v), dg(ctx, n.number), dbeta(ctx, n.number);
    const GatedDeltaIn from = {q, k, v, g, beta};
    form.forward({alone}, from, s, ctx);
    REQUIRE_BITWISE(expected.o, alone.download());
    form.forward({.o = o, .error = error, .kept = kept}, from, s, ctx);
    form.backward({dq, dk, dv, dg, dbeta}, {.dout = dout, .error = error, .kept = kept}, from, s, ctx);
    Outputs<float> r = expected;
    r.o = o.download(), r.error = error.download(), r.kept = kept.download(), r.dq = dq.download();
    r.dk = dk.download(), r.dv = dv.download(), r.dg = dg.download(), r.dbeta = dbeta.download();
    require_same(expected, r);
  });
}

inline void wider_rows(const Form& form) {
  const GatedDeltaShape packed{2, 66, 1, 2, 24, 20};
  GatedDeltaShape s = packed;
  const size_t rows = s.B * s.T, at = 3;
  s.qk_stride = packed.qk_step() + 7;
  s.v_stride = packed.v_step() + 5;
  const Inputs<float> in(packed);
  const Outputs<float> expected = reference(form, in);
  const auto spread = [&](const std::vector<float>& x, size_t stride) {
    return spread_rows(x, rows, stride, at, between_inputs);
  };
  const auto gather = [&](const std::vector<float>& wide, size_t width) { return gather_rows(wide, rows, width, at); };
  const auto q = spread(in.q, s.qk_stride), k = spread(in.k, s.qk_stride), v = spread(in.v, s.v_stride);
  const std::vector<float> wide_qk(rows * s.qk_stride, between_outputs), wide_v(rows * s.v_stride, between_outputs);
  const Sizes n(packed);

  Outputs<float> r(packed);
  r.dq = r.dk = wide_qk, r.dv = wide_v;
  const GatedDeltaIn host = {&q[at], &k[at], &v[at], in.g.data(), in.beta.data(), in.initial.data()};
  form.reference_forward(r.out(), host, s);
  form.backward_ref({&r.dq[at], &r.dk[at], &r.dv[at], r.dg.data(), r.dbeta.data(), r.dinitial.data()},
                    {in.dout.data(), in.dfinal.data(), r.error.data(), r.kept.data()}, host, s);
  r.dq = gather(r.dq, packed.qk_step()), r.dk = gather(r.dk, packed.qk_step()), r.dv = gather(r.dv, packed.v_step());
  require_same(expected, r);

  on_every_device([&](Context& ctx) {
    Guarded gq(ctx, q), gk(ctx, k), gv(ctx, v), g(ctx, in.g), beta(ctx, in.beta), initial(ctx, in.initial);
    Guarded dout(ctx, in.dout), dfinal(ctx, in.dfinal), o(ctx, n.v), final(ctx, n.state), error(ctx, n.v),
        kept(ctx, packed.kept_size());
    Buffer<float> dq(ctx.device, wide_qk), dk(ctx.device, wide_qk), dv(ctx.device, wide_v);
    Guarded dg(ctx, n.number), dbeta(ctx, n.number), dinitial(ctx, n.state);
    const GatedDeltaIn from = {gq + at, gk + at, gv + at, g, beta, initial};
    form.forward({o, final, error, kept}, from, s, ctx);
    form.backward({dq.data() + at, dk.data() + at, dv.data() + at, dg, dbeta, dinitial}, {dout, dfinal, error, kept},
                  from, s, ctx);
    ctx.synchronize();
    Outputs<float> r(packed);
    r.o = o.download(), r.final = final.download(), r.error = error.download(), r.kept = kept.download();
    r.dq = gather(dq.download(), packed.qk_step()), r.dk = gather(dk.download(), packed.qk_step());
    r.dv = gather(dv.download(), packed.v_step()), r.dg = dg.download(), r.dbeta = dbeta.download();
    r.dinitial = dinitial.download();
    require_same(expected, r);
  });
}

inline void cut_sequence(const Form& form, std::initializer_list<size_t> cuts) {
  const GatedDeltaShape s{2, 150, 1, 2, 16, 18};
  const Inputs<float> in(s, 0.1f);
  const Outputs<float> whole = reference(form, in);
  Context cpu(Device::cpu);
  for (size_t cut : cuts) {
    INFO("cut at " << cut);
    Inputs<float> first = in, second = in;
    const struct {
      Inputs<float>& part;
      size_t t0, t1;
    } parts[] = {{first, 0, cut}, {second, cut, s.T}};
    for (const auto& [part, t0, t1] : parts) {
      part.s.T = t1 - t0;
      for (auto x : {&Inputs<float>::q, &Inputs<float>::k, &Inputs<float>::v, &Inputs<float>::g, &Inputs<float>::beta,
                     &Inputs<float>::dout})
        part.*x = tokens(in.*x, s.B, s.T, t0, t1);
    }
    // The state goes forwards over the cut, its gradient backwards.
    Outputs<float> a(first.s), b(second.s);
    form.forward(a.out(), first.in(), first.s, cpu);
    second.initial = a.final;
    form.forward(b.out(), second.in(), second.s, cpu);
    form.backward(b.gradients(), {second.dout.data(), second.dfinal.data(), b.error.data(), b.kept.data()}, second.in(),
                  second.s, cpu);
    form.backward(a.gradients(), {first.dout.data(), b.dinitial.data(), a.error.data(), a.kept.data()}, first.in(),
                  first.s, cpu);
    REQUIRE_BITWISE(whole.final, b.final);
    REQUIRE_BITWISE(whole.dinitial, a.dinitial);
    for (auto x : {&Outputs<float>::o, &Outputs<float>::error, &Outputs<float>::dq, &Outputs<float>::dk,
                   &Outputs<float>::dv, &Outputs<float>::dg, &Outputs<float>::dbeta}) {
      REQUIRE_BITWISE(tokens(whole.*x, s.B, s.T, 0, cut), a.*x);
      REQUIRE_BITWISE(tokens(whole.*x, s.B, s.T, cut, s.T), b.*x);
    }
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
  Context cpu(Device::cpu);
  const Outputs<float> a = on(cpu, form, in), b = on(cpu, form, other);
  REQUIRE_BITWISE(tokens(a.o, 1, s.T, 0, t), tokens(b.o, 1, s.T, 0, t));
  REQUIRE_BITWISE(tokens(a.error, 1, s.T, 0, t), tokens(b.error, 1, s.T, 0, t));
  REQUIRE(bitwise_difference(tokens(a.o, 1, s.T, t, s.T), tokens(b.o, 1, s.T, t, s.T)) != "");

  other = in;
  for (size_t i = 0; i < v; i++) other.dout[i] = 5;
  const Outputs<float> c = on(cpu, form, other);
  for (auto x :
       {&Outputs<float>::dq, &Outputs<float>::dk, &Outputs<float>::dv, &Outputs<float>::dg, &Outputs<float>::dbeta})
    REQUIRE_BITWISE(tokens(a.*x, 1, s.T, t, s.T), tokens(c.*x, 1, s.T, t, s.T));
}

// Without decay, with beta = 1 and orthonormal keys the state recalls values: the inputs, and o as it must be.
struct Recall {
  Inputs<float> in;
  std::vector<float> o;

  // Rows of a Hadamard matrix over 4 are orthonormal, and exact in bf16. Every query asks for the key of an earlier token; the same
  // key is later given another value.
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
  Context cpu(Device::cpu);
  REQUIRE(relative_error(task.o, on(cpu, form, task.in).o) < 4e-7);
}

inline void scratch(const Form& form) {
  for (const GatedDeltaShape& s : {GatedDeltaShape{1, 70, 1, 2, 24, 20}, GatedDeltaShape{2, 5, 2, 2, 8, 16}}) {
    const Inputs<float> in(s);
    on_every_device([&](Context& ctx) {
      on(ctx, form, in);
      REQUIRE(ctx.most_scratch_used() ==
              std::max(form.forward_scratch(s, ctx.device), form.backward_scratch(s, ctx.device)));
    });
  }
}

}  // namespace gated::gated_delta_cases
