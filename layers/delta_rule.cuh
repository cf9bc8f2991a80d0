// delta_rule: the recurrence of linear attention (layers/gated_delta_net.cuh) in its three forms, what it keeps for its
// backward, and the state of sequences that grow.
//
//   token by token                      kernels/gated_delta.cu            --delta=recurrent
//   64 tokens at a time                 kernels/gated_delta_chunk.cu      --delta=chunk
//   the same on tensor cores            kernels/bf16/gated_delta_bf16.cu  over bf16 arrays
//
// Of sequences that grow token by token it keeps the state. In chunks, whose sums have an order of their own, a token
// has the bits of its place in its chunk: so the state before the chunk is kept, and the tokens of the chunk so far. A
// new token goes through them once more.
// shapes: qkv (B,T,channels), in a row q (Hk,Dk), k (Hk,Dk), v (Hv,Dv); g, beta (B,T,Hv); o (B,T,Hv,Dv); a state
// (Hv,Dk,Dv) | tests/test_model.cpp, tests/test_cached_model.cpp
#pragma once
#include "kernels/bf16/gated_delta_bf16.h"
#include "kernels/gated_delta.h"
#include "kernels/gated_delta_chunk.h"
#include "layers/layer_config.h"
#include "layers/pass.h"

namespace gated {

struct DeltaIn {
  Reals qkv;
  const float *g, *beta;
};
struct DeltaGradients {
  Reals dqkv;
  float *dg, *dbeta;
};

class DeltaRule {
 public:
  explicit DeltaRule(const LinearAttentionConfig& config) : config_(config) {}

  // Writes o.
  void forward(Reals o, const DeltaIn& in, const Pass& pass) {
    const bool goes_on = pass.growing && !pass.growing->begins();
    if (!pass.growing || !in_chunks(o.storage()))
      run({.o = o,
           .in = in,
           .initial = goes_on ? state_ : nullptr,
           .final = pass.growing ? state_ : nullptr,
           .written = written_,
           .missing = missing_},
          pass.batch(), pass.ctx);
    else if (goes_on)
      next_of_chunk(o, in, pass);
    else
      begin_chunk(o, in, pass);
  }

  // Writes the gradients. `in` is that of the forward.
  void backward(const DeltaGradients& out, ConstReals dout, const DeltaIn& in, const Pass& pass) {
    const GatedDeltaShape s = shape(pass.batch());
    const Reals dq = q(out.dqkv), dk = k(out.dqkv), dv = v(out.dqkv);
    if (dout.storage() == Storage::bf16) {
      gated_delta_bf16_backward(
          {.dq = dq.as<bf16>(), .dk = dk.as<bf16>(), .dv = dv.as<bf16>(), .dg = out.dg, .dbeta = out.dbeta},
          {.dout = dout.as<bf16>(), .kept = kept_.as<bf16>(), .u = written_, .miss = missing_.as<bf16>()},
          typed<GatedDeltaBf16In, bf16>(in, nullptr), s, pass.ctx);
    } else {
      const auto rule = in_chunks(Storage::fp32) ? gated_delta_chunk_backward : gated_delta_backward;
      rule({.dq = dq.as<float>(), .dk = dk.as<float>(), .dv = dv.as<float>(), .dg = out.dg, .dbeta = out.dbeta},
           {.dout = dout.as<float>(), .error = missing_.as<float>(), .kept = kept_.as<float>()},
           typed<GatedDeltaIn, float>(in, nullptr), s, pass.ctx);
    }
  }

  void activations(const TensorVisitor& visit, BatchShape batch) {
    const size_t B = batch.B, T = batch.T, Hv = config_.Hv, Dk = config_.Dk, Dv = config_.Dv;
    visit(missing_, "v less what the state had", {B, T, Hv, Dv});
    if (visit.storage() == Storage::bf16) visit(written_, "what tokens write", {B, T, Hv, Dv});
    visit(kept_, "states kept", {B, Hv, states(visit.storage(), batch), Dk, Dv});
  }

  void scratch(ScratchPlan& plan, BatchShape batch) const {
    const auto backward = plan.storage == Storage::bf16 ? gated_delta_bf16_backward_scratch
                          : in_chunks(plan.storage)     ? gated_delta_chunk_backward_scratch
                                                        : gated_delta_backward_scratch;
    forward_scratch(plan, batch);
    if (in_chunks(plan.storage)) forward_scratch(plan, {1, chunk});  // of a sequence that grows
    plan.need(backward(shape(batch), plan.device));
  }

  void cache(const TensorVisitor& visit, BatchShape most) {
    const size_t B = most.B, Hv = config_.Hv, Dv = config_.Dv;
    visit(state_, "state", {B, Hv, config_.Dk, Dv});
    if (!in_chunks(visit.storage())) return;
    visit(chunk_qkv_, "q, k, v of the chunk", {B, chunk, config_.channels()});
    visit(chunk_g_, "log decay of the chunk", {B, chunk, Hv});
    visit(chunk_beta_, "beta of the chunk", {B, chunk, Hv});
    visit(chunk_o_, "output of the chunk", {chunk, Hv, Dv});
    if (visit.storage() == Storage::bf16) visit(chunk_written_, "what the chunk writes", {chunk, Hv, Dv});
  }

  // Where the parts of a token's row begin.
  Reals q(Reals qkv) const { return qkv; }
  Reals k(Reals qkv) const { return qkv + config_.Hk * config_.Dk; }
  Reals v(Reals qkv) const { return qkv + 2 * config_.Hk * config_.Dk; }

  void inspect(Inspector& inspector, const DeltaIn& in, BatchShape batch) const {
    inspector.linear_attention({in.g, in.beta, kept_, states(kept_.storage(), batch), shape(batch)});
  }

 private:
  static constexpr size_t chunk = gated_delta_interval;
  bool in_chunks(Storage storage) const { return storage == Storage::bf16 || config_.form == DeltaForm::chunk; }
  size_t states(Storage storage, BatchShape batch) const {
    return storage == Storage::bf16 ? gated_delta_bf16_chunks(shape(batch)) : shape(batch).kept();
  }
  void forward_scratch(ScratchPlan& plan, BatchShape batch) const {
    const auto forward = plan.storage == Storage::bf16 ? gated_delta_bf16_forward_scratch
                         : in_chunks(plan.storage)     ? gated_delta_chunk_forward_scratch
                                                       : gated_delta_forward_scratch;
    plan.need(forward(shape(batch), plan.device));
  }

  // The rule over some tokens. Without `missing` nothing is kept for a backward.
  struct Run {
    Reals o;
    DeltaIn in;
    const float* initial;  // the state before them; null: 0
    float* final;          // that after them, or null
    bf16* written;         // of bf16 only
    Reals missing = nullptr;
  };
  void run(const Run& r, BatchShape batch, Context& ctx) {
    if (r.o.storage() == Storage::bf16) {
      gated_delta_bf16_forward({.o = r.o.as<bf16>(),
                                .final = r.final,
                                .kept = kept_.as<bf16>(),
                                .u = r.written,
                                .miss = r.missing.as<bf16>()},
                               typed<GatedDeltaBf16In, bf16>(r.in, r.initial), shape(batch), ctx);
    } else {
      const auto rule = in_chunks(Storage::fp32) ? gated_delta_chunk_forward : gated_delta_forward;
      rule({.o = r.o.as<float>(),
            .final = r.final,
            .error = r.missing.as<float>(),
            .kept = r.missing ? kept_.as<float>() : nullptr},
           typed<GatedDeltaIn, float>(r.in, r.initial), shape(batch), ctx);
    }
  }

  // Puts the last `tokens` of the T tokens of each sequence into the chunk, as its tokens `first` and those after it.
  void keep_in_chunk(size_t first, size_t tokens, const DeltaIn& in, const Pass& pass) {
    const auto keep = [&](auto* to, const auto* from, size_t width) {
      copy_rows(to + first * width, chunk * width, from + (pass.T - tokens) * width, pass.T * width, pass.B,
                tokens * width, pass.ctx);
    };
    with_storage(in.qkv, [&](auto stored) {
      using S = decltype(stored);
      keep(chunk_qkv_.as<S>(), in.qkv.as<S>(), config_.channels());
    });
    keep(chunk_g_, in.g, config_.Hv);
    keep(chunk_beta_, in.beta, config_.Hv);
  }

  // Row `row` of (rows,Hv) tokens, and those after it.
  DeltaIn from_row(const DeltaIn& in, size_t row) const {
    return {in.qkv + row * config_.channels(), in.g + row * config_.Hv, in.beta + row * config_.Hv};
  }
  float* state_of(size_t sequence) const { return state_ + sequence * config_.Hv * config_.Dk * config_.Dv; }

  // Sequences that begin: the rule over their whole chunks, after which state_ is, and over the chunk that is begun.
  void begin_chunk(Reals o, const DeltaIn& in, const Pass& pass) {
    const size_t rest = pass.T % chunk, whole = pass.T - rest, width = config_.Hv * config_.Dv;
    for (size_t b = 0; b < pass.B; b++) {
      const auto over = [&](size_t t, size_t tokens, const float* initial, float* final) {
        const size_t row = b * pass.T + t;
        run({.o = o + row * width,
             .in = from_row(in, row),
             .initial = initial,
             .final = final,
             .written = written_ ? written_ + row * width : nullptr},
            {1, tokens}, pass.ctx);
      };
      if (whole > 0) over(0, whole, nullptr, state_of(b));
      if (whole == 0) set_zero(state_of(b), config_.Hv * config_.Dk * config_.Dv, pass.ctx);
      if (rest > 0) over(whole, rest, state_of(b), nullptr);
    }
    if (rest > 0) keep_in_chunk(0, rest, in, pass);
  }

  // The next token of every sequence: the rule over its chunk so far, of which the last row is new.
  void next_of_chunk(Reals o, const DeltaIn& in, const Pass& pass) {
    const size_t at = pass.growing->past % chunk, width = config_.Hv * config_.Dv;
    keep_in_chunk(at, 1, in, pass);
    for (size_t b = 0; b < pass.B; b++) {
      run({.o = chunk_o_,
           .in = from_row({chunk_qkv_, chunk_g_, chunk_beta_}, b * chunk),
           .initial = state_of(b),
           .final = at + 1 == chunk ? state_of(b) : nullptr,
           .written = chunk_written_},
          {1, at + 1}, pass.ctx);
      with_storage(o, [&](auto stored) {
        using S = decltype(stored);
        copy_rows(o.as<S>() + b * width, width, chunk_o_.as<S>() + at * width, width, 1, width, pass.ctx);
      });
    }
  }

  template <class In, class Stored>
  In typed(const DeltaIn& in, const float* initial) const {
    const Reals at[] = {q(in.qkv), k(in.qkv), v(in.qkv)};
    return {at[0].as<Stored>(), at[1].as<Stored>(), at[2].as<Stored>(), in.g, in.beta, initial};
  }
  GatedDeltaShape shape(BatchShape batch) const {
    return {.B = batch.B,
            .T = batch.T,
            .Hk = config_.Hk,
            .Hv = config_.Hv,
            .Dk = config_.Dk,
            .Dv = config_.Dv,
            .qk_stride = config_.channels(),
            .v_stride = config_.channels()};
  }

  LinearAttentionConfig config_;
  Reals missing_, kept_;
  bf16* written_ = nullptr;
  // Of sequences that grow.
  Reals chunk_qkv_, chunk_o_;
  float *state_ = nullptr, *chunk_g_ = nullptr, *chunk_beta_ = nullptr;
  bf16* chunk_written_ = nullptr;
};

}  // namespace gated
