// linear_cross_entropy: the reference against finite differences and against the definition of softmax; what the program
// runs against the reference; chunks against the whole; targets that are ignored or outside the vocabulary; the padding
// after the logits.
#include "kernels/linear_cross_entropy.h"

#include <algorithm>

#include "core/math.cuh"
#include "kernels/bf16/matmul_bf16.h"
#include "tests/harness.h"

using namespace gated;

namespace {

std::vector<int> random_targets(size_t N, size_t V, uint64_t seed) {
  std::vector<int> t(N);
  const auto r = random_values<double>(N, seed);
  for (size_t n = 0; n < N; n++) t[n] = std::min(int((r[n] + 1) / 2 * V), int(V) - 1);
  return t;
}

// Rows of V logits as they lie in memory. The padding is NaN, so that reading it as a logit would show.
std::vector<float> padded_rows(const std::vector<float>& logits, size_t V) {
  const size_t rows = logits.size() / V, ld = padded_vocab(V);
  std::vector<float> memory(rows * ld, NAN);
  for (size_t row = 0; row < rows; row++) std::copy_n(&logits[row * V], V, &memory[row * ld]);
  return memory;
}

// And back. Nobody may have written to the padding.
std::vector<float> unpadded(const std::vector<float>& memory, size_t V) {
  const size_t ld = padded_vocab(V), rows = memory.size() / ld;
  std::vector<float> logits;
  for (size_t row = 0; row < rows; row++)
    for (size_t v = 0; v < ld; v++) {
      if (v < V) logits.push_back(memory[row * ld + v]);
      if (v >= V && !std::isnan(memory[row * ld + v])) fail("row %zu: the padding was written at %zu", row, v);
    }
  return logits;
}

struct Outputs {
  std::vector<float> losses, dh, dweight;
};

void require_equal(const Outputs& expected, const Outputs& got) {
  REQUIRE_BITWISE(expected.losses, got.losses);
  REQUIRE_BITWISE(expected.dh, got.dh);
  REQUIRE_BITWISE(expected.dweight, got.dweight);
}

struct Problem {
  size_t N, C, V;
  std::vector<float> h, weight, dweight0;
  std::vector<int> targets;
  float dloss = 1.0f / 37;

  Problem(size_t N, size_t C, size_t V, float scale = 1.0f)
      : N(N),
        C(C),
        V(V),
        h(random_values<float>(N * C, 1, scale)),
        weight(random_values<float>(V * C, 2)),
        dweight0(random_values<float>(V * C, 3, 0.01f)),
        targets(random_targets(N, V, 4)) {}

  Outputs reference() const {
    Outputs o{std::vector<float>(N, NAN), std::vector<float>(N * C, NAN), dweight0};
    std::vector<float> logits(N * V, NAN);
    linear_cross_entropy_ref(o.losses.data(), o.dh.data(), o.dweight.data(), logits.data(), h.data(), weight.data(),
                             targets.data(), dloss, N, C, V);
    return o;
  }

  // In bf16: products of bf16 matrices with the row pass between them, and what stands between two of them rounded.
  Outputs reference_in_bf16() const {
    Outputs o{std::vector<float>(N, NAN), {}, dweight0};
    const std::vector<bf16> x = rounded(h), w = rounded(weight);
    std::vector<float> logits(N * V, NAN);
    std::vector<bf16> dh(N * C);
    const MmaArithmetic arithmetic = usual_mma();
    matmul_bf16_ref(logits.data(), x.data(), w.data(), N, V, C, Layout::nt, Accumulate::no, arithmetic, nullptr);
    cross_entropy_ref(o.losses.data(), logits.data(), targets.data(), dloss, true, N, V);
    const std::vector<bf16> d = rounded(logits);
    matmul_bf16_ref(dh.data(), d.data(), w.data(), N, C, V, Layout::nn, Accumulate::no, arithmetic, nullptr);
    for (size_t n = 0; n < N; n += 1024)
      matmul_bf16_ref(o.dweight.data(), &d[n * V], &x[n * C], V, C, std::min<size_t>(1024, N - n), Layout::tn,
                      Accumulate::yes, arithmetic, nullptr);
    o.dh.assign(dh.begin(), dh.end());
    return o;
  }
  static std::vector<bf16> rounded(const std::vector<float>& values) {
    std::vector<bf16> r;
    for (float x : values) r.push_back(bf16(x));
    return r;
  }

  template <class S = float>
  Outputs on(Context& ctx, size_t chunk_rows) const {
    const size_t chunk = std::min(chunk_rows, N) * padded_vocab(V);
    GuardedOf<S> dh(ctx, N * C), gh(ctx, h);
    constexpr bool of_bf16 = storage_of<S> == Storage::bf16;
    // The padding of both is NaN, whether fresh memory is filled or not.
    const std::vector<float> nothing(chunk, NAN);
    Guarded losses(ctx, N), dw(ctx, dweight0), logits(ctx, nothing), gw(ctx, weight);
    const GuardedOf<bf16> dlogits(ctx, of_bf16 ? nothing : std::vector<float>()),
        copy(ctx, of_bf16 ? weight : std::vector<float>());
    const Buffer<int> t(ctx.device, targets);
    linear_cross_entropy(losses, dh, dw, logits, of_bf16 ? +dlogits : nullptr, gh, gw, of_bf16 ? +copy : nullptr,
                         t.data(), dloss, N, C, V, chunk_rows, ctx);
    unpadded(logits.download(), V);
    unpadded(dlogits.download(), V);
    REQUIRE(ctx.most_scratch_used() == linear_cross_entropy_scratch(N, C, V, chunk_rows, storage_of<S>, ctx.device));
    return {losses.download(), dh.download(), dw.download()};
  }
};

// The row pass alone.
struct Rows {
  std::vector<float> losses, logits;
};

Rows rows_reference(std::vector<float> logits, const std::vector<int>& targets, float dloss, bool gradient) {
  std::vector<float> losses(targets.size(), NAN);
  cross_entropy_ref(losses.data(), logits.data(), targets.data(), dloss, gradient, targets.size(),
                    logits.size() / targets.size());
  return {losses, logits};
}

Rows rows_on(Context& ctx, const std::vector<float>& logits, const std::vector<int>& targets, float dloss,
             bool gradient) {
  const size_t V = logits.size() / targets.size();
  Guarded l(ctx, padded_rows(logits, V)), losses(ctx, targets.size());
  const Buffer<int> t(ctx.device, targets);
  cross_entropy(losses, gradient ? Reals(+l) : Reals(), l, t.data(), dloss, targets.size(), V, ctx);
  return {losses.download(), unpadded(l.download(), V)};
}

// The same with gradients of S in memory of their own.
template <class S>
Rows rows_apart(Context& ctx, const std::vector<float>& logits, const std::vector<int>& targets, float dloss) {
  const size_t V = logits.size() / targets.size();
  const std::vector<float> memory = padded_rows(logits, V);
  Guarded l(ctx, memory), losses(ctx, targets.size());
  GuardedOf<S> dl(ctx, std::vector<float>(memory.size(), NAN));
  const Buffer<int> t(ctx.device, targets);
  cross_entropy(losses, dl, l, t.data(), dloss, targets.size(), V, ctx);
  REQUIRE_BITWISE(logits, unpadded(l.download(), V));
  return {losses.download(), unpadded(dl.download(), V)};
}

}  // namespace

TEST_CASE("linear_cross_entropy: gradients against finite differences", "[gradcheck]") {
  const size_t N = 5, C = 4, V = 7;
  const double dloss = 0.3;
  const auto h = random_values<double>(N * C, 1, 2.0), weight = random_values<double>(V * C, 2);
  auto targets = random_targets(N, V, 3);
  targets[2] = ignored_target;

  std::vector<double> losses(N), logits(N * V);
  auto loss = [&](const std::vector<double>& h, const std::vector<double>& weight) {
    linear_cross_entropy_ref<double>(losses.data(), nullptr, nullptr, logits.data(), h.data(), weight.data(),
                                     targets.data(), dloss, N, C, V);
    double sum = 0;
    for (double l : losses) sum += dloss * l;
    return sum;
  };
  std::vector<double> dh(N * C), dweight(V * C, 0.0);
  linear_cross_entropy_ref(losses.data(), dh.data(), dweight.data(), logits.data(), h.data(), weight.data(),
                           targets.data(), dloss, N, C, V);
  check_gradient(
      "h", [&](auto& v) { return loss(v, weight); }, h, dh);
  check_gradient(
      "W", [&](auto& v) { return loss(h, v); }, weight, dweight);
}

TEST_CASE("linear_cross_entropy: the loss is -log of the softmax at the target") {
  const size_t N = 6, C = 5, V = 11;
  const auto h = random_values<double>(N * C, 1, 2.0), weight = random_values<double>(V * C, 2);
  auto targets = random_targets(N, V, 3);
  targets[0] = 0;
  targets[1] = -1;  // not counted
  std::vector<double> losses(N), logits(N * V);
  linear_cross_entropy_ref<double>(losses.data(), nullptr, nullptr, logits.data(), h.data(), weight.data(),
                                   targets.data(), 1.0, N, C, V);
  REQUIRE(losses[1] == 0);
  for (size_t n : {0, 2, 3, 4, 5}) {
    std::vector<double> e(V, 0.0);
    double sum = 0;
    for (size_t v = 0; v < V; v++) {
      for (size_t c = 0; c < C; c++) e[v] += h[n * C + c] * weight[v * C + c];
      sum += e[v] = std::exp(e[v]);
    }
    REQUIRE(losses[n] == Approx(-std::log(e[targets[n]] / sum)).epsilon(1e-12));
  }
}

TEST_CASE("linear_cross_entropy: kernels equal the reference bit for bit", "[bitwise]") {
  const struct { size_t N, C, V; } sizes[] = {{63, 20, 131}, {1, 1, 1}, {7, 33, 2}, {5, 16, 200}, {3, 8, 1030}};
  for (const auto& size : sizes) {
    const auto [N, C, V] = size;
    INFO("N " << N << " C " << C << " V " << V);
    const Problem p(N, C, V, 3.0f);
    const Outputs expected = p.reference();
    on_every_device([&](Context& ctx) { require_equal(expected, p.on(ctx, p.N)); });
  }
}

TEST_CASE("cross_entropy: the row pass equals its reference bit for bit", "[bitwise]") {
  for (size_t V : {1, 2, 3, 4, 127, 128, 129, 200, 512, 513, 1030, 2052}) {
    INFO("V " << V);
    const size_t rows = 3;
    auto logits = random_values<float>(rows * V, V, 20.0f);
    for (size_t v = V; v < 2 * V; v++) logits[v] -= 30.0f;  // below 0, where padding would pass for the maximum
    const std::vector<int> targets = {0, int(V) - 1, int(V) / 2};
    for (bool gradient : {false, true}) {
      const Rows expected = rows_reference(logits, targets, 0.125f, gradient);
      on_every_device([&](Context& ctx) {
        const Rows got = rows_on(ctx, logits, targets, 0.125f, gradient);
        REQUIRE_BITWISE(expected.losses, got.losses);
        REQUIRE_BITWISE(expected.logits, got.logits);
        if (!gradient) return;
        const Rows apart = rows_apart<float>(ctx, logits, targets, 0.125f);
        const Rows in_bf16 = rows_apart<bf16>(ctx, logits, targets, 0.125f);
        REQUIRE_BITWISE(expected.losses, apart.losses);
        REQUIRE_BITWISE(expected.logits, apart.logits);
        REQUIRE_BITWISE(expected.losses, in_bf16.losses);
        REQUIRE_BITWISE(stored<bf16>(expected.logits), in_bf16.logits);
      });
    }
  }
}

TEST_CASE("cross_entropy: a block takes row after row, kept in shared memory or not", "[bitwise]") {
#ifdef __CUDACC__
  constexpr size_t rows = 400, V = 41000;  // one block has room on a multiprocessor
#else
  constexpr size_t rows = 11, V = 1030;  // a thread has two or three quads
#endif
  const auto logits = random_values<float>(rows * V, 5, 20.0f);
  std::vector<int> targets = random_targets(rows, V, 6);
  for (size_t row = 0; row < rows; row += 1 + row % 3) targets[row] = ignored_target;
  for (bool gradient : {false, true}) {
    const Rows expected = rows_reference(logits, targets, 0.125f, gradient);
    const auto check = [&](Context& ctx) {
      const Rows got = rows_on(ctx, logits, targets, 0.125f, gradient);
      REQUIRE_BITWISE(expected.losses, got.losses);
      REQUIRE_BITWISE(expected.logits, got.logits);
      if (!gradient) return;
      const Rows apart = rows_apart<bf16>(ctx, logits, targets, 0.125f);
      REQUIRE_BITWISE(expected.losses, apart.losses);
      REQUIRE_BITWISE(stored<bf16>(expected.logits), apart.logits);
    };
    on_every_device(check);
#ifndef __CUDACC__
    struct Restore {
      simt::Config usual = simt::config;
      ~Restore() { simt::config = usual; }
    } restore;
    // A row of 4608 bytes beside the chains' 512: the emulator just has room for it, or just not.
    for (size_t limit : {5120, 5119}) {
      simt::config.shared_limit = limit;
      on_every_device(check);
    }
#endif
  }
}

TEST_CASE("linear_cross_entropy: in bf16, products and row pass have the bits of theirs one after the other",
          "[bitwise]") {
  // An odd V, whose rows end inside 16 bytes; one that all of dh's sum over V does not fit a slice of; an ignored target.
  const struct { size_t N, C, V; } sizes[] = {{21, 24, 131}, {5, 7, 2}, {2, 8, 4200}};
  for (const auto& size : sizes) {
    const auto [N, C, V] = size;
    INFO("N " << N << " C " << C << " V " << V);
    Problem p(N, C, V, 3.0f);
    p.targets[1] = ignored_target;
    const Outputs expected = p.reference_in_bf16();
    on_every_device([&](Context& ctx) { require_equal(expected, p.on<bf16>(ctx, p.N)); });
  }
  // Two chunks or one: a slice of dW is 1024 rows in both.
  const Problem p(1100, 5, 7);
  const Outputs expected = p.reference_in_bf16();
  on_every_device([&](Context& ctx) {
    for (size_t chunk_rows : {1024, 1100}) require_equal(expected, p.on<bf16>(ctx, chunk_rows));
  });
}

TEST_CASE(
    "linear_cross_entropy: in bf16 it is near what it is in floats, and refuses to go without the weight's copy") {
  Problem p(40, 64, 300);
  const Outputs floats = p.reference(), in_bf16 = p.reference_in_bf16();
  REQUIRE(relative_error(floats.losses, in_bf16.losses) < 0.01);
  REQUIRE(relative_error(floats.dh, in_bf16.dh) < 0.02);
  REQUIRE(relative_error(floats.dweight, in_bf16.dweight) < 0.02);
  REQUIRE(bitwise_difference(floats.losses, in_bf16.losses) != "");

  Context cpu(Device::cpu);
  const bf16 h[2] = {};
  float loss, logits[128];
  const int target = 0;
  REQUIRE_THROWS_WITH(linear_cross_entropy(&loss, nullptr, nullptr, logits, nullptr, h, nullptr, nullptr, &target, 1.0f,
                                           1, 2, 3, 1, cpu),
                      "linear_cross_entropy: h is bf16, expected a bf16 copy of the weight and memory for dlogits");
}

TEST_CASE("linear_cross_entropy: the size of a chunk does not show", "[bitwise]") {
  const Problem p(2500, 5, 7);
  const Outputs expected = p.reference();
  // dW as the order says: a slice is what a gradient over its rows alone would be, started from zero.
  std::vector<float> dweight = p.dweight0;
  for (size_t begin = 0; begin < p.N; begin += 1024) {
    Problem slice(std::min<size_t>(1024, p.N - begin), p.C, p.V);
    slice.weight = p.weight;
    slice.h.assign(p.h.begin() + begin * p.C, p.h.begin() + (begin + slice.N) * p.C);
    slice.targets.assign(p.targets.begin() + begin, p.targets.begin() + begin + slice.N);
    slice.dweight0.assign(p.V * p.C, 0.0f);
    const auto sums = slice.reference().dweight;
    for (size_t i = 0; i < sums.size(); i++) dweight[i] += sums[i];
  }
  REQUIRE_BITWISE(dweight, expected.dweight);

  Context cpu(Device::cpu);
  for (size_t chunk_rows : {1024, 2048, 2500, 3072}) {
    INFO("chunks of " << chunk_rows << " rows");
    require_equal(expected, p.on(cpu, chunk_rows));
  }
  const Problem two_chunks(1100, 5, 7);  // fewer rows, which the emulator walks through
  const Outputs expected_of_two = two_chunks.reference();
  on_every_device([&](Context& ctx) {
    for (size_t chunk_rows : {1024, 1100}) require_equal(expected_of_two, two_chunks.on(ctx, chunk_rows));
  });
}

TEST_CASE("linear_cross_entropy: each gradient is optional", "[bitwise]") {
  const Problem p(9, 6, 21);
  const Outputs expected = p.reference();
  auto check = [&](Context& ctx) {
    for (int wanted = 0; wanted < 4; wanted++) {
      Guarded losses(ctx, p.N), dh(ctx, p.N * p.C), dw(ctx, p.dweight0), logits(ctx, p.N * padded_vocab(p.V));
      Guarded h(ctx, p.h), weight(ctx, p.weight);
      const Buffer<int> targets(ctx.device, p.targets);
      linear_cross_entropy(losses, wanted & 1 ? +dh : nullptr, wanted & 2 ? +dw : nullptr, logits, nullptr, h, weight,
                           nullptr, targets.data(), p.dloss, p.N, p.C, p.V, p.N, ctx);
      REQUIRE_BITWISE(expected.losses, losses.download());
      if (wanted & 1) REQUIRE_BITWISE(expected.dh, dh.download());
      if (wanted & 2) REQUIRE_BITWISE(expected.dweight, dw.download());
    }
  };
  on_every_device(check);
}

TEST_CASE("cross_entropy: logits of +-80 and far beyond stay finite", "[bitwise]") {
  // Without the row's maximum, e^89 would overflow.
  const std::vector<float> logits = {80, -80, 79, 0, 3e38f, -3e38f, 0, 1, -500, -500, -500, -500};
  const std::vector<int> targets = {1, 0, 3};
  const Rows expected = rows_reference(logits, targets, 1.0f, true);
  const double lse = 80 + std::log1p(std::exp(-1.0));
  REQUIRE(expected.losses[0] == Approx(lse + 80).epsilon(1e-6));
  REQUIRE(expected.losses[1] == 0.0f);
  REQUIRE(expected.losses[2] == Approx(std::log(4.0)).epsilon(1e-4));
  const double p = std::exp(80 - lse);
  REQUIRE(expected.logits[0] == Approx(p).epsilon(1e-5));
  REQUIRE(expected.logits[1] == -1.0f);
  REQUIRE(expected.logits[2] == Approx(1 - p).epsilon(1e-5));
  REQUIRE(expected.logits[3] == Approx(std::exp(-lse)).epsilon(1e-5));
  on_every_device([&](Context& ctx) {
    const Rows got = rows_on(ctx, logits, targets, 1.0f, true);
    REQUIRE_BITWISE(expected.losses, got.losses);
    REQUIRE_BITWISE(expected.logits, got.logits);
  });
}

TEST_CASE("linear_cross_entropy: a vocabulary of one is certain", "[bitwise]") {
  const Problem p(3, 4, 1);
  const Outputs o = p.reference();
  REQUIRE_BITWISE(std::vector<float>(3, 0.0f), o.losses);
  for (float d : o.dh) REQUIRE(d == 0.0f);
  REQUIRE_BITWISE(p.dweight0, o.dweight);
}

TEST_CASE("linear_cross_entropy: a row with an ignored target is as good as absent", "[bitwise]") {
  const size_t at = 2;
  for (size_t V : {13, 16}) {
    Problem with(6, 5, V);
    with.targets[at] = ignored_target;
    Problem without = with;
    without.N--;
    without.targets.erase(without.targets.begin() + at);
    without.h.erase(without.h.begin() + at * with.C, without.h.begin() + (at + 1) * with.C);

    Outputs expected = without.reference();
    expected.losses.insert(expected.losses.begin() + at, 0.0f);
    expected.dh.insert(expected.dh.begin() + at * with.C, with.C, 0.0f);
    require_equal(expected, with.reference());
    on_every_device([&](Context& ctx) { require_equal(expected, with.on(ctx, with.N)); });
  }
}

TEST_CASE("cross_entropy: a target outside the vocabulary gives NaN, in its own row only", "[bitwise]") {
  const size_t V = 130;
  const auto logits = random_values<float>(3 * V, 1, 5.0f);
  for (int bad : {-2, int(V), int(V) + 1, INT32_MAX, INT32_MIN}) {
    INFO("target " << bad);
    const Rows good = rows_reference(logits, {5, 0, 7}, 1.0f, true);
    auto check = [&](const Rows& got) {
      for (size_t row = 0; row < 3; row++) {
        if (row != 1) REQUIRE(float_bits(good.losses[row]) == float_bits(got.losses[row]));
        if (row == 1) REQUIRE(std::isnan(got.losses[row]));
        for (size_t v = 0; v < V; v++) {
          const float d = got.logits[row * V + v];
          REQUIRE((row == 1 ? std::isnan(d) : float_bits(d) == float_bits(good.logits[row * V + v])));
        }
      }
    };
    check(rows_reference(logits, {5, bad, 7}, 1.0f, true));
    on_every_device([&](Context& ctx) { check(rows_on(ctx, logits, {5, bad, 7}, 1.0f, true)); });
  }
}

TEST_CASE("cross_entropy: a NaN among the logits reaches the loss on every device", "[bitwise]") {
  // The maximum may or may not see a NaN, depending on its order; the sum always does.
  for (size_t where : {0, 1, 127, 128, 199}) {
    auto logits = random_values<float>(200, 1);
    logits[where] = NAN;
    REQUIRE(std::isnan(rows_reference(logits, {3}, 1.0f, true).losses[0]));
    on_every_device([&](Context& ctx) {
      const Rows got = rows_on(ctx, logits, {3}, 1.0f, true);
      REQUIRE(std::isnan(got.losses[0]));
      for (float d : got.logits) REQUIRE(std::isnan(d));
    });
  }
}

TEST_CASE("linear_cross_entropy: a row of logits is padded to whole cache lines") {
  REQUIRE(padded_vocab(1) == 128);
  REQUIRE(padded_vocab(128) == 128);
  REQUIRE(padded_vocab(50257) == 50304);
  REQUIRE(padded_vocab(151936) == 151936);
}

TEST_CASE("linear_cross_entropy: scratch covers a last chunk that is smaller than the others", "[bitwise]") {
  // The smaller a chunk, the more slices of V go side by side.
  const size_t N = 2048 + 384, C = 4096, V = 50257, chunk_rows = 2048;
  const auto scratch = [](size_t rows) {
    return linear_cross_entropy_scratch(rows, C, V, chunk_rows, Storage::fp32, kernel_device);
  };
  REQUIRE(scratch(N) >= matmul_scratch(384, C, V, Accumulate::no));
  REQUIRE(scratch(N) > scratch(2048));
}

TEST_CASE("linear_cross_entropy: chunk sizes") {
  REQUIRE(linear_cross_entropy_chunk_rows(4096, 50257) == 1024);
  REQUIRE(linear_cross_entropy_chunk_rows(4096, 151936) == 1024);
  REQUIRE(linear_cross_entropy_chunk_rows(4096, 8192) == 2048);
  REQUIRE(linear_cross_entropy_chunk_rows(100000, 256) == 65536);
  REQUIRE(linear_cross_entropy_chunk_rows(1000, 256) == 1000);
  REQUIRE(linear_cross_entropy_chunk_rows(7, 50257) == 7);

  const Problem p(1500, 1, 1);
  Context cpu(Device::cpu);
  REQUIRE_THROWS_AS(p.on(cpu, 1000), Error);
  REQUIRE_THROWS_AS(p.on(cpu, 0), Error);
  REQUIRE_NOTHROW(p.on(cpu, 1024));
  REQUIRE_NOTHROW(p.on(cpu, 1500));
}
