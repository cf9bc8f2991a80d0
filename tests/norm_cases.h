// norm_cases: what the tests of norms share: how a branch joins before one, and arrays of a norm whose sum is stored.
#pragma once
#include "kernels/residual.h"
#include "tests/harness.h"

namespace gated {

// A join as this device can read it.
inline Join on_device(const Context& ctx, Join join) {
  join.dropout.stream = on_device(ctx, join.dropout.stream);
  return join;
}

// Plain, and with two clips and dropout.
inline const std::vector<Join>& norm_joins() {
  static const uint64_t stream = 12;
  static const std::vector<Join> all = {{}, {0.7f, 1.4f, {0.3f, 11, &stream}}};
  return all;
}

// Gradients of N rows of C columns against finite differences: the residual stream, a branch, and loss = <y, dy> +
// <sum, dres>, as the stream goes on past the norm.
struct NormGradients {
  const size_t N, C;
  std::vector<double> x = random_values<double>(N * C, 1), branch = random_values<double>(N * C, 2);
  const std::vector<double> dy = random_values<double>(N * C, 4), dres = random_values<double>(N * C, 5);
  std::vector<double> y = std::vector<double>(N * C), sum = y, dx = y, dbranch = y;
  explicit NormGradients(size_t N = 3, size_t C = 13) : N(N), C(C) {}
  ResidualInOf<double> in(const Join& join) const { return {x.data(), branch.data(), join}; }
  ResidualBackwardInOf<double> back(const Join& join) const { return {sum.data(), dres.data(), branch.data(), join}; }
  double loss() const { return dot(y, dy) + dot(sum, dres); }
};

// What a norm reads and writes in one case: N rows of C columns of S, which a branch may join before, and whose
// gradient may be added to that of the stream.
struct NormCase {
  bool branch, dresidual;
  Join join = {};
  bool dbranch = true;  // has the branch a gradient of its own?
};
template <class S>
struct NormTrial : Trial {
  const NormCase c;
  const size_t n;
  const Array<S> x = random<S>(n, 1, 3.0f), dy = random<S>(n, 4), y = out<S>(n), dx = out<S>(n);
  const Array<S> branch = c.branch ? random<S>(n, 2) : Array<S>(), joined = c.branch ? out<S>(n) : Array<S>(),
                 dbranch = c.branch && c.dbranch ? out<S>(n) : Array<S>(),
                 dres = c.dresidual ? random<S>(n, 5) : Array<S>();
  // In bf16 the norm is of the sum as it is stored.
  NormTrial(const NormCase& c, size_t N, size_t C) : c(c), n(N * C) {
    if (!c.branch) return;
    residual_join_forward_ref<float>(joined.ref, {x.ref, branch.ref, c.join}, N, C);
    joined.store();
  }
  const Array<S>& normed() const { return c.branch ? joined : x; }
  ResidualIn joins(const Context& ctx) const { return {x, branch, on_device(ctx, c.join)}; }
  ResidualBackwardIn back(const Context& ctx) const { return {normed(), dres, branch, on_device(ctx, c.join)}; }
  ResidualBackwardInOf<float> back_ref() const {
    ResidualBackwardInOf<float> in = {normed().ref, dres.ref, branch.ref, c.join};
    in.join.clip_sum = S(c.join.clip_sum);
    return in;
  }
};

// bits(S(), N, C, case) for shapes of both storages: the norm alone, and with what may join before it and behind it.
template <class Bits>
void for_norm_cases(Bits bits) {
  const struct { size_t N, C; } sizes[] = {{63, 200}, {5, 1}, {9, 131}, {1, 1030}};
  for (const NormCase& c :
       {NormCase{false, false}, {true, true}, {true, false, norm_joins()[1]}, {true, true, norm_joins()[1]}}) {
    for (auto [N, C] : sizes) bits(float(), N, C, c);
    bits(bf16(), 9, 131, c);
    c.branch ? bits(bf16(), 5, 1032, c) : bits(bf16(), 130, 200, c);
  }
  // Of four slices a CPU's thread that works alone makes dx and the sums down the columns in one pass.
  bits(float(), 390, 64, {false, false});
  bits(bf16(), 385, 131, {true, true, norm_joins()[1]});
}

}  // namespace gated
