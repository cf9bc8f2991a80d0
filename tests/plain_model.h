// plain model: a model as plain loops in double over its weights, one sequence at a time, which writes down what the
// tests of measures and arrays then average. It knows RMSNorm, PreAffine and GatedNorm, attention with a learned sink,
// a window and the elementwise gate at G1, SwiGLU, tied embeddings.
#pragma once
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "layers/model.h"
#include "tests/harness.h"
#include "tests/small_models.h"

namespace gated {

using Vector = std::vector<double>;

inline double mean_of(const Vector& values) {
  double sum = 0;
  for (double x : values) sum += x;
  return sum / double(values.size());
}

inline void append(Vector& to, const Vector& values) {
  to.insert(to.end(), values.begin(), values.end());
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

  // What of every layer stands there, one after the other.
  Vector all(Vector Layer::*of) const {
    Vector all;
    for (const Layer& l : layers) append(all, l.*of);
    return all;
  }

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
        for (size_t i = 0; i < C; i++) h[t][i] += a[t][i];
        const Vector y = norm(block + "post_attention_layernorm.", part + "ffn_norm", h[t]);
        Vector g = product(block + "mlp.gate_proj.weight", y);
        const Vector up = product(block + "mlp.up_proj.weight", y);
        for (size_t i = 0; i < g.size(); i++) g[i] *= sigmoid(g[i]) * up[i];
        const Vector f = product(block + "mlp.down_proj.weight", g);
        append(outputs[part + "ffn"], f);
        for (size_t i = 0; i < C; i++) h[t][i] += f[i];
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
  static double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

  Vector product(const std::string& name, const Vector& x) const {
    const Vector& m = w.at(name);
    Vector y(m.size() / x.size());
    for (size_t i = 0; i < y.size(); i++)
      for (size_t j = 0; j < x.size(); j++) y[i] += m[i * x.size() + j] * x[j];
    return y;
  }
  Vector rmsnorm(const std::string& name, const double* x, size_t n) const {
    double squares = 0;
    for (size_t i = 0; i < n; i++) squares += x[i] * x[i];
    Vector y(n);
    for (size_t i = 0; i < n; i++)
      y[i] = x[i] / std::sqrt(squares / double(n) + 1e-6) * (w.at(name + "weight")[i] + (c.norm.zero_centred ? 1 : 0));
    return y;
  }
  Vector norm(const std::string& name, const std::string& part, Vector x) {
    if (w.contains(name + "pre_weight"))
      for (size_t i = 0; i < x.size(); i++) x[i] *= w.at(name + "pre_weight")[i];
    Vector y = rmsnorm(name, x.data(), x.size());
    if (w.contains(name + "gate_down.weight")) {
      Vector low = product(name + "gate_down.weight", y);
      for (double& a : low) a *= sigmoid(a);
      const Vector z = product(name + "gate_up.weight", low);
      for (size_t i = 0; i < y.size(); i++) {
        norm_gates[part].push_back(sigmoid(z[i]));
        y[i] *= sigmoid(z[i]);
      }
    }
    append(outputs[part], y);
    return y;
  }
  // Every head of x normed, then turned as it stands at `position`.
  Vector turned(const std::string& name, const Vector& x, size_t position) const {
    const size_t D = c.attention.D;
    Vector out;
    for (size_t head = 0; head < x.size() / D; head++) {
      const Vector n = rmsnorm(name, &x[head * D], D);
      for (size_t i = 0; i < D; i++) {
        const double angle = double(position) * std::pow(c.rope_theta, -2.0 * double(i % (D / 2)) / double(D));
        const double partner = i < D / 2 ? -n[i + D / 2] : n[i - D / 2];
        out.push_back(n[i] * std::cos(angle) + partner * std::sin(angle));
      }
    }
    return out;
  }
  std::vector<Vector> attention(Layer& l, const std::string& name, const std::vector<Vector>& x) const {
    const size_t T = x.size(), H = c.attention.H, KVH = c.attention.KVH, D = c.attention.D;
    l.to_first.resize(H), l.to_sink.resize(H), l.given.resize(T * T), l.v.resize(T);
    std::vector<Vector> q(T), k(T), v(T), a(T);
    for (size_t t = 0; t < T; t++) {
      q[t] = turned(name + "q_norm.", product(name + "q_proj.weight", x[t]), t);
      k[t] = turned(name + "k_norm.", product(name + "k_proj.weight", x[t]), t);
      v[t] = product(name + "v_proj.weight", x[t]);
      for (size_t head = 0; head < KVH; head++) {
        double squares = 0;
        for (size_t i = 0; i < D; i++) squares += v[t][head * D + i] * v[t][head * D + i];
        l.v[t].push_back(std::sqrt(squares));
      }
    }
    for (size_t t = 0; t < T; t++) {
      Vector o(H * D);
      const size_t seen = c.attention.window && c.attention.window <= t ? c.attention.window : t + 1;
      for (size_t head = 0; head < H; head++) {
        Vector p(T);
        const double sink = w.contains(name + "sinks") ? std::exp(w.at(name + "sinks")[head]) : 0;
        double total = sink;
        for (size_t j = t + 1 - seen; j <= t; j++) {
          double score = 0;
          for (size_t i = 0; i < D; i++) score += q[t][head * D + i] * k[j][head / (H / KVH) * D + i];
          p[j] = std::exp(score / std::sqrt(double(D)));
          total += p[j];
        }
        if (t > 0) {
          l.to_first[head].push_back(p[0] / total);
          l.to_sink[head].push_back(sink / total);
        }
        for (size_t j = 0; j < T; j++) l.given[t * T + j].push_back(p[j] / total);
        for (size_t j = 0; j <= t; j++)
          for (size_t i = 0; i < D; i++) o[head * D + i] += p[j] / total * v[j][head / (H / KVH) * D + i];
      }
      append(l.before, o);
      if (w.contains(name + "g_proj.weight")) {
        const Vector z = product(name + "g_proj.weight", x[t]);
        for (size_t i = 0; i < H * D; i++) {
          l.gate.push_back(sigmoid(z[i]));
          o[i] *= sigmoid(z[i]);
        }
        append(l.behind, o);
      }
      a[t] = product(name + "o_proj.weight", o);
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
