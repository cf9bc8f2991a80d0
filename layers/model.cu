// model: forward and backward first, then what they run on.
#include "layers/model.h"

#include <algorithm>
#include <optional>

#include "kernels/embedding.h"
#include "kernels/matmul_bf16.h"
#include "kernels/mean.h"
#include "kernels/linear_cross_entropy.h"
#include "layers/block_parts.cuh"

namespace gated {

// The layers, and the tensors that are no single layer's. Pointers are null until there is memory.
struct Model::Layers {
  explicit Layers(const ModelConfig& c)
      : post(c.placement == NormPlacement::post),
        tied(c.tied),
        final_norm(block_config(c).ffn_norm, c.hidden, Residual::yes) {
    for (size_t i = 0; i < c.layers; i++) blocks.push_back(make_block(c, i));
    read.resize(c.layers);
    inputs.resize(c.layers);
  }
  bool post;  // then the last block ends in a norm, and there is no final one
  bool tied;  // the output matmul reads the embedding
  std::vector<Block> blocks;
  Norm final_norm;
  Weight embed, positions, scale, lm_head;
  const Weight& head() const { return tied ? embed : lm_head; }

  Reals h0;  // activations
  float *losses = nullptr, *logits = nullptr;
  bf16* dlogits = nullptr;  // with bf16; of floats they take the place of the logits
  Reals dy, dh, dbranch;    // gradients
  float* embedding_row_sums = nullptr;
  ConstReals y;  // what the last forward left for the output matmul

  // What each block read in the last forward; and with --recompute=full where that is kept, but of block 0, which reads h0.
  struct Input {
    Reals x, branch;
  };
  std::vector<Hidden> read;
  std::vector<Input> inputs;
};

struct Model::Memory {
  Memory(Context& ctx, uint64_t seed) : ctx(ctx), seed(seed) {}

  Context& ctx;
  uint64_t seed;
  Positions rope;
  Buffer<float> embedding_factor;  // one, where it is not 1
  TokenGroups groups;
  Buffer<char> activations, gradients;
  Buffer<int> ids, targets;
  Buffer<float> loss;
  Buffer<float> routing;     // (layers, router_report_values), where there are experts
  std::optional<Pass> pass;  // of the last forward, for its backward
  size_t in_place = 0;       // the block that was the last to write where blocks share memory
  bool has_losses = false;   // of that forward
  // Sequences that grow.
  Buffer<char> cache;
  size_t sequences = 0;
  Growing growing = {0, 0};
  std::optional<RowQuantizer> quantizer;
};

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

// ---- forward

void Model::forward(const Batch& batch, std::optional<uint64_t> dropout_draw) {
  Memory& m = *memory_;
  require(batch.B <= B_ && batch.T <= T_ && batch.T > 0,
          "model: a batch of %zu x %zu tokens, expected at most %zu x %zu", batch.B, batch.T, B_, T_);
  Pass& pass = m.pass.emplace(batch.B, batch.T, m.ctx, &m.rope);
  m.has_losses = false;
  if (dropout_draw) pass.drop(config.dropout, m.seed, *dropout_draw, 2 * config.layers + 1);
  pass.report_routing(m.routing.data());

  run(batch.ids, pass);
}

void Model::run(const std::vector<int>& ids, const Pass& pass) {
  Memory& m = *memory_;
  Layers& l = *layers_;
  upload_tokens(m.ids, ids, pass.N(), config.vocab, "ids", m.ctx);
  EmbeddingExtras extras = {embedding_multiplier(), l.positions.value, pass.T};
  if (extras.positions) extras.positions += pass.first_position() * config.hidden;
  embedding_forward(l.h0, m.ids.data(), l.embed.value, extras, pass.N(), config.hidden, config.vocab, m.ctx);
  Hidden h = {l.h0, nullptr};
  for (size_t i = 0; i < l.blocks.size(); i++) {
    l.read[i] = i > 0 && config.recompute == Recompute::full ? kept(i, h, pass) : h;
    h = l.blocks[i].forward(l.read[i], pass);
    m.in_place = i;
  }
  l.y = h.x;
  if (!l.post) {
    const Join last = join_at(2 * config.layers, block_config(config), pass);
    l.y = l.final_norm.forward(h.x, h.branch, last, pass.N(), m.ctx);
  }
}

// What a block is about to read lies where it will write: moves it to where it is kept. A plain join is made on the way, so
// that one tensor is kept and not two; the norm then reads the sum that it would have made.
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

void Model::backward(const Batch& batch, MicroBatch micro_batch, float* loss) {
  Range range("loss and backward");
  Memory& m = *memory_;
  Layers& l = *layers_;
  const size_t N = batch.N(), C = config.hidden, V = config.vocab;
  require(m.pass && m.pass->B == batch.B && m.pass->T == batch.T, "model: a backward without its forward");
  require(config.recompute == Recompute::none || m.in_place == l.blocks.size() - 1,
          "model: a second backward of the same forward");
  require(!m.quantizer, "model: a backward of a quantized model");
  m.pass->micro_batch = micro_batch;

  upload_tokens(m.targets, batch.targets, N, V, "targets", m.ctx);
  const Weight& head = l.head();
  linear_cross_entropy(l.losses, l.post ? l.dh : l.dy, head.grad, l.logits, l.dlogits, l.y, head.value, head.copy,
                       m.targets.data(), micro_batch.share() / float(N), N, C, V, chunk_rows(), m.ctx);
  mean(loss, l.losses, N, m.ctx);

  ConstReals dbranch = l.post ? ConstReals() : l.final_norm.backward(l.dh, l.dbranch, l.dy, nullptr, N, m.ctx);
  for (size_t i = l.blocks.size(); i-- > 0;) {
    bring_back(i, *m.pass);
    dbranch = l.blocks[i].backward(l.dh, dbranch, l.dbranch, *m.pass);
  }

  m.groups.build(batch.ids.data(), N, m.ctx);
  embedding_backward(l.embed.grad, l.dh, m.groups, embedding_multiplier(), C, m.ctx);
  if (config.position == Position::learned)
    embedding_positions_backward(l.positions.grad, l.dh, batch.B, batch.T, C, m.ctx);
  if (config.embedding_scale)
    embedding_scale_backward(l.scale.grad, l.embedding_row_sums, l.dh, m.ids.data(), l.embed.value, N, C, V, m.ctx);
}

// ---- losses and logits alone

float Model::loss(const Batch& batch) {
  forward(batch);
  Layers& l = *layers_;
  Context& ctx = memory_->ctx;
  const Weight& head = l.head();
  upload_tokens(memory_->targets, batch.targets, batch.N(), config.vocab, "targets", ctx);
  linear_cross_entropy(l.losses, nullptr, nullptr, l.logits, nullptr, l.y, head.value, head.copy,
                       memory_->targets.data(), 0.0f, batch.N(), config.hidden, config.vocab, chunk_rows(), ctx);
  mean(memory_->loss.data(), l.losses, batch.N(), ctx);
  ctx.synchronize();
  memory_->has_losses = true;
  return memory_->loss.download()[0];
}

std::vector<float> Model::next_token_logits(const std::vector<int>& ids) {
  forward({ids, ids, 1, ids.size()});
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
  const Weight& head = l.head();
  const size_t C = config.hidden, V = config.vocab;
  if (y.storage() == Storage::bf16)
    matmul_bf16({l.logits, V}, {y.as<bf16>(), step}, {head.copy, C}, rows, V, C, Layout::nt, Accumulate::no,
                memory_->ctx);
  else
    matmul({l.logits, V}, {y.as<float>(), step}, {head.value, C}, rows, V, C, Layout::nt, Accumulate::no, memory_->ctx);
}

// ---- sequences that grow

void Model::begin_sequences(size_t B, size_t tokens) {
  Memory& m = *memory_;
  require(B > 0 && tokens > 0, "model: %zu sequences of %zu tokens, expected at least 1 of each", B, tokens);
  require(config.position != Position::learned || tokens <= config.context,
          "model: sequences of %zu tokens, but %zu positions were learned", tokens, config.context);
  const TensorList kept = [&](const TensorVisitor& visit) { cache(visit, {B, tokens}); };
  const size_t bytes = bytes_of(kept, config.storage);
  if (bytes <= weights.grads.size() * sizeof(float)) {
    place_tensors(weights.grads.data(), kept, config.storage);
  } else {
    if (m.cache.size() < bytes) m.cache = Buffer<char>(m.ctx.device, bytes);
    place_tensors(m.cache.data(), kept, config.storage);
  }
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
  require(T == 1 || m.growing.begins(), "model: %zu tokens at once behind %zu, expected 1", T, m.growing.past);
  require(T <= m.growing.capacity - m.growing.past, "model: %zu tokens behind %zu, expected %zu in all", T,
          m.growing.past, m.growing.capacity);
  m.pass.reset();  // there is nothing to inspect, and nothing to go back through
  Pass pass(B, T, m.ctx, &m.rope);
  pass.growing = m.growing;
  run(ids, pass);
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
  weights.round_copies(memory_->ctx);
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
    if (memory_->pass) bring_back_to_show(i);
    layers_->blocks[i].norms_of_mixers(visit);
  }
}

// ---- what it leaves

void Model::bring_back_to_show(size_t layer) {
  bring_back(layer, *memory_->pass);
  memory_->ctx.synchronize();
}

void Model::inspect(Inspector& inspector) {
  const Layers& l = *layers_;
  require(memory_ && memory_->pass, "model: an inspection without a forward");
  const Pass& pass = *memory_->pass;
  inspector.layer = inspector.looks_into_blocks() ? 0 : l.blocks.size();
  for (; inspector.layer < l.blocks.size(); inspector.layer++) {
    bring_back_to_show(inspector.layer);
    l.blocks[inspector.layer].inspect(inspector, pass.batch());
  }
  inspector.state({l.post ? l.y : l.final_norm.residual(), pass.B, pass.T, config.hidden});
  if (!l.post) l.final_norm.inspect(inspector, "final_norm", "norm", pass.N());
  inspector.output({"final_output", l.y, pass.N(), config.hidden});
  if (memory_->has_losses) inspector.losses({l.losses, pass.B, pass.T});
}

// ---- what it is made of

void Model::parameters(const ParameterVisitor& visit) {
  Layers& l = *layers_;
  const size_t V = config.vocab, C = config.hidden;
  const Use embed_use = config.tied ? Use::product : Use::lookup;
  visit(l.embed, "model.embed_tokens.weight", {V, C}, Init::normal(), Decay::yes, embed_use);
  if (config.position == Position::learned)
    visit(l.positions, "model.embed_positions.weight", {config.context, C}, Init::normal(), Decay::yes, Use::lookup);
  if (config.embedding_scale)
    visit(l.scale, "model.embed_scale", {1}, Init::constant(std::sqrt(double(C))), Decay::no, Use::scale);
  for (size_t i = 0; i < l.blocks.size(); i++)
    l.blocks[i].parameters(visit.under("model.layers." + std::to_string(i) + "."));
  if (!l.post) l.final_norm.parameters(visit.under("model.norm."));
  if (!config.tied) visit(l.lm_head, "lm_head.weight", {V, C}, Init::normal(), Decay::yes, Use::product);
}

namespace {

// Does a tensor of a block lie where those of the other blocks do?
bool is_shared(const TensorVisitor::Tensor& tensor, Recompute recompute) {
  if (recompute == Recompute::full) return tensor.lifetime != Lifetime::step;
  return recompute == Recompute::light && tensor.lifetime == Lifetime::cheap;
}

}  // namespace

void Model::activations(const TensorVisitor& visit) {
  Layers& l = *layers_;
  const size_t N = B_ * T_;
  const TensorVisitor own =
      visit.where([r = config.recompute](const TensorVisitor::Tensor& tensor) { return !is_shared(tensor, r); });
  visit(l.h0, "embedding", {N, config.hidden});
  inputs(visit);
  for (Block& block : l.blocks) block.activations(own, {B_, T_});
  if (!l.post) l.final_norm.activations(visit.of("final norm"), N);
  visit(l.losses, "losses", {N});
  visit(l.logits, "logits of a chunk", {chunk_rows(), padded_vocab(config.vocab)});
  if (config.storage == Storage::bf16)
    visit(l.dlogits, "d logits of a chunk", {chunk_rows(), padded_vocab(config.vocab)});
}

// Blocks take turns in the same memory.
std::vector<TensorList> Model::shared_activations() {
  std::vector<TensorList> turns;
  for (Block& block : layers_->blocks)
    turns.push_back([this, &block](const TensorVisitor& visit) {
      const auto shared = [r = config.recompute](const TensorVisitor::Tensor& tensor) { return is_shared(tensor, r); };
      block.activations(visit.where(shared), {B_, T_});
    });
  return turns;
}

// What kept() writes.
void Model::inputs(const TensorVisitor& visit) {
  if (config.recompute != Recompute::full) return;
  const Shape shape = {B_ * T_, config.hidden};
  const bool has_branch = !layers_->post && !plain_join();
  for (size_t i = 1; i < config.layers; i++) {
    Layers::Input& input = layers_->inputs[i];
    if (config.residual || !has_branch) visit(input.x, "input of a block", shape);
    if (has_branch) visit(input.branch, "branch that joins the input of a block", shape);
  }
}

bool Model::plain_join() const {
  return config.clip_output == 0 && config.clip_residual == 0 && config.dropout == 0;
}

void Model::cache(const TensorVisitor& visit, BatchShape most) {
  for (Block& block : layers_->blocks) block.cache(visit, most);
}

void Model::block_activations(size_t layer, const TensorVisitor& visit) {
  layers_->blocks[layer].activations(visit, {B_, T_});
}

void Model::gradients(const TensorVisitor& visit) {
  Layers& l = *layers_;
  const size_t N = B_ * T_, C = config.hidden;
  if (!l.post) visit(l.dy, "d final norm output", {N, C});
  visit(l.dh, "d residual stream", {N, C});
  if (!plain_join()) visit(l.dbranch, "d branch", {N, C});
  if (config.embedding_scale) visit(l.embedding_row_sums, "d embedding scale, by token", {N});
}

std::vector<TensorList> Model::temporaries() {
  std::vector<TensorList> turns;
  const size_t N = B_ * T_;
  for (Block& block : layers_->blocks)
    turns.push_back([this, &block](const TensorVisitor& visit) { block.temporaries(visit, {B_, T_}); });
  if (!layers_->post)
    turns.push_back([this, N](const TensorVisitor& visit) { layers_->final_norm.temporaries(visit, N); });
  return turns;
}

void Model::scratch(ScratchPlan& plan) const {
  const size_t N = B_ * T_, C = config.hidden, V = config.vocab;
  for (const Block& block : layers_->blocks) block.scratch(plan, {B_, T_});
  layers_->final_norm.scratch(plan, N);
  plan.need(linear_cross_entropy_scratch(N, C, V, chunk_rows(), config.storage, plan.device));
  plan.cpu_thread_keeps(linear_cross_entropy_cpu_workspace(N, C, V, chunk_rows()));
  // of the logits behind one token
  if (config.storage == Storage::bf16)
    plan.need(matmul_bf16_scratch(1, V, C, plan.device));
  else
    plan.kernels_need(matmul_scratch(1, V, C, Accumulate::no));
  plan.kernels_need(mean_scratch(N));
  for (const Block& block : layers_->blocks) block.cache_scratch(plan, {1, T_});  // of one sequence that grows
  if (config.position == Position::learned) plan.kernels_need(embedding_positions_backward_scratch(B_, T_, C));
  if (config.embedding_scale) plan.kernels_need(embedding_scale_backward_scratch(N));
}

double Model::flops_per_token(size_t T) const {
  double flops = weights.product_flops();
  for (const Block& block : layers_->blocks) flops += block.pair_flops(T);
  return flops;
}

// ---- memory

namespace {

ModelConfig checked(const ModelConfig& config) {
  check_sizes(config);
  return config;
}

// Without a backward there is nothing to keep.
ModelConfig without_recompute(ModelConfig config) {
  config.recompute = Recompute::none;
  return config;
}

size_t largest_of(const std::vector<TensorList>& turns, Storage storage) {
  size_t largest = 0;
  for (const TensorList& turn : turns) largest = std::max(largest, bytes_of(turn, storage));
  return largest;
}

}  // namespace

Model::Model(const ModelConfig& c)
    : config(checked(c)),
      layers_(std::make_unique<Layers>(c)),
      weights([this](const ParameterVisitor& visit) { parameters(visit); }) {}

Model::Model(const ModelConfig& c, size_t B, size_t T, uint64_t seed, Context& ctx) : Model(c) {
  plan(B, T);
  memory_ = std::make_unique<Memory>(ctx, seed);
  weights.allocate([this](const ParameterVisitor& visit) { parameters(visit); }, ctx.device, config.storage);
  weights.initialise(seed);
  weights.round_copies(ctx);
  Memory& m = *memory_;
  make_positions(T);

  const TensorList kept = [this](const TensorVisitor& visit) { activations(visit); };
  m.activations = Buffer<char>(ctx.device, activation_bytes());
  place_tensors(m.activations.data(), kept, config.storage);
  char* const shared = m.activations.data() + bytes_of(kept, config.storage);
  for (const TensorList& turn : shared_activations()) place_tensors(shared, turn, config.storage);

  const TensorList between = [this](const TensorVisitor& visit) { gradients(visit); };
  m.gradients = Buffer<char>(ctx.device, gradient_bytes());
  place_tensors(m.gradients.data(), between, config.storage);
  char* const turns = m.gradients.data() + bytes_of(between, config.storage);
  for (const TensorList& turn : temporaries()) place_tensors(turns, turn, config.storage);

  m.groups = TokenGroups(B * T, config.vocab, ctx);
  m.ids = Buffer<int>(ctx.device, B * T);
  m.targets = Buffer<int>(ctx.device, B * T);
  m.loss = Buffer<float>(ctx.device, 1);
  m.routing = Buffer<float>(ctx.device, routing_values());
  set_zero(m.routing.data(), m.routing.size(), ctx);
}

// A block reads what the one before it left, and nothing older: so two pieces of memory serve all of them in turns. What stands
// outside of the blocks has memory of its own.
Model::Model(const ModelConfig& c, const Generation& g, Context& ctx) : Model(without_recompute(c)) {
  plan(g.B, g.prompt);
  memory_ = std::make_unique<Memory>(ctx, 0);
  weights.allocate([this](const ParameterVisitor& visit) { parameters(visit); }, ctx.device, config.storage, false);
  Memory& m = *memory_;
  const TensorList outside = last_activations(g);
  const size_t piece = largest_block_bytes();
  m.activations = Buffer<char>(ctx.device, add_sizes(add_sizes(piece, piece), bytes_of(outside, config.storage)));
  for (size_t i = 0; i < layers_->blocks.size(); i++)
    place_tensors(
        m.activations.data() + i % 2 * piece, [&](const TensorVisitor& visit) { block_activations(i, visit); },
        config.storage);
  place_tensors(m.activations.data() + 2 * piece, outside, config.storage);
  m.ids = Buffer<int>(ctx.device, g.B * g.prompt);
  begin_sequences(g.B, g.tokens);
}

Model::~Model() = default;

TensorList Model::last_activations(const Generation& g) {
  return [this, g](const TensorVisitor& visit) {
    Layers& l = *layers_;
    visit(l.h0, "embedding", {g.B * g.prompt, config.hidden});
    if (!l.post) l.final_norm.activations(visit.of("final norm"), g.B * g.prompt);
    visit(l.logits, "logits", {g.B, padded_vocab(config.vocab)});
  };
}

size_t Model::largest_block_bytes() {
  size_t largest = 0;
  for (size_t i = 0; i < layers_->blocks.size(); i++)
    largest =
        std::max(largest, bytes_of([&](const TensorVisitor& visit) { block_activations(i, visit); }, config.storage));
  return largest;
}

void Model::make_positions(size_t tokens) {
  Memory& m = *memory_;
  if (config.embedding_factor != 1)
    m.embedding_factor = Buffer<float>(m.ctx.device, std::vector<float>{config.embedding_factor});
  if (config.rope_tables() == 0 || !config.has_attention() || m.rope.all.rows >= tokens) return;
  const Device device = m.ctx.device;
  m.rope.all = make_rope_tables(tokens, config.rope_dims(), config.rope_theta, device, config.scaling());
  if (config.has_window_rope())
    m.rope.window = make_rope_tables(tokens, config.rope_dims(), config.window_rope_theta, device);
}

const float* Model::embedding_multiplier() const {
  return config.embedding_factor != 1 ? memory_->embedding_factor.data() : layers_->scale.value;
}

void Model::plan(size_t B, size_t T) {
  size_t N;
  require(!__builtin_mul_overflow(B, T, &N), "model: %zu sequences of %zu tokens are more than 64 bits can count", B,
          T);
  B_ = B;
  T_ = T;
}

size_t Model::routing_values() const {
  return config.has_experts() ? config.layers * router_report_values : 0;
}

const float* Model::routing_reports() const {
  return memory_->routing.data();
}

size_t Model::chunk_rows() const {
  return linear_cross_entropy_chunk_rows(B_ * T_, config.vocab);
}

size_t Model::activation_bytes() {
  return add_sizes(bytes_of([this](const TensorVisitor& visit) { activations(visit); }, config.storage),
                   largest_of(shared_activations(), config.storage));
}

// Layers run one after another in the backward, so they take turns in the same memory.
size_t Model::gradient_bytes() {
  return add_sizes(largest_of(temporaries(), config.storage),
                   bytes_of([this](const TensorVisitor& visit) { gradients(visit); }, config.storage));
}

size_t Model::table_bytes() const {
  const size_t N = B_ * T_, angles = config.rope_tables() * T_ * config.rope_dims() / 2;
  return TokenGroups::bytes(N, config.vocab) + 2 * N * sizeof(int) + 2 * angles * sizeof(float) +
         (1 + (config.embedding_factor != 1) + routing_values()) * sizeof(float);
}

size_t Model::generation_bytes(const Generation& g) {
  plan(g.B, g.prompt);
  const size_t turns = config.has_attention() ? config.rope_tables() : 0;
  size_t bytes = bytes_of([&](const TensorVisitor& visit) { cache(visit, {g.B, g.tokens}); }, config.storage);
  for (const size_t more : {largest_block_bytes(), largest_block_bytes(), bytes_of(last_activations(g), config.storage),
                            weights.bytes_of_values(config.storage), count({g.B, g.prompt, sizeof(int)}),
                            turns ? count({turns, g.tokens, config.rope_dims(), sizeof(float)}) : 0})
    bytes = add_sizes(bytes, more);
  return bytes;
}

size_t Model::allocated_bytes() const {
  return memory_ ? memory_->activations.size() + memory_->gradients.size() + memory_->cache.size() : 0;
}

}  // namespace gated
