// reference_loop: training as a textbook has it, in double: the loop, the mean over micro-batches, clipping, AdamW, the
// schedule. Of the program it takes the order of the data and the gradient of one batch, nothing else.
//
//   loss = mean over micro-batches;  g = mean of their gradients;  g *= min(1, clip/|g|)
//   m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2
//   w -= lr (m / (1-b1^t) / (sqrt(v / (1-b2^t)) + eps) + decay * w, where it decays)
#pragma once
#include <cmath>

#include "tests/numbers.h"
#include "tests/small_runs.h"

namespace gated {

// Matrices and embeddings decay: what has two dimensions, or three for the experts', but for the experts' biases, a
// gate's theta and the key and value of a kv bias.
inline bool decays_by_its_shape(const Parameter& p) {
  return p.shape.size() >= 2 && !p.name.ends_with("bias") && !p.name.ends_with("theta") &&
         p.name.find("kv_bias") == std::string::npos;
}

class ReferenceLoop {
 public:
  std::vector<double> w, m, v;

  ReferenceLoop(const Config& config, Context& ctx)
      : config_(config),
        ctx_(ctx),
        loader_(open_data(config.data), {config.batch, config.model.context, config.micro_batches}, config.seed),
        model_(config.model, config.batch, config.model.context, config.seed, ctx) {
    const std::vector<float> start = model_.weights.values.download();
    w.assign(start.begin(), start.end());
    m.assign(w.size(), 0);
    v.assign(w.size(), 0);
  }

  // The loss, the norm of the gradient and the learning rate of step t = 1, 2, ...
  std::vector<double> step(size_t t) {
    const size_t M = config_.micro_batches, N = config_.batch * config_.model.context;
    model_.weights.values.upload(std::vector<float>(w.begin(), w.end()));
    std::vector<double> g(w.size());
    double loss = 0, squares = 0;
    for (size_t i = 0; i < M; i++) {
      std::vector<int> ids(N), targets(N);
      loader_.training_batch(t - 1, i, ids.data(), targets.data());
      const uint64_t draw = (t - 1) * M + i;  // micro-batches are numbered through the run
      // Its place in its slice, as routers count on; the mean is taken here.
      loss += double(forward_backward(model_, {ids, targets, config_.batch, config_.model.context}, ctx_,
                                      {i, 1, M / config_.slice_count()}, draw));
      const std::vector<float> part = model_.weights.grads.download();
      for (size_t k = 0; k < g.size(); k++) g[k] += double(part[k]) / double(M);
    }
    for (double x : g) squares += x * x;
    const double norm = std::sqrt(squares), scale = std::min(1.0, double(config_.clip) / norm), rate = rate_at(t);
    const AdamWHyperparameters& a = config_.adamw;
    const double b1 = double(a.beta1), b2 = double(a.beta2), T = double(t);
    for (const Parameter& p : model_.weights.list())
      for (size_t k = p.offset; k < p.offset + p.size; k++) {
        m[k] = b1 * m[k] + (1 - b1) * g[k] * scale;
        v[k] = b2 * v[k] + (1 - b2) * g[k] * scale * g[k] * scale;
        const double mean = m[k] / (1 - std::pow(b1, T)), square = v[k] / (1 - std::pow(b2, T));
        const double decay = decays_by_its_shape(p) ? double(a.weight_decay) * w[k] : 0;
        w[k] -= rate * (mean / (std::sqrt(square) + double(a.epsilon)) + decay);
      }
    return {loss / double(M), norm, rate};
  }

  double rate_at(size_t t) const {
    const double peak = double(config_.schedule.peak), last = double(config_.schedule.final);
    const double W = double(config_.schedule.warmup), S = double(config_.steps);
    if (double(t) <= W) return peak * double(t) / W;
    return last + (peak - last) * (1 + std::cos(M_PI * (double(t) - W) / (S - W))) / 2;
  }

 private:
  const Config config_;
  Context& ctx_;
  TokenLoader loader_;
  Model model_;
};

// How far a run is from the loop after `steps` steps: in what it reports, and in its weights.
struct Deviation {
  double reported, weights;
};
inline Deviation deviation_from_loop(const Config& config, size_t steps, Context& ctx) {
  Run run(config, ctx);
  ReferenceLoop loop(config, ctx);
  double reported = 0;
  for (size_t t = 1; t <= steps; t++) {
    const std::vector<double> expected = loop.step(t);
    const std::vector<float> got = run.steps(1);
    for (size_t i = 0; i < 3; i++)
      reported = std::max(reported, std::fabs(double(got[i]) - expected[i]) / std::fabs(expected[i]));
  }
  const std::vector<float> w = run.trainer.model.weights.values.download();
  return {reported, relative_error(loop.w, std::vector<double>(w.begin(), w.end()))};
}

}  // namespace gated
