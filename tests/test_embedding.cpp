// embedding: the grouping of tokens, the reference against finite differences, what the program runs against the
// reference.
#include "kernels/embedding.h"

#include <algorithm>

#include "core/philox.cuh"
#include "tests/harness.h"

using namespace gated;

TEST_CASE("embedding: tokens grouped by id, in ascending order", "[bitwise]") {
  using Ints = std::vector<int>;
  Ints many(2200, 0);  // of one id, 1024 of another, and two between them: pieces of 1024, 1024, 152; 2; 1024
  many.insert(many.begin() + 300, 2, 1);
  many.insert(many.end(), 1024, 2);
  on_every_device([&](Context& ctx) {
    TokenGroups groups(3226, 10, ctx);
    auto list = [&](const int* p, size_t n) {
      Ints host(n);
      ctx.synchronize();
      Buffer<int>::copy_to_host(ctx.device, host.data(), p, n);
      return host;
    };
    auto build = [&](const Ints& ids) { groups.build(ids.data(), ids.size(), ctx); };

    // A CUDA graph remembers addresses.
    const int *count = groups.count(), *id = groups.id(), *start = groups.start(), *token = groups.token();
    for (const Ints& ids : {Ints{7, 2, 7, 9, 2, 7, 0}, {9, 9}, {}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0}, many}) {
      build(ids);
      REQUIRE((groups.count() == count && groups.id() == id && groups.start() == start && groups.token() == token));
      Ints of_ids, starts, tokens;
      for (int v = 0; v < 10; v++)
        for (size_t n = 0, before = 0; n < ids.size(); n++) {
          if (ids[n] != v) continue;
          if (before++ % 1024 == 0) of_ids.push_back(v), starts.push_back(int(tokens.size()));
          tokens.push_back(int(n));
        }
      if (!ids.empty()) starts.push_back(int(tokens.size()));
      REQUIRE(groups.most_groups() == std::min(ids.size(), 10 + ids.size() / 1024));
      REQUIRE(list(count, 1) == Ints{int(of_ids.size())});
      REQUIRE(list(id, of_ids.size()) == of_ids);
      REQUIRE(list(start, starts.size()) == starts);
      REQUIRE(list(token, tokens.size()) == tokens);
    }

    REQUIRE_THROWS_WITH(build({1, 2, 10}), "embedding: token 2 has id 10, expected 0 <= id < 10");
    REQUIRE_THROWS_WITH(build({1, -1, 2}), "embedding: token 1 has id -1, expected 0 <= id < 10");
    REQUIRE_THROWS_WITH(build(Ints(3227, 0)), "embedding: a batch of 3227 tokens, expected at most 3226");
  });
}

TEST_CASE("embedding: the bytes of groups are those of their lists") {
  Context cpu(Device::cpu);
  for (auto [N, V] : {std::pair<size_t, size_t>{11, 10}, {3, 1000}, {1000, 3}}) {
    TokenGroups groups(N, V, cpu);
    REQUIRE(size_t(groups.token() + N - groups.count()) * sizeof(int) == TokenGroups::bytes(N, V));
  }
}

TEST_CASE("embedding: gradients against finite differences", "[gradcheck]") {
  const size_t B = 4, T = 3, N = B * T, C = 5, V = 6;
  const auto ids = some_ids(N, V, 1);
  auto weight = random_values<double>(V * C, 2), positions = random_values<double>(T * C, 4);
  const auto dh = random_values<double>(N * C, 3);
  std::vector<double> scale = {1.7}, h(N * C), dweight(V * C, 0.0), dscaled(V * C, 0.0), dpositions(T * C, 0.0),
                      dscale = {0.0};
  const auto plain = [&] { return embedding_forward_ref(h.data(), ids.data(), weight.data(), N, C, V), dot(h, dh); };
  embedding_backward_ref(dweight.data(), dh.data(), ids.data(), N, C, V);
  check_gradients(plain, {{"weight", weight, dweight}});

  const auto general = [&] {
    embedding_forward_ref(h.data(), ids.data(), weight.data(), N, C, V);
    embedding_scale_forward_ref(h.data(), scale.data(), N, C);
    embedding_positions_forward_ref(h.data(), positions.data(), N, T, C);
    return dot(h, dh);
  };
  embedding_scaled_backward_ref(dscaled.data(), dh.data(), ids.data(), scale.data(), N, C, V);
  embedding_positions_backward_ref(dpositions.data(), dh.data(), B, T, C);
  embedding_scale_backward_ref(dscale.data(), dh.data(), ids.data(), weight.data(), N, C, V);
  check_gradients(general,
                  {{"scaled weight", weight, dscaled}, {"scale", scale, dscale}, {"positions", positions, dpositions}});
}

// Of sequences of T tokens.
template <class S>
static void require_embedding_bits(const std::vector<int>& ids, size_t T, size_t C, size_t V, bool with_positions,
                                   bool with_scale) {
  const size_t N = ids.size(), B = N / T;
  INFO("B " << B << " T " << T << " C " << C << " V " << V << ", " << name_of(storage_of<S>) << ", positions "
            << with_positions << " scale " << with_scale);
  const auto other_ids = some_ids(N + 3, V, 7);
  auto weight0 = random_values<float>(V * C, 2), dh0 = random_values<float>(N * C, 3),
       dweight0 = random_values<float>(V * C, 4);
  weight0[0] = -0.0f;
  dh0[0] = 100.0f;
  dh0[N * C - 1] = -100.0f;
  for (size_t v = 0; v < V; v += 3) dweight0[v * C] = -0.0f;  // must stay -0 where no token has the id
  Trial t;
  const auto dh = t.in<S>(dh0), h = t.out<S>(N * C);
  const Array<float> none;
  const auto weight = t.in<S>(weight0);
  const auto dweight = t.sum(dweight0), scale = with_scale ? t.in({27.7f}) : none;
  const auto positions = with_positions ? t.random<S>(T * C, 5) : Array<S>();
  const auto dpositions = t.sum(T * C, 6), dscale = t.sum({0.3f});
  embedding_forward_ref(h.ref, ids.data(), weight.ref, N, C, V);
  if (with_scale) embedding_scale_forward_ref(h.ref, scale.ref, N, C);
  if (with_positions) embedding_positions_forward_ref(h.ref, positions.ref, N, T, C);
  if (with_scale)
    embedding_scaled_backward_ref(dweight.ref, dh.ref, ids.data(), scale.ref, N, C, V);
  else
    embedding_backward_ref(dweight.ref, dh.ref, ids.data(), N, C, V);
  embedding_positions_backward_ref(dpositions.ref, dh.ref, B, T, C);
  embedding_scale_backward_ref(dscale.ref, dh.ref, ids.data(), weight.ref, N, C, V);

  t.on_every_device([&](Context& ctx) {
    const bool gpu = ctx.device != Device::cpu;
    const Buffer<int> gids(ctx.device, ids);
    TokenGroups groups(N + 4000, V, ctx);
    groups.build(other_ids.data(), N + 3, ctx);  // lists of a batch before, of more tokens and more ids
    groups.build(ids.data(), N, ctx);
    embedding_forward(h, gids.data(), weight, {scale, positions, T}, N, C, V, ctx);
    embedding_backward(dweight, dh, groups, scale, C, ctx);
    const size_t scratch = gpu ? embedding_backward_scratch(N, C) : 0;
    REQUIRE(ctx.most_scratch_used() == scratch);

    embedding_positions_backward(dpositions, dh, B, T, C, ctx);
    if (gpu) REQUIRE(ctx.most_scratch_used() == std::max(scratch, embedding_positions_backward_scratch(B, T, C)));
    Context another(ctx.device);
    const Guarded sums(ctx, N);
    embedding_scale_backward(dscale, sums, dh, gids.data(), weight, N, C, V, another);
    if (gpu) REQUIRE(another.most_scratch_used() == embedding_scale_backward_scratch(N));
    another.synchronize();
  });
}

TEST_CASE("embedding: what the program runs equals the reference bit for bit", "[bitwise]") {
  const std::array<size_t, 4> sizes[] = {{7, 9, 200, 17}, {1, 1, 1, 1},    {8, 5, 3, 1000},
                                         {150, 2, 8, 2},  {3, 11, 131, 5}, {1, 20, 516, 9}};
  for (auto [B, T, C, V] : sizes)
    for (bool with_positions : {false, true})
      for (bool with_scale : {false, true}) {
        require_embedding_bits<float>(some_ids(B * T, V, 1), T, C, V, with_positions, with_scale);
        if (C < 200) require_embedding_bits<bf16>(some_ids(B * T, V, 1), T, C, V, with_positions, with_scale);
      }
}

TEST_CASE("embedding: an id with many tokens is summed in pieces of 1024", "[bitwise]") {
  // Full pieces alone, a last piece of one token, two ids that begin among the same 1024 tokens, ids with few tokens
  // between.
  const size_t occurs[] = {3, 1024, 1025, 2048, 1, 3073, 1200, 40}, V = std::size(occurs);
  std::vector<int> ids;
  for (size_t v = 0; v < V; v++) ids.insert(ids.end(), occurs[v], int(v));
  for (size_t n = ids.size(); n-- > 1;) std::swap(ids[n], ids[random_below(1, 1, n, n + 1)]);
  for (size_t C : {3, 132}) require_embedding_bits<float>(ids, 1, C, V, false, false);
  // 2^24 + 1 is 2^24 in float, and 2^24 + 2 is not: two ones in the second piece come to the sum together.
  std::vector<float> dh(1026, 0.0f), dweight = {0.0f};
  dh[0] = 0x1p24f;
  dh[1024] = dh[1025] = 1;
  embedding_backward_ref(dweight.data(), dh.data(), std::vector<int>(1026, 0).data(), 1026, 1, 1);
  REQUIRE(dweight[0] == 0x1p24f + 2);
}

TEST_CASE("embedding: product and sum are rounded each, a position comes round with every sequence") {
  // scale * scale is 1 + 2^-11 + 2^-24, which is rounded before anything is added to it. A copy keeps the sign of 0.
  const float scale = 1 + 0x1p-12f, square = 1 + 0x1p-11f;
  const std::vector<int> ids = {0, 1, 0, 0, 1};
  const std::vector<float> weight = {scale, -0.0f}, positions = {-square, 1};
  Context cpu(Device::cpu);
  std::vector<float> h(5);
  embedding_forward(h.data(), ids.data(), weight.data(), {&scale, positions.data(), 2}, 5, 1, 2, cpu);
  REQUIRE_BITWISE((std::vector<float>{0, 1, 0, square + 1, -square}), h);
  embedding_forward(h.data(), ids.data(), weight.data(), {}, 5, 1, 2, cpu);
  REQUIRE_BITWISE((std::vector<float>{scale, -0.0f, scale, scale, -0.0f}), h);
}

TEST_CASE("embedding: sums run over tokens and sequences in ascending order, apart from what the gradients hold") {
  // 2^24 + 1 is 2^24 in float. From 1: ascending gives 4, descending 5, straight into the gradient 3.
  const std::vector<int> ids = {1, 1, 0, 1, 1};
  const std::vector<float> dh = {0x1p24f, 1.0f, 5.0f, -0x1p24f, 3.0f}, of_sequences = {0x1p24f, 1.0f, -0x1p24f, 3.0f};
  std::vector<float> dweight = {-0.0f, 1.0f, -0.0f}, dpositions = {1.0f};
  Context cpu(Device::cpu);
  TokenGroups groups(5, 3, cpu);
  groups.build(ids.data(), 5, cpu);
  embedding_backward(dweight.data(), dh.data(), groups, nullptr, 1, cpu);
  REQUIRE_BITWISE((std::vector<float>{5.0f, 4.0f, -0.0f}), dweight);
  const float scale = 0.5f;
  embedding_backward(dweight.data(), dh.data(), groups, &scale, 1, cpu);
  REQUIRE_BITWISE((std::vector<float>{7.5f, 5.5f, -0.0f}), dweight);
  embedding_positions_backward(dpositions.data(), of_sequences.data(), 4, 1, 1, cpu);
  REQUIRE_BITWISE((std::vector<float>{4.0f}), dpositions);
}

TEST_CASE("embedding: an id without a row gives NaN and reads nothing", "[bitwise]") {
  const std::vector<int> ids = {0, 2, -1, 1, 2147483647};
  Trial t(Nan::expected);
  const auto weight = t.random<bf16>(2 * 4, 1);
  const auto weight_in_floats = t.in(weight.values());
  std::vector<float> h(20, 0.0f), expected(20, NAN);
  for (size_t c = 0; c < 4; c++) expected[c] = weight.ref[c], expected[12 + c] = weight.ref[4 + c];
  embedding_forward_ref(h.data(), ids.data(), weight.ref, 5, 4, 2);
  REQUIRE(bitwise_difference(expected, h, Nan::expected) == "");
  const auto in_floats = t.sum(std::vector<float>(20, 0.0f), expected);
  const auto in_bf16 = t.sum<bf16>(std::vector<float>(20, 0.0f), expected);
  t.on_every_device([&](Context& ctx) {
    const Buffer<int> gids(ctx.device, ids);
    embedding_forward(in_floats, gids.data(), weight_in_floats, {}, 5, 4, 2, ctx);
    embedding_forward(in_bf16, gids.data(), weight, {}, 5, 4, 2, ctx);
    Guarded sums(ctx, 5), dscale(ctx, std::vector<float>{0.0f}), dh(ctx, std::vector<float>(20, 1.0f));
    embedding_scale_backward(dscale, sums, dh, gids.data(), weight_in_floats, 5, 4, 2, ctx);
    REQUIRE(std::isnan(dscale.download()[0]));
    REQUIRE(std::isfinite(sums.download()[3]));
  });
}
