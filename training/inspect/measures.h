// measures: what attention, the residual stream, gates, norms and experts of a model look like on given tokens.
//
// Definitions, all over the tokens that were measured. Layers, heads, tokens and dimensions count from 0; state s is
// the residual stream after s blocks, so state 0 is the embedding.
//   attention to the first token   weight that a query gives to token 0 (with sigmoid scores the sigmoid itself),
//                                  queries 0 left out: the mean over queries and heads, then over layers
//                                  (arXiv 2505.06708, F-Attn)
//   attention to the sink          the same for a learned sink or kv bias
//   length of v at the first token |v| of token 0 over the mean |v| of the others, of a layer; the mean over layers
//   output of attention            |o| as the gate G1 reads it, and after that gate: mean, share below 1e-2 and 1e-3
//   largest activation             largest |h| of all states; and of all but tokens 0
//                                  (arXiv 2601.22966, 2505.06708)
//   peak over median               largest |h| of a state over its median |h|, the mean of its batches' medians; the
//                                  state where that is most. Unlike the largest activation it does not grow with the
//                                  whole stream
//   massive activations            values with |h| > 100 and |h| > 1000 times the median |h| of their state in their
//                                  batch (the study of outlier dimensions)
//   top dimension                  the dimension with the largest mean |h| over all tokens and states (arXiv
//                                  2601.22966, H_avg): that mean over the median dimension's; the share of tokens, over
//                                  all states, on which it is the largest; the share of states in which its mean |h|
//                                  over the tokens is
//   weight at the top              |lambda| of a norm at the top dimension of the state in front of its block (final
//                                  norm: the last state) over the mean |lambda| of that norm; the mean of a layer's
//                                  norms, and of all
//   residual-sink dimensions       where in some state |h| > 10 times the median |h| of the state in its batch, on more
//                                  than half of the tokens; the largest mean |h| over all states first (arXiv
//                                  2601.22966)
//   outliers of a state            the three dimensions with the largest mean |h|, and the mean |h| of the median
//                                  dimension, over the tokens without a massive activation in that state (as in papers
//                                  on outlier dimensions)
//   sharpness of an output         of the mean |y| by dimension, the sum of the three largest over the sum of all; of
//                                  norms, attention and FFN. Over the tokens that have a massive activation neither in
//                                  the state in front of the block nor in the output itself, where the median is that
//                                  of |y|
//   final output                   mean |y| by dimension, y being what the output matmul reads, over the tokens that
//                                  have a massive activation neither in the last state nor in y
//   score of a gate                scale * act(logit): the mean of all, and the share with |score| < 0.1
//   weight of a norm               lambda, and PreAffine's lambda_1: the one furthest from 1
//   linear attention               mean decay exp(g) and beta; |S|, the Frobenius norm of the last state that is kept,
//                                  so after a multiple of 64 tokens, where a sequence has more
//   routing                        as of a step (training/trainer.h), of all these tokens
// Host code over what the forward left: the same figures wherever the same bits were computed. Sums are taken in
// double, in an order that is fixed. tests/test_measures.cpp
#pragma once
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "layers/inspect.h"

namespace gated {

struct Measures {
  size_t tokens = 0, context = 0, layers = 0;  // tokens measured, tokens of a sequence, blocks

  struct Peak {
    double value = 0;
    size_t state = 0, token = 0, dimension = 0;
  };
  struct Residual {
    Peak largest, behind_first;            // of all tokens, of all but the first
    std::vector<double> largest_by_state;  // (layers+1)
    double peak_over_median = 0;
    size_t massive = 0;
    std::vector<size_t> sink_dimensions;
    size_t top = 0;  // the top dimension
    double top_over_median = 0, top_of_tokens = 0, top_of_states = 0;
    std::vector<double> weight_at_top_by_layer;  // (layers+1); NaN where a layer has no norm
  };
  struct Output {
    double mean = 0, below_1e2 = 0, below_1e3 = 0;
  };
  struct Outliers {
    std::vector<size_t> dimensions;  // the largest first
    std::vector<double> sizes;       // of these
    double median = 0;               // NaN where every token has a massive activation
  };
  // What is by layer has a NaN where a layer has none of it.
  struct Attention {
    double first_token = 0, even = 0;  // even: were a query's attention the same for all tokens that it sees
    std::vector<double> first_token_by_layer;
    double largest_head = 0;  // of the mean over its queries
    size_t layer = 0, head = 0;
    std::optional<double> sink;
    double first_value = 0;
  };
  struct Gate {
    double mean = 0, below = 0;
    std::vector<double> mean_by_layer;  // (layers+1): the last is the final norm's
  };
  struct NormWeight {
    double value = 1;
    size_t layer = 0, dimension = 0;  // layer == layers: the final norm
    std::string norm;
  };
  struct Linear {
    double decay = 0, beta = 0;
    std::optional<double> state;
  };
  struct Experts {
    double busiest = 0, entropy = 0;
    size_t idle = 0, experts = 0;  // experts: of one layer
  };

  Residual residual;
  std::optional<Attention> attention;  // of sequences of more than one token
  std::optional<Output> output, output_gated;
  std::optional<Gate> gate, norm_gate;
  std::optional<NormWeight> norm_weight, pre_weight;
  std::optional<Linear> linear;
  std::optional<Experts> experts;
  std::vector<Outliers> outliers;                        // (layers+1)
  std::map<std::string, std::vector<double>> sharpness;  // by part (layers/inspect.h), then by layer
  std::vector<double> final_output;                      // (C); NaN where every token has a massive activation
  // Of the run around it. Does some dimension's mean |h| exceed 10 times the median dimension's, and at which measured
  // step did one so for the first time?
  bool has_outlier() const;
  std::optional<size_t> first_outlier_step;
  std::vector<float> gradient_norm_by_layer;  // of the step, before clipping
};

// Sums over batches: model.inspect(meter) after every forward, then result().
class Meter final : public Inspector {
 public:
  explicit Meter(Device device) : device_(device) {}
  Measures result() const;

  void state(const StateView& view) override;
  void norm(const NormView& view) override;
  void attention(const AttentionView& view) override;
  void gate(const GateView& view) override;
  void linear_attention(const LinearAttentionView& view) override;
  void routing(const RoutingView& view) override;
  void output(const OutputView& view) override;

 private:
  struct Mean {
    double sum = 0;
    size_t count = 0;
    void add(double value, size_t n = 1) { sum += value, count += n; }
    double value() const { return sum / double(count); }
  };
  struct Scores {
    Mean score, below;
    void add(double value);
  };
  struct Outputs {
    Mean size, below_1e2, below_1e3;
  };
  struct Dimensions {
    std::vector<double> size;  // (C) sum of |x|
    size_t tokens = 0;
    void add(const float* row);
  };
  // All that is found in one layer. state is that of the stream in front of it.
  struct Layer {
    Measures::Peak largest, behind_first;
    std::vector<size_t> large;   // (C) tokens on which the dimension is far above the median
    std::vector<double> size;    // (C) sum of |h|
    std::vector<size_t> top_of;  // (C) tokens on which the dimension is the largest
    Mean median;
    std::vector<std::vector<double>> weights;   // (C) |lambda| of each norm
    Dimensions usual;                           // over the tokens that have no massive activation
    std::map<std::string, Dimensions> outputs;  // by part, likewise
    std::vector<Mean> to_first;                 // (H)
    double even = NAN;                          // what to_first would be
    Mean to_sink, first_value, other_value;
    Outputs output, output_gated;
    Scores gate, norm_gate;
    Mean decay, beta, state_norm;
    std::vector<size_t> slots;  // (E)
  };
  Layer& here();
  void outputs(Outputs& to, ConstReals o, size_t n) const;

  template <class Value>
  std::vector<double> by_layer(Value value) const;
  Measures::Residual residual() const;
  Measures::Outliers outliers(const Layer& l) const;
  std::optional<Measures::Attention> attention() const;
  std::optional<Measures::Output> output(Outputs Layer::*outputs) const;
  std::optional<Measures::Gate> gate(Scores Layer::*scores) const;
  std::optional<Measures::Experts> experts() const;

  Device device_;
  std::vector<Layer> layers_;         // the last is what stands after all blocks
  std::vector<bool> massive_tokens_;  // (N) those of the state in front
  size_t tokens_ = 0, context_ = 0, massive_ = 0;
  std::optional<Measures::NormWeight> norm_weight_, pre_weight_;
};

// One line of log.jsonl. What a model does not have is left out; what one of its layers does not have is null.
std::string measures_entry(size_t step, const Measures& m);

// The same to read, in lines of at most `width` columns.
std::string measures_text(const Measures& m, size_t width);

}  // namespace gated
