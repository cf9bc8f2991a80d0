// model: embedding, blocks, final norm, output matmul with its loss: the whole architecture, as flags choose it:
// softmax attention, linear attention or a hybrid of both; an FFN or a mixture of experts; norms and gates. Qwen3,
// Qwen3-Next, gpt-oss, Gemma 3 and GPT-2 are among them. Parameters' names follow Hugging Face (transformers, qwen3).
//
//   h = scale * E[ids] + P[positions];  h = block_i(h);  logits = N(h) W_lm^T;  loss = mean cross-entropy of the next
//   (with --norm-placement=post the last block ends in a norm: logits = h W_lm^T)
//   scale is 1, learned (--embedding-scale) or fixed (--embedding-factor), P is 0 or learned (--position=learned)
//
// What a forward leaves for the backward takes most of the memory of training. With --recompute blocks write
// a part of it to one and the same place, and what a block had there is computed again before its backward, or a look
// at it:
//   light   outputs of norms, rotations, gates and activation functions, from what products of matrices, attention and
//           the recurrence left: these are not computed again
//   full    all that a block computes: what it read is kept, and its forward runs again
// The bits are the same: a forward changes nothing but its activations, and dropout draws by number.
// shapes: ids, targets (B,T) int32; h (N,C), N = B*T
// layers/model.cu, layers/model_memory.cu | tests/test_model.cpp, tests/test_recompute.cpp
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "layers/inspect.h"
#include "layers/model_config.h"
#include "layers/parameters.h"
#include "layers/pass.h"
#include "layers/quantizer.h"

namespace gated {

class Norm;
class Mixer;
struct Hidden;

// B sequences of T tokens, and for each token the one that comes next. In host memory; read before a call returns.
struct Batch {
  const std::vector<int>&ids, &targets;  // (B,T)
  size_t B, T;

  size_t N() const { return B * T; }
};

// What a model that generates has memory for.
struct Generation {
  size_t B;       // sequences, all equally long
  size_t prompt;  // tokens of each that are read at once
  size_t tokens;  // of each, in all
};

class Model {
  struct Layers;  // layers/model_state.cuh
  struct Memory;

 public:
  const ModelConfig config;

  // The architecture alone: what it is made of can be listed, nothing can be run.
  explicit Model(const ModelConfig& config);
  // With memory for batches of up to B sequences of up to T tokens; weights from `seed`.
  Model(const ModelConfig& config, size_t B, size_t T, uint64_t seed, Context& ctx, Masters masters = Masters::whole);
  // For generation alone: without gradients, and layers take turns in the memory of their activations. Nothing is in
  // the weights. Of what follows only parameters, weights, and what is said of growing sequences may be asked for.
  Model(const ModelConfig& config, const Generation& generation, Context& ctx);
  Model(const Model&) = delete;
  ~Model();

  // A batch goes up to the device: all that differs from one to the next of the same size. So forward() and backward()
  // of it are launches alone, which a LaunchGraph may repeat after the next upload. dropout_draw: the number of this
  // micro-batch in the run, from which dropout draws; without it nothing drops.
  void upload(const Batch& batch, std::optional<uint64_t> dropout_draw = {});

  // From tokens to what the output matmul reads.
  void forward();

  // Once after a forward: writes the mean loss over B*T targets to `loss` (one float on the device) and adds its
  // gradient, times the micro-batch's share of the step, to weights.grads.
  void backward(MicroBatch micro_batch, float* loss);
  // How far forwards and backwards are, for who sends weights and gradients meanwhile (training/ranks/exchange.cuh):
  // the weights up to element `end` of the flat buffers are read next; the micro-batch has added all that it adds to
  // the gradients from element `from` on. A LaunchGraph that repeats calls neither: what they have the host do then
  // goes through ctx.between_launches.
  std::function<void(size_t end)> before_weights;
  std::function<void(const MicroBatch& micro_batch, size_t from)> after_gradients;

  // What the last backward left of the routing of its mixtures of experts: router_report_values floats for every layer,
  // on the device; those of a layer without experts are 0.
  float* routing_reports() const;

  // The mean loss alone, without dropout. Waits for the device.
  float loss(const Batch& batch);

  // Logits (V) after the last token of one sequence. Waits for the device.
  std::vector<float> next_token_logits(const std::vector<int>& ids);

  // Sequences that grow. B of them begin, with no token, and room for `tokens` each; those before are forgotten. A
  // model for training keeps what they need in the memory of its parameters' gradients if there is room: what is there
  // is lost.
  void begin_sequences(size_t B, size_t tokens);
  // Reads the next tokens of every sequence, ids (B,T), and returns the logits (B,V) after the last of them: bit for
  // bit those of next_token_logits() of the whole sequence. The first time T may be as many as the model has memory
  // for, then it is 1. Waits for the device.
  std::vector<float> read(const std::vector<int>& ids);
  // Tokens that each sequence has.
  size_t tokens_read() const;

  // After weights.whole() has changed, other than by the optimizer.
  void weights_changed();

  // From here on the linear layers of the blocks compute with numbers of that format (layers/quantizer.h). There is no
  // way back, and no backward.
  void quantize(QuantizedFormat format);

  // The norms that a mixer alone reads, each with that mixer, and with what the last forward left in them.
  void norms_of_mixers(const std::function<void(Norm&, Mixer&)>& visit);

  // Shows what the last forward left, or the last loss(), before the weights change. The caller has waited for the
  // device. What is shown of a block holds until the next block is shown. Of a forward that a LaunchGraph repeated
  // nothing can be shown.
  void inspect(const std::vector<Inspector*>& inspectors);
  void inspect(Inspector& inspector) { inspect({&inspector}); }

  // ---- what it is made of

  // The batch that the lists and sizes below are for.
  void plan(size_t B, size_t T);
  void parameters(const ParameterVisitor& visit);
  void activations(const TensorVisitor& visit);  // what the forward leaves for the backward, each in memory of its own
  void gradients(const TensorVisitor& visit);    // what lives from layer to layer in the backward
  void scratch(ScratchPlan& plan) const;         // of its operations
  void block_activations(size_t layer, const TensorVisitor& visit);  // all of them, wherever they are

  size_t context() const { return T_; }
  size_t routing_values() const;           // floats of routing_reports(): 0 where there are no experts
  double flops_per_token(size_t T) const;  // of training
  size_t activation_bytes();
  size_t gradient_bytes();         // of gradients that are no parameter's
  size_t table_bytes() const;      // of tokens, their groups, and the tables of positions
  size_t allocated_bytes() const;  // of activations, these gradients and a cache, once there is memory
  // Of a model that generates, all but what an operation uses until it returns.
  size_t generation_bytes(const Generation& generation);

 private:
  void upload_batch(const Batch& batch, std::optional<uint64_t> dropout_draw);
  void run(const Pass& pass);
  void tell_weights(size_t end) const {
    if (before_weights) before_weights(end);
  }
  Hidden kept(size_t layer, Hidden read, const Pass& pass);
  void bring_back(size_t layer, const Pass& pass);
  void bring_back_to_show(size_t layer);
  void cache(const TensorVisitor& visit, BatchShape most);
  TensorList last_activations(const Generation& generation);
  size_t largest_block_bytes();
  void inputs(const TensorVisitor& visit);
  std::vector<TensorList> shared_activations();
  void make_positions(size_t tokens);
  void multiply_head(ConstReals y, size_t step, size_t rows);
  const float* embedding_multiplier() const;  // on the device, or null
  size_t chunk_rows() const;                  // of the logits that are in memory at a time
  std::vector<TensorList> temporaries();      // of each layer; they take turns in the same memory
  // Of tensors that are stored as the model says: their bytes; the most of lists that take turns; and giving them their
  // places.
  size_t bytes(const TensorList& list) const;
  size_t largest(const std::vector<TensorList>& turns) const;
  void place(void* memory, const TensorList& list) const;
  size_t dropout_sites() const;
  bool plain_join() const;  // has a branch the gradient of the sum that it joins?

  std::unique_ptr<Layers> layers_;
  std::unique_ptr<Memory> memory_;  // of a model that can run
  size_t B_ = 0, T_ = 0;

 public:
  Parameters weights;
};

}  // namespace gated
