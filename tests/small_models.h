// small_models: every variant of the model, small enough for the emulator, odd enough to find a wrong edge. Each is the
// line of flags that a user would type.
#pragma once
#include <string>
#include <vector>

#include "layers/model.h"
#include "training/flags/command_line.h"

namespace gated {

// The flags' model at small, odd sizes. A width that no layer has is not named, as it would be refused.
inline ModelConfig small_model(const std::string& flags = "") {
  const bool experts = flags.find("--experts=") != std::string::npos;
  const bool dense = !experts || flags.find("--dense-layers=") != std::string::npos;
  const std::string widths = std::string(dense ? "--ffn-hidden=28 " : "") + (experts ? "--expert-hidden=11 " : "");
  return model_of_flags("--vocab=37 --context=9 --layers=2 --hidden=20 --heads=4 --kv-heads=2 --head-dim=6 " + widths +
                        flags);
}

// Every named value of every flag, and combinations that meet inside a layer.
inline const std::vector<std::string>& small_models() {
  static const std::vector<std::string> lines = {
      "", "--norm=gated --norm-rank=3 --attn=g1", "--layers=1 --heads=1 --kv-heads=1",

      // (a gate near 0 leaves QK-norm a vector near 0, whose direction no finite difference can follow: none there)
      "--norm=gated --norm-rank=3 --norm-gate=tensorwise --norm-gate-act=tanh --tied=off --qk-norm=off",
      "--norm=gated --norm-rank=3 --norm-gate-init=zero --norm-gate-scale=2",
      "--norm=gated --norm-rank=3 --norm-gate-act=silu --norm-weight=zero-centred --qk-norm=off",
      "--norm=gated --norm-rank=3 --norm-gate-act=identity --norm-placement=sandwich --qk-norm=off",
      "--norm=layernorm --position=learned --ffn=gelu --ffn-bias=on --attn-bias=all --qk-norm=off --init=depth-scaled "
      "--kv-heads=4 --head-dim=5",
      "--norm=layernorm --norm-placement=post --ffn=relu2 --attn-bias=qkv",
      "--norm=dyt --dyt-alpha=0.2,0.8 --embedding-scale=on",
      "--norm=dyt --norm-placement=post --embedding-scale=on --position=learned",
      "--norm=gated-dyt --norm-rank=3 --attn=g1", "--norm=preaffine --ffn=glu",
      "--norm=preaffine --norm-weight=zero-centred --norm-placement=sandwich", "--norm=none --position=none",
      "--norm-placement=post",

      "--attn=g1 --gate=headwise --ffn=glu", "--attn=g1 --gate=shared", "--attn=g2 --gate=shared --gate-act=ns-sigmoid",
      "--attn=g1 --gate-op=add --gate-act=silu", "--attn=g1 --gate-op=add --gate-act=identity --sdpa-out=groupnorm",
      "--attn=g1 --gate-act=silu --sdpa-out=silu", "--attn=g1 --gate=static", "--attn=g2", "--attn=g2 --gate=headwise",
      "--attn=g3", "--attn=g3 --gate=headwise --qk-norm=off", "--attn=g4",
      "--attn=g4 --gate=headwise --qk-norm=off --position=none", "--attn=g5",
      "--head-experts=3 --head-experts-per-token=2 --head-experts-of=kv",
      "--head-experts=4 --attn=g1 --attn-bias=qkv --norm=gated --norm-rank=3",
      "--head-experts=2 --head-experts-per-token=2 --head-experts-of=kv --attn=g2 --qk-norm=off --kv-heads=1",
      "--sdpa-out=groupnorm --norm-weight=zero-centred",

      "--attn-sink=learned --attn-bias=all", "--attn-sink=learned --window=3 --window-layers=even --attn=g1",
      "--attn-sink=kv-bias", "--attn-sink=kv-bias --window=4 --qk-norm=off", "--attn-score=sigmoid",
      "--attn-score=sigmoid --window=2 --sdpa-out=groupnorm", "--rope-fraction=0.7 --kv-heads=1",
      "--qk-norm=off --kv-heads=1",
      "--window=3 --window-layers=not-nth --full-every=2 --window-rope-theta=100 --rope-scaling=linear,3 --score-dim=9",
      "--attn-sink=kv-bias --score-dim=4 --embedding-factor=4.5", "--rope-scaling=llama3,8,40 --rope-theta=20",
      "--rope-scaling=yarn,4,40 --rope-theta=20",
      "--rope-scaling=yarn-unrounded,4,40,2,9 --rope-theta=20 --attn-sink=learned",

      "--ffn=geglu --gelu=erf", "--ffn=geglu --ffn-bias=on", "--ffn=gelu --gelu=erf", "--ffn=polynorm",
      "--ffn=swiglu-clamped --ffn-bias=on", "--clip-residual=1.2", "--clip-output=0.2 --norm=dyt", "--dropout=0.2",
      "--dropout=0.1 --clip-output=0.5 --clip-residual=1 --norm=gated --norm-rank=3 --norm-placement=sandwich "
      "--attn=g1",
      "--mixer=gated-delta --linear-key-heads=1 --linear-value-heads=2 --linear-key-dim=5 --linear-value-dim=7",
      "--mixer=gated-delta --linear-key-dim=16 --linear-value-dim=4 --conv-width=2 --norm=gated --norm-rank=3 "
      "--ffn=gelu",
      "--mixer=hybrid --linear-key-heads=2 --linear-value-heads=2 --linear-key-dim=6 --linear-value-dim=5 "
      "--conv-width=3 "
      "--attn=g1 --norm=gated --norm-rank=3",

      "--mixer=gated-delta --linear-key-dim=16 --linear-value-dim=7 --delta=chunk",
      "--mixer=gated-delta --linear-key-dim=16 --linear-value-dim=7 --context=67",

      "--dropout=0.1 --norm=layernorm --norm-placement=post", "--dropout=0.1 --norm=none --clip-residual=0.5",

      "--residual=off", "--residual=off --norm-placement=post --norm=layernorm",
      "--residual=off --norm-placement=sandwich --norm=gated --norm-rank=3 --attn=g1",
      "--residual=off --position=learned --dropout=0.1", "--residual=off --clip-residual=0.9 --clip-output=1.2",
      "--residual=off --norm-placement=post --norm=preaffine --dropout=0.1 --mixer=hybrid --linear-key-dim=6",

      // (the router's losses are large here, so that their share of a gradient shows)
      "--experts=5 --balance-loss=0.5 --z-loss=0.1",
      "--experts=4 --experts-per-token=3 --shared-experts=2 --router-renormalise=off --router-bias "
      "--balance-loss=0.3 --norm=gated --norm-rank=3 --attn=g1",
      "--experts=3 --dense-layers=1 --shared-experts=1 --shared-expert-gate=off --ffn=gelu --z-loss=0.2 --tied=off",
      "--experts=4 --router-bias --ffn=swiglu-clamped --ffn-bias=on --shared-experts=1 --norm-placement=sandwich",
      "--experts=4 --experts-per-token=1 --router-renormalise=off --ffn=polynorm --shared-experts=1 "
      "--norm-placement=post --balance-loss=0.2",
      "--experts=2 --ffn=relu2 --ffn-bias=on --norm=layernorm --balance-over=micro-batch",
      "--dropout=0.1 --experts=6 --shared-experts=1 --mixer=hybrid --linear-key-dim=6 --linear-value-dim=5 --attn=g1 "
      "--norm=gated --norm-rank=3 --clip-output=0.5 --balance-loss=0.1 --z-loss=0.1"};
  return lines;
}

// Loss and gradient of a batch: adds to model.weights.grads.
inline float forward_backward(Model& model, const std::vector<int>& ids, const std::vector<int>& targets, size_t B,
                              size_t T, Context& ctx, MicroBatch micro_batch = {}, uint64_t draw = 0) {
  Buffer<float> loss(ctx.device, 1);
  model.upload({ids, targets, B, T}, draw);
  model.forward();
  model.backward(micro_batch, loss.data());
  ctx.synchronize();
  return loss.download()[0];
}

}  // namespace gated
