// model: embedding, blocks, final norm, output matmul with its loss: the whole architecture of a dense Qwen3 or GPT-2,
// with the norms, gates and FFNs that flags choose. Names follow Hugging Face (transformers, qwen3).
//
//   h = scale * E[ids] + P[positions];  h = block_i(h);  logits = N(h) W_lm^T;  loss = mean cross-entropy of the next token
//   (with --norm-placement=post the last block ends in a norm: logits = h W_lm^T)
//   scale is 1 or learned (--embedding-scale), P is 0 or learned (--position=learned)
// shapes: ids, targets (B,T) int32; h (N,C), N = B*T | tests/test_model.cpp
#pragma once
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "kernels/embedding.cuh"
#include "kernels/mean.h"
#include "kernels/linear_cross_entropy.cuh"
#include "layers/model_config.cuh"

namespace gated {

class Model {
 public:
  const ModelConfig config;

  // The architecture alone: what it is made of can be listed, nothing can be run.
  explicit Model(const ModelConfig& c)
      : config(checked(c)),
        blocks_(make_blocks()),
        final_norm_(block_config(0).ffn_norm, c.hidden, Residual::yes),
        weights(*this) {}

  // With memory for batches of up to B sequences of up to T tokens; weights from `seed`.
  Model(const ModelConfig& c, size_t B, size_t T, uint64_t seed, Context& ctx) : Model(c) {
    ctx_ = &ctx, seed_ = seed;
    plan(B, T);
    weights.allocate(*this, ctx.device);
    weights.initialise(seed);
    if (c.position == Position::rope) rope_ = make_rope_tables(T, c.rope_dims(), c.rope_theta, ctx.device);
    allocate();
    ids_ = Buffer<int>(ctx.device, B * T);
    targets_ = Buffer<int>(ctx.device, B * T);
    loss_ = Buffer<float>(ctx.device, 1);
  }
  Model(const Model&) = delete;

  // The batch that activations() and gradients() are for.
  void plan(size_t B, size_t T) {
    size_t N;
    require(!__builtin_mul_overflow(B, T, &N), "--batch=%zu times --context=%zu overflows", B, T);
    B_ = B, T_ = T;
    chunk_rows_ = linear_cross_entropy_chunk_rows(N, config.vocab);
  }

  // Returns the mean loss over B*T targets and adds the gradient of share * loss to weights.grads. draw: the number
  // of this micro-batch in the run, from which dropout draws.
  float forward_backward(const std::vector<int>& ids, const std::vector<int>& targets, size_t B, size_t T,
                         float share = 1.0f, uint64_t draw = 0) {
    Pass pass = pass_over(B, T);
    pass.dropout = config.dropout, pass.draw = draw;
    const size_t N = pass.N();
    const float* y = forward(ids, pass);
    Range range("loss and backward");
    upload(targets_, targets, N, "targets");
    linear_cross_entropy(losses_, post() ? dh_ : dy_, head().grad, logits_, y, head().value, targets_.data(),
                         share / float(N), N, config.hidden, config.vocab, chunk_rows_, *ctx_);
    const float* df = post() ? nullptr : final_norm_.backward(dh_, dbranch_, dy_, nullptr, N, *ctx_);
    for (size_t i = blocks_.size(); i-- > 0;) df = blocks_[i].backward(dh_, df, dbranch_, pass);
    embed_backward(ids, pass);
    return mean_loss(N);
  }

  // The mean loss alone.
  float loss(const std::vector<int>& ids, const std::vector<int>& targets, size_t B, size_t T) {
    const Pass pass = pass_over(B, T);
    const size_t N = pass.N();
    const float* y = forward(ids, pass);
    upload(targets_, targets, N, "targets");
    linear_cross_entropy(losses_, nullptr, nullptr, logits_, y, head().value, targets_.data(), 0.0f, N, config.hidden,
                         config.vocab, chunk_rows_, *ctx_);
    return mean_loss(N);
  }

  // Logits (V) behind the last token of one sequence.
  std::vector<float> next_token_logits(const std::vector<int>& ids) {
    const Pass pass = pass_over(1, ids.size());
    const size_t V = config.vocab;
    const float* last = forward(ids, pass) + (pass.T - 1) * config.hidden;
    matmul(logits_, last, head().value, 1, V, config.hidden, Layout::nt, Accumulate::no, *ctx_);
    ctx_->synchronize();
    std::vector<float> logits(V);
    Buffer<float>::copy_to_host(ctx_->device, logits.data(), logits_, V);
    return logits;
  }

  template <class Visit>
  void parameters(Visit&& visit) {
    const size_t V = config.vocab, C = config.hidden;
    visit(embed_, "model.embed_tokens.weight", {V, C}, Init::normal(), Decay::yes);
    if (config.position == Position::learned)
      visit(positions_, "model.embed_positions.weight", {config.context, C}, Init::normal(), Decay::yes);
    if (config.embedding_scale)
      visit(scale_, "model.embed_scale", {1}, Init::constant(std::sqrt(double(C))), Decay::no);
    for (size_t i = 0; i < blocks_.size(); i++)
      blocks_[i].parameters(under(visit, "model.layers." + std::to_string(i) + "."));
    if (!post()) final_norm_.parameters(under(visit, "model.norm."));
    if (!config.tied) visit(lm_head_, "lm_head.weight", {V, C}, Init::normal(), Decay::yes);
  }
  // What the forward leaves for the backward, for the planned batch.
  template <class Visit>
  void activations(Visit&& visit) {
    const size_t N = B_ * T_, C = config.hidden;
    visit(h0_, "embedding", {N, C});
    for (Block& b : blocks_) b.activations(visit, N);
    if (!post()) final_norm_.activations(visit, N);
    visit(losses_, "losses", {N});
    visit(logits_, "logits of a chunk", {chunk_rows_, config.vocab});
  }
  // What lives from layer to layer in the backward.
  template <class Visit>
  void gradients(Visit&& visit) {
    const size_t N = B_ * T_, C = config.hidden;
    if (!post()) visit(dy_, "d final norm output", {N, C});
    visit(dh_, "d residual stream", {N, C});
    if (!plain_join()) visit(dbranch_, "d branch", {N, C});
    if (config.embedding_scale) visit(row_sums_, "d embedding scale, by token", {N});
  }

  Block& first_block() { return blocks_[0]; }
  size_t context() const { return T_; }

  // Weights that enter matrix products: the others are looked up, or scale what they meet.
  size_t matrix_weights() const {
    size_t n = 0;
    for (const Parameter& p : weights.list())
      if (p.shape.size() == 2 && p.decay == Decay::yes) n += p.size;
    if (config.position == Position::learned) n -= config.context * config.hidden;
    return config.tied ? n : n - config.vocab * config.hidden;
  }

  // FLOPs of training on one token at context T: 6 for each weight of a matrix product (2 forward, 4 backward), and 12*D
  // for each pair of a query head and a key it sees, T/2 of them without a window (the field's 6N + 6*L*T*H*D).
  double flops_per_token(size_t T) const {
    double pairs = 0;
    for (size_t i = 0; i < config.layers; i++) {
      const size_t W = block_config(i).attention.window;
      const double seen = W && W < T ? double(W) : double(T);
      pairs += seen - seen * seen / (2.0 * double(T));
    }
    return 6.0 * double(matrix_weights()) + 12.0 * pairs * double(config.attention.H * config.attention.D);
  }

  // Floats for activations, and for gradients that are not a parameter's, of the planned batch.
  size_t allocated_floats() const { return activations_.size() + gradients_.size(); }
  size_t activation_floats() {
    return tensors_size([&](auto&& visit) { activations(visit); });
  }
  size_t gradient_floats() {
    size_t largest = 0;
    every_layer([&](auto list) { largest = std::max(largest, tensors_size(list)); });
    return largest + tensors_size([&](auto&& visit) { gradients(visit); });
  }

  // What block i is made of.
  BlockConfig block_config(size_t i) const {
    BlockConfig b;
    b.placement = config.placement;
    b.attention_norm = b.ffn_norm = config.norm;
    b.attention_norm.dyt_alpha = config.dyt_alpha_attention;
    b.attention = config.attention;
    b.attention.rope = config.position == Position::rope;
    b.attention.zero_centred = config.norm.zero_centred;
    b.attention.eps = config.norm.rms_epsilon();
    b.attention.score_bias = float(-host_log(double(config.context)));
    if (config.window_layers == WindowLayers::even && i % 2 == 1) b.attention.window = 0;
    b.ffn = config.ffn;
    // GPT-2: what is written to the stream starts smaller the more writes there are.
    if (config.depth_scaled_init)
      b.attention.out_init = b.ffn.out_init = Init::normal(0.02 / std::sqrt(2.0 * double(config.layers)));
    b.clip_branch = config.clip_output > 0 ? config.clip_output : INFINITY;
    b.clip_residual = config.clip_residual > 0 ? config.clip_residual : INFINITY;
    return b;
  }

 private:
  static const ModelConfig& checked(const ModelConfig& c) {
    validate(c);
    return c;
  }
  std::vector<Block> make_blocks() const {
    std::vector<Block> blocks;
    for (size_t i = 0; i < config.layers; i++) blocks.emplace_back(block_config(i), config.hidden, i);
    return blocks;
  }
  bool post() const { return config.placement == NormPlacement::post; }
  bool plain_join() const { return config.clip_output == 0 && config.clip_residual == 0 && config.dropout == 0; }

  // Layers run one after another in the backward, so they take turns in the same memory.
  template <class F>
  void every_layer(F f) {
    for (Block& b : blocks_) f([&](auto&& visit) { b.temporaries(visit, B_ * T_); });
    if (!post()) f([&](auto&& visit) { final_norm_.temporaries(visit, B_ * T_); });
  }
  void allocate() {
    auto kept = [&](auto&& visit) { activations(visit); };
    activations_ = Buffer<float>(ctx_->device, tensors_size(kept));
    place_tensors(activations_.data(), kept);
    auto between = [&](auto&& visit) { gradients(visit); };
    gradients_ = Buffer<float>(ctx_->device, gradient_floats());
    place_tensors(gradients_.data(), between);
    float* const turns = gradients_.data() + tensors_size(between);
    every_layer([&](auto list) { place_tensors(turns, list); });
  }

  // A pass without dropout.
  Pass pass_over(size_t B, size_t T) const {
    require(B <= B_ && T <= T_ && T > 0, "model: a batch of %zu x %zu tokens, expected at most %zu x %zu", B, T, B_,
            T_);
    Pass pass{B, T, *ctx_};
    pass.rope = &rope_;
    pass.seed = seed_;
    pass.sites = 2 * config.layers + 1;
    return pass;
  }
  const float* forward(const std::vector<int>& ids, const Pass& pass) {
    upload(ids_, ids, pass.N(), "ids");
    embedding_forward(h0_, ids_.data(), embed_.value, positions_.value, scale_.value, pass.N(), pass.T, config.hidden,
                      config.vocab, *ctx_);
    Hidden h = {h0_, nullptr};
    for (Block& b : blocks_) h = b.forward(h, pass);
    if (post()) return h.x;
    const Join last = join_at(2 * config.layers, block_config(0), pass);
    return final_norm_.forward(h.x, h.branch, last, pass.N(), *ctx_);
  }
  void embed_backward(const std::vector<int>& ids, const Pass& pass) {
    const size_t N = pass.N(), C = config.hidden, V = config.vocab;
    groups_.build(ids.data(), N, V, *ctx_);
    embedding_backward(embed_.grad, dh_, groups_, scale_.value, C, *ctx_);
    if (config.position == Position::learned)
      embedding_positions_backward(positions_.grad, dh_, pass.B, pass.T, C, *ctx_);
    if (config.embedding_scale)
      embedding_scale_backward(scale_.grad, row_sums_, dh_, ids_.data(), embed_.value, N, C, V, *ctx_);
  }
  void upload(Buffer<int>& to, const std::vector<int>& from, size_t N, const char* what) {
    require(from.size() == N, "model: %zu %s, expected %zu", from.size(), what, N);
    for (size_t i = 0; i < N; i++)
      require(from[i] >= 0 && size_t(from[i]) < config.vocab, "model: %s[%zu] is %d, expected 0 to %zu (--vocab=%zu)",
              what, i, from[i], config.vocab - 1, config.vocab);
    Buffer<int>::copy_to_device(ctx_->device, to.data(), from.data(), N);
  }
  float mean_loss(size_t N) {
    mean(loss_.data(), losses_, N, *ctx_);
    ctx_->synchronize();
    return loss_.download()[0];
  }
  Weight& head() { return config.tied ? embed_ : lm_head_; }

  Context* ctx_ = nullptr;
  uint64_t seed_ = 0;
  size_t B_ = 0, T_ = 0, chunk_rows_ = 0;
  RopeTables rope_;
  std::vector<Block> blocks_;
  Norm final_norm_;
  Weight embed_, positions_, scale_, lm_head_;
  TokenGroups groups_;
  Buffer<float> activations_, gradients_, loss_;
  Buffer<int> ids_, targets_;
  float *h0_, *losses_, *logits_, *dy_, *dh_, *dbranch_ = nullptr, *row_sums_;

 public:
  Parameters weights;
};

}  // namespace gated
