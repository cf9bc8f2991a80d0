// bias: the gradient of a linear layer's bias.
#include "kernels/bias.h"

#include "kernels/matmul.h"
#include "tests/harness.h"

using namespace gated;

TEST_CASE("bias: the gradient against finite differences", "[gradcheck]") {
  const size_t N = 130, in = 3, out = 4;
  const auto x = random_values<double>(N * in, 1), w = random_values<double>(out * in, 2);
  const auto b = random_values<double>(out, 3), dy = random_values<double>(N * out, 4);
  std::vector<double> db(out, 0.0);
  bias_backward_ref(db.data(), dy.data(), N, out);
  auto loss = [&](const std::vector<double>& b) {
    std::vector<double> y(N * out);
    matmul_ref(y.data(), x.data(), w.data(), N, out, in, Layout::nt, Accumulate::no, b.data());
    return dot(y, dy);
  };
  check_gradient("b", loss, b, db);
}

template <class S>
static void require_bias_bits(size_t N, size_t C) {
  INFO("N " << N << " C " << C << ", " << name_of(storage_of<S>));
  const auto dy = stored<S>(random_values<float>(N * C, 1)), start = random_values<float>(C, 2);
  auto db = start;
  bias_backward_ref(db.data(), dy.data(), N, C);
  on_every_device([&](Context& ctx) {
    Guarded gdb(ctx, start);
    GuardedOf<S> gdy(ctx, dy);
    bias_backward(gdb, gdy, N, C, ctx);
    REQUIRE_BITWISE(db, gdb.download());
  });
}

TEST_CASE("bias: what the program runs equals the reference bit for bit", "[bitwise]") {
  for (auto [N, C] : {std::pair<size_t, size_t>{63, 200}, {300, 5}, {1, 1}}) {
    require_bias_bits<float>(N, C);
    require_bias_bits<bf16>(N, C);
  }
}
