// plain model: a model as plain loops in double over its weights, one sequence at a time, which writes down what the
// tests of measures and arrays then average. It knows RMSNorm, PreAffine and GatedNorm, attention with a learned sink,
// a window and the elementwise gate at G1, SwiGLU, tied embeddings.
#pragma once
#include <cmath>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "layers/model.h"
#include "tests/harness.h"
#include "tests/small_models.h"

namespace gated {

using Vector = std::vector<double>;

inline double mean_of(const Vector& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / double(values.size());
}

// Mean |x| over rows of C, by column.
inline Vector mean_size(const Vector& x, size_t C) {
  Vector mean(C);
  for (size_t i = 0; i < x.size(); i++) mean[i % C] += std::fabs(x[i]) / double(x.size() / C);
  return mean;
}

inline void append(Vector& to, const Vector& values) {
  to.insert(to.end(), values.begin(), values.end());
}
inline void add(Vector& to, const Vector& values, double times = 1) {
  for (size_t i = 0; i < to.size(); i++) to[i] += times * values[i];
}

struct PlainModel {
  explicit PlainModel(const ModelConfig& config) : c(config), layers(config.layers), states(config.layers + 1) {}

  const ModelConfig& c;
  std::map<std::string, Vector> w;

  // What is written down, sequence after sequence, token after token.
  struct Layer {
    std::vector<Vector> to_first, to_sink;  // (H) of every query but those of token 0
    std::vector<Vector> given;              // (T*T) what a query gave to a key, of every head
    std::vector<Vector> v;                  // (T) lengths
    Vector gate, before, behind;            // scores; outputs of attention
  };
  std::vector<Layer> layers;
  std::vector<Vector> states;                // (layers+1) all values of all tokens
  std::map<std::string, Vector> norm_gates;  // scores, by the name of the norm
  std::map<std::string, Vector> outputs;     // of norms, attention and ffn: "layers.0.ffn", "final_norm"
  std::vector<Vector> losses;                // (T)

  // Gives the model, and then itself, larger weights than those of the start, one dimension of the embedding far above
  // the others, and on some tokens more.
  void take_weights(Model& model) {
    change_weights(model, [&](const Parameter& p, float* w) {
      for (size_t i = 0; i < p.size; i++) w[i] *= w[i] == 1 ? 1 : 12;
      if (p.shape.size() == 1)
        for (size_t i = 0; i < p.size; i++) w[i] = (p.name.ends_with("q_norm.weight") ? 4 : 1) + 0.03f * float(i % 7);
      if (p.name.ends_with("pre_weight"))
        for (size_t i = 0; i < p.size; i++) w[i] += 0.25f * float(i % 3);
      if (p.name.ends_with("g_proj.weight") || p.name.ends_with("gate_up.weight"))
        for (size_t i = 0; i < p.size; i++) w[i] *= 8;
      if (p.name == "model.layers.1.input_layernorm.weight") w[13] = 0.25f;
      if (p.name == "model.embed_tokens.weight")
        for (size_t id = 0; id < c.vocab; id++) w[id * c.hidden + 6] = id % 5 ? 9.0f : 1200.0f;
      this->w[p.name] = Vector(w, w + p.size);
    });
  }

  static double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

  void sequence(const int* ids, const int* targets, size_t T) {
    const size_t C = c.hidden;
    const Vector& embedding = w.at("model.embed_tokens.weight");
    std::vector<Vector> h(T);
    for (size_t t = 0; t < T; t++) h[t].assign(&embedding[size_t(ids[t]) * C], &embedding[size_t(ids[t]) * C] + C);
    for (size_t layer = 0; layer <= c.layers; layer++) {
      for (const Vector& row : h) append(states[layer], row);
      if (layer == c.layers) break;
      const std::string part = "layers." + std::to_string(layer) + ".", block = "model." + part;
      std::vector<Vector> x(T);
      for (size_t t = 0; t < T; t++) x[t] = norm(block + "input_layernorm.", part + "attention_norm", h[t]);
      const std::vector<Vector> a = attention(layers[layer], block + "self_attn.", x);
      for (size_t t = 0; t < T; t++) {
        append(outputs[part + "attention"], a[t]);
        add(h[t], a[t]);
        const Vector y = norm(block + "post_attention_layernorm.", part + "ffn_norm", h[t]);
        Vector g = product(block + "mlp.gate_proj.weight", y);
        const Vector up = product(block + "mlp.up_proj.weight", y);
        for (size_t i = 0; i < g.size(); i++) g[i] *= sigmoid(g[i]) * up[i];
        const Vector f = product(block + "mlp.down_proj.weight", g);
        append(outputs[part + "ffn"], f);
        add(h[t], f);
      }
    }
    losses.resize(T);
    for (size_t t = 0; t < T; t++) {
      const Vector y = norm("model.norm.", "final_norm", h[t]);
      const Vector logits = product("model.embed_tokens.weight", y);
      double total = 0;
      for (double logit : logits) total += std::exp(logit);
      losses[t].push_back(std::log(total) - logits[size_t(targets[t])]);
    }
  }

 private:
  // y times the sigmoids of z, which are written down.
  static void gate(Vector& y, const Vector& z, Vector& scores) {
    for (size_t i = 0; i < y.size(); i++) {
      scores.push_back(sigmoid(z[i]));
      y[i] *= sigmoid(z[i]);
    }
  }
  Vector product(const std::string& name, const Vector& x) const {
    const Vector& m = w.at(name);
    Vector y;
    for (auto row = m.begin(); row < m.end(); row += ptrdiff_t(x.size()))
      y.push_back(std::inner_product(x.begin(), x.end(), row, 0.0));
    return y;
  }
  Vector rmsnorm(const std::string& name, Vector x) const {
    const double length = std::sqrt(dot(x, x) / double(x.size()) + 1e-6);
    for (size_t i = 0; i < x.size(); i++)
      x[i] = x[i] / length * (w.at(name + "weight")[i] + (c.norm.zero_centred ? 1 : 0));
    return x;
  }
  Vector norm(const std::string& name, const std::string& part, Vector x) {
    if (w.contains(name + "pre_weight"))
      for (size_t i = 0; i < x.size(); i++) x[i] *= w.at(name + "pre_weight")[i];
    Vector y = rmsnorm(name, x);
    if (w.contains(name + "gate_down.weight")) {
      Vector low = product(name + "gate_down.weight", y);
      for (double& a : low) a *= sigmoid(a);
      gate(y, product(name + "gate_up.weight", low), norm_gates[part]);
    }
    append(outputs[part], y);
    return y;
  }
  std::vector<Vector> heads(const Vector& x) const {
    std::vector<Vector> all;
    for (auto at = x.begin(); at < x.end(); at += ptrdiff_t(c.attention.D))
      all.emplace_back(at, at + ptrdiff_t(c.attention.D));
    return all;
  }
  // Every head of x normed, then turned as it stands at `position`.
  std::vector<Vector> turned(const std::string& name, const Vector& x, size_t position) const {
    const size_t D = c.attention.D;
    std::vector<Vector> all = heads(x);
    for (Vector& head : all) {
      const Vector n = rmsnorm(name, head);
      for (size_t i = 0; i < D; i++) {
        const double angle = double(position) * std::pow(c.rope_theta, -2.0 * double(i % (D / 2)) / double(D));
        const double partner = i < D / 2 ? -n[i + D / 2] : n[i - D / 2];
        head[i] = n[i] * std::cos(angle) + partner * std::sin(angle);
      }
    }
    return all;
  }
  std::vector<Vector> attention(Layer& l, const std::string& name, const std::vector<Vector>& x) const {
    const size_t T = x.size(), H = c.attention.H, KVH = c.attention.KVH, D = c.attention.D;
    l.to_first.resize(H), l.to_sink.resize(H), l.given.resize(T * T), l.v.resize(T);
    std::vector<std::vector<Vector>> q(T), k(T), v(T);  // by token and head
    for (size_t t = 0; t < T; t++) {
      q[t] = turned(name + "q_norm.", product(name + "q_proj.weight", x[t]), t);
      k[t] = turned(name + "k_norm.", product(name + "k_proj.weight", x[t]), t);
      v[t] = heads(product(name + "v_proj.weight", x[t]));
      for (const Vector& head : v[t]) l.v[t].push_back(std::sqrt(dot(head, head)));
    }
    std::vector<Vector> a;
    for (size_t t = 0; t < T; t++) {
      Vector o;
      const size_t seen = c.attention.window && c.attention.window <= t ? c.attention.window : t + 1;
      for (size_t head = 0; head < H; head++) {
        const size_t of = head / (H / KVH);
        const double sink = w.contains(name + "sinks") ? std::exp(w.at(name + "sinks")[head]) : 0;
        Vector p(T), sum(D);
        for (size_t j = t + 1 - seen; j <= t; j++) p[j] = std::exp(dot(q[t][head], k[j][of]) / std::sqrt(double(D)));
        const double total = std::accumulate(p.begin(), p.end(), sink);
        if (t > 0) {
          l.to_first[head].push_back(p[0] / total);
          l.to_sink[head].push_back(sink / total);
        }
        for (size_t j = 0; j < T; j++) l.given[t * T + j].push_back(p[j] / total);
        for (size_t j = 0; j <= t; j++) add(sum, v[j][of], p[j] / total);
        append(o, sum);
      }
      append(l.before, o);
      if (w.contains(name + "g_proj.weight")) {
        gate(o, product(name + "g_proj.weight", x[t]), l.gate);
        append(l.behind, o);
      }
      a.push_back(product(name + "o_proj.weight", o));
    }
    return a;
  }
};

// The model and the plain one over the same two batches of two sequences. After each of them the meter looks, and then
// after() is called.
template <class After>
void look_at_both(PlainModel& plain, Inspector& meter, After after) {
  const size_t T = plain.c.context;
  Context ctx(Device::cpu);
  Model model(plain.c, 2, T, 3, ctx);
  plain.take_weights(model);
  for (uint64_t batch : {0, 1}) {
    const std::vector<int> ids = some_ids(2 * T, plain.c.vocab, 5 + batch), targets = some_ids(2 * T, plain.c.vocab, 7);
    model.loss({ids, targets, 2, T});
    model.inspect(meter);
    for (size_t b : {0, 1}) plain.sequence(&ids[b * T], &targets[b * T], T);
    after();
  }
}

// What meters see of a model in two batches, the second a shorter one.
inline void look_at(const ModelConfig& c, Context& ctx, const std::vector<Inspector*>& meters) {
  Model model(c, 2, c.context, 3, ctx);
  for (size_t sequences : {2, 1}) {
    const std::vector<int> ids = some_ids(sequences * c.context, c.vocab, sequences);
    model.loss({ids, ids, sequences, c.context});
    for (Inspector* meter : meters) model.inspect(*meter);
  }
}

}  // namespace gated
