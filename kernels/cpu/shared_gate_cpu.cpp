// shared_gate on the CPU. The reference (kernels/shared_gate.cu) goes down the heads of one column after the other.
// Here a thread takes a token whole, and rows of D meet rows of D, in loops that are compiled for each activation and
// form. The terms of a column still come in ascending h, so the bits are the same.
#include <vector>

#include "kernels/shared_gate.h"

namespace gated {

// s (D) = the mean over heads of score(i), element i of (H,D).
template <class Score>
static void mean_over_heads(float* s, size_t H, size_t D, Score score) {
  for (size_t d = 0; d < D; d++) s[d] = 0.0f;
  for (size_t i = 0; i < H * D; i += D)
#pragma omp simd
    for (size_t d = 0; d < D; d++) s[d] = s[d] + score(i + d);
  for (size_t d = 0; d < D; d++) s[d] = s[d] / float(H);
}

template <bool additive, class S>
static void shared_gate_forward_tokens(S* y, const S* x, const S* z, size_t N, size_t H, size_t D, const GateOp& op) {
#pragma omp parallel if (worth_waking(N * H * D))
  {
    std::vector<float> mean(D);
    float* s = mean.data();
#pragma omp for
    for (size_t n = 0; n < N; n++) {
      const size_t token = n * H * D;
      with_known_activation<any_gate>(op.act, [&, scale = op.scale](auto act) {
        mean_over_heads(s, H, D,
                        [=](size_t i) { return scale * activation_value(decltype(act)::value, float(z[token + i])); });
      });
      for (size_t head = token; head < token + H * D; head += D)
#pragma omp simd
        for (size_t d = 0; d < D; d++) store(y[head + d], additive ? x[head + d] + s[d] : x[head + d] * s[d]);
    }
  }
}

// The activations of a token are wanted twice, for scores and slopes, so they are computed once and kept.
template <bool additive, class S>
static void shared_gate_backward_tokens(S* dx, S* dz, const S* dy, const S* x, const S* z, size_t N, size_t H, size_t D,
                                        const GateOp& op) {
#pragma omp parallel
  {
    std::vector<float> scores(H * D), slopes(H * D), mean(D), sum(D);
    float *s = mean.data(), *ds = sum.data();
#pragma omp for
    for (size_t n = 0; n < N; n++) {
      const size_t token = n * H * D;
      gate_scores_and_slopes_cpu(scores.data(), slopes.data(), z + token, H * D, op);
      mean_over_heads(s, H, D, [score = scores.data()](size_t i) { return score[i]; });
      for (size_t d = 0; d < D; d++) ds[d] = 0.0f;
      for (size_t head = token; head < token + H * D; head += D)
#pragma omp simd
        for (size_t d = 0; d < D; d++) {
          const float dyd = dy[head + d];
          ds[d] = fused(dyd, additive ? 1.0f : float(x[head + d]), ds[d]);
          store(dx[head + d], additive ? dyd : dyd * s[d]);
        }
      for (size_t d = 0; d < D; d++) ds[d] = ds[d] / float(H);
      for (size_t i = 0; i < H * D; i += D)
#pragma omp simd
        for (size_t d = 0; d < D; d++) store(dz[token + i + d], ds[d] * slopes[i + d]);
    }
  }
}

template <class S>
void shared_gate_forward_cpu(S* y, const S* x, const S* z, size_t N, size_t H, size_t D, const GateOp& op) {
  auto* tokens = op.additive ? shared_gate_forward_tokens<true, S> : shared_gate_forward_tokens<false, S>;
  tokens(y, x, z, N, H, D, op);
}
IN_FLOAT_AND_BF16(shared_gate_forward_cpu);

template <class S>
void shared_gate_backward_cpu(S* dx, S* dz, const S* dy, const S* x, const S* z, size_t N, size_t H, size_t D,
                              const GateOp& op) {
  auto* tokens = op.additive ? shared_gate_backward_tokens<true, S> : shared_gate_backward_tokens<false, S>;
  tokens(dx, dz, dy, x, z, N, H, D, op);
}
IN_FLOAT_AND_BF16(shared_gate_backward_cpu);

}  // namespace gated
