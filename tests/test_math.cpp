// math: the float functions against double, host_math against long double; limits; golden fingerprints, which
// are the same from every compiler, instruction set and GPU; the same bits inside a kernel.
//
// test_math "[exhaustive]" tries every float: about a minute a function.
#include "core/math.cuh"

#include "core/host_math.h"
#include "core/launch.cuh"
#include "tests/harness.h"

using namespace gated;

namespace {

// ---- the functions

template <float (*f)(float)>
void map(float* y, const float* x, size_t n) {
  for (size_t i = 0; i < n; i++) y[i] = f(x[i]);  // the loop that must vectorise
}

template <float (*f)(float)>
__global__ void map_kernel(float* y, const float* x, size_t n) {
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] = f(x[i]);
}

struct Function {
  const char* name;
  double bound;     // in units in the last place of the result
  uint64_t golden;  // fingerprint of the results over inputs()
  double (*reference)(double);
  bool is_odd, never_falls;  // the others fall by one unit in the last place here and there
  void (*map)(float*, const float*, size_t);
  void (*kernel)(float*, const float*, size_t);
};

template <float (*f)(float)>
constexpr Function function(const char* name, double bound, uint64_t golden, double (*reference)(double),
                            bool is_odd = false, bool never_falls = false) {
  return {name, bound, golden, reference, is_odd, never_falls, map<f>, map_kernel<f>};
}

constexpr Function functions[] = {
    function<exact_exp>("exp", 0.90, 0xc2e0acae94544c32, exact_exp),
    function<exact_log>("log", 0.96, 0x2b2ec0970da737dd, exact_log, false, true),
    function<exact_sigmoid>("sigmoid", 2.00, 0xa34c4e413b246955, exact_sigmoid),
    function<exact_tanh>("tanh", 1.40, 0x53e672c7548a1195, exact_tanh, true, true),
    function<exact_softplus>("softplus", 2.00, 0x29127aad7e8fe85b, exact_softplus),
    function<exact_erf>("erf", 1.15, 0xd10ee764a3832012, exact_erf, true),
};

// ---- inputs and measures

// Every 12007th float by its bits, so all magnitudes, both signs, infinities' neighbours and NaNs; then
// -128..128 in steps of 1/512; then the special values.
const std::vector<float>& inputs() {
  static const std::vector<float> all = [] {
    std::vector<float> v;
    for (uint64_t bits = 0; bits < uint64_t(1) << 32; bits += 12007) v.push_back(bits_float(uint32_t(bits)));
    for (int i = -65536; i <= 65536; i++) v.push_back(float(i) / 512);
    for (float x : {0.0f, -0.0f, INFINITY, -INFINITY, NAN, FLT_MIN, FLT_MAX, -FLT_MAX, FLT_TRUE_MIN, -FLT_TRUE_MIN})
      v.push_back(x);
    return v;
  }();
  return all;
}

std::vector<float> mapped(void (*f)(float*, const float*, size_t), const std::vector<float>& x) {
  std::vector<float> y(x.size());
  f(y.data(), x.data(), x.size());
  return y;
}

// |got - expected| in units in the last place of a number with `digits` bits and exponents down to `lowest`.
template <class Wide>
double ulps(Wide got, Wide expected, int digits, int lowest, Wide overflow) {
  if (std::isnan(expected)) return std::isnan(got) ? 0 : INFINITY;
  if (std::isnan(got)) return INFINITY;
  if (std::fabs(expected) >= overflow) return std::isinf(got) && (got > 0) == (expected > 0) ? 0 : INFINITY;
  const int exponent = expected == 0 ? lowest : std::max(std::ilogb(expected) + 1 - digits, lowest);
  return double(std::ldexp(std::fabs(got - expected), -exponent));
}
// From here a number rounds to infinity in float.
constexpr double float_overflow = 0x1.ffffffp+127;

// Two NaNs are the same.
bool same_bits(float a, float b) {
  return float_bits(a) == float_bits(b) || (std::isnan(a) && std::isnan(b));
}

// FNV-1a over the bits; every NaN counts as one.
template <class T>
uint64_t fingerprint(const std::vector<T>& v) {
  uint64_t h = 0xcbf29ce484222325;
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  for (T x : v) h = (h ^ __builtin_bit_cast(Bits, std::isnan(x) ? T(NAN) : x)) * 0x100000001b3;
  return h;
}

struct Worst {
  double error = 0, at = 0;
  void see(double e, double x) {
    if (e > error) error = e, at = x;
  }
};

// see(x) for all floats, so many at a time.
void every_float(const std::function<void(const std::vector<float>&)>& see) {
  std::vector<float> x(1 << 16);
  for (uint64_t first = 0; first < uint64_t(1) << 32; first += x.size()) {
    for (size_t i = 0; i < x.size(); i++) x[i] = bits_float(uint32_t(first + i));
    see(x);
  }
}

}  // namespace

// ---- float

// What holds of the functions at these floats, which come in parts.
static void check_functions(const std::function<void(const std::function<void(const std::vector<float>&)>&)>& parts) {
  for (const Function& f : functions) {
    Worst worst;
    float before = NAN, last = NAN;
    size_t falls = 0;
    parts([&](const std::vector<float>& x) {
      const std::vector<float> y = mapped(f.map, x);
      for (size_t i = 0; i < x.size(); i++) {
        worst.see(ulps<double>(y[i], f.reference(x[i]), 24, -149, float_overflow), x[i]);
        falls += x[i] > before && y[i] < last, before = x[i], last = y[i];
      }
    });
    INFO(f.name << ": at most " << worst.error << " ulp, at " << worst.at << "; falls " << falls << " times");
    CHECK(worst.error <= f.bound);
    if (f.never_falls) CHECK(falls == 0);
  }
  size_t differ = 0;
  parts([&](const std::vector<float>& x) {
    const std::vector<float> y = mapped(map<exp_to_40>, x), expected = mapped(map<exact_exp>, x);
    for (size_t i = 0; i < x.size(); i++) differ += !(x[i] > 40) && !same_bits(y[i], expected[i]);
  });
  CHECK(differ == 0);
}

TEST_CASE("math: every function is within its bound, log and tanh never fall, exp_to_40 is exact_exp up to 40",
          "[math]") {
  check_functions([](const auto& see) { see(inputs()); });
}

TEST_CASE("math: the same at every float", "[.exhaustive]") {
  check_functions(every_float);
}

TEST_CASE("math: short_exp2 is near 2^x from -126 to 127, and 0 below", "[math]") {
  Worst worst;
  const auto see = [&](float x) {
    if (x >= -126 && x < 127) worst.see(std::fabs(short_exp2(x) / std::exp2(double(x)) - 1), x);
  };
  for (float x : inputs()) see(x);
  for (float x = -126; x < 127; x += 0x1p-13f) see(x);
  INFO("2^" << std::log2(worst.error) << " at " << worst.at);
  CHECK(worst.error <= 0x1p-18);
  for (float n = -126; n < 127; n++) CHECK(short_exp2(n) == std::exp2(n));
  for (float x : {-126.6f, -127.0f, -1e4f, -FLT_MAX, -INFINITY}) CHECK(same_bits(short_exp2(x), 0.0f));
  CHECK((short_exp2(0) == 1 && short_exp2(-0.0f) == 1 && std::isnan(short_exp2(NAN))));
}

TEST_CASE("math: a GPU's 2/x is rounded as a division, of every mantissa", "[math]") {
  size_t wrong = 0;
  for (uint32_t exponent = 1; exponent <= 32; exponent++)
    for (uint32_t mantissa = 0; mantissa < 1 << 23; mantissa += exponent == 1 ? 1 : 1021) {
      const float x = bits_float((127 + exponent) << 23 | mantissa);
      wrong += detail::newton_two_over(x) != 2.0f / x;
    }
  REQUIRE(wrong == 0);
  const float most = bits_float((127 + 9) << 23 | 0x7fffff);  // (where the steps alone round down)
  REQUIRE(detail::newton_two_over(most) == 2.0f / most);
  REQUIRE(std::isnan(detail::newton_two_over(NAN)));
}

// From `first` on, of so many e one.
static void divides_in_a_sigmoid(float first, uint32_t step) {
  size_t wrong = 0;
  for (uint32_t bits = float_bits(first); bits <= float_bits(1.0f); bits += step) {
    const float e = bits_float(bits), s = 1.0f + e;
    wrong += !same_bits(detail::newton_quotient(1.0f, s), 1.0f / s) + !same_bits(detail::newton_quotient(e, s), e / s);
  }
  REQUIRE(wrong == 0);
}

TEST_CASE("math: a GPU's quotient in a sigmoid is rounded as a division", "[math]") {
  divides_in_a_sigmoid(0.5f, 1);
  divides_in_a_sigmoid(0.0f, 1021);
  REQUIRE(std::isnan(detail::newton_quotient(NAN, 1.0f + NAN)));
}

TEST_CASE("math: a GPU's quotient in a sigmoid, of every exponential", "[.exhaustive]") {
  divides_in_a_sigmoid(0.0f, 1);
}

namespace {

void has_bits_inside_a_kernel(void (*kernel)(float*, const float*, size_t), const std::vector<float>& expected) {
  on_every_device([&](Context& ctx) {
    if (ctx.device == Device::cpu) return;
    Guarded x(ctx, inputs()), y(ctx, inputs().size());
    launch(kernel, dim3(4), dim3(64), 0, ctx, (float*)y, (float*)x, inputs().size());
    CHECK(bitwise_difference(expected, y.download(), Nan::expected) == "");
  });
}

// x - x is +0, and NaN where x is infinite.
HD float larger_than_nothing(float x) {
  return max_number(x, x - x);
}
HD float nothing_or_larger(float x) {
  return max_number(x - x, x);
}

}  // namespace

TEST_CASE("math: golden fingerprints, and the same bits inside a kernel", "[math][bitwise]") {
  for (const Function& f : functions) {
    const std::vector<float> expected = mapped(f.map, inputs());
    INFO(f.name << " 0x" << std::hex << fingerprint(expected));
    CHECK(fingerprint(expected) == f.golden);
    has_bits_inside_a_kernel(f.kernel, expected);
  }
  std::vector<float> larger = inputs();
  for (float& x : larger)
    if (std::signbit(x) && !std::isinf(x) && !std::isnan(x)) x = 0;
  for (auto* f : {map<larger_than_nothing>, map<nothing_or_larger>})
    CHECK(bitwise_difference(larger, mapped(f, inputs()), Nan::expected) == "");
  for (auto* kernel : {map_kernel<larger_than_nothing>, map_kernel<nothing_or_larger>})
    has_bits_inside_a_kernel(kernel, larger);
}

TEST_CASE("math: limits and special values", "[math]") {
  const struct {
    float (*f)(float);
    std::vector<float> of, expected;
  } limits[] = {
      {exact_exp,
       {-INFINITY, 0, -0.0f, INFINITY, 88.73f, -103.9f, -104, NAN},
       {0, 1, 1, INFINITY, INFINITY, FLT_TRUE_MIN, 0, NAN}},
      {exact_log, {0, -0.0f, 1, INFINITY, -1, -INFINITY, NAN}, {-INFINITY, -INFINITY, 0, INFINITY, NAN, NAN, NAN}},
      {exact_sigmoid, {0, -0.0f, INFINITY, -INFINITY, -103.9f, -NAN}, {0.5f, 0.5f, 1, 0, FLT_TRUE_MIN, NAN}},
      {exact_tanh, {0, -0.0f, INFINITY, -INFINITY, 9.1f, 0x1p-140f, -NAN}, {0, -0.0f, 1, -1, 1, 0x1p-140f, NAN}},
      {exact_softplus,
       {-INFINITY, INFINITY, 0, FLT_MAX, -103.9f, NAN},
       {0, INFINITY, 0x1.62e43p-1f, FLT_MAX, FLT_TRUE_MIN, NAN}},
      {exact_erf, {0, -0.0f, INFINITY, -INFINITY, 3.95f, NAN}, {0, -0.0f, 1, -1, 1, NAN}}};
  for (const auto& [f, of, expected] : limits)
    for (size_t i = 0; i < of.size(); i++) {
      INFO("f(" << of[i] << ") is " << f(of[i]) << ", expected " << expected[i]);
      CHECK(same_bits(f(of[i]), expected[i]));
    }
}

TEST_CASE("math: tanh and erf are odd, ranges hold", "[math]") {
  std::vector<float> x;  // ascending
  for (uint32_t bits = 0; bits <= float_bits(INFINITY); bits += 12007) x.push_back(bits_float(bits));
  std::vector<float> minus = x;
  for (float& v : minus) v = -v;
  for (const Function& f : functions) {
    INFO(f.name);
    const std::vector<float> y = mapped(f.map, x), y_minus = mapped(f.map, minus);
    size_t odd = 0;
    float low = INFINITY, high = -INFINITY;
    for (size_t i = 0; i < x.size(); i++) {
      odd += float_bits(y[i]) == (float_bits(y_minus[i]) ^ 0x80000000u);
      for (float v : {y[i], y_minus[i]}) low = v < low ? v : low, high = v > high ? v : high;
    }
    CHECK((odd == x.size()) == f.is_odd);
    if (f.is_odd) CHECK((low == -1 && high == 1));
    if (f.map == map<exact_sigmoid>) CHECK((low == 0 && high == 1));
  }
}

TEST_CASE("math: fused rounds once, max_of takes the second of equals, sqrt is correctly rounded", "[math]") {
  CHECK(fused(1 + 0x1p-12f, 1 + 0x1p-12f, -(1 + 0x1p-11f)) == 0x1p-24f);
  CHECK(fused(1 + 0x1p-27, 1 + 0x1p-27, -(1 + 0x1p-26)) == 0x1p-54);
  CHECK(float_bits(max_of(-0.0f, 0.0f)) == float_bits(0.0f));
  CHECK(float_bits(max_of(0.0f, -0.0f)) == float_bits(-0.0f));
  CHECK(max_of(NAN, 1.0f) == 1.0f);
  CHECK(std::isnan(max_of(1.0f, NAN)));
  CHECK(float_bits(max_number(-0.0f, 0.0f)) == float_bits(0.0f));
  CHECK(float_bits(max_number(0.0f, -0.0f)) == float_bits(0.0f));
  CHECK(float_bits(max_number(-0.0f, -0.0f)) == float_bits(-0.0f));
  CHECK(max_number(NAN, -1.0f) == -1.0f);
  CHECK(max_number(-INFINITY, NAN) == -INFINITY);
  CHECK(max_number(-2.0f, 3.0f) == 3.0f);
  CHECK(max_number(3.0f, -2.0f) == 3.0f);
  for (float x : inputs())
    if (x >= 0 && x < INFINITY && float(std::sqrt(double(x))) != exact_sqrt(x)) FAIL("sqrt(" << x << ")");
}

// ---- double, for the host

namespace {

// n steps over [low, high]; the products are exact, so the points are the same everywhere.
std::vector<double> points(int64_t low, int64_t high, size_t n) {
  std::vector<double> v(n);
  for (size_t i = 0; i < n; i++) v[i] = double(low) + double(high - low) * double(i) * (1.0 / 65536);
  return v;
}

// Within 0.9 units in the last place, where the reference has more bits than double; and the fingerprint of the
// results, where one is given.
template <class F, class Reference>
void check_host(const char* name, const std::vector<double>& x, F f, Reference reference, uint64_t golden = 0) {
  Worst worst;
  std::vector<double> got;
  for (double v : x) {
    const long double e = reference(static_cast<long double>(v));
    got.push_back(f(v));
    worst.see(ulps<long double>(got.back(), e, 53, -1074, 0x1.fffffffffffff8p+1023L), v);
  }
  INFO(name << ": " << worst.error << " ulp at " << worst.at);
  if (LDBL_MANT_DIG >= 64) CHECK(worst.error <= 0.9);
  if (golden) CHECK(fingerprint(got) == golden);
}

}  // namespace

TEST_CASE("host_math: within one unit in the last place of long double, and golden fingerprints", "[math]") {
  constexpr size_t n = 65537;
  auto expl = [](long double x) { return std::exp(x); };
  auto logl = [](long double x) { return std::log(x); };
  auto sinl = [](long double x) { return std::sin(x); };
  auto cosl = [](long double x) { return std::cos(x); };
  check_host("exp", points(-750, 715, n), host_exp, expl, 0xceac31b1f599587f);
  check_host("exp near 0", points(-1, 1, n), host_exp, expl);
  check_host("log", points(0, 3, n), host_log, logl, 0x2f7aed6acc092ac9);
  check_host("log of denormals", {0x1p-1074, 0x1.8p-1060, 0x1p-1022, 0x1.fffffffffffffp+1023}, host_log, logl);
  for (int64_t range : {2, 1000, 1000000, 1 << 30}) {
    INFO("to " << range);
    check_host("sin", points(-range, range, n), host_sin, sinl, range == 1000000 ? 0xc1f94cb0c614909f : 0);
    check_host("cos", points(-range, range, n), host_cos, cosl, range == 1000000 ? 0x6aca8ee8b97df557 : 0);
  }
  // The doubles nearest to multiples of pi/2, where all but the last bits cancel.
  std::vector<double> multiples;
  for (int k = 1; k < 20000; k++) multiples.push_back(k * 0x1.921fb54442d18p+0);
  check_host("sin near zeros", multiples, host_sin, sinl);
  check_host("cos near zeros", multiples, host_cos, cosl);
  for (double theta : {1e4, 5e5, 1e6, 1e7}) {
    const long double base = theta;
    check_host(
        "RoPE frequency", points(-1, 0, n), [=](double y) { return host_pow(theta, y); },
        [=](long double y) { return std::pow(base, y); }, theta == 1e6 ? 0x25a3bae9b41626f0 : 0);
  }
}

TEST_CASE("host_math: limits and domains", "[math]") {
  const double is[] = {host_exp(0),      host_exp(-INFINITY), host_exp(INFINITY), host_log(1),
                       host_log(0),      host_log(INFINITY),  host_pow(7, 0),     host_pow(2, 10),
                       host_power(3, 5), host_power(0.5, 0),  host_power(0, 3),   host_sin(0),
                       host_cos(0)};
  CHECK(std::vector(std::begin(is), std::end(is)) ==
        std::vector<double>{1, 0, INFINITY, 0, -INFINITY, INFINITY, 1, 1024, 243, 1, 0, 0, 1});
  CHECK(host_power(0.9, 1000) == Approx(std::pow(0.9, 1000)).epsilon(1e-13));
  CHECK(std::isnan(host_log(-1)));
  for (auto f : {host_exp, host_log, host_sin, host_cos}) CHECK(std::isnan(f(NAN)));
  CHECK_THROWS_AS(host_sin(0x1p31), Error);
  CHECK_THROWS_AS(host_cos(-INFINITY), Error);
  CHECK_THROWS_AS(host_pow(0, 1), Error);
}
