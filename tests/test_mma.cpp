// mma: the arithmetic of tensor cores against values that MMA-Sim computed (arXiv 2511.10909), that GPUs gave (arXiv
// 2512.07004), and against sums by hand; its vector form against the definition, bit for bit; the instructions' twins
// on the emulator, or the instructions on a GPU. What the fixture holds: scripts/make_mma_fixture.py
#include "core/mma.cuh"

#include <algorithm>
#include <cfloat>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "core/launch.cuh"
#include "core/mma_lanes.h"
#include "tests/harness.h"

using namespace gated;

namespace {

constexpr MmaArithmetic hopper = MmaArithmetic::hopper, ampere = MmaArithmetic::ampere;

struct Tile {
  std::string kind;
  std::vector<bf16> A, B;   // (16,16), (16,8)
  std::vector<float> C, D;  // (16,8)
};

template <class T>
std::vector<T> numbers(const std::string& hex) {
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>;
  std::vector<T> all;
  for (size_t i = 0; i < hex.size(); i += 2 * sizeof(T))
    all.push_back(__builtin_bit_cast(T, Bits(std::stoul(hex.substr(i, 2 * sizeof(T)), nullptr, 16))));
  return all;
}

const nlohmann::json& fixture() {
  static const auto read = nlohmann::json::parse(std::ifstream("tests/fixtures/mma.json"));
  return read;
}

std::vector<Tile> tiles(MmaArithmetic arithmetic) {
  std::vector<Tile> all;
  for (const auto& t : fixture()[arithmetic == hopper ? "hopper" : "ampere"])
    all.push_back(
        {t["kind"], numbers<bf16>(t["A"]), numbers<bf16>(t["B"]), numbers<float>(t["C"]), numbers<float>(t["D"])});
  return all;
}

// The columns of a matrix of mma_depth rows, one after another.
std::vector<bf16> columns_of(const std::vector<bf16>& B) {
  const size_t n = B.size() / mma_depth;
  std::vector<bf16> columns(B.size());
  for (size_t i = 0; i < B.size(); i++) columns[i % n * mma_depth + i / n] = B[i];
  return columns;
}

using Random = std::mt19937_64;

// Numbers around 2^centre, whose exponents are at most `spread` away; one in sixteen is 0.
struct Range {
  int centre, spread;
  uint32_t draw(Random& random) const {
    const uint64_t r = random();
    const int field = 127 + centre + int(r >> 32 & 0xffff) % (2 * spread + 1) - spread;
    const uint32_t held = uint32_t(field < 0 ? 0 : field > 255 ? 255 : field), sign = uint32_t(r >> 63) << 31;
    return r >> 50 & 15 ? sign | held << 23 | (uint32_t(r) & 0x7fffff) : sign;
  }
};

// Of the factors and of c.
struct Ranges {
  Range a, b, c;
  explicit Ranges(Random& random) {
    constexpr int centres[] = {0, 0, 0, -127, -76, -63, -51, -50, -1, 40, 62, 63, 64, 128},
                  spreads[] = {0, 1, 2, 4, 12, 40, 128};
    const auto some = [&](const auto& list) { return list[random() % std::size(list)]; };
    a = {some(centres), some(spreads)};
    b = {some(centres), some(spreads)};
    c = {random() % 2 ? a.centre + b.centre : some(centres), some(spreads)};
  }
};

// One instruction by the definition and by vectors, for three rows and `lanes` columns. One c in four nearly cancels
// the products.
template <MmaArithmetic arithmetic>
std::string compare_lanes(Random& random) {
  constexpr size_t rows = 3;
  const auto [a, b, c] = Ranges(random);
  std::vector<bf16> A(rows * mma_depth), B(mma_depth * lanes);
  for (bf16& x : A) x = bf16::from_bits(uint16_t(a.draw(random) >> 16));
  for (bf16& x : B) x = bf16::from_bits(uint16_t(b.draw(random) >> 16));
  MmaRow row[rows];
  for (size_t r = 0; r < rows; r++) row[r] = mma_row(&A[r * mma_depth], 1, mma_depth);
  const MmaPanel panel = mma_panel(B.data(), lanes, 1, mma_depth, lanes);
  const std::vector<bf16> columns = columns_of(B);
  std::vector<float> expected, got;
  vec sum[rows];
  for (size_t r = 0; r < rows; r++)
    for (size_t l = 0; l < lanes; l++) {
      const bf16 *const row = &A[r * mma_depth], *const column = &columns[l * mma_depth];
      sum[r][l] = bits_float(c.draw(random));
      if (random() % 4 == 0) sum[r][l] = -mma_ref(0, row, column, arithmetic);
      expected.push_back(mma_ref(sum[r][l], row, column, arithmetic));
    }
  mma_lanes<arithmetic>(sum, row, panel);
  for (const vec& v : sum)
    for (size_t l = 0; l < lanes; l++) got.push_back(v[l]);
  return bitwise_difference(expected, got, Nan::expected);
}

// A warp a block, and a tile a warp: one instruction. A tile of b is (16,8), or, in columns, (8,16).
template <bool columns>
__global__ void one_mma(float* d, const bf16* a, const bf16* b, const float* c) {
  STATIC_SHARED(bf16, A, [16][16]);
  STATIC_SHARED(bf16, B, [128]);
  const unsigned lane = threadIdx.x, g = lane / 4, t = lane % 4;
  a += 256 * size_t{blockIdx.x}, b += 128 * size_t{blockIdx.x};
  c += 128 * size_t{blockIdx.x}, d += 128 * size_t{blockIdx.x};
  AsyncCopies copies;
  copies.copy16(&A[0][0] + 8 * lane, a + 8 * lane);
  if (lane < 16) copies.copy16(B + 8 * lane, b + 8 * lane);
  copies.commit();
  copies.wait<0>();
  __syncwarp();

  MmaA fragment;
  ldmatrix<false>(fragment.x, &A[lane % 16][lane / 16 * 8]);
  uint32_t both[4];  // the two tiles of B, twice
  if (columns)
    ldmatrix<false>(both, B + lane % 8 * 16 + lane / 8 % 2 * 8);
  else
    ldmatrix<true>(both, B + lane % 16 * 8);
  MmaC sum;
  for (unsigned j = 0; j < 4; j++) sum.x[j] = c[(g + j / 2 * 8) * 8 + 2 * t + j % 2];
  mma(sum, fragment, {{both[0], both[1]}});
  for (unsigned j = 0; j < 4; j++) d[(g + j / 2 * 8) * 8 + 2 * t + j % 2] = sum.x[j];
}

// What the kernel makes of tiles that lie one behind another.
std::vector<float> sums_of(void (*kernel)(float*, const bf16*, const bf16*, const float*), const std::vector<bf16>& A,
                           const std::vector<bf16>& B, const std::vector<float>& C, Context& ctx) {
  const Buffer<bf16> a(ctx.device, A), b(ctx.device, B);
  const Guarded c(ctx, C), d(ctx, C.size());
  launch(kernel, unsigned(C.size() / 128), 32, 0, ctx, +d, a.data(), b.data(), +c);
  return d.download();
}

// The instruction against the definition on random tiles: ten million outputs on a GPU. One c in four nearly cancels
// the products.
void random_tiles(Context& ctx, MmaArithmetic arithmetic) {
  const size_t count = ctx.device == Device::cuda ? 10'000'000 / 128 : 100;
  Random random(7);
  std::vector<bf16> A(256 * count), B(128 * count);  // B in columns
  std::vector<float> C(128 * count), D(C.size());
  std::vector<uint8_t> cancels(C.size());
  for (size_t tile = 0; tile < count; tile++) {
    const auto [a, b, c] = Ranges(random);
    for (size_t i = 0; i < 256; i++) A[256 * tile + i] = bf16::from_bits(uint16_t(a.draw(random) >> 16));
    for (size_t i = 0; i < 128; i++) B[128 * tile + i] = bf16::from_bits(uint16_t(b.draw(random) >> 16));
    for (size_t i = 128 * tile; i < 128 * (tile + 1); i++)
      C[i] = bits_float(c.draw(random)), cancels[i] = random() % 4 == 0;
  }
#pragma omp parallel for
  for (size_t i = 0; i < C.size(); i++) {
    const bf16 *const a = &A[i / 128 * 256 + i / 8 % 16 * mma_depth], *const b = &B[i / 128 * 128 + i % 8 * mma_depth];
    if (cancels[i]) C[i] = -mma_ref(0, a, b, arithmetic);
    D[i] = mma_ref(C[i], a, b, arithmetic);
  }
  CHECK(bitwise_difference(D, sums_of(one_mma<true>, A, B, C, ctx), Nan::expected) == "");
  for (const int kind : {FP_NAN, FP_INFINITE, FP_ZERO, FP_SUBNORMAL, FP_NORMAL})
    REQUIRE(std::ranges::count(D, kind, [](float x) { return std::fpclassify(x); }) > 100);
}

}  // namespace

TEST_CASE("mma: the definition gives what MMA-Sim computed", "[mma]") {
  for (MmaArithmetic arithmetic : {hopper, ampere}) {
    size_t outputs = 0;
    for (const Tile& t : tiles(arithmetic)) {
      INFO(t.kind);
      const std::vector<bf16> columns = columns_of(t.B);
      std::vector<float> got;
      for (size_t i = 0; i < t.C.size(); i++)
        got.push_back(mma_ref(t.C[i], &t.A[i / 8 * mma_depth], &columns[i % 8 * mma_depth], arithmetic));
      outputs += got.size();
      REQUIRE_BITWISE(t.D, got);
    }
    REQUIRE(outputs == 22 * 128);
  }
}

TEST_CASE("mma: the definition gives what GPUs gave", "[mma]") {
  size_t outputs = 0;
  for (const auto& [gpu, measured] : fixture()["measured"].items())
    for (size_t i = 0; i < measured["d"].size(); i++, outputs++) {
      const auto a = numbers<bf16>(measured["a"][i]), b = numbers<bf16>(measured["b"][i]);
      const float c = numbers<float>(measured["c"][i])[0], d = numbers<float>(measured["d"][i])[0];
      INFO(gpu << ", output " << i);
      REQUIRE(float_bits(mma_sum_ref(c, a.data(), b.data(), a.size(), a.size() == 8 ? 24 : 25)) == float_bits(d));
    }
  REQUIRE(outputs == 6 * 64);
}

TEST_CASE("mma: what is cut, by hand", "[mma]") {
  // 1 + 2^-25 x: Hopper keeps 25 places after the point of the largest term, Ampere 24; then a float has 23.
  const float tiny = std::ldexp(1.0f, -25);
  for (MmaArithmetic arithmetic : {hopper, ampere}) {
    INFO((arithmetic == hopper ? "hopper" : "ampere"));
    const float unit = arithmetic == hopper ? tiny : 2 * tiny;  // the last place that is kept
    const auto add_sixteen = [&](float c, float x) {
      const std::vector<bf16> a(mma_depth, bf16(x)), b(mma_depth, bf16(1.0f));
      return mma_ref(c, a.data(), b.data(), arithmetic);
    };
    REQUIRE(add_sixteen(1, unit) == 1 + 16 * unit);  // a float would round each away
    REQUIRE(add_sixteen(1, unit / 2) == 1);
    REQUIRE(add_sixteen(1, -unit / 2) == 1);            // towards zero, not down
    REQUIRE(add_sixteen(-1, -unit) == -1 - 16 * unit);  // the sum is cut towards zero too

    // c + a b, the other fifteen products being 0. What is left of a sum may be nothing: that is +0 too.
    const float nan = bits_float(0x7fffffff);
    const struct {
      float c, a, b, sum;
    } products[] = {{1, unit, 1, 1},
                    {0, 0, INFINITY, nan},
                    {NAN, 1, 1, nan},
                    {-INFINITY, 1, INFINITY, nan},
                    {1, -1, INFINITY, -INFINITY},
                    {INFINITY, 2, 3, INFINITY},
                    {0, 1e30f, 1e30f, INFINITY},
                    {-6, 2, 3, 0},
                    {-0.0f, 0, -1, 0},
                    {0, 0x1p-75f, 0x1p-74f, FLT_TRUE_MIN},
                    {0, -0x1p-75f, 0x1p-75f, 0}};
    for (const auto& p : products) {
      INFO(p.c << " + " << p.a << " * " << p.b);
      const bf16 a[mma_depth] = {bf16(p.a)}, b[mma_depth] = {bf16(p.b)};
      REQUIRE(float_bits(mma_ref(p.c, a, b, arithmetic)) == float_bits(p.sum));
    }

    // A zero changes no bit, whatever it is multiplied by; without it products of 2^-151 count, which no float can
    // hold. (Of Ampere's second step they are cut: its c is not 0.)
    bf16 a[mma_depth], b[mma_depth];
    for (size_t k = 0; k < mma_depth; k++)
      a[k] = bf16(k % 2 ? std::ldexp(1.0f, -76) : 0), b[k] = bf16(std::ldexp(1.0f, k % 2 ? -75 : 100));
    const float tiny_sum = std::ldexp(1.0f, arithmetic == hopper ? -148 : -149);
    REQUIRE(mma_ref(0, a, b, arithmetic) == tiny_sum);
    REQUIRE(mma_ref(-0.0f, a, b, arithmetic) == tiny_sum);
    REQUIRE(mma_ref(1, a, b, arithmetic) == 1);
  }
}

TEST_CASE("mma: vectors have the bits of the definition", "[mma]") {
  const char* wanted = getenv("MMA_OUTPUTS");  // 1e8 take some minutes
  const size_t outputs = wanted ? size_t(std::stod(wanted)) : 1'000'000;
  Random random(7);
  for (size_t done = 0; done < outputs; done += 3 * lanes) {
    REQUIRE(compare_lanes<hopper>(random) == "");
    REQUIRE(compare_lanes<ampere>(random) == "");
  }

  // The largest sum there is, of 16 products and c, leaves 32 bits.
  const std::vector<bf16> largest(mma_depth * lanes, bf16::from_bits(0x3fff));
  const MmaRow row[1] = {mma_row(largest.data(), 1, mma_depth)};
  vec c[1] = {broadcast(bits_float(0x3fffffff))};
  mma_lanes<hopper>(c, row, mma_panel(largest.data(), lanes, 1, mma_depth, lanes));
  REQUIRE(c[0][0] == mma_ref(bits_float(0x3fffffff), largest.data(), largest.data(), hopper));
  REQUIRE(c[0][0] > 64);

  // Zeros alone are +0, in any lane; a NaN or an infinity among them is a NaN.
  const auto sum = [](bf16 a, bf16 b_of_lane_1) {
    const std::vector<bf16> A(mma_depth, a);
    std::vector<bf16> zeros(mma_depth * lanes, bf16(0));
    zeros[1] = b_of_lane_1;
    vec c[2] = {broadcast(-0.0f), broadcast(1)};
    const MmaRow rows[2] = {mma_row(A.data(), 1, mma_depth), mma_row(A.data(), 1, mma_depth)};
    mma_lanes<hopper>(c, rows, mma_panel(zeros.data(), lanes, 1, mma_depth, lanes));
    return std::vector<float>{c[0][0], c[0][1], c[1][0], c[1][1]};
  };
  REQUIRE_BITWISE((std::vector<float>{0, 6, 1, 7}), sum(bf16(2), bf16(3)));
  REQUIRE_BITWISE((std::vector<float>{0, 0, 1, 1}), sum(bf16(0), bf16(3)));
  REQUIRE(bitwise_difference({NAN, NAN, NAN, NAN}, sum(bf16(NAN), bf16(3)), Nan::expected) == "");
  REQUIRE(bitwise_difference({0, NAN, 1, NAN}, sum(bf16(0), bf16(INFINITY)), Nan::expected) == "");
}

TEST_CASE("mma: ldmatrix, cp.async and the instruction, on random tiles and on those of MMA-Sim", "[mma][bitwise]") {
  on_every_device([](Context& ctx) {
    if (ctx.device != kernel_device) return;
    for (MmaArithmetic arithmetic : {hopper, ampere}) {
      if (!multiplies_as(ctx, arithmetic)) continue;
      emulate_mma(ctx);
      random_tiles(ctx, arithmetic);
      for (const Tile& t : tiles(arithmetic)) {
        INFO(t.kind);
        CHECK(bitwise_difference(t.D, sums_of(one_mma<false>, t.A, t.B, t.C, ctx)) == "");
        CHECK(bitwise_difference(t.D, sums_of(one_mma<true>, t.A, columns_of(t.B), t.C, ctx)) == "");
      }
    }
  });
}
