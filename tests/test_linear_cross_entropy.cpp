// linear_cross_entropy: the reference against finite differences and against the definition of softmax; what the
// program runs against the reference; chunks against the whole; targets outside the vocabulary; the padding after the
// logits.
#include "kernels/linear_cross_entropy.h"

#include <algorithm>

#include "core/launch.cuh"
#include "core/math.cuh"
#include "kernels/bf16/matmul_bf16.h"
#include "tests/harness.h"

using namespace gated;

namespace {

struct Problem {
  size_t N, C, V;
  float scale = 1;
  std::vector<float> h = random_values<float>(N * C, 1, scale), weight = random_values<float>(V * C, 2),
                     dweight = random_values<float>(V * C, 3, 0.01f);
  std::vector<int> targets = some_ids(N, V, 4);
  float dloss = 1.0f / 37;
};

// A problem's losses and gradients, with h of S.
template <class S = float>
struct ProblemTrial : Trial {
  const Problem p;
  const bool of_h, of_weight;
  const Array<S> h = in<S>(p.h), dh = of_h ? out<S>(p.N * p.C) : Array<S>();
  const Array<float> weight = in(p.weight), dweight = of_weight ? sum(p.dweight) : Array<float>(), losses = out(p.N);

  explicit ProblemTrial(const Problem& p, bool of_h = true, bool of_weight = true)
      : p(p), of_h(of_h), of_weight(of_weight) {
    const auto [N, C, V] = std::array{p.N, p.C, p.V};
    std::vector<float> logits(N * V, NAN);
    if constexpr (storage_of<S> == Storage::fp32) {
      linear_cross_entropy_ref(losses.ref, dh.ref, dweight.ref, logits.data(), h.ref, weight.ref, p.targets.data(),
                               p.dloss, N, C, V);
    } else {  // products of bf16 matrices with the row pass between them, and what stands between two of them rounded
      const std::vector<bf16> x = rounded(p.h), w = rounded(p.weight);
      std::vector<bf16> dx(N * C);
      const MmaArithmetic arithmetic = usual_mma();
      matmul_bf16_ref(logits.data(), x.data(), w.data(), N, V, C, Layout::nt, Accumulate::no, arithmetic, nullptr);
      cross_entropy_ref(losses.ref, logits.data(), p.targets.data(), p.dloss, true, N, V);
      const std::vector<bf16> d = rounded(logits);
      matmul_bf16_ref(dx.data(), d.data(), w.data(), N, C, V, Layout::nn, Accumulate::no, arithmetic, nullptr);
      for (size_t n = 0; n < N; n += 4096)
        matmul_bf16_ref(dweight.ref, &d[n * V], &x[n * C], V, C, std::min<size_t>(4096, N - n), Layout::tn,
                        Accumulate::yes, arithmetic, nullptr);
      std::copy(dx.begin(), dx.end(), dh.ref);
    }
  }
  void with_chunks(size_t chunk_rows, Context& ctx) {
    on(ctx, [&](Context& ctx) {
      constexpr bool of_bf16 = storage_of<S> == Storage::bf16;
      // The padding after the logits of a row, and after their gradients, must stay NaN.
      const std::vector<float> nothing(std::min(chunk_rows, p.N) * padded_vocab(p.V), NAN);
      const Guarded logits(ctx, nothing);
      const GuardedOf<bf16> dlogits(ctx, of_bf16 ? nothing : std::vector<float>()),
          copy(ctx, of_bf16 ? p.weight : std::vector<float>());
      const Buffer<int> targets(ctx.device, p.targets);
      linear_cross_entropy(losses, dh, dweight, logits, of_bf16 ? +dlogits : nullptr, h, weight,
                           of_bf16 ? +copy : nullptr, targets.data(), p.dloss, p.N, p.C, p.V, chunk_rows, ctx);
      for (const std::vector<float>& memory : {logits.download(), dlogits.download()})
        for (size_t i = 0; i < memory.size(); i++)
          if (i % padded_vocab(p.V) >= p.V && !std::isnan(memory[i])) fail("the padding was written at %zu", i);
      REQUIRE(ctx.most_scratch_used() ==
              linear_cross_entropy_scratch(p.N, p.C, p.V, chunk_rows, storage_of<S>, ctx.device));
    });
  }
  void on_every_device(const std::vector<size_t>& chunks) {
    gated::on_every_device([&](Context& ctx) {
      for (size_t chunk_rows : chunks) with_chunks(chunk_rows, ctx);
    });
  }
};

// The row pass alone: losses, and gradients over the logits and in memory of their own.
struct RowTrial : Trial {
  const std::vector<float> l;
  const std::vector<int> targets;
  const float dloss;
  const size_t rows = targets.size(), V = l.size() / rows;
  const Array<float> logits = in(l), losses = out(rows), losses_alone = again(losses), dlogits = sum(l),
                     apart = out(l.size());
  const Array<bf16> in_bf16 = out<bf16>(l.size());

  RowTrial(const std::vector<float>& l, const std::vector<int>& targets, float dloss, Nan nan = Nan::refused)
      : Trial(nan), l(l), targets(targets), dloss(dloss) {
    std::vector<float> alone(rows), untouched = l;
    cross_entropy_ref(alone.data(), untouched.data(), targets.data(), dloss, false, rows, V);
    cross_entropy_ref(losses.ref, dlogits.ref, targets.data(), dloss, true, rows, V);
    REQUIRE(bitwise_difference(losses.values(), alone, Nan::expected) == "");
    REQUIRE(bitwise_difference(l, untouched, Nan::expected) == "");
    apart.kept->values = in_bf16.kept->values = dlogits.values();
    widen<float>({logits, dlogits, apart}, rows, padded_vocab(V), 0);
    widen<bf16>({in_bf16}, rows, padded_vocab(V), 0);
  }
  void on_every_device() {
    Trial::on_every_device([&](Context& ctx) {
      const Buffer<int> t(ctx.device, targets);
      cross_entropy(losses_alone, Reals(), logits, t.data(), dloss, rows, V, ctx);
      for (const Reals& to : {Reals(dlogits), Reals(apart), Reals(in_bf16)})
        cross_entropy(losses, to, to == Reals(dlogits) ? dlogits : logits, t.data(), dloss, rows, V, ctx);
    });
  }
};

}  // namespace

TEST_CASE("linear_cross_entropy: gradients against finite differences", "[gradcheck]") {
  const size_t N = 5, C = 4, V = 7;
  const double dloss = 0.3;
  auto h = random_values<double>(N * C, 1, 2.0), weight = random_values<double>(V * C, 2);
  const auto targets = some_ids(N, V, 3);
  std::vector<double> losses(N), logits(N * V), dh(N * C), dweight(V * C, 0.0);
  const auto loss = [&] {
    linear_cross_entropy_ref<double>(losses.data(), nullptr, nullptr, logits.data(), h.data(), weight.data(),
                                     targets.data(), dloss, N, C, V);
    return dot(losses, std::vector<double>(N, dloss));
  };
  linear_cross_entropy_ref(losses.data(), dh.data(), dweight.data(), logits.data(), h.data(), weight.data(),
                           targets.data(), dloss, N, C, V);
  check_gradients(loss, {{"h", h, dh}, {"W", weight, dweight}});
}

TEST_CASE("linear_cross_entropy: kernels equal the reference bit for bit; in bf16 it is products and the row pass",
          "[bitwise]") {
  // An odd V, whose rows end inside 16 bytes; one that all of dh's sum over V does not fit a slice of.
  const std::array<size_t, 3> sizes[] = {{63, 20, 131}, {21, 24, 131}, {1, 1, 1},    {7, 33, 2},
                                         {5, 7, 2},     {5, 16, 200},  {3, 8, 1030}, {2, 8, 4200}};
  for (const auto& [N, C, V] : sizes) {
    INFO("N " << N << " C " << C << " V " << V);
    const Problem p{N, C, V, 3.0f};
    ProblemTrial(p).on_every_device({N});
    ProblemTrial<bf16>(p).on_every_device({N});
  }
}

TEST_CASE("cross_entropy: the row pass equals its reference bit for bit", "[bitwise]") {
  for (size_t V : {1, 2, 3, 4, 127, 128, 129, 200, 512, 513, 1030, 2052, 4096, 4097, 6150}) {
    INFO("V " << V);
    auto logits = random_values<float>(3 * V, V, 20.0f);
    for (size_t v = V; v < 2 * V; v++) logits[v] -= 30.0f;  // below 0, where padding would pass for the maximum
    RowTrial(logits, {0, int(V) - 1, int(V) / 2}, 0.125f).on_every_device();
  }
}

TEST_CASE("cross_entropy: a block takes row after row, kept or not", "[bitwise]") {
  // On a GPU three rows for every block where one has a multiprocessor, and where eight have one.
  const auto row_after_row = [](size_t rows, size_t V) {
    INFO("V " << V);
    std::vector<int> targets = some_ids(rows, V, 6);
    targets[1] = int(V) - 1;
    RowTrial(random_values<float>(rows * V, 5, 20.0f), targets, 0.125f).on_every_device();
  };
#ifdef __CUDACC__
  row_after_row(24 * multiprocessors() + 3, 1030);
  for (size_t V : {16001, 32002, 51200, 57000}) row_after_row(3 * multiprocessors() + 3, V);  // the last is not kept
#else
  const SharedLimit of_an_h100(shared_limit_sm_90);
  row_after_row(11, 1030);
  for (size_t V : {16387, 32770, 51200, 51201}) row_after_row(5, V);  // the last one is not kept
  // What threads keep of the next row, 16,384 bytes, beside 4096 of exponentials and 528 of what a warp and a chain
  // have come to: the emulator just has room for it, or just not.
  for (size_t limit : {21008, 21007}) {
    const SharedLimit of_a_block(limit);
    row_after_row(11, 1030);
  }
#endif
}

TEST_CASE("linear_cross_entropy: the size of a chunk does not show", "[bitwise]") {
  const Problem p{2500, 5, 7};
  ProblemTrial t(p);
  // dW as the order says: a slice is what a gradient over its rows alone would be, started from zero.
  std::vector<float> dweight = p.dweight;
  for (size_t begin = 0; begin < p.N; begin += 1024) {
    Problem slice{std::min<size_t>(1024, p.N - begin), p.C, p.V};
    slice.weight = p.weight;
    slice.h.assign(p.h.begin() + begin * p.C, p.h.begin() + (begin + slice.N) * p.C);
    slice.targets.assign(p.targets.begin() + begin, p.targets.begin() + begin + slice.N);
    slice.dweight.assign(p.V * p.C, 0.0f);
    const auto sums = ProblemTrial(slice).dweight.values();
    for (size_t i = 0; i < sums.size(); i++) dweight[i] += sums[i];
  }
  REQUIRE_BITWISE(dweight, t.dweight.values());
  Context cpu(Device::cpu);
  for (size_t chunk_rows : {1024, 2048, 2500, 3072}) {
    INFO("chunks of " << chunk_rows << " rows");
    t.with_chunks(chunk_rows, cpu);
  }
  // Fewer rows, which the emulator walks through.
  ProblemTrial(Problem{1100, 5, 7}).on_every_device({1024, 1100});
  // In bf16 a slice of dW is 4096 rows.
  ProblemTrial<bf16> two_slices(Problem{4100, 5, 7});
  two_slices.on_every_device({4096, 4100});
  REQUIRE_THROWS_WITH(two_slices.with_chunks(1024, cpu), Catch::Contains("expected a multiple of 4096"));
}

TEST_CASE("linear_cross_entropy: each gradient is optional", "[bitwise]") {
  const ProblemTrial all(Problem{9, 6, 21});
  for (bool of_h : {false, true})
    for (bool of_weight : {false, true}) {
      ProblemTrial t(all.p, of_h, of_weight);
      REQUIRE_BITWISE(all.losses.values(), t.losses.values());
      if (of_h) REQUIRE_BITWISE(all.dh.values(), t.dh.values());
      if (of_weight) REQUIRE_BITWISE(all.dweight.values(), t.dweight.values());
      t.on_every_device({all.p.N});
    }
}

TEST_CASE("cross_entropy: logits of +-80 and far beyond stay finite", "[bitwise]") {
  // Without the row's maximum, e^89 would overflow.
  const std::vector<float> logits = {80, -80, 79, 0, 3e38f, -3e38f, 0, 1, -500, -500, -500, -500};
  RowTrial t(logits, {1, 0, 3}, 1.0f);
  const float *losses = t.losses.ref, *d = t.dlogits.ref;
  const double lse = 80 + std::log1p(std::exp(-1.0)), p = std::exp(80 - lse);
  REQUIRE(losses[0] == Approx(lse + 80).epsilon(1e-6));
  REQUIRE(losses[1] == 0.0f);
  REQUIRE(losses[2] == Approx(std::log(4.0)).epsilon(1e-4));
  REQUIRE(d[0] == Approx(p).epsilon(1e-5));
  REQUIRE(d[1] == -1.0f);
  REQUIRE(d[2] == Approx(1 - p).epsilon(1e-5));
  REQUIRE(d[3] == Approx(std::exp(-lse)).epsilon(1e-5));
  t.on_every_device();
}

TEST_CASE("cross_entropy: a target outside the vocabulary gives NaN, in its own row only", "[bitwise]") {
  const size_t V = 130;
  const auto logits = random_values<float>(3 * V, 1, 5.0f);
  const RowTrial good(logits, {5, 0, 7}, 1.0f);
  for (int bad : {-1, int(V), int(V) + 1, INT32_MAX, INT32_MIN}) {
    INFO("target " << bad);
    RowTrial t(logits, {5, bad, 7}, 1.0f, Nan::expected);
    auto losses = good.losses.values(), dlogits = good.dlogits.values();
    losses[1] = NAN;
    std::fill_n(&dlogits[V], V, NAN);
    REQUIRE(bitwise_difference(losses, t.losses.values(), Nan::expected) == "");
    REQUIRE(bitwise_difference(dlogits, t.dlogits.values(), Nan::expected) == "");
    t.on_every_device();
  }
}

TEST_CASE("cross_entropy: a NaN among the logits reaches the loss on every device", "[bitwise]") {
  // The maximum may or may not see a NaN, depending on its order; the sum always does.
  for (size_t where : {0, 1, 127, 128, 199}) {
    auto logits = random_values<float>(200, 1);
    logits[where] = NAN;
    RowTrial t(logits, {3}, 1.0f, Nan::expected);
    REQUIRE(std::isnan(t.losses.ref[0]));
    for (float d : t.dlogits.values()) REQUIRE(std::isnan(d));
    t.on_every_device();
  }
}

TEST_CASE("linear_cross_entropy: scratch covers a last chunk and a batch that are smaller than the others",
          "[bitwise]") {
  // The smaller a chunk, the more slices of V go side by side.
  const auto scratch = [](size_t N, size_t C) {
    return linear_cross_entropy_scratch(N, C, 50257, 2048, Storage::fp32, kernel_device);
  };
  REQUIRE(scratch(2048 + 384, 4096) >= matmul_scratch(384, 4096, 50257, Accumulate::no));
  REQUIRE(scratch(2048, 1600) >= matmul_scratch(838, 1600, 50257, Accumulate::no));
}

TEST_CASE("linear_cross_entropy: sizes of chunks, rows of logits in whole cache lines, and what is refused") {
  for (const auto& [V, padded] : {std::pair(1, 128), {128, 128}, {50257, 50304}, {151936, 151936}})
    REQUIRE(padded_vocab(size_t(V)) == size_t(padded));
  const auto fp32 = Storage::fp32, b16 = Storage::bf16;
  const std::tuple<size_t, size_t, Storage, size_t> cases[] = {
      {4096, 50257, fp32, 1024},  {4096, 151936, fp32, 1024}, {4096, 8192, fp32, 2048},
      {100000, 256, fp32, 65536}, {1000, 256, fp32, 1000},    {7, 50257, fp32, 7},
      {10000, 50257, b16, 4096},  {100000, 256, b16, 65536},  {7, 50257, b16, 7}};
  for (const auto& [N, V, storage, rows] : cases) REQUIRE(linear_cross_entropy_chunk_rows(N, V, storage) == rows);

  ProblemTrial t(Problem{1500, 1, 1});
  Context cpu(Device::cpu);
  for (size_t refused : {1000, 0}) REQUIRE_THROWS_AS(t.with_chunks(refused, cpu), Error);
  for (size_t taken : {1024, 1500}) REQUIRE_NOTHROW(t.with_chunks(taken, cpu));
  const bf16 h[2] = {};
  float loss, logits[128];
  const int target = 0;
  REQUIRE_THROWS_WITH(linear_cross_entropy(&loss, nullptr, nullptr, logits, nullptr, h, nullptr, nullptr, &target, 1.0f,
                                           1, 2, 3, 1, cpu),
                      "linear_cross_entropy: h is bf16, expected a bf16 copy of the weight and memory for dlogits");
}
