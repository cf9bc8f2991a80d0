// bias: the gradient of a linear layer's bias.
#include "kernels/bias.h"

#include "kernels/matmul.h"
#include "tests/harness.h"

using namespace gated;

TEST_CASE("bias: the gradient against finite differences", "[gradcheck]") {
  const size_t N = 130, in = 3, out = 4;
  const auto x = random_values<double>(N * in, 1), w = random_values<double>(out * in, 2);
  const auto dy = random_values<double>(N * out, 4);
  auto b = random_values<double>(out, 3);
  std::vector<double> y(N * out), db(out, 0.0);
  bias_backward_ref(db.data(), dy.data(), N, out);
  const auto loss = [&] {
    matmul_ref(y.data(), x.data(), w.data(), N, out, in, Layout::nt, Accumulate::no, b.data());
    return dot(y, dy);
  };
  check_gradients(loss, {{"b", b, db}});
}

template <class S>
static void require_bias_bits(size_t N, size_t C) {
  INFO("N " << N << " C " << C << ", " << name_of(storage_of<S>));
  Trial t;
  const auto dy = t.random<S>(N * C, 1);
  const auto db = t.sum(C, 2);
  bias_backward_ref(db.ref, dy.ref, N, C);
  t.on_every_device([&](Context& ctx) { bias_backward(db, dy, N, C, ctx); });
}

TEST_CASE("bias: what the program runs equals the reference bit for bit", "[bitwise]") {
  for (auto [N, C] : {std::pair<size_t, size_t>{63, 200}, {300, 5}, {1, 1}}) {
    require_bias_bits<float>(N, C);
    require_bias_bits<bf16>(N, C);
  }
}
