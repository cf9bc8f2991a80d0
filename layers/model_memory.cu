// model_memory: what a model is made of, tensor by tensor, and the memory that holds it.
#include <algorithm>

#include "kernels/linear_cross_entropy.h"
#include "kernels/mean.h"
#include "layers/model_state.cuh"

namespace gated {

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
  // Of a chunk of rows, or in read() of one row of each sequence.
  visit(l.logits, "logits of a chunk", {std::max(chunk_rows(), B_), padded_vocab(config.vocab)});
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
  plan.kernels_need(mean_scratch(N));
  plan.kernels_need(embedding_backward_scratch(N, C));
  if (config.position == Position::learned) plan.kernels_need(embedding_positions_backward_scratch(B_, T_, C));
  if (config.embedding_scale) plan.kernels_need(embedding_scale_backward_scratch(N));
}

double Model::flops_per_token(size_t T) const {
  double flops = weights.product_flops();
  for (const Block& block : layers_->blocks) flops += block.pair_flops(T);
  return flops;
}

// ---- memory

size_t Model::bytes(const TensorList& list) const {
  return bytes_of(list, config.storage);
}
size_t Model::largest(const std::vector<TensorList>& turns) const {
  size_t most = 0;
  for (const TensorList& turn : turns) most = std::max(most, bytes(turn));
  return most;
}
void Model::place(void* memory, const TensorList& list) const {
  place_tensors(memory, list, config.storage);
}

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

}  // namespace

Model::Model(const ModelConfig& c)
    : config(checked(c)),
      layers_(std::make_unique<Layers>(c)),
      weights([this](const ParameterVisitor& visit) { parameters(visit); }) {
  layers_->begins = weights.layer_begins();
}

Model::Model(const ModelConfig& c, size_t B, size_t T, uint64_t seed, Context& ctx, Masters masters) : Model(c) {
  plan(B, T);
  memory_ = std::make_unique<Memory>(ctx, seed);
  const Parameters::List list = [this](const ParameterVisitor& visit) { parameters(visit); };
  weights.allocate(list, ctx.device, config.storage, true, masters);
  weights.initialise(config.init, config.layers, seed);
  weights.whole_changed(ctx);
  Memory& m = *memory_;
  make_positions(T);

  const TensorList kept = [this](const TensorVisitor& visit) { activations(visit); };
  m.activations = Buffer<char>(ctx.device, activation_bytes());
  place(m.activations.data(), kept);
  char* const shared = m.activations.data() + bytes(kept);
  for (const TensorList& turn : shared_activations()) place(shared, turn);

  const TensorList between = [this](const TensorVisitor& visit) { gradients(visit); };
  m.gradients = Buffer<char>(ctx.device, gradient_bytes());
  place(m.gradients.data(), between);
  char* const turns = m.gradients.data() + bytes(between);
  for (const TensorList& turn : temporaries()) place(turns, turn);

  m.groups = TokenGroups(B * T, config.vocab, ctx);
  m.ids = Buffer<int>(ctx.device, B * T);
  m.targets = Buffer<int>(ctx.device, B * T);
  m.streams.resize(dropout_sites());
  m.device_streams = Buffer<uint64_t>(ctx.device, dropout_sites());
  m.loss = Buffer<float>(ctx.device, 1);
  m.routing = Buffer<float>(ctx.device, routing_values());
  set_zero(m.routing.data(), m.routing.size(), ctx);
}

// A block reads what the one before it left, and nothing older: so two pieces of memory serve all of them in turns.
// What stands outside of the blocks has memory of its own.
Model::Model(const ModelConfig& c, const Generation& g, Context& ctx) : Model(without_recompute(c)) {
  plan(g.B, g.prompt);
  memory_ = std::make_unique<Memory>(ctx, 0);
  weights.allocate([this](const ParameterVisitor& visit) { parameters(visit); }, ctx.device, config.storage, false);
  Memory& m = *memory_;
  const TensorList outside = last_activations(g);
  const size_t piece = largest_block_bytes();
  m.activations = Buffer<char>(ctx.device, add_sizes(add_sizes(piece, piece), bytes(outside)));
  for (size_t i = 0; i < layers_->blocks.size(); i++)
    place(m.activations.data() + i % 2 * piece, [&](const TensorVisitor& visit) { block_activations(i, visit); });
  place(m.activations.data() + 2 * piece, outside);
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
    largest = std::max(largest, bytes([&](const TensorVisitor& visit) { block_activations(i, visit); }));
  return largest;
}

void Model::make_positions(size_t tokens) {
  Memory& m = *memory_;
  if (config.embedding_factor != 1)
    m.embedding_factor = Buffer<float>(m.ctx.device, std::vector<float>{config.embedding_factor});
  if (config.rope_tables() == 0 || m.rope.all.rows >= tokens) return;
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

// Every branch, and the end of the last one.
size_t Model::dropout_sites() const {
  return config.dropout > 0 ? 2 * config.layers + 1 : 0;
}

size_t Model::routing_values() const {
  return config.has_experts() ? config.layers * router_report_values : 0;
}

float* Model::routing_reports() const {
  return memory_->routing.data();
}

size_t Model::chunk_rows() const {
  return linear_cross_entropy_chunk_rows(B_ * T_, config.vocab, config.storage);
}

size_t Model::activation_bytes() {
  return add_sizes(bytes([this](const TensorVisitor& visit) { activations(visit); }), largest(shared_activations()));
}

// Layers run one after another in the backward, so they take turns in the same memory.
size_t Model::gradient_bytes() {
  return add_sizes(largest(temporaries()), bytes([this](const TensorVisitor& visit) { gradients(visit); }));
}

size_t Model::table_bytes() const {
  const size_t N = B_ * T_, angles = config.rope_tables() * T_ * config.rope_dims() / 2;
  return TokenGroups::bytes(N, config.vocab) + 2 * N * sizeof(int) + 2 * angles * sizeof(float) +
         (1 + (config.embedding_factor != 1) + routing_values()) * sizeof(float) + dropout_sites() * sizeof(uint64_t);
}

size_t Model::generation_bytes(const Generation& g) {
  plan(g.B, g.prompt);
  size_t total = bytes([&](const TensorVisitor& visit) { cache(visit, {g.B, g.tokens}); });
  for (const size_t more : {largest_block_bytes(), largest_block_bytes(), bytes(last_activations(g)),
                            weights.bytes_of_values(config.storage), count({g.B, g.prompt, sizeof(int)}),
                            count({config.rope_tables(), g.tokens, config.rope_dims(), sizeof(float)})})
    total = add_sizes(total, more);
  return total;
}

size_t Model::allocated_bytes() const {
  return memory_ ? memory_->activations.size() + memory_->gradients.size() + memory_->cache.size() : 0;
}

}  // namespace gated
