// quantize: the two formats number by number, the references against ml_dtypes, the CPU's code and the
// kernels against the references.
#include <algorithm>
#include <cfloat>
#include <fstream>
#include <nlohmann/json.hpp>

#include "kernels/quantize.cuh"
#include "tests/harness.h"

using namespace gated;

namespace {

using Format = QuantizedFormat;

// What a format's codes stand for, in ascending order from 0: the numbers without a sign.
std::vector<double> numbers_of(int codes, int mantissa_bits, int bias) {
  std::vector<double> numbers;
  for (int code = 0; code < codes; code++) {
    const int exponent = code >> mantissa_bits, mantissa = code & ((1 << mantissa_bits) - 1);
    const int significand = exponent ? mantissa + (1 << mantissa_bits) : mantissa;
    numbers.push_back(significand * std::exp2(std::max(exponent, 1) - bias - mantissa_bits));
  }
  return numbers;
}
// (of E4M3's 128 codes without a sign the last is NaN)
const std::vector<double> e4m3_numbers = numbers_of(127, 3, 7), e2m1_numbers = numbers_of(8, 1, 1);

// x rounded in each of the three ways that there are, which must agree.
template <int bits>
float rounded(float x) {
  const float in_kernels = bits == 8 ? e4m3(x) : e2m1(x);
  const float by_reference = bits == 8 ? e4m3_ref(x) : e2m1_ref(x);
  const double in_double = bits == 8 ? e4m3_ref(double(x)) : e2m1_ref(double(x));
  REQUIRE(bitwise_difference<float>({by_reference, float(in_double)}, {in_kernels, in_kernels}, Nan::expected) == "");
  return in_kernels;
}

template <int bits>
void check_rounding(const std::vector<double>& numbers) {
  const auto gives = [](double x, double expected) {
    INFO(x);
    REQUIRE_BITWISE(std::vector{float(expected)}, std::vector{rounded<bits>(float(x))});
    REQUIRE_BITWISE(std::vector{float(-expected)}, std::vector{rounded<bits>(float(-x))});
  };
  for (size_t code = 0; code < numbers.size(); code++) gives(numbers[code], numbers[code]);
  for (size_t code = 0; code + 1 < numbers.size(); code++) {
    const double low = numbers[code], high = numbers[code + 1];
    const float tie = float((low + high) / 2);
    gives(tie, code % 2 ? high : low);  // the even code
    gives(std::nextafter(tie, 0.0f), low);
    gives(std::nextafter(tie, INFINITY), high);
  }
  const float largest = float(numbers.back());
  for (float x : {std::nextafter(largest, INFINITY), 1.04f * largest, 2 * largest, FLT_MAX, INFINITY})
    gives(x, largest);
  for (float x : {FLT_TRUE_MIN, FLT_MIN}) gives(x, 0);
  REQUIRE(std::isnan(rounded<bits>(NAN)));
  REQUIRE(std::isnan(rounded<bits>(-NAN)));
}

// ---- what scripts/make_quantize_fixture.py does too

std::string hash_of(const std::vector<float>& x) {
  uint64_t h = 0xcbf29ce484222325;
  for (float v : x) h = (h ^ (std::isnan(v) ? 0x7fc00000u : float_bits(v))) * 0x100000001b3;
  return format("%016llx", static_cast<unsigned long long>(h));
}

std::vector<float> random_numbers(size_t n, int lowest, uint64_t exponents) {
  std::vector<float> numbers;
  for (uint64_t i = 1; i <= n; i++) {
    uint64_t z = i * 0x9E3779B97F4A7C15;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
    z = (z ^ z >> 27) * 0x94D049BB133111EB;
    z = z ^ z >> 31;
    const uint64_t exponent = uint64_t(127 + lowest) + (z >> 24 & 0xFF) % exponents;
    numbers.push_back(bits_float(uint32_t(z >> 63 << 31 | exponent << 23 | (z & 0x7FFFFF))));
  }
  return numbers;
}

std::vector<float> fixture_matrix() {
  std::vector<float> x = random_numbers(150 * 300, -16, 16);
  for (size_t row = 0; row < 150; row += 5) std::fill_n(&x[row * 300], 300, 0.0f);
  for (size_t block = 0; block < 150 * 19; block += 37) {
    const size_t column = block % 19 * 16;
    std::fill_n(&x[block / 19 * 300 + column], std::min<size_t>(16, 300 - column), 0.0f);
  }
  return x;
}

const nlohmann::json& fixture() {
  static const nlohmann::json fixture = nlohmann::json::parse(std::ifstream("tests/fixtures/quantize.json"));
  return fixture;
}

// ---- the references, over whole vectors

template <class T>
std::vector<T> rows(const std::vector<T>& x, size_t C, Format format) {
  std::vector<T> y(x.size(), T(NAN));
  quantize_rows_ref(y.data(), x.data(), x.size() / C, C, format);
  return y;
}
template <class T>
std::vector<T> weight(const std::vector<T>& w, const QuantizedWeight& shape, Format format) {
  std::vector<T> y(w.size(), T(NAN));
  quantize_weight_ref(y.data(), w.data(), shape, format);
  return y;
}

// Random numbers with blocks of zeros, one number far above the others, and the ends of what a float can be.
std::vector<float> awkward_numbers(size_t n, size_t columns) {
  std::vector<float> x = random_values<float>(n, n);
  for (size_t i = 0; i < n; i++) {
    const size_t row = i / columns;
    if (row % 7 == 3) x[i] = i % 2 ? -0.0f : 0.0f;
    if (row % 7 == 4) x[i] *= 1e-44f;  // denormal
    if (row % 7 == 5) x[i] *= 1e38f;
    if (row % 7 == 6 && i % 16 == 5) x[i] = 1e5f;
    if (i % columns / 16 % 3 == 1) x[i] *= 1e-6f;
  }
  return x;
}

}  // namespace

TEST_CASE("quantize: every number of E4M3 and E2M1 is itself, between two the nearest, at a tie the even one") {
  REQUIRE(e4m3_numbers.back() == 448);
  REQUIRE(e4m3_numbers[1] == std::exp2(-9));
  REQUIRE(e2m1_numbers == std::vector<double>{0, 0.5, 1, 1.5, 2, 3, 4, 6});
  check_rounding<8>(e4m3_numbers);
  check_rounding<4>(e2m1_numbers);
}

TEST_CASE("quantize: roundings are those of ml_dtypes") {
  std::vector<float> bfloat16;
  for (uint32_t bits = 0; bits < 65536; bits++) bfloat16.push_back(bits_float(bits << 16));
  for (const auto& [name, numbers] : {std::pair("bfloat16", bfloat16), {"random", random_numbers(1000000, -12, 22)}}) {
    INFO(name);
    const auto rounded_by = [&](auto round) {
      std::vector<float> y;
      for (float x : numbers) y.push_back(round(x));
      return hash_of(y);
    };
    const auto &of_8 = fixture().at("roundings").at("e4m3").at(name),
               &of_4 = fixture().at("roundings").at("e2m1").at(name);
    REQUIRE(rounded_by([](float x) { return e4m3(x); }) == of_8);
    REQUIRE(rounded_by([](float x) { return e4m3_ref(x); }) == of_8);
    REQUIRE(rounded_by([](float x) { return e2m1(x); }) == of_4);
    REQUIRE(rounded_by([](float x) { return e2m1_ref(x); }) == of_4);
  }
}

TEST_CASE("quantize: the operations are those of numpy with ml_dtypes") {
  const std::vector<float> x = fixture_matrix();
  for (auto [name, format] : {std::pair("fp8", Format::fp8), {"nvfp4", Format::nvfp4}}) {
    INFO(name);
    REQUIRE(hash_of(rows(x, 300, format)) == fixture().at("operations").at(name).at("rows"));
    REQUIRE(hash_of(weight(x, {1, 150, 300}, format)) == fixture().at("operations").at(name).at("weight"));
  }
}

TEST_CASE("quantize: every matrix of a weight is quantized alone") {
  const auto w = awkward_numbers(2 * 130 * 150, 150);
  const auto half = w.begin() + 130 * 150;
  for (Format format : {Format::fp8, Format::nvfp4}) {
    auto expected = weight(std::vector(w.begin(), half), {1, 130, 150}, format);
    const auto second = weight(std::vector(half, w.end()), {1, 130, 150}, format);
    expected.insert(expected.end(), second.begin(), second.end());
    REQUIRE_BITWISE(expected, weight(w, {2, 130, 150}, format));
  }
}

TEST_CASE("quantize: at the ends of what floats can be") {
  for (Format format : {Format::fp8, Format::nvfp4}) {
    const auto nan_at = [&](const std::vector<float>& y) {
      std::string at;
      for (float v : y) at += std::isnan(v) ? 'n' : '.';
      return at;
    };
    REQUIRE_BITWISE((std::vector<float>{0, -0.0f, 0, -0.0f}), rows<float>({0, -0.0f, 0, -0.0f}, 4, format));
    REQUIRE(nan_at(rows<float>({NAN, 1, 2, 3}, 4, format)) == "n...");
    REQUIRE(nan_at(rows<float>({NAN, 0, 0, 0}, 4, format)) == "n...");
    REQUIRE(nan_at(rows<float>({INFINITY, 1, 0, 3}, 4, format)) == "nnnn");
    REQUIRE(nan_at(rows<float>({-INFINITY, 1, 0, 3, 4, 5, 6, 7}, 4, format)) == "nnnn....");
    REQUIRE(relative_error({FLT_MAX, -FLT_MAX}, rows<float>({FLT_MAX, -FLT_MAX}, 2, format)) < 1e-6);
    REQUIRE(std::abs(rows<float>({0x1p-133f, 0}, 2, format)[0] - 0x1p-133f) < 0x1p-135f);
  }
}

static void require_bits(const std::vector<float>& x, const QuantizedWeight& shape, Format format,
                         Nan nan = Nan::refused) {
  const auto [matrices, down, columns] = shape;
  Trial t(nan);
  const auto in = t.in(x), as_rows = t.expect(rows(x, columns, format)), as_weight = t.expect(weight(x, shape, format)),
             rows_over_in = t.over(in, as_rows), weight_over_in = t.over(in, as_weight);
  t.on_every_device([&, matrices = matrices, down = down, columns = columns](Context& ctx) {
    // (compute-sanitizer may not see the host read what nobody has written)
    const Guarded scratch(ctx, std::vector<float>(quantize_weight_scratch(shape) / sizeof(float), NAN));
    for (const auto& [from, to] : {std::pair(in, as_rows), {rows_over_in, rows_over_in}})
      quantize_rows(to, from, matrices * down, columns, format, ctx);
    for (const auto& [from, to] : {std::pair(in, as_weight), {weight_over_in, weight_over_in}})
      quantize_weight(to, from, scratch, shape, format, ctx);
    scratch.download();  // in its bounds
  });
}

TEST_CASE("quantize: CPU and kernels equal the reference bit for bit", "[bitwise]") {
  const QuantizedWeight shapes[] = {{1, 1, 1},     {1, 9, 15},   {1, 20, 17}, {2, 130, 128},
                                    {1, 129, 260}, {3, 40, 131}, {2, 6, 516}, {0, 4, 4}};
  for (const QuantizedWeight& shape : shapes) {
    const auto [matrices, down, columns] = shape;
    INFO(matrices << " x " << down << " x " << columns);
    const auto x = awkward_numbers(matrices * down * columns, columns);
    for (Format format : {Format::fp8, Format::nvfp4}) require_bits(x, shape, format);
  }
}

TEST_CASE("quantize: CPU and kernels treat NaN and infinity as the reference does", "[bitwise]") {
  const size_t C = 40;
  auto x = awkward_numbers(8 * C, C);
  x[3] = NAN, x[C + 17] = INFINITY, x[2 * C + 39] = -INFINITY, x[3 * C + 1] = NAN;
  for (Format format : {Format::fp8, Format::nvfp4}) require_bits(x, {2, 4, C}, format, Nan::expected);
}
