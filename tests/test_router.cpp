// router: the reference against finite differences, what the program runs against the reference; ties, one expert,
// logits out of range, the report.
#include "kernels/router.h"

#include <numeric>
#include <set>

#include "tests/harness.h"
#include "tests/refusal.h"
#include "tests/router_losses.h"

using namespace gated;
using Ints = std::vector<int>;

namespace {

// The reference beside what the program runs, on every device: a forward, and what is added to it.
struct RouterTrial : Trial {
  const RouterShape s;
  const std::vector<size_t> counts;  // of experts, for the balance loss and the report
  const Array<float> logits, p = out(s.N * s.E), lse = out(s.N), weight = out(s.N * s.k),
                             dweight = random(s.N * s.k, 2);
  Ints expert = Ints(s.N * s.k);
  std::vector<std::function<void(const RouterOut&, const Buffer<size_t>&, Context&)>> others;

  RouterTrial(const RouterShape& s, const std::vector<float>& logits, const std::vector<size_t>& counts = {},
              Nan nan = Nan::refused)
      : Trial(nan), s(s), counts(counts), logits(in(logits)) {
    router_forward_ref(of_ref(), this->logits.ref, s);
  }
  RouterOut of_ref() { return {p.ref, lse.ref, expert.data(), weight.ref}; }

  // dlogits, with the balance loss where it counts.
  template <class S = float>
  Array<S> backward(float balance = 0, float z = 0) {
    const Array<S> dlogits = out<S>(s.N * s.E);
    router_backward_ref(dlogits.ref, dweight.ref, of_ref(), {balance, z, balance != 0 ? counts.data() : nullptr}, s);
    others.push_back([=, this](const RouterOut& of, const Buffer<size_t>& counts, Context& ctx) {
      router_backward(dlogits, dweight, of, {balance, z, balance != 0 ? counts.data() : nullptr}, s, ctx);
      const bool scratch = ctx.device != Device::cpu && (balance != 0 || storage_of<S> == Storage::bf16);
      REQUIRE(ctx.most_scratch_used() == (scratch ? router_backward_scratch(s, storage_of<S>) : 0));
    });
    return dlogits;
  }
  Array<float> report() {
    const Array<float> values = out(router_report_values);
    router_report_ref(values.ref, p.ref, lse.ref, counts.data(), s);
    others.push_back([=, this](const RouterOut& of, const Buffer<size_t>& counts, Context& ctx) {
      router_report(values, of.p, of.lse, counts.data(), s, ctx);
      if (ctx.device != Device::cpu) REQUIRE(ctx.most_scratch_used() == router_report_scratch(s));
    });
    return values;
  }
  void on_every_device() {
    Trial::on_every_device([&](Context& ctx) {
      const Buffer<int> chosen(ctx.device, Ints(expert.size() + 8, -1));  // -1 must stay after the last
      const Buffer<size_t> counted(ctx.device, counts);
      const RouterOut of = {p, lse, chosen.data(), weight};
      router_forward(of, logits, s, ctx);
      REQUIRE(ctx.most_scratch_used() == 0);
      ctx.synchronize();
      Ints expected = expert;
      expected.resize(expert.size() + 8, -1);
      REQUIRE(chosen.download() == expected);
      for (const auto& other : others) {
        Context its_own(ctx.device);
        other(of, counted, its_own);
        its_own.synchronize();
      }
    });
  }
};

}  // namespace

TEST_CASE("router: gradients against finite differences", "[gradcheck]") {
  for (size_t k : {1, 3, 7})
    for (bool renormalise : {false, true}) {
      INFO("k " << k << " renormalise " << renormalise);
      const RouterShape s = {5, 7, k, renormalise};
      // Within a token logits are at least 0.1 apart, so that a small step changes no choice.
      auto logits = random_values<double>(s.N * s.E, 9, 0.05);
      for (size_t i = 0; i < logits.size(); i++) logits[i] += 0.2 * double((3 * (i % s.E) + 5 * (i / s.E)) % s.E) - 0.7;
      const auto dweight = random_values<double>(s.N * k, 2);
      const std::vector<size_t> counts = {40, 0, 7, 1, 90, 13, 4};
      std::vector<double> p(s.N * s.E), lse(s.N), weight(s.N * k), dlogits(s.N * s.E);
      Ints expert(s.N * k);
      const RouterOutOf<double> of = {p.data(), lse.data(), expert.data(), weight.data()};
      // Of the two losses, of the weights, and of all together.
      const std::tuple<const char*, double, double, double> cases[] = {
          {"weights", 1, 0, 0}, {"balance", 0, 1.3, 0}, {"z", 0, 0, 0.7}, {"all", 1, 1.3, 0.7}};
      for (const auto& [what, weights, balance, z] : cases) {
        if (what == std::string("weights") && k == 1 && renormalise) continue;  // always 1: a test of its own
        std::vector<double> dw = dweight;
        for (double& v : dw) v *= weights;
        const auto loss = [&, balance = balance, z = z] {
          router_forward_ref(of, logits.data(), s);
          const PlainRouterLosses losses = plain_router_losses(logits, counts);
          return dot(weight, dw) + balance * losses.balance + z * losses.z;
        };
        loss();
        router_backward_ref(dlogits.data(), dw.data(), of, {balance, z, counts.data()}, s);
        check_gradients(loss, {{what, logits, dlogits}});
      }
    }
}

TEST_CASE("router: what the program runs equals the reference bit for bit", "[bitwise]") {
  const std::array<size_t, 3> sizes[] = {
      {1, 1, 1},   {63, 1, 1},    {200, 3, 1},  {63, 3, 2},   {200, 3, 3},   {1, 8, 8},     {200, 8, 2},  {63, 128, 8},
      {1, 128, 1}, {9, 128, 128}, {40, 200, 8}, {63, 200, 2}, {5, 200, 200}, {3, 1500, 11}, {2, 1024, 8}, {300, 5, 1}};
  for (auto [N, E, k] : sizes)
    for (bool renormalise : {false, true}) {
      INFO("N " << N << " E " << E << " k " << k << " renormalise " << renormalise);
      const RouterShape s = {N, E, k, renormalise};
      auto logits = random_values<float>(N * E, 1, 6.0f);
      for (size_t i = 0; i < N * E; i += 3) logits[i] = std::round(logits[i]);  // ties
      for (size_t i = 0; i < N * E; i += 7) logits[i] = i % 2 ? 0.0f : -0.0f;
      for (size_t i = 1; i < N * E; i += 50) logits[i] = -INFINITY;
      for (size_t n = 0; n < N; n++) logits[n * E + n % E] = float(n % 5);
      if (E > 2) logits[2] = -110.0f;
      std::vector<size_t> counts;
      for (double v : random_values<double>(E, 3)) counts.push_back(v < -0.5 ? 0 : size_t((v + 1) * 1000));
      counts[0] = 7;
      if (E > 1) counts[1] = 1;
      RouterTrial t(s, logits, counts);
      t.backward(), t.backward(0, 0.003f), t.backward(0.01f, 0.003f);
      t.backward<bf16>(), t.backward<bf16>(0.01f, 0.003f);
      t.report();
      t.on_every_device();
    }
}

TEST_CASE("router: a tie goes to the lower expert", "[bitwise]") {
  const auto require_experts = [](const RouterShape& s, const std::vector<float>& logits, const Ints& expert) {
    RouterTrial t(s, logits);
    REQUIRE(t.expert == expert);
    t.on_every_device();
  };
  require_experts({1, 5, 5, false}, {1, 3, 2, 3, 1}, {1, 3, 2, 0, 4});
  require_experts({1, 4, 2, false}, {0.0f, -0.0f, 0.0f, -0.0f}, {0, 1});
  // Different logits whose p is the same float.
  require_experts({1, 3, 2, false}, {-1000, -900, std::nextafter(20.0f, 0.0f)}, {2, 0});
  std::vector<float> even(300, 2.5f);  // lanes, and quads of one lane
  Ints first(300);
  std::iota(first.begin(), first.end(), 0);
  require_experts({1, 300, 300, true}, even, first);
  even[299] = even[131] = even[4] = even[128] = 3.0f;
  require_experts({1, 300, 6, true}, even, {4, 128, 131, 299, 0, 1});
}

TEST_CASE("router: an only expert, and a single choice that is renormalised, has weight 1 exactly and no gradient",
          "[bitwise]") {
  const std::vector<float> of_one = {0.3f, -80.0f, 1e30f, -1e30f, 0.0f, 1e-40f}, ones(6, 1.0f);
  for (const RouterShape& s : {RouterShape{6, 1, 1, false}, {6, 1, 1, true}, {50, 13, 1, true}}) {
    RouterTrial t(s, s.E == 1 ? of_one : random_values<float>(s.N * s.E, 1, 5.0f));
    REQUIRE_BITWISE(std::vector<float>(s.N, 1.0f), t.weight.values());
    REQUIRE(t.backward().values() == std::vector<float>(s.N * s.E, 0.0f));
    if (s.E == 1) require_same({ones, of_one}, {t.p.values(), t.lse.values()});
    if (s.E == 1) REQUIRE(t.expert == Ints(6, 0));
    t.on_every_device();
  }
}

TEST_CASE("router: logits that are huge, infinite or no numbers", "[bitwise]") {
  const float inf = INFINITY, nan = NAN;
  const struct {
    std::vector<float> logits;
    Ints expert;
    std::vector<float> weight;
  } cases[] = {
      {{0, 1e30f, -1e30f, 5}, {1, 0, 2}, {1, 0, 0}},
      {{-1e30f, -1e30f, -1e30f, -1e30f}, {0, 1, 2}, {0.25f, 0.25f, 0.25f}},
      {{-inf, 2, -inf, 2}, {1, 3, 0}, {0.5f, 0.5f, 0}},  // switched off, and yet chosen where nothing else is left
      {{-inf, -inf, -inf, -inf}, {0, 1, 2}, {nan, nan, nan}},
      {{0, 0, inf, 0}, {0, 1, 2}, {nan, nan, nan}},
      {{0, nan, 7, 0}, {0, 1, 2}, {nan, nan, nan}},
      {{nan, nan, nan, nan}, {0, 1, 2}, {nan, nan, nan}},
      {{nan, 0, 7, -nan}, {0, 1, 2}, {nan, nan, nan}},  // whatever the bits of a NaN
  };
  for (const auto& c : cases)
    for (bool renormalise : {false, true}) {
      RouterTrial t({1, 4, 3, renormalise}, c.logits, {}, Nan::expected);
      REQUIRE(t.expert == c.expert);
      if (!renormalise) REQUIRE(bitwise_difference(c.weight, t.weight.values(), Nan::expected) == "");
      const bool lost = std::isnan(c.weight[0]);
      REQUIRE(std::isnan(t.lse.ref[0]) == lost);
      for (float v : t.backward().values()) REQUIRE(std::isnan(v) == lost);
      t.on_every_device();
    }
}

TEST_CASE("router: whatever the logits, the experts of a token are in range and different", "[bitwise]") {
  const RouterShape s = {60, 140, 9, true};
  auto logits = random_values<float>(s.N * s.E, 1, 100.0f);
  const float odd[] = {NAN, INFINITY, -INFINITY, 3e38f, -3e38f, -NAN};
  for (size_t n = 1; n < s.N; n++)
    for (size_t e = n % 3; e < s.E; e += 1 + n % 7) logits[n * s.E + e] = odd[(n + e / 20) % 6];
  RouterTrial t(s, logits, {}, Nan::expected);
  for (auto of_token = t.expert.begin(); of_token != t.expert.end(); of_token += s.k) {
    const std::set<int> different(of_token, of_token + s.k);
    REQUIRE(different.size() == s.k);
    REQUIRE(*different.begin() >= 0);
    REQUIRE(*different.rbegin() < int(s.E));
  }
  t.on_every_device();
}

TEST_CASE("router: the report of even routing, of routing to one expert and of none", "[bitwise]") {
  for (size_t E : {1, 2, 8, 130, 300}) {
    INFO("E " << E);
    const RouterShape s = {150, E, 1, true};
    const auto report_of = [&](const std::vector<float>& p_of_token, const std::vector<size_t>& counts) {
      std::vector<float> p;
      for (size_t n = 0; n < s.N; n++) p.insert(p.end(), p_of_token.begin(), p_of_token.end());
      Trial t(Nan::expected);
      const auto gp = t.in(p), lse = t.in(std::vector<float>(s.N, 3.0f)), report = t.out(router_report_values);
      router_report_ref(report.ref, gp.ref, lse.ref, counts.data(), s);
      t.on_every_device([&](Context& ctx) {
        const Buffer<size_t> of_device(ctx.device, counts);
        router_report(report, gp, lse, of_device.data(), s, ctx);
        ctx.synchronize();
      });
      return report.values();
    };
    const std::vector<float> even(E, 1.0f / float(E));
    std::vector<float> last(E, 0.0f);
    std::vector<size_t> counts(E, 0);
    const std::vector<float> of_none = report_of(even, counts), balanced = report_of(even, std::vector<size_t>(E, 60));
    last[E - 1] = 1, counts[E - 1] = 4096;
    REQUIRE(balanced[0] == Approx(1.0f).epsilon(1e-5));
    REQUIRE(balanced[1] == 9.0f);
    REQUIRE(balanced[2] == Approx(1.0f / float(E)).epsilon(1e-6));
    REQUIRE(balanced[3] == Approx(float(std::log(double(E)))).epsilon(1e-5));
    REQUIRE(balanced[4] == 0.0f);
    REQUIRE(report_of(last, counts) == std::vector<float>{float(E), 9.0f, 1.0f, 0.0f, float(E - 1)});
    for (size_t i : {0, 2, 3}) REQUIRE(std::isnan(of_none[i]));
  }
}

TEST_CASE("router: shapes and losses that make no sense are refused") {
  Context cpu(Device::cpu);
  const auto forward = [&](const RouterShape& s) { return refusal([&] { router_forward({}, nullptr, s, cpu); }); };
  const auto backward = [&](float balance, const RouterShape& s) {
    return refusal([&] { router_backward(nullptr, nullptr, {}, {.balance = balance}, s, cpu); });
  };
  const std::string expected = " experts of a token, expected 1 to 8, the number of experts";
  REQUIRE(forward({1, 8, 9, true}) == "router_forward: 9" + expected);
  REQUIRE(forward({1, 8, 0, true}) == "router_forward: 0" + expected);
  REQUIRE(backward(0, {1, 8, 9, true}) == "router_backward: 9" + expected);
  REQUIRE(forward({1, 0, 0, true}) == "router_forward: 0 experts, expected 1 to 2147483647");
  REQUIRE(forward({1, size_t{1} << 31, 1, true}) == "router_forward: 2147483648 experts, expected 1 to 2147483647");
  REQUIRE(backward(0.1f, {1, 2, 2, true}) == "router_backward: a balance loss needs the counts of the experts");
  REQUIRE(refusal([&] {
            router_report(nullptr, nullptr, nullptr, nullptr, {0, 2, 2, true}, cpu);
          }) == "router_report: a mean over no tokens");
  REQUIRE(forward({0, 8, 2, true}) == "");  // no tokens: nothing to do
}
