#!/usr/bin/env python3
"""Plants faults of one line each in a copy of this tree, and counts how many the tests see.

usage: scripts/plant_faults.py [--jobs=2] [--only=3,17-20] [--tests=test_model,test_step] [--check] [--folder=DIR]

Each fault below stands in the line that it changes: «what is there => what is there with the fault». The copy holds
all of them and is built once. The environment variable PLANTED_FAULT chooses the one that acts, and the release tests
that link layers, training, dataloader or the program, and those of operations that hold faults, run until the first of them
fails. A fault that no test sees has survived.
Kernels have planted faults of their own (tests/planted_bugs.cuh). Here are the faults that every device would share.
A fault that no run of the program can show has no place in the table.

--check   only finds every fault's place in the source
--only    these faults alone
--tests   these tests alone
--folder  where the copy goes (default: a temporary folder, removed at the end)
"""
import collections
import concurrent.futures
import filecmp
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time

from common import ROOT, chosen, end_of, planting, read

# A heading in brackets is a class of faults; a path heads the faults in that file. «old => new» is the change, and the
# text around it finds the place; ¶ is the end of a line. Where old ends in ";" it is a statement, else an expression.
FAULTS = r"""
[decay and start of a parameter]
layers/linear.cuh
  Init::constant(0), «Decay::no => Decay::yes», Use::scale);
  init_, «Decay::yes => Decay::no», use_);
  {out_}, «Init::constant(0) => Init::normal()», Decay::no
  {out_, in_}, «init_ => Init::normal()», Decay::yes
layers/attention_mixer.cuh
  config.bias == AttentionBias::all, «config.out_init => Init::normal()»),
  q_norm_->parameters(visit, «"q_norm" => "k_norm"»);
  «if (k_norm_) k_norm_->parameters(visit, "k_norm"); => ;»
  out_norm_->parameters(visit, «"out_norm" => "q_norm"»);
layers/attention_parts.cuh
  Init::constant(«zero ? 0 : 1 => 1»)
  Init::constant(«zero ? 0 : 1 => 0.5»)
  «zero ? Decay::yes : Decay::no => Decay::yes»,
  «zero ? Decay::yes : Decay::no => Decay::no»,
  visit(w, name, shape, Init::normal(), «Decay::no => Decay::yes», Use::scale);
  visit(w, name, shape, «Init::normal() => Init::constant(0)», Decay::no
  return {logit_, «true => false», key_.value, value_.value};
  if (kind_ == AttentionSink::learned) «sink_backward(sink_.grad, ds, s.B, s.T, H_, ctx); => ;»
layers/norm.cuh
  "pre_weight", {C_}, Init::constant(1), «Decay::no => Decay::yes», Use::scale
  "alpha", {1}, Init::constant(config_.dyt_alpha), «Decay::no => Decay::yes», Use::scale
  "alpha", {1}, «Init::constant(config_.dyt_alpha) => Init::constant(0.5)», Decay::no
  «config_.zero_centred ? Decay::yes : Decay::no => Decay::no», Use::scale);
  "weight", {C_}, Init::constant(«config_.zero_centred ? 0 : 1 => 1»),
  "bias", {C_}, Init::constant(0), «Decay::no => Decay::yes», Use::scale
  "bias", {C_}, «Init::constant(0) => Init::normal()», Decay::no
  "gate_down.weight", {gate.rank, C_}, Init::normal(), «Decay::yes => Decay::no», Use
  "gate_up.weight", {shape(0).scores(), gate.rank}, up, «Decay::yes => Decay::no», Use
  const Init up = «gate.zero_init => false» ?
layers/gating.cuh
  "gate.theta", {heads_, D_}, Init::constant(0), «Decay::no => Decay::yes», Use
  "gate.theta", {heads_, D_}, «Init::constant(0) => Init::normal()», Decay
layers/ffn.cuh
  down_(config.F, C, config.bias, «config.out_init => Init::normal()», more...) {}
  "poly.weight", {3}, Init::constant(1.0 / 3), «Decay::no => Decay::yes», Use
  "poly.weight", {3}, Init::constant(«1.0 / 3 => 1.0»), Decay
  "poly.bias", {1}, Init::constant(0), «Decay::no => Decay::yes», Use
layers/block_parts.cuh
  model.depth_scaled_init ? 0.02 / std::sqrt(«2.0 => 1.0» * double(model.layers)) : 0.02
  Init::normal(«model.depth_scaled_init => false» ?
  «f.out_init = branch_out_init(model); => ;»
  «a.out_init = branch_out_init(model); => ;»
layers/model_memory.cu
  "model.embed_tokens.weight", {V, C}, Init::normal(), «Decay::yes => Decay::no», embed_use
  {config.context, C}, Init::normal(), «Decay::yes => Decay::no», Use::lookup
  {config.context, C}, «Init::normal() => Init::constant(0)», Decay::yes
  Init::constant(std::sqrt(double(C))), «Decay::no => Decay::yes», Use::scale
  "model.embed_scale", {1}, Init::constant(«std::sqrt(double(C)) => 1.0»), Decay::no
  "lm_head.weight", {V, C}, Init::normal(), «Decay::yes => Decay::no», Use
  "lm_head.weight", {V, C}, «Init::normal() => Init::normal(1 / std::sqrt(double(C)))», Decay
  weights.initialise(«seed => 1337»);
layers/parameters.cu
  stream_of(Purpose::init, «hash_of(p.name) => p.offset»);
  init.value * «draw.z[1] => draw.z[0]»};
training/optimizer.cuh
  list.push_back({p.offset, p.size, «p.decay == Decay::yes => true»});

[what a layer is made of]
layers/attention_mixer.cuh
  wq_(C, config.H * config.D, «config.bias != AttentionBias::none => config.bias == AttentionBias::all»),
  .window = «config_.window => 0»,
  .bias = «config_.score_bias => 0.0f»,
  .score_dim = «config_.score_dim => 0»}
  c.gate_at == GatePosition::g2 || «c.gate_at == GatePosition::g3 => false»,
  .score = «config_.score => AttentionScore::softmax»,
  c.gate, C, of_y ? «1 => c.H» : kv
layers/layer_config.h
  kind == NormKind::layernorm && eps == 0 ? «1e-5f => 1e-6f» :
  eps > 0 ? eps : «1e-6f => 1e-5f»; }
layers/block.cuh
  norm1_(post() ? config.ffn_norm : «config.attention_norm => config.ffn_norm», C
  norm2_(post() ? «config.attention_norm => config.ffn_norm» : config.ffn_norm
  token_out_(sandwich(), «config.ffn_norm => config.attention_norm», C
  return {«c.clip_branch => c.clip_residual», c.clip_residual
  return «config_.residual ? stream : nullptr => stream»; }
  ConstReals stream = «config_.residual ? dh : nullptr => dh»;
  const Accumulate own = «config_.residual ? Accumulate::yes : Accumulate::no => Accumulate::yes»;
layers/block_parts.cuh
  b.attention_norm.dyt_alpha = «model.dyt_alpha_attention => model.norm.dyt_alpha»;
  b.clip_branch = «model.clip_output => model.clip_residual»;
  host_log(double(«model.tokens_in_training() => model.attention.D»)));
  a.eps = «model.norm.rms_epsilon() => model.norm.epsilon()»;
  a.window_rope = «a.window > 0 => true» && model
  b.clip_residual = «model.clip_residual => model.clip_output»;
  a.rope = «model.position == Position::rope => true»;
  a.zero_centred = «model.norm.zero_centred => false»;
layers/model_state.cuh
  final_norm(«block_config(c).ffn_norm => block_config(c).attention_norm», c.hidden
layers/model_memory.cu
  config.rope_dims(), «config.rope_theta => 10000.0», device
  make_rope_tables(tokens, config.rope_dims(), «config.window_rope_theta => config.rope_theta», device);
layers/model_config.h
  2 * size_t(double(attention.D) * «rope_fraction => 1» / 2 + 1e-9)
layers/norm.cuh
  float offset() const { return «config_.zero_centred ? 1.0f : 0.0f => 0.0f»; }
layers/ffn.cuh
  case FfnKind::glu: return «Activation::sigmoid => Activation::silu»;

[what is computed again]
layers/model.cu
  i > 0 && «config.recompute == Recompute::full => false» ? kept(i
  config.recompute == Recompute::none || «m.in_place == layer => true») return;
  block.forward(layers_->read[«layer => 0»], pass);
  block.forward(layers_->read[layer], «pass => [&] { Pass other(pass.B, pass.T, pass.ctx, &m.rope); other.drop(config.dropout, 99, m.device_streams.data()); return other; }()»);
  if (h.branch && «plain_join() => true») {
  return {moved(to.x, h.x), «moved(to.branch, h.branch) => h.branch»};
layers/model_memory.cu
  recompute == Recompute::full) return «tensor.lifetime != Lifetime::step => true»;
  recompute == Recompute::light && «tensor.lifetime == Lifetime::cheap => tensor.lifetime != Lifetime::step»;
layers/model.cu
  void Model::bring_back_to_show(size_t layer) {¶  «bring_back(layer, *memory_->pass); => ;»
  if (memory_->has_forward) «bring_back_to_show(i); => ;»
layers/model_memory.cu
  const bool has_branch = «!layers_->post => true» && !plain_join();
layers/block.cuh
  void recompute(const Pass& pass) {¶    const size_t N = pass.N();¶    «norm1_.recompute(N, pass.ctx); => ;»
  if (!post()) «norm2_.recompute(N, pass.ctx); => ;»
  «token_mixer_->recompute(pass); => ;»
  «channel_mixer_->recompute(pass); => ;»
  if (token_out_) «token_out_->recompute(N, pass.ctx); => ;»
  visit.of("second norm"), N, «post() ? Lifetime::pass : Lifetime::cheap => Lifetime::cheap»
layers/attention_mixer.cuh
  void recompute(const Pass& pass) override {¶    «after_attention(pass.N(), pass.ctx); => ;»
  if (gate_) «gate_->recompute(pass.N(), pass.ctx); => ;»
  gate_->recompute(pass.N(), pass.ctx);¶    «norm_and_rotate(pass); => ;»
layers/gated_delta_net.cuh
  void recompute(const Pass& pass) override {¶    «convolve(pass); => ;»
  convolve(pass);¶    «norm_and_gate(pass.N(), pass.ctx); => ;»
layers/moe.cuh
  «gather(N, pass.ctx); => ;»
  «gather(N, pass.ctx); => gather(N, pass.ctx), dispatch_count(counts_, rows_.row_start, false, config_.E, pass.ctx);»
  «experts_.recompute(N * config_.k, pass.ctx); => ;»
  if (shared_) «shared_->recompute(N, pass.ctx); => ;»
  "slots of an expert in the step", {E}, «Lifetime::step => Lifetime::pass»

[dropout]
layers/block.cuh
  site_(«2 * layer => 0»),
  join_at(«site_ + branch => site_», config_, pass)
layers/pass.h
  dropout_ = {p, «seed => 1», streams};
  dropout_.stream + «site => site / 2»};
layers/model.cu
  stream_of(«Purpose::dropout => Purpose::synthetic», *dropout_draw
  stream_of(Purpose::dropout, «*dropout_draw => 0» * sites + i
  stream_of(Purpose::dropout, *dropout_draw * «sites => 1» + i
  stream_of(Purpose::dropout, *dropout_draw * «sites => 2 * config.layers» + i
  join_at(«2 * config.layers => 2 * config.layers - 1», block_config
  const Batch& batch) {¶  «upload_batch(batch, {}); => upload_batch(batch, 0);»
  «upload_batch({ids, ids, 1, ids.size()}, {}); => upload_batch({ids, ids, 1, ids.size()}, 0);»
  pass.drop(config.dropout, «m.seed => 1337», m.device_streams
training/trainer.h
  return «steps_done_ * config.micro_batches => steps_done_» + m; }
  return steps_done_ * config.micro_batches + «m => 0»; }
train_gpt.cu
  t.model.upload(t.training_batch(m), t.micro_batch_number(«m => 0»));
  «t.model.upload(t.training_batch(m), t.micro_batch_number(m)); => t.model.upload(t.training_batch(m));»

[a step and its micro-batches]
layers/model.cu
  «micro_batch.share() => 1.0f» / float(N), N, C, V
training/optimizer.cuh
  if (total_.size() && micro_batch.first()) «set_zero(total_.data(), total_.size(), ctx_); => ;»
  if (total_.size() && «micro_batch.first() => true») set_zero
  «set_zero(weights_.grads.data(), weights_.grads.size(), ctx_); => ;»
  gradient_norm(norm_.data(), «gradient() => weights_.grads.data()»,
  m, v, copies, «gradient() => weights_.grads.data()», norm_
  adamw_at_step(settings, «step => 1», clip)
  adamw_at_step(settings, step, «clip => INFINITY»)
training/trainer.cu
  loss += losses[«m => 0»];
  float(loss / double(«config.micro_batches => 1»))
  require(«std::isfinite(r.loss) => true» && std
  && «std::isfinite(r.gradient_norm) => true»,
  config.schedule.at(«step => step - 1»), routing(
  training_batch(steps_done_, «m => 0», 0
  training_batch(«steps_done_ => steps_done_ + 1», m, 0
  config.batch * «config.micro_batches => 1»);
  if («results_given_ + in_flight >= steps_done_ => results_given_ >= steps_done_») return
  sent_norm_[«slot => 0»].wait()
  sent_losses_[«steps_done_ % 2 => 0»].start
  double(config.schedule.peak), «step - 1 => step»);
  if (!lowest_ || «r.loss < lowest_->loss => r.loss > lowest_->loss»)
training/trainer.h
  return ids_.size() * «config.micro_batches => 1»; }
train_gpt.cu
  micro_batch = {m, «c.micro_batches => 1»};
  t.keep_loss(«m => 0»);
  c.schedule.at(«step => t.steps_done()»), step
  step, «c.clip => INFINITY»);
  config.model.context, «config.micro_batches => 1»}, config.seed);
  const bool complete = «step == c.steps => step > c.steps»;
training/flags/schedule.cpp
  double(step - warmup) / double(«steps - warmup => steps»);
  float(double(«peak => final») * double(step) / double(warmup));
  final + (double(peak) - final) * «0.5 => 1.0» *

[steps that are recorded]
core/record.h
  for (const Step& step : steps_) «step.call(step.bytes.get()); => if (&step != &steps_.back()) step.call(step.bytes.get());»
core/graph.cuh
  if («version_ != ctx_.graph_version() => !version_») {
train_gpt.cu
  t.graph(«micro_batch => MicroBatch{}»).run(
layers/model.cu
  «if (m.uploaded != uploaded) m.ctx.outdate_graphs(); => ;»
  «m.has_forward = m.has_losses = false; => m.has_losses = false;»

[validation]
training/trainer.cu
  "model.layers." + std::to_string(layer) + «"." => ""»;
  batches = «std::min(batches, loader_.validation_batches()) => loader_.validation_batches()»;
  loader_.validation_batch(«i => 0», ids_
  return loss / double(«batches => config.val_batches»);
  return loss / double(«batches => std::max(batches, config.val_batches)»);
train_gpt.cu
  complete || («c.val_every && step % c.val_every == 0 => false»));
  complete || («c.val_every && step % c.val_every == 0 => c.val_every && step % 100 == 0»));
  complete || («c.val_every && step % c.val_every == 0 => step % std::max<size_t>(1, c.val_every) == 0»));
  finite_loss(step, trainer.validate(«c.val_batches => 1»)));
dataloader/loader.cpp
  double(corpus->size()) * «fraction => 0.1»)
  row(*data_.val, «batch * B + b => b», inputs
  open(val_data, «1 => 0»)};

[data]
dataloader/loader.cpp
  shuffled(g % n, n, seed_, «g / n => 0»)
  shuffled(g % n, n, «seed_ => 5», g / n)
  ((step * M + «micro_batch => 0») * world
  random_bigrams(vocab - 1, «options.seed => 0»), options.seed
  text_bigrams(text.bytes()), «options.seed => 0», split
  options.vocab ? options.vocab : «64 => 65»;
  is_backcopy(spec)) return open_backcopy(spec, options, «split => 0»);
  std::make_shared<Recall>(options.seed, «split => 0»,
  const std::string& val_data = «options.val_data.empty() ? options.data : options.val_data => options.data»;
  std::make_shared<CorpusSlice>(corpus, «train => 0», val)
dataloader/shards.cpp
  require(«token < vocab => token <= vocab» && token
  vocab_ = «vocab ? size_t(vocab) : f->vocab => f->vocab»
  starts_.push_back(starts_.back() + «shards_.back().size() => shards_[0].size()»);
dataloader/choices.cpp
  require(«id < vocab => id <= vocab» && id
  require(«right < endings => right <= endings»,
training/inspect/choose.cpp
  for (size_t t = «rows[b].first => rows[b].first + 1»; t + 1
  / double(«questions[q].endings[e].size() => questions[q].endings[0].size()»)
  context.size(), «T + 1 - ending.size() => T - ending.size()»);
  c.right_by_mean += «smallest(means) => smallest(sums)» ==
dataloader/bpe.cpp
  rank > c.rank : «first > c.first => first < c.first»;
  if (!m || «m->rank != c.rank => false») continue;
  if (!(«fuse_unknown && behind_unknown => fuse_unknown»))
dataloader/pattern.cpp
  «subject.replace(at, 3, "\u200b"); => at++;»
dataloader/tokenizer.cpp
  behaviour == Behaviour::merged_with_previous && matches && «!matched_before => true» && any;
  if (ids_[node] != none« => && found.first == 0»)
  («is_normalised ? normalised : raw => raw»).add(
  first && «parts_->strips_first_space => true» && token[0]
training/text/find_tokenizer.cpp
  require(«tokens <= vocab => true»,
dataloader/bigram_entropy.cpp
  std::max<size_t>(«limit / T => limit», 1)
dataloader/text.cpp
  «bytes_ += '\n'; => ;»
  if («before > 0 && bytes_.back() != '\n' => before > 0»)
  vocab_(vocab ? vocab : «256 => 257»)
train_gpt.cu
  config.micro_batches}, «config.seed => 1337»);
  «config.model.vocab = data.train->vocab(); => ;»
dataloader/token_stream.h
  copy(«i * T => i», T + 1, out)
  size() > T ? («size() - 1 => size()») / T : 0
dataloader/shuffle.cpp
  stream_of(Purpose::shuffle, «epoch => 0»)
  for (uint64_t round = 0; «round < 8 => round < 2»; ++round)
dataloader/bigram_backcopy.cpp
  out[t] = out[«t - 2 => t - 1»];
  stream_of(Purpose::synthetic, «split_ << 40 | i => i»);
dataloader/files.cpp
  require(!paths.empty(), "%s: no file matches", pattern.c_str());¶  «std::sort(paths.begin(), paths.end()); => ;»

[sampling]
training/text/sampler.cpp
  std::min(«top_k => top_k + 1», logits.size())
  uniform_double(«seed => 1337», stream_of
  stream_of(«Purpose::sample => Purpose::synthetic», stream)
  stream_of(Purpose::sample, «stream => 0»)
  stream_of(Purpose::sample, stream), «index => 0»)
  - top) / «temperature => 1.0»)));
  sum < «top_p => 0.5» * total
  «total = sum; => ;»
training/text/generate.cpp
  sampler.draw({row, row + ptrdiff_t(c.vocab)}, «length => 1», b)
  sampler.draw({row, row + ptrdiff_t(c.vocab)}, length, «b => 0»)
  if (i > 0 && «model.tokens_read() < room => model.tokens_read() <= room»)
  : std::min(total, «c.context => c.context - 1»);
  window > 0 && «window <= c.context => true» && c
  windows = window > 0 && window <= c.context && «c.window_layers == WindowLayers::all => true»;
  return «c.position != Position::learned => true» && (windows
  if («c.cut && !all => c.cut»)
  if (prompt < context && «c.tokens <= context - prompt => c.tokens < context - prompt»)
  {c.temperature, c.top_k, c.seed, «c.top_p => 1.0»};
train_gpt.cu
  {c.temperature, c.top_k, «c.seed => 1337», c.top_p}
  {c.temperature, «c.top_k => 0», c.seed, c.top_p}
  {«c.temperature => 0.8», c.top_k, c.seed, c.top_p}
  continue_sequences(sequences, «c.sample_tokens - 1 => c.sample_tokens», trainer.model
  («data.val ? data.val : data.train => data.train»)->sequence
layers/model.cu
  multiply_head(l.y + («ids.size() - 1 => 0») * config.hidden
layers/attention_mixer.cuh
  angles(pass), «pass.first_position() => 0», pass.B
  s.H, s.KVH, s.D, «s.reach() => most.T», tokens
  s.reach(), tokens, s.score, «s.bias => 0.0f», s.score_dim};
layers/gated_delta_net.cuh
  «goes_on ? last : Reals() => Reals()»,
layers/delta_rule.cuh
  .initial = «goes_on ? state_ : nullptr => nullptr»,
  keep_in_chunk(«at => 0», 1, in, pass);
layers/model.cu
  extras.positions += «pass.first_position() => 0» * config.hidden;
  multiply_head(l.y + «(T - 1) => 0» * C, T * C
training/text/generate.cpp
  open_ += format(bytes_ ? "<%d>" : «first_ ? "%d" : " %d" => "%d"», token);

[flags taken at their word]
training/main.cu
  DeviceChoice::emulated ? «gated::Device::emulated => gated::Device::cpu» : gated
  «config.model.vocab = gated::open_data(config.data).train->vocab(); => ;»
  «gated::choose_ffn_width(config); => ;»
  fprintf(stderr, "error: %s\n", e.what());¶  return «1 => 0»;
train_gpt.cu
  «choose_ffn_width(config); => ;»
  use_threads(«config.threads => 1»);
  step % c.save_every.steps == «0 => 1» :
  last = trouble || «complete || interrupted() => complete»;  // asked
  return «128 + interrupted() => 0»;
training/flags/flags.cpp
  now[i].name != "--resume" && «now[i].kind != Flag::Kind::shortcut => true»)
  t.number("--beta1", «c.adamw.beta1 => c.adamw.beta2», between
  t.number("--val-batches", «c.val_batches => c.val_every», at_least
  t.number("--keep", «c.keep => c.save_every», at_least
  t.number("--top-k", «c.top_k => c.sample_tokens», at_least
  t.number("--clip-output", «m.clip_output => m.clip_residual», at_least
  choices.push_back({a.name, «a.act => activations[0].act», "core
  {"even", «WindowLayers::even => WindowLayers::all»,
  {"tensorwise", «NormGateScore::tensorwise => NormGateScore::elementwise»,
  {"erf", «Activation::gelu_erf => Activation::gelu_tanh»,
  {"emulated", «DeviceChoice::emulated => DeviceChoice::cpu»,
  m.dropout, between(0.0f, «0.99f => 1.0f»),
  "--steps", c.steps, at_least(«1 => 0»)
  "--batch", c.batch, at_least(«1 => 0»)
  "--micro-batches", c.micro_batches, at_least(«1 => 0»)
  parse_number(flag, text, at_least(«1 => 0»))
  number_text(every.seconds / «60 => 6») + "m"
  t.number("--rope-fraction", m.rope_fraction, between(0.0, «1.0 => 2.0»)
training/flags/check_flags.cpp
  «s.steps = c.steps; => ;»
  «c.data.seed = c.seed; => ;»
  «c.data.vocab = c.vocab; => ;»
  if (!is_given("--min-lr")) «s.final = std::min(s.final, s.peak); => ;»
  is_given(width) <= «1 => 3»,
  require(«s.warmup <= c.steps => true»,
  require(«!(kind == GateKind::headwise && on_output) => true»,
  require(«a.score == AttentionScore::softmax || a.sink == AttentionSink::none => true»,
  require(«!m.norm.zero_centred || m.norm.divides_by_rms() => true»,
  {{"--window-rope-theta"}, m.has_attention() && «m.attention.window > 0 => true», "a window
  {{"--gelu"}, «has_gelu => true», "an FFN
  «m.position == Position::rope => true»,
  {{"--save-every", "--keep"}, «has_out => true», "--out=FOLDER: there
  require(«!(is_given("--val-data") && is_given("--val-fraction")) => true»,
training/flags/match_params.cpp
  (wanted - one + «step / 2 => 0») / step
  «m.total > wanted => m.total < wanted» ? "more"
  config.match_params.empty() ? config.params : total_parameters(«with_flags(config, config.match_params) => config.model»);
  chosen_width(config.model) = «m.ffn_hidden => config.model.ffn.F»;
training/flags/flags.h
  return kind >= Kind::norm && «kind <= Kind::arithmetic => true»; }

[presets]
training/flags/presets.cpp
  «"--norm=layernorm" => "--norm=rmsnorm"»,
  "--position=learned",  «"--qk-norm=off" => "--qk-norm=on"»,
  «"--attn-bias=all" => "--attn-bias=qkv"»,
  «"--ffn=gelu" => "--ffn=relu2"»,
  «"--init=depth-scaled" => "--init=plain"»,
  "--vocab=50257", «"--context=1024" => "--context=512"»,
  "--layers=36", "--hidden=1280", «"--heads=20" => "--heads=10"»,
  "--heads=25", «"--kv-heads=25" => "--kv-heads=5"»,
  «"--context=4096" => "--context=2048"»,
  with(qwen, {«"--rope-theta=1e6" => "--rope-theta=1e5"»})},
  "P1's dense 1.7B, 28 layers", «qwen => with(qwen, {"--rope-theta=1e6"})»},
  {"--heads=8", «"--kv-heads=2" => "--kv-heads=4"»,
  "--kv-heads=2", «"--head-dim=256" => "--head-dim=128"»});

[FLOPs and memory]
layers/linear.cuh
  init_, Decay::yes, «use_ => Use::lookup»);
layers/norm.cuh
  up, Decay::yes, «Use::product => Use::scale»);
layers/attention_mixer.cuh
  const double W = «config_.window && config_.window < T => false» ?
  return «12.0 => 6.0» * double
  (W - «W * W / (2.0 * double(T)) => W / 2»);
layers/model_memory.cu
  const Use embed_use = «config.tied ? Use::product : Use::lookup => Use::product»;
  const Use embed_use = «config.tied ? Use::product : Use::lookup => Use::lookup»;
  "lm_head.weight", {V, C}, Init::normal(), Decay::yes, «Use::product => Use::lookup»);
  Init::normal(), Decay::yes, «Use::lookup => Use::product»);
  «flops += block.pair_flops(T); => flops += layers_->blocks[0].pair_flops(T);»
  «2 * N => N» * sizeof(int) +
layers/parameters.cu
  flops += «6.0 => 4.0» * p.share
training/memory.cpp
  sums = «micro_batches > 1 ? flat : 0 => 0»;
  model.activation_bytes(),¶          «model.gradient_bytes() => 0»,
training/optimizer.cuh
  return «std::size(state_prefixes) => 1» * weights

[what is printed and logged]
training/describe.cpp
  product_flops() / «6 => 2»)
  p.decay == «Decay::yes => Decay::no» ?
  config.batch, T = config.model.context, N = «B * T => T»;
  B, T, «config.micro_batches => 1», device);
  return double(bytes) / «1048576.0 => 1e6»;
  «parts[part_of(p.name)] += p.size; => parts[part_of(p.name)] = p.size;»
  const Device device = «kernels => !kernels» ?
training/progress.cpp
  bigram_entropy(«*data_.val => *data_.train»,
  «m.weights.total() => m.weights.flat_size()»,¶               m.config.has_experts()
  m.flops_per_token(«m.context() => 1»)
  {"gradient_norm", «r.gradient_norm => r.loss»},
  {"learning_rate", «r.learning_rate => config_.schedule.peak»},
  {"validation_loss", «loss => 2 * loss»}
  entry["step"]; «step > steps_done => step >= steps_done» ||
  if (!(«loss < lowest_ => loss > lowest_»)) return
  «100 => 1» * tokens_per_second *
  trainer_.steps_done() - «first_step_ => 0», duration
train_gpt.cu
  c.temperature, (unsigned long long)«c.seed => c.top_k»,

[router of a mixture of experts]
kernels/router.cuh
  uint64_t(«p > 0.0f => true» ? float_bits(p)
  return balance * «T(E) => T(1)» / T(N)
  (T(count) / T(«total => N»));
  return p * («dp - inner + z_slope => dp - inner»);
  return share > T(0) ? «-(share * exact_log(share)) => -exact_log(share)» : share;
  return c < E ? «acc + p[row * E + c] => p[row * E + c]» : fused

[attention of bf16]
layers/gating.cuh
  z_.as<bf16>(), «group_ => 1», config_.op
  z_.as<bf16>(), group_, «config_.op => GateOp()»
layers/attention_mixer.cuh
  gate_->fits_output_of_attention() &&¶           «config_.sdpa_out == SdpaOut::plain => true»
kernels/bf16/attention_bf16.cuh
  return s.first_key(i0) / block * «block => (block - 1)»;
  s.end_query(j0 + block < s.T ? «j0 + block - 1 => j0» : s.T - 1)
  return m == -INFINITY ? «0.0f => m» : m;
  const float x = fused(sum, scale, «-base => base»);
  (score == AttentionScore::softmax ? p : «p * (1.0f - p) => p») * (dp - delta)
  * («dp - delta => dp»);
  chain[«d / 8 % 8 => d % 8»] = fused(
kernels/decode/cached_attention_bf16.cuh
  return end < slots ? 0 : «end - slots => end - slots + 1»;
  «token >= first() && token < end => token < end»;
  «token % slots => token % (slots + 1)» * D;

[gated delta rule of bf16]
kernels/bf16/gated_delta_bf16_steps.h
  A[at] = j < i ? «beta[i] * (gamma[at] * kk[at]) => gamma[at] * kk[at]» : Real(0);
  P[at] = rounded(«gamma[at] * qk[at] => qk[at]»);
  end[i] = exact_exp(«c[tokens - 1] - c[i] => c[tokens - 1]»);
  U[e] = rounded(u[e]);¶            scaled[e] = rounded(«end[i] * u[e] => u[e]»);
  scaled[e] = rounded(«-(start[i] * beta[i]) * v[e] => -start[i] * v[e]»);
  toL[at] = rounded(«-(gamma[at] * (beta[i] * DL[at])) => -(gamma[at] * DL[at])»);
  row_dot(Du + i * Dv, X + i * Dv, Dv) - «sum_of_eight(chain) => Real(0)»;
  dc[tokens - 1] + «fused(start[tokens - 1], state_dot(Sb, dSb, size), all) => all»;
  const bool first = «h % s.group() == 0 => true»;
kernels/bf16/gated_delta_bf16.cu
  «copies.template wait<0>(); => ;»¶    __syncthreads();  // A
  «__syncthreads(); => ;»  // B
  «__syncthreads(); => ;»  // C
  «__syncthreads(); => ;»  // A is there
  state.scale(«exact_exp(last) => 1.0f», s.Dk);
  const bool there = «at.t0 + i < s.T => true»;
kernels/bf16/gated_delta_bf16_backward.cu
  «__syncthreads(); => ;»  // B
  «__syncthreads(); => ;»  // C
  if («r > 0 => false») given[e] = sum[e] + given[e];
layers/delta_rule.cuh
  .final = «at + 1 == chunk => at == chunk» ? state
  const size_t rest = «pass.T % chunk => pass.T % chunk % 8», whole
  «if (rest > 0) keep_in_chunk(0, rest, in, pass); => ;»

[quantized evaluation]
kernels/quantize.cuh
  uint32_t(«23 - mantissa => 22 - mantissa») << 23
  magnitude > largest ? «largest => magnitude» : magnitude
  held < smallest_normal ? «smallest_normal => held» : held
  «return nearest_of_format<1, 0>(x, e2m1_largest); => return nearest_of_format<1, -1>(x, e2m1_largest);»
  return S > FLT_MAX ? «FLT_MAX => S» : S;
  scale > 0.0f ? e4m3(x / scale) : «x * 0.0f => 0.0f»;
  return e4m3(amax * S / «e2m1_largest => 1»);
  const float q = «s > 0.0f => true» ? e2m1
layers/model.cu
  if («p.use != Use::linear => p.use == Use::scale») return;
  rows = p.shape[«p.shape.size() - 2 => 0»], columns
  «weight.quantizer = &*m.quantizer; => ;»
layers/linear.cuh
  «if (weight_.quantizer) x = weight_.quantizer->rows(x.as<float>(), N, in_); => ;»
layers/grouped_linear.cuh
  «if (weight_.quantizer) x = weight_.quantizer->rows(x.as<float>(), M, in_); => ;»
layers/moe.cuh
  config.router_bias, Init::normal(), «Use::product => Use::linear»),
  «router_.reader(visit); => ;»
  if (shared_gate_) «shared_gate_->reader(visit); => ;»
layers/attention_mixer.cuh
  «part.reader(visit); => if constexpr (std::is_same_v<decltype(part), const HeadExperts&>) part.reader(visit);»
  «part.reader(visit); => if constexpr (std::is_same_v<decltype(part), const Gate&>) part.reader(visit);»
layers/norm.cuh
  (offset + double(w[c])) / double(s[c]) - «offset => 0»);
  «b[c] /= s[c]; => b[c] *= s[c];»
  down[i] *= s[«i % C_ => i / C_»];
layers/smoothquant.cu
  largest[c] = max_of(«std::fabs(host[r * C + c]) => host[r * C + c]», largest[c]);
  if («use == Use::linear => true») take_in
  if (pair.largest[c] > 0 && «of_weights[c] > 0 => true»)
  host_exp(alpha * host_log(double(pair.largest[c])) - («1 - alpha => alpha») *
training/evaluate.cu
  «smooth.fold(c.smoothquant); => ;»
  «trainer.look_at_training(c.val_batches, [&] { smooth.see(c.batch * c.model.context); }); => ;»
training/trainer.cu
  loader_.training_batch(«i / config.micro_batches => 0», i % config
training/flags/check_flags.cpp
  require(«c.smoothquant == 0 || c.model.norm.kind != NormKind::none => true»,
  require(«c.smoothquant == 0 || c.model.placement != NormPlacement::post => true»,

[resume]
training/trainer.cu
  «add(state.prefix, state.values); => add(state.prefix, optimizer.states[0].values);»
  steps_done_ = results_given_ = «checkpoint.step() => checkpoint.step() - 1»;
  «read(state.prefix, state.values); => read(optimizer.states[0].prefix, state.values);»
  std::move(metadata), «config.keep => 0», config
training/flags/run_metadata.cpp
  «require_same_run(checkpoint->path(), checkpoint->metadata(), metadata); => ;»
train_gpt.cu
  require(c.out.empty() || own || «!find_latest(c.out) => true»,
  if (config.source && «!resumed => true») trainer.start_from
training/checkpoint/checkpoint.cpp
  «kept++ < keep => kept++ <= keep») continue;
training/evaluate.cu
  «set_trained_context(config.model, config.source->context(), config.source->path(),¶                        config.source->gives_first_positions()); => ;»
training/flags/run_metadata.cpp
  if («f.shapes_the_result() => f.shapes_the_model()») metadata
  if («c.change_precision => false») leave_out_precision

[bf16]
layers/linear.cuh
  weight_.copy, N, out_, in_, Layout::nt, Accumulate::no, ctx, «bias_.value => nullptr»,
  return plan.need(«matmul_bf16_scratch(rows, columns, K, layout, plan.device, has_bias_) => 0»);
layers/parameters.cu
  «if (copies.size()) round_to_bf16(copies.data(), values.data(), size_, ctx); => ;»
training/trainer.cu
  read("", model.weights.values);¶  «model.weights_changed(); => ;»
training/optimizer.cuh
  bf16* const copies = «weights_.copies.size() ? weights_.copies.data() : nullptr => nullptr»;
layers/grouped_linear.cuh
  s, Layout::nt, Accumulate::no, ctx,¶                          «bias_.value => nullptr», activated);
layers/ffn.cuh
  ctx, {a_.as<bf16>(), «g_.as<bf16>() => nullptr», activation()});
layers/moe.cuh
  router_backward_scratch(router_shape(N), «plan.storage => Storage::fp32»)
kernels/linear_cross_entropy.cu
  copies.template wait<«0 => 1»>();
  fetch(row + «gridDim.x => 1», v);
  const bool kept = row_bytes + «chains_bytes => 0» <= shared_limit();
  const float* l = kept ? kept_row : «logits + row * ld => kept_row»;
kernels/bf16/matmul_bf16_tile.cuh
  const Quad u = «stored_quad<Out>(x) => x»;
  if («block.K > matmul_bf16_slice => false») {
  if («block.accumulate => false») {
kernels/bf16/matmul_bf16.cu
  activation_forward(to.y, C, n, «to.act => Activation::silu», ctx);
kernels/bf16/grouped_matmul_bf16.cu
  if («rows > 0 => true») multiply(e, row, rows);
  if (device == Device::cpu) return «matmul_bf16_scratch(s.N, s.K, s.M, Layout::tn, device) => 0»;
  return «tall_groups(s.M, s.E, matmul_bf16_slice) => 0» * s.N * s.K
"""

HEADER = """#pragma once
#include <cstdlib>
inline bool planted(int fault) {
  static const int chosen = getenv("PLANTED_FAULT") ? atoi(getenv("PLANTED_FAULT")) : 0;
  return chosen == fault;
}
"""

Fault = collections.namedtuple("Fault", "number kind file begin end old new")


def find_faults():
    """Every fault of the table with its place in its file. Ends the program where a place is not found exactly once."""
    faults, kind, file, wrong = [], None, None, []
    for line in FAULTS.strip().splitlines():
        if line.startswith("["):
            kind = line.strip("[]")
        elif line.startswith("  "):
            parts = re.fullmatch(r"(.*)«(.*) => (.*)»(.*)", line[2:].replace("¶", "\n"), re.S)
            before, old, new, after = parts.groups()
            text, whole = read(os.path.join(ROOT, file)), before + old + after
            at = text.find(whole)
            number = len(faults) + 1
            if at < 0 or text.find(whole, at + 1) >= 0:
                state = "there twice" if at >= 0 else "gone"
                wrong.append(f"{file}: fault {number}: its line is {state}: {line.strip()}")
            begin = at + len(before)
            faults.append(Fault(number, kind, file, begin, begin + len(old), old, new))
        elif line:
            file = line
    if wrong:
        sys.exit("\n".join(wrong) + "\nThe source has changed: bring the table up to date.")
    return faults


def planted_text(file, faults):
    """The text of a file with all its faults in it, asleep."""
    text = read(os.path.join(ROOT, file))
    places = collections.defaultdict(list)
    for f in faults:
        places[f.begin, f.end].append(f)
    last = len(text)
    for (begin, end), here in sorted(places.items(), reverse=True):
        if end > last:  # a fault inside the text of another: that one has to hold it, too
            sys.exit(f"{file}: faults {[f.number for f in here]} overlap with the one after them")
        last = begin
        old = here[0].old
        for f in here:
            if f.old.endswith(";"):
                old = f"{{ if (planted({f.number})) {{ {f.new} }} else {{ {old} }} }}"
            else:
                old = f"(planted({f.number}) ? {f.new} : {old})"
        text = text[:begin] + old + text[end:]
    return '#include "planted.h"\n' + text


def copy_with_faults(folder, faults):
    planted_files = {f.file for f in faults}
    built = os.path.exists(os.path.join(folder, "build"))
    texts = {file: planted_text(file, [f for f in faults if f.file == file]) for file in planted_files}
    for path, folders, names in os.walk(ROOT):
        here = os.path.relpath(path, ROOT)
        unwanted = {".git", "build"} if built else {".git"}
        if here == "build":
            unwanted = {"asan", "race", "avx2", "plain", "debug", "cuda", "fuzz"}
        folders[:] = [f for f in folders if f not in unwanted]
        os.makedirs(os.path.join(folder, here), exist_ok=True)
        for name in names:
            source, copy = os.path.join(path, name), os.path.join(folder, here, name)
            if os.path.normpath(os.path.join(here, name)) in planted_files or not os.path.isfile(source):
                continue
            if not os.path.exists(copy):
                shutil.copy2(source, copy)  # with its time, so that what was built from it is not built anew
            elif not filecmp.cmp(source, copy, shallow=False):
                shutil.copyfile(source, copy)
    for file, text in {**texts, "planted.h": HEADER}.items():
        path = os.path.join(folder, file)
        if not os.path.exists(path) or read(path) != text:
            with open(path, "w", encoding="utf-8") as f:
                f.write(text)


def tests_for(faults):
    """Those of the program, and of operations with faults. test_floors reads the source's text, which differs in the copy."""
    names = sorted(name for name in os.listdir(os.path.join(ROOT, "tests")) if re.fullmatch(r"test_.*\.cpp", name))
    of_the_program = re.compile(r'"(layers|training|dataloader|tests/small_|\./train)')
    operations = {re.sub(r"kernels/(?:\w+/)?(\w+).*", r"test_\1.cpp", f.file) for f in faults}
    wanted = [n for n in names if n in operations or of_the_program.search(read(os.path.join(ROOT, "tests", n)))]
    return [n[:-4] for n in wanted if n != "test_floors.cpp"]


class Tests:
    """The tests in the copy, and what is known of them: how long they take, and what they have found."""

    def __init__(self, folder):
        self.folder = folder
        self.seconds = {}
        self.found = collections.Counter()
        self.lock = threading.Lock()

    def run(self, test, fault, limit):
        """None where the test passes, else how it ended."""
        environment = dict(os.environ, PLANTED_FAULT=str(fault), OMP_NUM_THREADS="1", OMP_WAIT_POLICY="passive")
        log = os.path.join(self.folder, f"{test}.{fault}.log")
        return end_of([f"build/release/{test}", "--abort"], self.folder, environment, log, limit)

    def measure(self, names):
        for test in names:
            begin = time.monotonic()
            failure = self.run(test, 0, 600)
            if failure:
                sys.exit(f"{test} fails without a fault ({failure}): see {self.folder}/{test}.0.log")
            self.seconds[test] = time.monotonic() - begin

    def find(self, fault):
        """The first test that fails with this fault; None where it lives. Tests that found its like come first."""
        order = sorted(self.seconds, key=lambda t: (-self.found[fault.kind, t] // 4, self.seconds[t]))
        for test in order:
            failure = self.run(test, fault.number, 20 + 10 * self.seconds[test])
            if failure:
                with self.lock:
                    self.found[fault.kind, test] += 1
                return f"{test}, {failure}"
        return None


def main():
    options = planting(__doc__)
    options.add_argument("--tests", default="")
    options.add_argument("--folder", default="")
    options = options.parse_args()
    faults = find_faults()
    if options.check:
        print(f"{len(faults)} faults, each in its place")
        return
    folder = options.folder or tempfile.mkdtemp(prefix="planted.")
    copy_with_faults(folder, faults)
    tests = Tests(folder)
    names = options.tests.split(",") if options.tests else tests_for(faults)
    targets = ["train"] + [f"build/release/{t}" for t in names]
    subprocess.run(["make", f"-j{options.jobs}", "NVCC="] + targets, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    tests.measure(names)

    wanted = chosen(faults, options.only)
    survivors = []
    by_kind = collections.defaultdict(lambda: [0, 0])
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for fault, finder in zip(wanted, pool.map(tests.find, wanted)):
            by_kind[fault.kind][0] += finder is not None
            by_kind[fault.kind][1] += 1
            change = f"{fault.old} => {fault.new}".replace("\n", " ")
            print(f"{fault.number:4}  {finder or 'SURVIVED':40}  {fault.file}: {change}", flush=True)
            if not finder:
                survivors.append(fault)
    print()
    for kind, (found, planted) in by_kind.items():
        print(f"{found:4} of {planted:3}  {kind}")
    found = len(wanted) - len(survivors)
    print(f"{found} of {len(wanted)} planted faults were found: {100 * found / len(wanted):.1f} %")
    if not options.folder:
        shutil.rmtree(folder)
    sys.exit(1 if found < 0.95 * len(wanted) else 0)


if __name__ == "__main__":
    main()
