// model: forward and backward, losses and logits alone, sequences that grow. What is computed, and --recompute:
// layers/model.h. `Layers l`, `Memory m`: layers/model_state.cuh. What they run on: layers/model_memory.cu
#include "core/philox.cuh"
#include "kernels/embedding.h"
#include "kernels/linear_cross_entropy.h"
#include "kernels/matmul.h"
#include "kernels/mean.h"
#include "layers/model_state.cuh"

namespace gated {

namespace {

void upload_tokens(Buffer<int>& to, const std::vector<int>& from, size_t N, size_t vocab, const char* what,
                   Context& ctx) {
  require(from.size() == N, "model: %zu %s, expected %zu", from.size(), what, N);
  for (size_t i = 0; i < N; i++)
    require(from[i] >= 0 && size_t(from[i]) < vocab, "model: %s[%zu] is %d, expected 0 to %zu", what, i, from[i],
            vocab - 1);
  ctx.upload(to.data(), from.data(), N);
}

}  // namespace

// ---- a batch

// Uploads the tokens, the targets and the streams of dropout: all that a forward and its losses need.
void Model::upload_batch(const Batch& batch, std::optional<uint64_t> dropout_draw) {
  Memory& m = *memory_;
  require(batch.B <= B_ && batch.T <= T_ && batch.T > 0,
          "model: a batch of %zu x %zu tokens, expected at most %zu x %zu", batch.B, batch.T, B_, T_);
  Pass& pass = m.pass.emplace(batch.B, batch.T, m.ctx, &m.rope);
  m.has_forward = m.has_losses = false;
  if (dropout_draw && config.dropout > 0) {
    const size_t sites = dropout_sites();
    for (size_t i = 0; i < sites; i++) m.streams[i] = stream_of(Purpose::dropout, *dropout_draw * sites + i);
    m.ctx.upload(m.device_streams.data(), m.streams.data(), sites);
    pass.drop(config.dropout, m.seed, m.device_streams.data());
  }
  pass.report_routing(m.routing.data());
  upload_tokens(m.ids, batch.ids, pass.N(), config.vocab, "ids", m.ctx);
  upload_tokens(m.targets, batch.targets, pass.N(), config.vocab, "targets", m.ctx);
}

void Model::upload(const Batch& batch, std::optional<uint64_t> dropout_draw) {
  Memory& m = *memory_;
  upload_batch(batch, dropout_draw);
  m.groups.build(batch.ids.data(), batch.N(), m.ctx);
  const Memory::Uploaded uploaded = {batch.B, batch.T, dropout_draw && config.dropout > 0};
  if (m.uploaded != uploaded) m.ctx.outdate_graphs();
  m.uploaded = uploaded;
}

// ---- forward

void Model::forward() {
  Memory& m = *memory_;
  require(m.pass.has_value(), "model: a forward without a batch");
  run(*m.pass);
  m.has_forward = true;
}

void Model::run(const Pass& pass) {
  Memory& m = *memory_;
  Layers& l = *layers_;
  const EmbeddingExtras extras = {embedding_multiplier(), l.positions.stored() + pass.first_position() * config.hidden,
                                  pass.T};
  tell_weights(l.begins[0]);
  embedding_forward(l.h0, m.ids.data(), l.embed.stored(), extras, pass.N(), config.hidden, config.vocab, m.ctx);
  Hidden h = {l.h0, nullptr};
  for (size_t i = 0; i < l.blocks.size(); i++) {
    tell_weights(l.begins[i + 1]);
    l.read[i] = i > 0 && config.recompute == Recompute::full ? kept(i, h, pass) : h;
    h = l.blocks[i].forward(l.read[i], pass);
    m.in_place = i;  // with --recompute blocks share memory: whose activations lie there now
  }
  tell_weights(weights.flat_size());
  l.y = h.x;
  if (!l.post) {
    const Join last = join_at(2 * config.layers, block_config(config), pass);
    l.y = l.final_norm.forward(h.x, h.branch, last, pass.N(), m.ctx);
  }
}

// What a block is about to read lies where it will write: moves it to where it is kept. A plain join is made on the
// way, so that one tensor is kept and not two; the norm then reads the sum that it would have made.
Hidden Model::kept(size_t layer, Hidden h, const Pass& pass) {
  const Layers::Input& to = layers_->inputs[layer];
  const size_t N = pass.N(), C = config.hidden;
  if (h.branch && plain_join()) {
    residual_forward(to.x, {h.x, h.branch}, N, C, pass.ctx);
    return {to.x, nullptr};
  }
  const auto moved = [&](Reals place, ConstReals from) -> ConstReals {
    if (!from) return nullptr;
    with_storage(from, [&](auto stored) {
      using S = decltype(stored);
      copy_rows(place.as<S>(), C, from.as<S>(), C, N, C, pass.ctx);
    });
    return place;
  };
  return {moved(to.x, h.x), moved(to.branch, h.branch)};
}

// ---- backward

// Makes the activations of a block those of the last forward, where others may have been written in their place.
void Model::bring_back(size_t layer, const Pass& pass) {
  Memory& m = *memory_;
  if (config.recompute == Recompute::none || m.in_place == layer) return;
  Block& block = layers_->blocks[layer];
  if (config.recompute == Recompute::full)
    block.forward(layers_->read[layer], pass);
  else
    block.recompute(pass);
  m.in_place = layer;
}

void Model::backward(MicroBatch micro_batch, float* loss) {
  Range range("loss and backward");
  Memory& m = *memory_;
  Layers& l = *layers_;
  require(m.pass && m.has_forward, "model: a backward without its forward");
  const size_t N = m.pass->N(), C = config.hidden, V = config.vocab;
  require(config.recompute == Recompute::none || m.in_place == l.blocks.size() - 1,
          "model: a second backward of the same forward");
  require(!m.quantizer, "model: a backward of a quantized model");
  m.pass->micro_batch = micro_batch;
  const auto ready = [&](size_t from) {
    if (after_gradients) after_gradients(micro_batch, from);
  };

  const Weight& head = l.head();
  linear_cross_entropy(l.losses, l.post ? l.dh : l.dy, head.grad, l.logits, l.dlogits, l.y, head.value, head.copy,
                       m.targets.data(), micro_batch.share() / float(N), N, C, V, chunk_rows(), m.ctx);
  mean(loss, l.losses, N, m.ctx);

  ConstReals dbranch = l.post ? ConstReals() : l.final_norm.backward(l.dh, l.dbranch, l.dy, nullptr, N, m.ctx);
  ready(l.begins.back());
  for (size_t i = l.blocks.size(); i-- > 0;) {
    bring_back(i, *m.pass);
    dbranch = l.blocks[i].backward(l.dh, dbranch, l.dbranch, *m.pass);
    ready(l.begins[i]);
  }

  embedding_backward(l.embed.grad, l.dh, m.groups, embedding_multiplier(), C, m.ctx);
  if (config.position == Position::learned)
    embedding_positions_backward(l.positions.grad, l.dh, m.pass->B, m.pass->T, C, m.ctx);
  if (config.embedding_scale)
    embedding_scale_backward(l.scale.grad, l.embedding_row_sums, l.dh, m.ids.data(), l.embed.stored(), N, C, V, m.ctx);
  ready(0);
}

// ---- losses and logits alone

float Model::loss(const Batch& batch) {
  upload_batch(batch, {});
  forward();
  Layers& l = *layers_;
  Context& ctx = memory_->ctx;
  const Weight& head = l.head();
  linear_cross_entropy_losses(l.losses, l.logits, l.y, head.value, head.copy, memory_->targets.data(), batch.N(),
                              config.hidden, config.vocab, chunk_rows(), ctx);
  mean(memory_->loss.data(), l.losses, batch.N(), ctx);
  ctx.synchronize();
  memory_->has_losses = true;
  return memory_->loss.download()[0];
}

std::vector<float> Model::next_token_logits(const std::vector<int>& ids) {
  upload_batch({ids, ids, 1, ids.size()}, {});
  forward();
  Layers& l = *layers_;
  Context& ctx = memory_->ctx;
  const size_t V = config.vocab;
  multiply_head(l.y + (ids.size() - 1) * config.hidden, config.hidden, 1);
  ctx.synchronize();
  std::vector<float> logits(V);
  Buffer<float>::copy_to_host(ctx.device, logits.data(), l.logits, V);
  return logits;
}

// logits (rows,V) of rows of the final norm's output, `step` elements apart.
void Model::multiply_head(ConstReals y, size_t step, size_t rows) {
  Layers& l = *layers_;
  const size_t C = config.hidden, V = config.vocab;
  matmul_stored({l.logits, V}, {y, step}, {l.head().stored(), C}, rows, V, C, Layout::nt, Accumulate::no, memory_->ctx);
}

// ---- sequences that grow

void Model::begin_sequences(size_t B, size_t tokens) {
  Memory& m = *memory_;
  require(B > 0 && tokens > 0, "model: %zu sequences of %zu tokens, expected at least 1 of each", B, tokens);
  require(config.position != Position::learned || tokens <= config.context,
          "model: sequences of %zu tokens, but %zu positions were learned", tokens, config.context);
  const TensorList kept = [&](const TensorVisitor& visit) { cache(visit, {B, tokens}); };
  const size_t needed = bytes(kept);
  const bool fits = needed <= weights.grads.size() * sizeof(float);
  if (!fits && m.cache.size() < needed) m.cache = Buffer<char>(m.ctx.device, needed);
  place(fits ? static_cast<void*>(weights.grads.data()) : m.cache.data(), kept);
  make_positions(tokens);
  m.sequences = B;
  m.growing = {0, tokens};
}

std::vector<float> Model::read(const std::vector<int>& ids) {
  Memory& m = *memory_;
  Layers& l = *layers_;
  const size_t B = m.sequences, T = B ? ids.size() / B : 0, C = config.hidden, V = config.vocab;
  require(T > 0 && ids.size() == B * T, "model: %zu tokens for %zu sequences, expected as many for each", ids.size(),
          B);
  require(B <= B_ && T <= T_, "model: %zu sequences read %zu tokens, expected at most %zu and %zu", B, T, B_, T_);
  require(T == 1 || m.growing.begins(), "model: %zu tokens at once after %zu, expected 1", T, m.growing.past);
  require(T <= m.growing.capacity - m.growing.past, "model: %zu tokens after %zu, expected %zu in all", T,
          m.growing.past, m.growing.capacity);
  m.pass.reset();  // there is nothing to inspect, and nothing to go back through
  m.has_forward = false;
  Pass pass(B, T, m.ctx, &m.rope);
  pass.growing = m.growing;
  upload_tokens(m.ids, ids, pass.N(), V, "ids", m.ctx);
  run(pass);
  m.growing.past += T;

  multiply_head(l.y + (T - 1) * C, T * C, B);
  m.ctx.synchronize();
  std::vector<float> logits(B * V);
  Buffer<float>::copy_to_host(m.ctx.device, logits.data(), l.logits, B * V);
  return logits;
}

size_t Model::tokens_read() const {
  return memory_->growing.past;
}

void Model::weights_changed() {
  weights.whole_changed(memory_->ctx);
}

// ---- quantized

void Model::quantize(QuantizedFormat format) {
  Memory& m = *memory_;
  m.quantizer.emplace(format, m.ctx);
  parameters(ParameterVisitor([&](Weight& weight, const Parameter& p) {
    if (p.use != Use::linear) return;
    const size_t rows = p.shape[p.shape.size() - 2], columns = p.shape.back();  // of experts: (E,rows,columns)
    const QuantizedWeight shape = {p.size / (rows * columns), rows, columns};
    const Buffer<float> scratch(m.ctx.device, quantize_weight_scratch(shape) / sizeof(float));
    quantize_weight(weight.value, weight.value, scratch.data(), shape, format, m.ctx);
    m.ctx.synchronize();  // before the scratch goes
    weight.quantizer = &*m.quantizer;
  }));
}

void Model::norms_of_mixers(const std::function<void(Norm&, Mixer&)>& visit) {
  for (size_t i = 0; i < layers_->blocks.size(); i++) {
    if (memory_->has_forward) bring_back_to_show(i);
    layers_->blocks[i].norms_of_mixers(visit);
  }
}

// ---- what it leaves

void Model::bring_back_to_show(size_t layer) {
  bring_back(layer, *memory_->pass);
  memory_->ctx.synchronize();
}

void Model::inspect(const std::vector<Inspector*>& inspectors) {
  const Layers& l = *layers_;
  require(memory_ && memory_->has_forward, "model: an inspection without a forward");
  const Pass& pass = *memory_->pass;
  for (size_t layer = 0; layer < l.blocks.size(); layer++) {
    bool is_back = false;
    for (Inspector* inspector : inspectors) {
      if (!inspector->looks_into_blocks()) continue;
      if (!is_back) bring_back_to_show(layer);
      is_back = true;
      inspector->layer = layer;
      l.blocks[layer].inspect(*inspector, pass.batch());
    }
  }
  for (Inspector* inspector : inspectors) {
    inspector->layer = l.blocks.size();
    inspector->state({l.post ? l.y : l.final_norm.residual(), pass.B, pass.T, config.hidden});
    if (!l.post) l.final_norm.inspect(*inspector, "final_norm", "norm", pass.N());
    inspector->output({"final_output", l.y, pass.N(), config.hidden});
    if (memory_->has_losses) inspector->losses({l.losses, pass.B, pass.T});
  }
}

}  // namespace gated
