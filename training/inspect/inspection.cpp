#include "training/inspect/inspection.h"

#include "core/host_math.h"
#include "kernels/activation.h"
#include "kernels/matmul.h"

namespace gated {

// ---- attention

static size_t logits_of(const AttentionView& view) {
  const AttentionShape& s = view.shape;
  return !view.sink.logit ? 0 : view.sink.per_query ? s.B * s.H * s.T : s.H;
}

AttentionWeights::AttentionWeights(const AttentionView& view, Device device)
    : s_(view.shape),
      q_(device, view.q, s_.B * s_.T * s_.H * s_.D),
      k_(device, view.k, s_.B * s_.T * s_.KVH * s_.D),
      lse_(device, view.lse, s_.B * s_.H * s_.T),
      logit_(device, view.sink.logit, logits_of(view)),
      sink_{.logit = logit_.empty() ? nullptr : logit_.data(), .per_query = view.sink.per_query} {}

double AttentionWeights::key(size_t b, size_t head, size_t i, size_t j) const {
  const double scale = 1 / std::sqrt(double(s_.divisor()));
  const double score = scale * dot(&q_[s_.q_row(b, i, head)], &k_[s_.kv_row(b, j, head / s_.group())], s_.D);
  return s_.sigmoid() ? 1 / (1 + host_exp(-(score + double(s_.bias))))
                      : host_exp(score - double(lse_[s_.stat(b, head, i)]));
}

double AttentionWeights::sink(size_t b, size_t head, size_t i) const {
  if (!sink_.logit) return 0;
  return host_exp(double(sink_.logit_of(s_, b, head, i)) - double(lse_[s_.stat(b, head, i)]));
}

AttentionWeights::Sums AttentionWeights::to_first_and_sink() const {
  Sums sums = {std::vector<double>(s_.B * s_.H), std::vector<double>(s_.B * s_.H)};
#pragma omp parallel for collapse(2)
  for (size_t b = 0; b < s_.B; b++)
    for (size_t head = 0; head < s_.H; head++)
      for (size_t i = 1; i < s_.T; i++) {
        sums.sink[b * s_.H + head] += sink(b, head, i);
        if (s_.visible(i, 0)) sums.first[b * s_.H + head] += key(b, head, i, 0);
      }
  return sums;
}

// ---- gates

// z (rows,columns) becomes act(z) in the bits that the model has. A score is the mean over heads that stand side by
// side.
static void each_score_of(std::vector<float> z, size_t columns, size_t heads, const GateOp& op,
                          const std::function<void(double)>& f) {
  gate_scores_cpu(z.data(), z.data(), z.size(), op);
  const size_t width = columns / heads;
  for (size_t row = 0; row < z.size(); row += columns)
    for (size_t i = 0; i < width; i++) {
      double score = 0;
      for (size_t head = 0; head < heads; head++) score += double(z[row + head * width + i]);
      f(score / double(heads));
    }
}

void each_score(const GateView& view, Device device, const std::function<void(double)>& f) {
  const OnHost<float> logits(device, view.z, view.rows * view.columns);
  each_score_of({logits.begin(), logits.end()}, view.columns, view.heads_averaged, view.config.op, f);
}

void each_score(const NormView& view, Device device, const std::function<void(double)>& f) {
  const size_t N = view.gate.N, rank = view.gate.rank, columns = view.gate.scores();
  const OnHost low(device, view.low, N * rank), up(device, view.up, columns * rank);
  std::vector<float> a(N * rank), z(N * columns);
  activation_forward_cpu(a.data(), low.data(), a.size(), Activation::silu);
  matmul_cpu(z.data(), a.data(), up.data(), N, columns, rank, Layout::nt, Accumulate::no);
  each_score_of(std::move(z), columns, 1, view.gate.op, f);
}

}  // namespace gated
