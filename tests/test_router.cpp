// router: values, the reference against finite differences, what the program runs against the reference; ties, one expert,
// what stands beside a token, logits out of range, the report.
#include "kernels/router.h"

#include <numeric>

#include "tests/harness.h"

using namespace gated;
using Ints = std::vector<int>;

namespace {

// What a forward writes, in host memory.
template <class T>
struct Routed {
  std::vector<T> p, lse, weight;
  Ints expert;
  explicit Routed(const RouterShape& s)
      : p(s.N * s.E, NAN), lse(s.N, NAN), weight(s.N * s.k, NAN), expert(s.N * s.k, -1) {}
  Routed(const RouterShape& s, const std::vector<T>& logits) : Routed(s) {
    router_forward_ref(out(), logits.data(), s);
  }
  RouterOutOf<T> out() { return {p.data(), lse.data(), expert.data(), weight.data()}; }
};

// The same on a device. -1 stands in the experts and after them.
class DeviceRouted {
 public:
  DeviceRouted(const RouterShape& s, const std::vector<float>& logits, Context& ctx)
      : ctx_(ctx),
        choices_(s.N * s.k),
        p_(ctx, s.N * s.E),
        lse_(ctx, s.N),
        weight_(ctx, choices_),
        expert_(ctx.device, Ints(choices_ + 8, -1)) {
    const Guarded in(ctx, logits);
    router_forward(out(), in, s, ctx);
    ctx.synchronize();
  }
  RouterOut out() const { return {p_, lse_, expert_.data(), weight_}; }
  std::vector<float> p() const { return p_.download(); }
  std::vector<float> lse() const { return lse_.download(); }
  std::vector<float> weight() const { return weight_.download(); }
  Ints expert() const {
    ctx_.synchronize();
    Ints all = expert_.download();
    for (size_t i = choices_; i < all.size(); i++)
      if (all[i] != -1) fail("wrote past the end: element %zu of %zu", i, choices_);
    all.resize(choices_);
    return all;
  }

 private:
  Context& ctx_;
  const size_t choices_;
  Guarded p_, lse_, weight_;
  Buffer<int> expert_;
};

std::vector<size_t> random_counts(size_t E, uint64_t seed) {
  std::vector<size_t> counts;
  for (double v : random_values<double>(E, seed)) counts.push_back(v < -0.5 ? 0 : size_t((v + 1) * 1000));
  counts[0] = 7;
  if (E > 1) counts[1] = 1;
  return counts;
}

// Logits whose differences within a token are at least 0.1, so that a small step changes no choice.
std::vector<double> logits_apart(const RouterShape& s) {
  std::vector<double> logits;
  const auto noise = random_values<double>(s.N * s.E, 9, 0.05);
  for (size_t n = 0; n < s.N; n++)
    for (size_t e = 0; e < s.E; e++) logits.push_back(0.2 * double((3 * e + 5 * n) % s.E) - 0.7 + noise[n * s.E + e]);
  return logits;
}

}  // namespace

TEST_CASE("router: softmax, the largest, their weights, by hand", "[bitwise]") {
  std::vector<float> logits = {3, 1, 4, 2};
  for (float& l : logits) l = float(std::log(double(l)));  // p is 0.3, 0.1, 0.4, 0.2
  for (bool renormalise : {false, true}) {
    on_every_device([&](Context& ctx) {
      const DeviceRouted r({1, 4, 3, renormalise}, logits, ctx);
      const double sum = renormalise ? 0.9 : 1;
      REQUIRE(relative_error<float>({0.3f, 0.1f, 0.4f, 0.2f}, r.p()) < 1e-6);
      REQUIRE(relative_error<float>({float(std::log(10.0))}, r.lse()) < 1e-6);
      REQUIRE(r.expert() == Ints{2, 0, 3});
      REQUIRE(relative_error<float>({float(0.4 / sum), float(0.3 / sum), float(0.2 / sum)}, r.weight()) < 1e-6);
    });
  }
}

TEST_CASE("router: renormalised weights are a softmax over the chosen logits") {
  const RouterShape s = {9, 7, 3, true};
  const auto logits = logits_apart(s);
  const Routed<double> r(s, logits);
  std::vector<double> softmax;
  for (size_t n = 0; n < s.N; n++) {
    double sum = 0;
    for (size_t j = 0; j < s.k; j++) sum += std::exp(logits[n * s.E + r.expert[n * s.k + j]]);
    for (size_t j = 0; j < s.k; j++) softmax.push_back(std::exp(logits[n * s.E + r.expert[n * s.k + j]]) / sum);
  }
  REQUIRE(relative_error(softmax, r.weight) < 1e-14);
}

TEST_CASE("router: gradients against finite differences", "[gradcheck]") {
  for (size_t k : {1, 3, 7})
    for (bool renormalise : {false, true}) {
      INFO("k " << k << " renormalise " << renormalise);
      const RouterShape s = {5, 7, k, renormalise};
      const auto logits = logits_apart(s), dweight = random_values<double>(s.N * k, 2);
      const std::vector<size_t> counts = {40, 0, 7, 1, 90, 13, 4};
      const double total = 155;
      Routed<double> r(s, logits);
      std::vector<double> dlogits(s.N * s.E), report(router_report_values);
      // Of the two losses, of the weights, and of all together.
      const struct {
        const char* what;
        double weights, balance, z;
      } cases[] = {{"weights", 1, 0, 0}, {"balance", 0, 1.3, 0}, {"z", 0, 0, 0.7}, {"all", 1, 1.3, 0.7}};
      for (const auto& c : cases) {
        if (std::string(c.what) == "weights" && k == 1 && renormalise) continue;  // always 1: a test of its own
        std::vector<double> dw = dweight;
        for (double& v : dw) v *= c.weights;
        router_backward_ref(dlogits.data(), dw.data(), r.out(), {c.balance, c.z, counts.data()}, s);
        check_gradient(
            c.what,
            [&](const std::vector<double>& at) {
              Routed<double> here(s, at);
              double balance = 0, z = 0;
              for (size_t n = 0; n < s.N; n++) {
                double sum = 0;
                for (size_t e = 0; e < s.E; e++) sum += std::exp(at[n * s.E + e]);
                for (size_t e = 0; e < s.E; e++)
                  balance += double(counts[e]) / total * std::exp(at[n * s.E + e]) / sum / double(s.N);
                z += std::log(sum) * std::log(sum) / double(s.N);
              }
              return dot(here.weight, dw) + c.balance * double(s.E) * balance + c.z * z;
            },
            logits, dlogits);
      }
    }
}

TEST_CASE("router: what the program runs equals the reference bit for bit", "[bitwise]") {
  const struct {
    size_t N, E, k;
  } sizes[] = {{1, 1, 1},     {63, 1, 1},    {200, 3, 1},  {63, 3, 2},    {200, 3, 3},  {1, 8, 8},
               {200, 8, 2},   {63, 128, 8},  {1, 128, 1},  {9, 128, 128}, {40, 200, 8}, {63, 200, 2},
               {5, 200, 200}, {3, 1500, 11}, {2, 1024, 8}, {300, 5, 1}};
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
      const auto dweight = random_values<float>(N * k, 2);
      const auto counts = random_counts(E, 3);

      Routed<float> r(s, logits);
      std::vector<float> dlogits(N * E, NAN), plain(N * E, NAN), z_alone(N * E, NAN), report(router_report_values, NAN);
      router_backward_ref(dlogits.data(), dweight.data(), r.out(), {0.01f, 0.003f, counts.data()}, s);
      router_backward_ref(plain.data(), dweight.data(), r.out(), {}, s);
      router_backward_ref(z_alone.data(), dweight.data(), r.out(), {.z = 0.003f}, s);
      router_report_ref(report.data(), r.p.data(), r.lse.data(), counts.data(), s);

      on_every_device([&](Context& ctx) {
        const DeviceRouted got(s, logits, ctx);
        REQUIRE_BITWISE(r.p, got.p());
        REQUIRE_BITWISE(r.lse, got.lse());
        REQUIRE_BITWISE(r.weight, got.weight());
        REQUIRE(r.expert == got.expert());
        REQUIRE(ctx.most_scratch_used() == 0);

        const Buffer<size_t> gcounts(ctx.device, counts);
        Guarded gdlogits(ctx, N * E), gplain(ctx, N * E), gz(ctx, N * E), greport(ctx, router_report_values);
        Guarded gdweight(ctx, dweight);
        GuardedOf<bf16> rounded(ctx, N * E), rounded_plain(ctx, N * E);
        router_backward(gplain, gdweight, got.out(), {}, s, ctx);
        router_backward(gz, gdweight, got.out(), {.z = 0.003f}, s, ctx);
        REQUIRE(ctx.most_scratch_used() == 0);
        router_backward(gdlogits, gdweight, got.out(), {0.01f, 0.003f, gcounts.data()}, s, ctx);
        if (ctx.device != Device::cpu) REQUIRE(ctx.most_scratch_used() == router_backward_scratch(s, Storage::fp32));
        router_backward(rounded, gdweight, got.out(), {0.01f, 0.003f, gcounts.data()}, s, ctx);
        router_backward(rounded_plain, gdweight, got.out(), {}, s, ctx);
        if (ctx.device != Device::cpu) REQUIRE(ctx.most_scratch_used() == router_backward_scratch(s, Storage::bf16));
        Context another(ctx.device);
        router_report(greport, got.out().p, got.out().lse, gcounts.data(), s, another);
        if (ctx.device != Device::cpu) REQUIRE(another.most_scratch_used() == router_report_scratch(s));
        another.synchronize();
        REQUIRE_BITWISE(plain, gplain.download());
        REQUIRE_BITWISE(z_alone, gz.download());
        REQUIRE_BITWISE(dlogits, gdlogits.download());
        REQUIRE_BITWISE(stored<bf16>(dlogits), rounded.download());
        REQUIRE_BITWISE(stored<bf16>(plain), rounded_plain.download());
        REQUIRE_BITWISE(report, greport.download());
      });
    }
}

TEST_CASE("router: a tie goes to the lower expert", "[bitwise]") {
  on_every_device([&](Context& ctx) {
    REQUIRE(DeviceRouted({1, 5, 5, false}, {1, 3, 2, 3, 1}, ctx).expert() == Ints{1, 3, 2, 0, 4});
    REQUIRE(DeviceRouted({1, 4, 2, false}, {0.0f, -0.0f, 0.0f, -0.0f}, ctx).expert() == Ints{0, 1});
    // Different logits whose p is the same float.
    const float below = std::nextafter(20.0f, 0.0f);
    REQUIRE(DeviceRouted({1, 3, 2, false}, {-1000, -900, below}, ctx).expert() == Ints{2, 0});
    std::vector<float> even(300, 2.5f);  // lanes, and quads of one lane
    Ints first(300);
    std::iota(first.begin(), first.end(), 0);
    REQUIRE(DeviceRouted({1, 300, 300, true}, even, ctx).expert() == first);
    even[299] = even[131] = even[4] = even[128] = 3.0f;
    REQUIRE(DeviceRouted({1, 300, 6, true}, even, ctx).expert() == Ints{4, 128, 131, 299, 0, 1});
  });
}

TEST_CASE("router: one expert has weight 1 exactly", "[bitwise]") {
  const std::vector<float> logits = {0.3f, -80.0f, 1e30f, -1e30f, 0.0f, 1e-40f}, ones(6, 1.0f), zeros(6, 0.0f);
  for (bool renormalise : {false, true})
    on_every_device([&](Context& ctx) {
      const RouterShape s = {6, 1, 1, renormalise};
      const DeviceRouted r(s, logits, ctx);
      REQUIRE_BITWISE(ones, r.p());
      REQUIRE_BITWISE(ones, r.weight());
      REQUIRE_BITWISE(logits, r.lse());
      REQUIRE(r.expert() == Ints(6, 0));
      Guarded dlogits(ctx, 6), dweight(ctx, random_values<float>(6, 1));
      router_backward(dlogits, dweight, r.out(), {}, s, ctx);
      REQUIRE(dlogits.download() == zeros);
    });
}

TEST_CASE("router: the weight of a single choice, renormalised, is 1 exactly and has no gradient", "[bitwise]") {
  const RouterShape s = {50, 13, 1, true};
  const auto logits = random_values<float>(s.N * s.E, 1, 5.0f);
  on_every_device([&](Context& ctx) {
    const DeviceRouted r(s, logits, ctx);
    REQUIRE_BITWISE((std::vector<float>(s.N, 1.0f)), r.weight());
    Guarded dlogits(ctx, s.N * s.E), dweight(ctx, random_values<float>(s.N, 2));
    router_backward(dlogits, dweight, r.out(), {}, s, ctx);
    REQUIRE(dlogits.download() == std::vector<float>(s.N * s.E, 0.0f));
  });
}

TEST_CASE("router: experts in another order are chosen in that order", "[bitwise]") {
  const RouterShape s = {40, 37, 5, true};
  const auto logits = random_values<float>(s.N * s.E, 1, 4.0f), dweight = random_values<float>(s.N * s.k, 2);
  const auto counts = random_counts(s.E, 3);
  const auto place = [&](size_t e) { return (11 * e + 4) % s.E; };
  std::vector<float> moved(s.N * s.E);
  std::vector<size_t> moved_counts(s.E);
  for (size_t e = 0; e < s.E; e++) {
    moved_counts[place(e)] = counts[e];
    for (size_t n = 0; n < s.N; n++) moved[n * s.E + place(e)] = logits[n * s.E + e];
  }
  on_every_device([&](Context& ctx) {
    const auto run = [&](const std::vector<float>& logits, const std::vector<size_t>& counts, Ints& expert,
                         std::vector<float>& report) {
      const DeviceRouted r(s, logits, ctx);
      const Buffer<size_t> gcounts(ctx.device, counts);
      Guarded dlogits(ctx, s.N * s.E), gdweight(ctx, dweight), greport(ctx, router_report_values);
      router_backward(dlogits, gdweight, r.out(), {0.1f, 0.1f, gcounts.data()}, s, ctx);
      router_report(greport, r.out().p, r.out().lse, gcounts.data(), s, ctx);
      expert = r.expert();
      report = greport.download();
      return dlogits.download();
    };
    Ints expert, moved_expert;
    std::vector<float> report, moved_report;
    const std::vector<float> dlogits = run(logits, counts, expert, report),
                             moved_dlogits = run(moved, moved_counts, moved_expert, moved_report);
    std::vector<float> back(dlogits.size());
    for (int& e : expert) e = int(place(e));
    for (size_t i = 0; i < back.size(); i++) back[i] = moved_dlogits[i / s.E * s.E + place(i % s.E)];
    REQUIRE(expert == moved_expert);
    REQUIRE(relative_error(dlogits, back) < 1e-6);
    REQUIRE(relative_error(report, moved_report) < 1e-6);
  });
}

TEST_CASE("router: a token's result does not depend on the others", "[bitwise]") {
  const RouterShape s = {30, 150, 4, true}, alone = {1, 150, 4, true};
  auto logits = random_values<float>(s.N * s.E, 1, 5.0f);
  logits[3 * s.E] = NAN;
  const auto dweight = random_values<float>(s.N * s.k, 2);
  const auto part = [](const auto& v, size_t n) {
    const size_t width = v.size() / 30;
    return std::decay_t<decltype(v)>(v.begin() + n * width, v.begin() + (n + 1) * width);
  };
  on_every_device([&](Context& ctx) {
    const DeviceRouted all(s, logits, ctx);
    Guarded dlogits(ctx, s.N * s.E), gdweight(ctx, dweight);
    router_backward(dlogits, gdweight, all.out(), {}, s, ctx);
    for (size_t n : {0, 2, 4, 29}) {
      const DeviceRouted one(alone, part(logits, n), ctx);
      Guarded dlogits_of_one(ctx, s.E), dweight_of_one(ctx, part(dweight, n));
      router_backward(dlogits_of_one, dweight_of_one, one.out(), {}, alone, ctx);
      REQUIRE_BITWISE(part(all.p(), n), one.p());
      REQUIRE_BITWISE(part(all.lse(), n), one.lse());
      REQUIRE_BITWISE(part(all.weight(), n), one.weight());
      REQUIRE(part(all.expert(), n) == one.expert());
      REQUIRE_BITWISE(part(dlogits.download(), n), dlogits_of_one.download());
    }
  });
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
      const RouterShape s = {1, 4, 3, renormalise};
      Routed<float> expected(s, c.logits);
      const std::vector<float> dweight = {1, 2, 3};
      std::vector<float> dlogits(4);
      router_backward_ref(dlogits.data(), dweight.data(), expected.out(), {}, s);
      REQUIRE(expected.expert == c.expert);
      if (!renormalise) REQUIRE(bitwise_difference(c.weight, expected.weight, Nan::expected) == "");
      const bool lost = std::isnan(c.weight[0]);
      REQUIRE(std::isnan(expected.lse[0]) == lost);
      for (float v : dlogits) REQUIRE(std::isnan(v) == lost);
      on_every_device([&](Context& ctx) {
        const DeviceRouted got(s, c.logits, ctx);
        REQUIRE(c.expert == got.expert());
        REQUIRE(bitwise_difference(expected.p, got.p(), Nan::expected) == "");
        REQUIRE(bitwise_difference(expected.lse, got.lse(), Nan::expected) == "");
        REQUIRE(bitwise_difference(expected.weight, got.weight(), Nan::expected) == "");
        Guarded gdlogits(ctx, 4), gdweight(ctx, dweight);
        router_backward(gdlogits, gdweight, got.out(), {}, s, ctx);
        REQUIRE(bitwise_difference(dlogits, gdlogits.download(), Nan::expected) == "");
      });
    }
}

TEST_CASE("router: whatever the logits, the experts of a token are in range and different", "[bitwise]") {
  const RouterShape s = {60, 140, 9, true};
  auto logits = random_values<float>(s.N * s.E, 1, 100.0f);
  const float odd[] = {NAN, INFINITY, -INFINITY, 3e38f, -3e38f, -NAN};
  for (size_t n = 1; n < s.N; n++)
    for (size_t e = n % 3; e < s.E; e += 1 + n % 7) logits[n * s.E + e] = odd[(n + e / 20) % 6];
  on_every_device([&](Context& ctx) {
    const Ints expert = DeviceRouted(s, logits, ctx).expert();
    for (size_t n = 0; n < s.N; n++) {
      std::vector<bool> seen(s.E, false);
      for (size_t j = 0; j < s.k; j++) {
        const size_t e = expert[n * s.k + j];
        REQUIRE(e < s.E);
        REQUIRE(!seen[e]);
        seen[e] = true;
      }
    }
  });
}

TEST_CASE("router: the report of even routing and of routing to one expert", "[bitwise]") {
  for (size_t E : {1, 2, 8, 130, 300}) {
    const size_t N = 150;
    INFO("E " << E);
    std::vector<size_t> even(E, 60), one(E, 0);
    one[E - 1] = 4096;
    std::vector<float> p_even(N * E, 1.0f / float(E)), p_one(N * E, 0.0f), lse(N, 3.0f);
    for (size_t n = 0; n < N; n++) p_one[n * E + E - 1] = 1.0f;
    const float entropy = float(std::log(double(E)));
    on_every_device([&](Context& ctx) {
      const auto report = [&](const std::vector<float>& p, const std::vector<size_t>& counts) {
        Guarded out(ctx, router_report_values), gp(ctx, p), glse(ctx, lse);
        const Buffer<size_t> gcounts(ctx.device, counts);
        router_report(out, gp, glse, gcounts.data(), {N, E, 1, true}, ctx);
        return out.download();
      };
      const std::vector<float> balanced = report(p_even, even), collapsed = report(p_one, one);
      REQUIRE(balanced[0] == Approx(1.0f).epsilon(1e-5));
      REQUIRE(balanced[1] == 9.0f);
      REQUIRE(balanced[2] == Approx(1.0f / float(E)).epsilon(1e-6));
      REQUIRE(balanced[3] == Approx(entropy).epsilon(1e-5));
      REQUIRE(balanced[4] == 0.0f);
      REQUIRE(collapsed == std::vector<float>{float(E), 9.0f, 1.0f, 0.0f, float(E - 1)});
      REQUIRE(std::isnan(report(p_even, std::vector<size_t>(E, 0))[0]));
      REQUIRE(std::isnan(report(p_even, std::vector<size_t>(E, 0))[2]));
      REQUIRE(std::isnan(report(p_even, std::vector<size_t>(E, 0))[3]));
    });
  }
}

TEST_CASE("router: the shares of the balance loss are of the counts' own sum", "[bitwise]") {
  // Twice the counts, as after a second batch like the first, are the same shares.
  const RouterShape s = {20, 6, 2, true};
  const auto logits = random_values<float>(s.N * s.E, 1), dweight = random_values<float>(s.N * s.k, 2);
  std::vector<size_t> counts = {3, 0, 11, 40, 6, 20}, twice;
  for (size_t c : counts) twice.push_back(2 * c);
  on_every_device([&](Context& ctx) {
    const DeviceRouted r(s, logits, ctx);
    const auto backward = [&](const std::vector<size_t>& counts) {
      const Buffer<size_t> gcounts(ctx.device, counts);
      Guarded dlogits(ctx, s.N * s.E), gdweight(ctx, dweight);
      router_backward(dlogits, gdweight, r.out(), {0.1f, 0, gcounts.data()}, s, ctx);
      return dlogits.download();
    };
    REQUIRE_BITWISE(backward(counts), backward(twice));
  });
}

TEST_CASE("router: shapes and losses that make no sense are refused") {
  Context cpu(Device::cpu);
  const auto forward = [&](const RouterShape& s) { router_forward({}, nullptr, s, cpu); };
  REQUIRE_THROWS_WITH(forward({1, 8, 9, true}),
                      "router_forward: 9 experts of a token, expected 1 to 8, the number of experts");
  REQUIRE_THROWS_WITH(forward({1, 8, 0, true}),
                      "router_forward: 0 experts of a token, expected 1 to 8, the number of experts");
  REQUIRE_THROWS_WITH(forward({1, 0, 0, true}), "router_forward: 0 experts, expected 1 to 2147483647");
  REQUIRE_THROWS_WITH(forward({1, size_t{1} << 31, 1, true}),
                      "router_forward: 2147483648 experts, expected 1 to 2147483647");
  REQUIRE_THROWS_WITH(router_backward(nullptr, nullptr, {}, {}, {1, 2, 3, true}, cpu),
                      "router_backward: 3 experts of a token, expected 1 to 2, the number of experts");
  REQUIRE_THROWS_WITH(router_backward(nullptr, nullptr, {}, {.balance = 0.1f}, {1, 2, 2, true}, cpu),
                      "router_backward: a balance loss needs the counts of the experts");
  REQUIRE_THROWS_WITH(router_report(nullptr, nullptr, nullptr, nullptr, {0, 2, 2, true}, cpu),
                      "router_report: a mean over no tokens");
  forward({0, 8, 2, true});  // no tokens: nothing to do
}
