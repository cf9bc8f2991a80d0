// arrays: what a model looks like on given tokens, by position, head and dimension, for pictures. A run that has a
// folder leaves them there when it is complete, and --evaluate writes them anew: measures.safetensors, all F32.
//
// L layers, of which A are softmax attention; H heads, C hidden channels, T tokens of a sequence; P = min(T, 256), the
// first positions. Everything counts from 0. A mean is over all that were measured; state s is the residual stream
// after s blocks.
//   loss_by_position       (T)           loss of the target after each position, nats
//   attention_map          (A,P,P)       what a query (row) gives to a key (column): mean over sequences and heads
//   first_token_attention  (A,H)         what queries give to token 0, queries 0 left out
//   sink_attention         (A,H)         the same for a learned sink or kv bias
//   value_norm             (A,T)         |v| by position
//   activation_by_token    (L+1,P,C)     |h| of a state by position and dimension
//   activation_mean        (L+1,C)       the same over all positions
//   activation_largest     (L+1)         largest |h|
//   attention_output_mean  (A,2)         |o| before and after the gate G1
//   attention_output_below (A,3,n)       share of |o| below each of n thresholds: before G1, after it, and before
//                                        it times the mean score of its layer in its batch
//   gate_mean, gate_histogram            (gates), (gates,50)   scores of attention's gates: mean, and shares over
//                                        gate_range, where a score outside it counts in the first or the last share
//   norm_gate_mean, norm_gate_histogram  the same of the gates of norms
//   norm_weight            (norms,C)     what a norm multiplies by
//   pre_weight             (norms,C)     what PreAffine multiplies by before it normalises
//   final_output           (C)           |y|, y being what the output matmul reads
// What a model has none of is left out, and what one of its layers has none of is NaN. The metadata name the rows:
// layers with attention, gates, norms and norm_gates; the thresholds and gate_range; step, validation_loss,
// measured_tokens, context and, where it is not 1, yarn; and the flags that shape the result, where they are not at
// their defaults.
//
// Looked at in another context than its own, a run has arrays of their own: measures.CONTEXT.safetensors, and with YaRN
// measures.CONTEXT.yarnFACTOR.safetensors.
//
// Memory does not grow with what is measured: 8 bytes for each number of the file, the longest arrays those of P. Host
// code, as training/inspect/measures.h. tests/test_arrays.cpp
#pragma once
#include <map>
#include <string>
#include <vector>

#include "layers/model_config.h"
#include "training/inspect/inspection.h"
#include "training/flags/run_metadata.h"

namespace gated {

struct Arrays {
  struct Array {
    std::string name;
    Shape shape;
    std::vector<float> values;
  };
  std::vector<Array> list;
  std::map<std::string, std::string> metadata;  // what names their rows
  std::string file_name;

  const Array* find(const std::string& name) const;
};

inline constexpr double output_thresholds[] = {1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.2, 0.5, 1};

// Sums over batches: model.inspect(meter) after every loss, then result().
class ArrayMeter final : public Inspector {
 public:
  ArrayMeter(const ModelConfig& model, Device device);
  Arrays result() const;

  void state(const StateView& view) override;
  void norm(const NormView& view) override;
  void attention(const AttentionView& view) override;
  void gate(const GateView& view) override;
  void output(const OutputView& view) override;
  void losses(const LossView& view) override;

 private:
  using Sums = std::vector<double>;
  struct State {
    Sums by_token, by_dimension;  // (P,C), (C)
    double largest = 0;
  };
  struct Outputs {
    double size = 0;
    std::vector<size_t> below = std::vector<size_t>(std::size(output_thresholds));
    size_t count = 0;  // 0 where there is no such output
  };
  struct Scores {
    double sum = 0, mean_of_batch = 0;
    size_t count = 0;  // 0 where there is no gate
    std::vector<size_t> bins;
  };
  struct AttentionLayer {
    Sums map, to_first, to_sink, value;             // (P,P), (H), (H), (T)
    Outputs before = {}, behind = {}, scaled = {};  // after the gate; before it times the mean score
    Scores gate = {};
  };
  struct NormLayer {
    std::string name;
    std::vector<float> weight, pre;
    Scores gate;
  };
  template <class View>
  void add_scores(Scores& to, const View& view) const;
  static void add_outputs(Outputs& to, const OnHost<float>& o, double factor);

  const ModelConfig model_;
  const Device device_;
  const size_t T_, P_;
  std::vector<size_t> attention_layers_;  // (A)
  size_t sequences_ = 0;
  std::vector<State> states_;              // (L+1)
  std::vector<AttentionLayer> attention_;  // (A)
  std::vector<NormLayer> norms_;           // as a forward meets them
  Sums losses_, final_output_;             // (T), (C)
};

// Writes them to their file in `folder`, in the place of those that are there. The file is whole or absent.
void save_arrays(const std::string& folder, const Arrays& arrays, size_t step, double validation_loss,
                 const RunMetadata& run);

// The loss by position to read, in lines of at most `width`: means over octaves of positions.
std::string loss_by_position_text(const Arrays& arrays, size_t width);

}  // namespace gated
