// embedding: the grouping of tokens, the reference against finite differences, the kernels against the
// reference.
#include "kernels/embedding.cuh"

#include "tests/harness.h"

using namespace gated;

static std::vector<int> random_ids(size_t N, size_t V, uint64_t seed) {
  std::vector<int> ids;
  for (double u : random_values<double>(N, seed)) ids.push_back(int((u + 1) / 2 * double(V)));
  return ids;
}

TEST_CASE("embedding: tokens grouped by id, in ascending order") {
  Context cpu(Device::cpu);
  TokenGroups groups;
  auto build = [&](std::vector<int> ids) { groups.build(ids.data(), ids.size(), 10, cpu); };
  auto list = [](const int* p, size_t n) { return std::vector<int>(p, p + n); };

  build({7, 2, 7, 9, 2, 7, 0});
  REQUIRE(groups.size() == 4);
  REQUIRE(list(groups.id(), 4) == std::vector<int>{0, 2, 7, 9});
  REQUIRE(list(groups.start(), 5) == std::vector<int>{0, 1, 3, 6, 7});
  REQUIRE(list(groups.token(), 7) == std::vector<int>{6, 1, 4, 0, 2, 5, 3});

  const int* memory = groups.id();
  build({9, 9});
  REQUIRE(groups.id() == memory);  // a smaller batch allocates nothing
  REQUIRE(groups.size() == 1);
  REQUIRE(list(groups.id(), 1) == std::vector<int>{9});
  REQUIRE(list(groups.start(), 2) == std::vector<int>{0, 2});
  REQUIRE(list(groups.token(), 2) == std::vector<int>{0, 1});

  build({});
  REQUIRE(groups.size() == 0);
  build({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0});
  REQUIRE(groups.size() == 10);
  REQUIRE(list(groups.start(), 11) == std::vector<int>{0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});

  REQUIRE_THROWS_WITH(build({1, 2, 10}), "embedding: token 2 has id 10, expected 0 <= id < 10");
  REQUIRE_THROWS_WITH(build({1, -1, 2}), "embedding: token 1 has id -1, expected 0 <= id < 10");
}

TEST_CASE("embedding: gradients against finite differences", "[gradcheck]") {
  const size_t B = 4, T = 3, N = B * T, C = 5, V = 6;
  Context cpu(Device::cpu);
  const auto ids = random_ids(N, V, 1);
  const auto weight = random_values<double>(V * C, 2), dh = random_values<double>(N * C, 3);
  const auto positions = random_values<double>(T * C, 4);
  TokenGroups groups;
  groups.build(ids.data(), N, V, cpu);
  std::vector<double> h(N * C), row_sums(N);
  for (bool with_positions : {false, true}) {
    for (std::vector<double> scale : {std::vector<double>{}, {1.7}}) {
      INFO("positions " << with_positions << " scale " << scale.size());
      auto loss = [&](const std::vector<double>& weight, const std::vector<double>& positions,
                      const std::vector<double>& scale) {
        embedding_forward_ref(h.data(), ids.data(), weight.data(), with_positions ? positions.data() : nullptr,
                              scale.empty() ? nullptr : scale.data(), N, T, C, V);
        return dot(h, dh);
      };
      std::vector<double> dweight(V * C, 0.0), dpositions(T * C, 0.0), dscale = {0.0};
      embedding_backward_ref(dweight.data(), dh.data(), groups, scale.empty() ? nullptr : scale.data(), C);
      check_gradient(
          "weight", [&](auto& v) { return loss(v, positions, scale); }, weight, dweight);
      if (with_positions) {
        embedding_positions_backward_ref(dpositions.data(), dh.data(), B, T, C);
        check_gradient(
            "positions", [&](auto& v) { return loss(weight, v, scale); }, positions, dpositions);
      }
      if (!scale.empty()) {
        embedding_scale_backward_ref(dscale.data(), row_sums.data(), dh.data(), ids.data(), weight.data(), N, C, V);
        check_gradient(
            "scale", [&](auto& v) { return loss(weight, positions, v); }, scale, dscale);
      }
    }
  }
}

TEST_CASE("embedding: kernels equal the reference bit for bit", "[bitwise]") {
  const struct {
    size_t B, T, C, V;
  } sizes[] = {{7, 9, 200, 17}, {1, 1, 1, 1}, {8, 5, 3, 1000}, {150, 2, 8, 2}, {3, 11, 131, 5}, {1, 20, 516, 9}};
  Context cpu(Device::cpu);
  std::vector<TokenGroups> reused(5);  // one a context: memory of the sizes before
  for (auto [B, T, C, V] : sizes) {
    const size_t N = B * T;
    INFO("B " << B << " T " << T << " C " << C << " V " << V);
    const auto ids = random_ids(N, V, 1);
    auto weight = random_values<float>(V * C, 2), dh = random_values<float>(N * C, 3),
         dweight0 = random_values<float>(V * C, 4);
    const auto positions = random_values<float>(T * C, 5), dpositions0 = random_values<float>(T * C, 6);
    const std::vector<float> scale = {27.7f}, dscale0 = {0.3f};
    weight[0] = -0.0f, dh[0] = 100.0f, dh[N * C - 1] = -100.0f;
    for (size_t v = 0; v < V; v += 3) dweight0[v * C] = -0.0f;  // must stay -0 where no token has the id
    TokenGroups groups;
    groups.build(ids.data(), N, V, cpu);
    for (bool with_positions : {false, true}) {
      for (bool with_scale : {false, true}) {
        INFO("positions " << with_positions << " scale " << with_scale);
        std::vector<float> h(N * C, NAN), dweight = dweight0, dpositions = dpositions0, dscale = dscale0,
                                          row_sums(N, NAN);
        const float *p = with_positions ? positions.data() : nullptr, *s = with_scale ? scale.data() : nullptr;
        embedding_forward(h.data(), ids.data(), weight.data(), p, s, N, T, C, V, cpu);
        embedding_backward(dweight.data(), dh.data(), groups, s, C, cpu);
        embedding_positions_backward(dpositions.data(), dh.data(), B, T, C, cpu);
        embedding_scale_backward(dscale.data(), row_sums.data(), dh.data(), ids.data(), weight.data(), N, C, V, cpu);

        size_t context = 0;
        on_every_device([&](Context& ctx) {
          Guarded gh(ctx, N * C), gdweight(ctx, dweight0), gweight(ctx, weight), gdh(ctx, dh);
          Guarded gp(ctx, positions), gs(ctx, scale), gdp(ctx, dpositions0), gds(ctx, dscale0), sums(ctx, N);
          const Buffer<int> gids(ctx.device, ids);
          TokenGroups& on_device = reused[context++];
          on_device.build(ids.data(), N, V, ctx);
          embedding_forward(gh, gids.data(), gweight, p ? +gp : nullptr, s ? +gs : nullptr, N, T, C, V, ctx);
          embedding_backward(gdweight, gdh, on_device, s ? +gs : nullptr, C, ctx);
          embedding_positions_backward(gdp, gdh, B, T, C, ctx);
          embedding_scale_backward(gds, sums, gdh, gids.data(), gweight, N, C, V, ctx);
          REQUIRE_BITWISE(h, gh.download());
          REQUIRE_BITWISE(dweight, gdweight.download());
          REQUIRE_BITWISE(dpositions, gdp.download());
          REQUIRE_BITWISE(row_sums, sums.download());
          REQUIRE_BITWISE(dscale, gds.download());
        });
      }
    }
  }
}

TEST_CASE("embedding: product and sum are rounded each, a position comes round with every sequence") {
  const size_t N = 5, T = 2, C = 8, V = 2;
  const std::vector<int> ids = {1, 0, 1, 1, 0};
  auto weight = random_values<float>(V * C, 1);
  const auto positions = random_values<float>(T * C, 2);
  weight[0] = -0.0f;  // a copy keeps its sign
  const float scale = 1.1f;
  Context cpu(Device::cpu);
  std::vector<float> h(N * C), copies, sums, fused_sums;
  for (size_t n = 0; n < N; n++) {
    for (size_t c = 0; c < C; c++) {
      const float w = weight[ids[n] * C + c], p = positions[n % T * C + c], product = w * scale;
      copies.push_back(w);
      sums.push_back(product + p);
      fused_sums.push_back(std::fma(w, scale, p));
    }
  }
  embedding_forward(h.data(), ids.data(), weight.data(), positions.data(), &scale, N, T, C, V, cpu);
  REQUIRE_BITWISE(sums, h);
  REQUIRE(sums != fused_sums);
  embedding_forward(h.data(), ids.data(), weight.data(), nullptr, nullptr, N, T, C, V, cpu);
  REQUIRE_BITWISE(copies, h);
}

TEST_CASE("embedding: the gradient of positions runs over the sequences in ascending order") {
  const std::vector<float> dh = {0x1p24f, 1.0f, -0x1p24f,
                                 3.0f};  // from 1: ascending 4, descending 5, straight into it 3
  std::vector<float> dpositions = {1.0f};
  Context cpu(Device::cpu);
  embedding_positions_backward(dpositions.data(), dh.data(), 4, 1, 1, cpu);
  REQUIRE_BITWISE((std::vector<float>{4.0f}), dpositions);
}

TEST_CASE("embedding: the sum runs over tokens in ascending order, apart from what dweight holds") {
  // 2^24 + 1 is 2^24 in float: ascending gives 4, descending 5, straight into dweight 3.
  const std::vector<int> ids = {1, 1, 0, 1, 1};
  const std::vector<float> dh = {0x1p24f, 1.0f, 5.0f, -0x1p24f, 3.0f};
  std::vector<float> dweight = {-0.0f, 1.0f, -0.0f};
  Context cpu(Device::cpu);
  TokenGroups groups;
  groups.build(ids.data(), 5, 3, cpu);
  embedding_backward(dweight.data(), dh.data(), groups, nullptr, 1, cpu);
  REQUIRE_BITWISE((std::vector<float>{5.0f, 4.0f, -0.0f}), dweight);
  const float scale = 0.5f;
  embedding_backward(dweight.data(), dh.data(), groups, &scale, 1, cpu);
  REQUIRE_BITWISE((std::vector<float>{7.5f, 5.5f, -0.0f}), dweight);
}

TEST_CASE("embedding: an id without a row gives NaN and reads nothing") {
  const std::vector<int> ids = {0, 2, -1, 1, 2147483647};
  const std::vector<float> weight = random_values<float>(2 * 4, 1);
  std::vector<float> h(20, 0.0f), expected(20, NAN);
  for (size_t c = 0; c < 4; c++) expected[c] = weight[c], expected[12 + c] = weight[4 + c];
  Context cpu(Device::cpu);
  embedding_forward(h.data(), ids.data(), weight.data(), nullptr, nullptr, 5, 5, 4, 2, cpu);
  REQUIRE(bitwise_difference(expected, h, Nan::expected) == "");
  on_every_device([&](Context& ctx) {
    const std::vector<float> zero(20, 0.0f);
    Guarded gh(ctx, zero), gweight(ctx, weight);
    const Buffer<int> gids(ctx.device, ids);
    embedding_forward(gh, gids.data(), gweight, nullptr, nullptr, 5, 5, 4, 2, ctx);
    REQUIRE(bitwise_difference(expected, gh.download(), Nan::expected) == "");
  });
}
