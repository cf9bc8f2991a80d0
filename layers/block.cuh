// block: one transformer layer: a token mixer (attention), then a channel mixer (the FFN), each on a branch of the
// residual stream h.
//
//   --norm-placement=pre        h += f(N(h))                      (Qwen3, GPT-2)
//   --norm-placement=sandwich   h += N'(f(N(h)))
//   --norm-placement=post       h  = N(h + f(h))                  (Vaswani et al. 2017)
//   --residual=off              h  = f(N(h)), N'(f(N(h))) or N(f(h)): a branch replaces the stream
//
//   h ---+-----------------------> + ---+-----------------------> + ---> h        pre; sandwich has one more norm
//        |                         |    |                         |              after each mixer
//        +-> norm -> token mixer --+    +-> norm -> channel mixer-+
//
// backward, of h' = h + f(N(h)): dh' reaches both terms, so dh = dh' + (dh' taken back through f and N). The norm's
// backward adds the two.
//
// An add happens inside the norm that reads the sum (kernels/residual.cu), with dropout and clipping if there are any.
// That saves a pass over h. So a block receives a stream whose last branch has not joined yet, and hands one on. A
// Norm's residual() is the sum that it read.
// A site is the number of a branch in the model, from which its dropout draws. A Pass (layers/pass.h) is what one
// forward or backward is told: B and T, the context, and the dropout of each site.
// shapes: stream and branch (N,C), N = B*T | tests/test_model.cpp
#pragma once
#include <memory>

#include "layers/maybe.cuh"
#include "layers/mixer.h"
#include "layers/norm.cuh"

namespace gated {

// How the branch at a site of the model joins the stream.
inline Join join_at(size_t site, const BlockConfig& c, const Pass& pass) {
  return {c.clip_branch, c.clip_residual, pass.dropout_at(site)};
}

// The residual stream before its last branch joins. branch is null where none waits; x is null where the branch
// replaces the stream.
struct Hidden {
  ConstReals x;
  ConstReals branch;
};

class Block {
 public:
  // layer: the block's place in the model, counted from 0.
  Block(const BlockConfig& config, std::unique_ptr<Mixer> token_mixer, std::unique_ptr<Mixer> channel_mixer, size_t C,
        size_t layer)
      : config_(config),
        C_(C),
        site_(2 * layer),
        token_mixer_(std::move(token_mixer)),
        channel_mixer_(std::move(channel_mixer)),
        norm1_(post() ? config.ffn_norm : config.attention_norm, C, post() || layer > 0 ? Residual::yes : Residual::no),
        norm2_(post() ? config.attention_norm : config.ffn_norm, C, Residual::yes),
        token_out_(sandwich(), config.ffn_norm, C, Residual::no),
        channel_out_(sandwich(), config.ffn_norm, C, Residual::no) {}

  Hidden forward(Hidden in, const Pass& pass) {
    if (post()) return forward_post(in, pass);
    const size_t N = pass.N();
    Context& ctx = pass.ctx;
    ConstReals n1 = norm1_.forward(in.x, in.branch, join(0, pass), N, ctx);
    a_ = token_mixer_->forward(n1, pass);
    ConstReals a = token_out_.forward(a_, N, ctx);

    ConstReals n2 = norm2_.forward(joined(norm1_.residual()), a, join(1, pass), N, ctx);
    f_ = channel_mixer_->forward(n2, pass);
    return {joined(norm2_.residual()), channel_out_.forward(f_, N, ctx)};
  }

  // After a forward of the same batch: writes its cheap activations again (layers/parameters.h).
  void recompute(const Pass& pass) {
    const size_t N = pass.N();
    norm1_.recompute(N, pass.ctx);
    if (!post()) norm2_.recompute(N, pass.ctx);
    token_mixer_->recompute(pass);
    channel_mixer_->recompute(pass);
    if (token_out_) token_out_->recompute(N, pass.ctx);
  }

  // dh: gradient of the outgoing stream's x, replaced by that of the incoming one. df: gradient of the outgoing branch.
  // df may lie in dh or in dbranch. Returns that of the incoming branch: dh too, or dbranch where the join is not
  // plain.
  ConstReals backward(Reals dh, ConstReals df, Reals dbranch, const Pass& pass) {
    if (post()) return backward_post(dh, dbranch, pass);
    const size_t N = pass.N();
    Context& ctx = pass.ctx;
    channel_mixer_->backward(dy_, Accumulate::no, channel_out_.backward_to(d_mixer_out_, df, N, ctx), pass);
    ConstReals stream = config_.residual ? dh : nullptr;  // the gradient that comes back past the mixers
    ConstReals da = norm2_.backward(dh, dbranch, dy_, stream, N, ctx);
    token_mixer_->backward(dy_, Accumulate::no, token_out_.backward_to(d_mixer_out_, da, N, ctx), pass);
    return norm1_.backward(dh, dbranch, dy_, stream, N, ctx);
  }

  void parameters(const ParameterVisitor& visit) {
    const std::string token = token_mixer_->name(), channel = channel_mixer_->name();
    norm1_.parameters(visit.under("input_layernorm."));
    token_mixer_->parameters(visit.under(token + "."));
    if (token_out_) token_out_->parameters(visit.under(token + "_out_layernorm."));
    norm2_.parameters(visit.under("post_attention_layernorm."));
    channel_mixer_->parameters(visit.under(channel + "."));
    if (channel_out_) channel_out_->parameters(visit.under(channel + "_out_layernorm."));
  }
  // What the block hands on is not cheap: the next one reads it.
  void activations(const TensorVisitor& visit, BatchShape batch) {
    const size_t N = batch.N();
    norm1_.activations(visit.of("input norm"), N, Lifetime::cheap);
    token_mixer_->activations(visit.of(token_mixer_->name()), batch);
    if (token_out_) token_out_->activations(visit.of("norm after " + token_mixer_->name()), N, Lifetime::cheap);
    norm2_.activations(visit.of("second norm"), N, post() ? Lifetime::pass : Lifetime::cheap);
    channel_mixer_->activations(visit.of(channel_mixer_->name()), batch);
    if (channel_out_) channel_out_->activations(visit.of("norm after " + channel_mixer_->name()), N);
  }
  void temporaries(const TensorVisitor& visit, BatchShape batch) {
    const size_t N = batch.N();
    visit(dy_, "d norm output", {N, C_});
    if (sandwich()) visit(d_mixer_out_, "d branch before its norm", {N, C_});
    for (Norm* norm : {&norm1_, &norm2_}) norm->temporaries(visit, N);
    for (Mixer* mixer : {token_mixer_.get(), channel_mixer_.get()}) mixer->temporaries(visit, batch);
    each_of([&](Norm& norm) { norm.temporaries(visit, N); }, token_out_, channel_out_);
  }

  void scratch(ScratchPlan& plan, BatchShape batch) const {
    norm1_.scratch(plan, batch.N());
    norm2_.scratch(plan, batch.N());
    token_mixer_->scratch(plan, batch);
    channel_mixer_->scratch(plan, batch);
  }

  void cache(const TensorVisitor& visit, BatchShape most) {
    token_mixer_->cache(visit.of(token_mixer_->name()), most);
    channel_mixer_->cache(visit.of(channel_mixer_->name()), most);
  }

  // The state that it read, its norms, its mixers.
  void inspect(Inspector& inspector, BatchShape batch) const {
    const size_t N = batch.N();
    inspector.state({post() ? in_ : norm1_.residual(), batch.B, batch.T, C_});
    norm1_.inspect(inspector, "attention_norm", "input_layernorm", N);
    token_mixer_->inspect(inspector, batch);
    inspector.output({"attention", a_, N, C_});
    if (token_out_) token_out_->inspect(inspector, "attention_out_norm", token_mixer_->name() + "_out_layernorm", N);
    norm2_.inspect(inspector, "ffn_norm", "post_attention_layernorm", N);
    channel_mixer_->inspect(inspector, batch);
    inspector.output({"ffn", f_, N, C_});
    if (channel_out_) channel_out_->inspect(inspector, "ffn_out_norm", channel_mixer_->name() + "_out_layernorm", N);
  }

  // The norms that a mixer alone reads, each with that mixer. With post there are none: there the stream itself is
  // normed.
  void norms_of_mixers(const std::function<void(Norm&, Mixer&)>& visit) {
    if (post()) return;
    visit(norm1_, *token_mixer_);
    visit(norm2_, *channel_mixer_);
  }

  double pair_flops(size_t T) const { return token_mixer_->pair_flops(T) + channel_mixer_->pair_flops(T); }

 private:
  // h = N(h + f(h)): what joins is its own residual.
  Hidden forward_post(Hidden in, const Pass& pass) {
    const size_t N = pass.N();
    in_ = in.x;
    a_ = token_mixer_->forward(in.x, pass);
    ConstReals h = norm1_.forward(joined(in.x), a_, join(0, pass), N, pass.ctx);
    f_ = channel_mixer_->forward(h, pass);
    return {norm2_.forward(joined(h), f_, join(1, pass), N, pass.ctx), nullptr};
  }
  // The gradient of the sum is also h's own share, if h is part of it: then a mixer's backward adds to that.
  ConstReals backward_post(Reals dh, Reals dbranch, const Pass& pass) {
    const size_t N = pass.N();
    ConstReals stream = nullptr;  // the norm is on the stream itself: nothing comes back past it
    ConstReals df = norm2_.backward(dy_, dbranch, dh, stream, N, pass.ctx);
    const Accumulate own = config_.residual ? Accumulate::yes : Accumulate::no;
    channel_mixer_->backward(dy_, own, df, pass);
    ConstReals da = norm1_.backward(dh, dbranch, dy_, stream, N, pass.ctx);
    token_mixer_->backward(dh, own, da, pass);
    return dh;
  }

  // What a branch joins: the stream, or nothing, whose place the branch takes.
  ConstReals joined(ConstReals stream) const { return config_.residual ? stream : nullptr; }

  bool post() const { return config_.placement == NormPlacement::post; }
  bool sandwich() const { return config_.placement == NormPlacement::sandwich; }
  Join join(size_t branch, const Pass& pass) const { return join_at(site_ + branch, config_, pass); }

  BlockConfig config_;
  size_t C_, site_;
  std::unique_ptr<Mixer> token_mixer_, channel_mixer_;
  Norm norm1_, norm2_;  // attention reads norm1_; with post the FFN does, and the next attention norm2_
  Maybe<Norm> token_out_, channel_out_;  // sandwich
  ConstReals in_;                        // post: what the last forward read
  ConstReals a_, f_;                     // what its mixers put out, which stays until the next
  Reals dy_, d_mixer_out_;               // gradients of what a mixer reads and, with sandwich, of what it puts out
};

}  // namespace gated
