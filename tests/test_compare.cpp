// compare: the comparer that every other test trusts, on planted faults.
#include "tests/compare.h"

#include "core/math.cuh"
#include "tests/harness.h"
#include "tests/script.h"

using namespace gated;

TEST_CASE("compare: one bit is a difference", "[compare]") {
  const std::vector<float> a = random_values<float>(100, 1);
  REQUIRE(bitwise_difference(a, a) == "");
  for (size_t i : {size_t(0), size_t(50), size_t(99)}) {
    std::vector<float> b = a;
    b[i] = bits_float(float_bits(b[i]) ^ 1);
    REQUIRE(bitwise_difference(a, b).find("1 of 100 elements differ; the first at " + std::to_string(i)) == 0);
  }
  REQUIRE(bitwise_difference<float>({0.0f}, {-0.0f}) != "");
  REQUIRE(bitwise_difference<float>({1.0f, 2.0f}, {1.0f}) != "");
  REQUIRE(bitwise_difference<int>({1, 2}, {1, 3}) != "");
  REQUIRE(bitwise_difference<float>({INFINITY}, {INFINITY}) == "");
  REQUIRE(bitwise_difference<float>({INFINITY}, {-INFINITY}) != "");
}

TEST_CASE("compare: a NaN fails unless it is asked for, and then every NaN is one", "[compare]") {
  const float quiet = bits_float(0x7fc00000u), poison = bits_float(0xffffffffu);
  REQUIRE(bitwise_difference<float>({1.0f}, {quiet}).find("NaN") != std::string::npos);
  REQUIRE(bitwise_difference<float>({quiet}, {1.0f}) != "");
  REQUIRE(bitwise_difference<float>({poison}, {poison}) != "");  // both never written
  REQUIRE(bitwise_difference<float>({quiet}, {poison}, Nan::expected) == "");
  REQUIRE(bitwise_difference<float>({1.0f}, {poison}, Nan::expected) != "");
  REQUIRE(bitwise_difference<float>({quiet}, {1.0f}, Nan::expected) != "");
}

TEST_CASE("compare: relative error sees NaN, sizes and single wrong entries", "[compare]") {
  REQUIRE(relative_error<double>({1, 2}, {1, 2}) == 0);
  REQUIRE(relative_error<double>({1, 2}, {1, 2.5}) == Approx(0.25));
  REQUIRE(relative_error<double>({1, 2}, {1, NAN}) == INFINITY);
  REQUIRE(relative_error<double>({1, 2}, {1}) == INFINITY);
  REQUIRE(relative_error<double>({0, 0}, {0, 1}) == INFINITY);
}

// What each fault leaves in a trial of y = x + 1, whose rows of three lie four apart and begin at one.
TEST_CASE("compare: a trial finds what is wrong, unwritten, between the rows, or written over an input", "[compare]") {
  using Run = void (*)(float* y, float* x);
  const auto differences = [](Run run) {
    Trial t;
    const auto x = t.random(6, 1), y = t.out(6), y_over_x = t.over(x, y);
    for (size_t i = 0; i < 6; i++) y.ref[i] = x.ref[i] + 1;
    widen<float>({x, y, y_over_x}, 2, 4, 1);
    Context cpu(Device::cpu);
    const auto found = t.differences(cpu, [&](Context&) { run(y, x), run(y_over_x, y_over_x); });
    std::string which;
    for (const std::string& said : found) which += said.empty() ? "." : said.starts_with("input") ? "i" : "o";
    return which;
  };
  const auto right = [](float* y, float* x) {
    for (int i : {0, 1, 2, 4, 5, 6}) y[i] = x[i] + 1;
  };
  REQUIRE(differences(right) == "...");
  REQUIRE(differences([](float* y, float* x) {
            for (int i : {0, 1, 2, 4, 5, 6}) y[i] = x[i] + (i == 6 ? 2 : 1);
          }) == ".oo");
  REQUIRE(differences([](float* y, float* x) {
            for (int i : {0, 1, 2, 4, 5}) y[i] = x[i] + 1;
          }) == ".oo");
  REQUIRE(differences([](float* y, float* x) {
            for (int i : {0, 1, 2, 3, 4, 5, 6}) y[i] = i == 3 ? 0 : x[i] + 1;
          }) == ".oo");
  REQUIRE(differences([](float* y, float* x) {
            for (int i : {0, 1, 2, 4, 5, 6}) y[i] = x[i] + 1, x[i] = y[i];
          }) == "i..");
}

TEST_CASE("compare: a gradient that is off by a millionth fails the finite differences", "[compare]") {
  const auto x = random_values<double>(5, 1);
  auto loss = [](const std::vector<double>& v) { return v[0] * v[0] * v[1] + v[2] * v[3] + v[4]; };
  std::vector<double> g = {2 * x[0] * x[1], x[0] * x[0], x[3], x[2], 1};
  REQUIRE(gradient_error(loss, x, g) < 1e-9);
  g[2] += 1e-6;
  REQUIRE(gradient_error(loss, x, g) > 1e-7);
}

TEST_CASE("compare: the report of gradients has a line for each, with its largest error", "[compare]") {
  GradientReport report;
  report.add("op: gradients", "x", 1e-10);
  report.add("op: gradients", "w", 3e-7);
  report.add("op: gradients", "x", 2.5e-9);
  report.add("op: gradients", "x", 1e-9);
  report.add("op: others", "x", INFINITY);
  report.add("op: others", "x", 0);
  REQUIRE(report.text(1e-7) ==
          "op: gradients\n"
          "  x                        largest relative error 2.5e-09, bound 1e-07, on 3 inputs\n"
          "  w                        largest relative error 3.0e-07, bound 1e-07, on 1 input: WRONG\n"
          "op: others\n"
          "  x                        largest relative error inf, bound 1e-07, on 2 inputs: WRONG\n");
}

TEST_CASE("compare: make gradcheck names the operations where it knows none of the name", "[compare]") {
  for (const char* word : {"", "OP=typo", "OP=floors"}) {
    const Said said = Folder().run(std::string("cd {repo}; make gradcheck ") + word);
    INFO(said.text);
    REQUIRE(said.exit_code != 0);
    REQUIRE(contains(said.text, "expected one of: activation attention "));
    REQUIRE(!contains(said.text, "No rule"));
  }
}

TEST_CASE("compare: a write past the end of a guarded buffer is caught", "[compare][bitwise]") {
  if (Guarded::guard == 0) return;  // something else watches the end
  Context ctx(kernel_device);
  const Guarded buffer(ctx, 8);
  const float ones[8] = {1, 1, 1, 1, 1, 1, 1, 1};
  Buffer<float>::copy_to_device(ctx.device, +buffer, ones, 8);
  REQUIRE_NOTHROW(buffer.download());
  Buffer<float>::copy_to_device(ctx.device, +buffer + 8, ones, 1);
  REQUIRE_THROWS_AS(buffer.download(), Error);
}
