// block: one transformer layer, attention and then a feed-forward network, each on a branch of the residual stream h.
//
//   --norm-placement=pre        h += f(N(h))                      (Qwen3, GPT-2)
//   --norm-placement=sandwich   h += N'(f(N(h)))
//   --norm-placement=post       h  = N(h + f(h))                  (Vaswani et al. 2017)
//   f = Attn, then f = Ffn. Every add happens inside the norm that reads the sum (kernels/residual.cuh), with dropout
//   and clipping if there are any. So a block receives a stream whose last branch has not joined yet, and hands one on.
// shapes: stream and branch (N,C), N = B*T | tests/test_model.cpp
#pragma once
#include "layers/attention.cuh"
#include "layers/ffn.cuh"
#include "layers/norm.cuh"

namespace gated {

enum class NormPlacement { pre, post, sandwich };

struct BlockConfig {
  NormPlacement placement = NormPlacement::pre;
  NormConfig attention_norm, ffn_norm;  // of what attention reads, and of the others
  AttentionConfig attention;
  FfnConfig ffn;
  float clip_branch = INFINITY, clip_residual = INFINITY;
};

// How the branch at a site of the model joins the stream.
inline Join join_at(size_t site, const BlockConfig& c, const Pass& pass) {
  return {c.clip_branch, c.clip_residual, pass.dropout_at(site)};
}

// The residual stream before its last branch joins; branch is null where none is waiting.
struct Hidden {
  const float* x;
  const float* branch;
};

class Block {
 public:
  // layer: the block's place in the model, counted from 0.
  Block(const BlockConfig& config, size_t C, size_t layer)
      : c(config),
        C_(C),
        site_(2 * layer),
        norm1_(post() ? c.ffn_norm : c.attention_norm, C, post() || layer > 0 ? Residual::yes : Residual::no),
        attention_(c.attention, C),
        norm2_(post() ? c.attention_norm : c.ffn_norm, C, Residual::yes),
        ffn_(c.ffn, C),
        attention_out_(c.ffn_norm, C, Residual::no),
        ffn_out_(c.ffn_norm, C, Residual::no) {}

  template <class Visit>
  void parameters(Visit&& visit) {
    norm1_.parameters(under(visit, "input_layernorm."));
    attention_.parameters(under(visit, "self_attn."));
    if (sandwich()) attention_out_.parameters(under(visit, "self_attn_out_layernorm."));
    norm2_.parameters(under(visit, "post_attention_layernorm."));
    ffn_.parameters(under(visit, "mlp."));
    if (sandwich()) ffn_out_.parameters(under(visit, "mlp_out_layernorm."));
  }
  template <class Visit>
  void activations(Visit&& visit, size_t N) {
    auto of = [&](const char* part) {
      return [&visit, part](float*& pointer, const std::string& name, const Shape& shape) {
        visit(pointer, part + (": " + name), shape);
      };
    };
    norm1_.activations(of("input norm"), N);
    attention_.activations(of("attention"), N);
    if (sandwich()) attention_out_.activations(of("attention's output norm"), N);
    norm2_.activations(of("post-attention norm"), N);
    ffn_.activations(of("ffn"), N);
    if (sandwich()) ffn_out_.activations(of("ffn's output norm"), N);
  }
  template <class Visit>
  void temporaries(Visit&& visit, size_t N) {
    visit(dy_, "d norm output", {N, C_});
    if (sandwich()) visit(df_, "d branch before its norm", {N, C_});
    norm1_.temporaries(visit, N);
    attention_.temporaries(visit, N);
    if (sandwich()) attention_out_.temporaries(visit, N);
    norm2_.temporaries(visit, N);
    ffn_.temporaries(visit, N);
    if (sandwich()) ffn_out_.temporaries(visit, N);
  }

  Hidden forward(Hidden in, const Pass& pass) {
    const Join join1 = join_at(site_, c, pass), join2 = join_at(site_ + 1, c, pass);
    const size_t N = pass.N();
    Context& ctx = pass.ctx;
    if (post()) {
      const float* x1 = norm1_.forward(in.x, attention_.forward(in.x, pass), join1, N, ctx);
      return {norm2_.forward(x1, ffn_.forward(x1, N, ctx), join2, N, ctx), nullptr};
    }
    const float* a = attention_.forward(norm1_.forward(in.x, in.branch, join1, N, ctx), pass);
    if (sandwich()) a = attention_out_.forward(a, nullptr, {}, N, ctx);
    const float* f = ffn_.forward(norm2_.forward(norm1_.residual(), a, join2, N, ctx), N, ctx);
    if (sandwich()) f = ffn_out_.forward(f, nullptr, {}, N, ctx);
    return {norm2_.residual(), f};
  }

  // dh: gradient of the outgoing stream's x, replaced by that of the incoming one. df: gradient of the outgoing branch.
  // Returns that of the incoming branch: dh too, or dbranch where the join is not plain. df may be either.
  const float* backward(float* dh, const float* df, float* dbranch, const Pass& pass) {
    const size_t N = pass.N();
    Context& ctx = pass.ctx;
    if (post()) {  // what joins is its own residual: the branch's backward adds to the gradient of the sum
      const float* d = norm2_.backward(dy_, dbranch, dh, nullptr, N, ctx);
      ffn_.backward(dy_, Accumulate::yes, d, N, ctx);
      d = norm1_.backward(dh, dbranch, dy_, nullptr, N, ctx);
      attention_.backward(dh, Accumulate::yes, d, pass);
      return dh;
    }
    if (sandwich()) ffn_out_.backward(df_, nullptr, df, nullptr, N, ctx), df = df_;
    ffn_.backward(dy_, Accumulate::no, df, N, ctx);
    const float* da = norm2_.backward(dh, dbranch, dy_, dh, N, ctx);
    if (sandwich()) attention_out_.backward(df_, nullptr, da, nullptr, N, ctx), da = df_;
    attention_.backward(dy_, Accumulate::no, da, pass);
    return norm1_.backward(dh, dbranch, dy_, dh, N, ctx);
  }

 private:
  bool post() const { return c.placement == NormPlacement::post; }
  bool sandwich() const { return c.placement == NormPlacement::sandwich; }

  BlockConfig c;
  size_t C_, site_;
  Norm norm1_;
  Attention attention_;
  Norm norm2_;
  Ffn ffn_;
  Norm attention_out_, ffn_out_;
  float *dy_, *df_;
};

}  // namespace gated
