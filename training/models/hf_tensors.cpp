#include "training/models/hf_tensors.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <unordered_map>

#include "dataloader/quote.h"
#include "layers/model.h"
#include "training/checkpoint/safetensors.h"

namespace gated {

namespace {

// ---- copying

// One axis after the other; f(ours, theirs, n) is called for runs of n elements that are neighbours on both sides.
template <class Copy>
void walk(const Piece& piece, size_t axis, size_t ours, size_t theirs, const Copy& copy) {
  if (axis == piece.axes.size()) return copy(ours, theirs, 1);
  const Axis& a = piece.axes[axis];
  if (axis + 1 == piece.axes.size() && a.ours == 1 && a.theirs == 1) return copy(ours, theirs, a.count);
  for (size_t i = 0; i < a.count; i++) walk(piece, axis + 1, ours + i * a.ours, theirs + i * a.theirs, copy);
}

// ---- where things lie

// The name of a parameter in its layer: of "model.layers.3.mlp.up_proj.weight" it is "mlp.up_proj.weight", and the
// layer's prefix is "model.layers.3.". Outside of layers the prefix is empty.
struct Place {
  std::string prefix, layer, part;
  explicit Place(const std::string& name) : part(name) {
    const std::string layers = "model.layers.";
    if (!name.starts_with(layers)) return;
    const size_t dot = name.find('.', layers.size());
    layer = name.substr(layers.size(), dot - layers.size());
    prefix = name.substr(0, dot + 1);
    part = name.substr(dot + 1);
  }
};

// The tensors as they come together.
class Tensors {
 public:
  std::vector<HfTensor> list;

  explicit Tensors(size_t most) : most_(most) {}
  bool full() const { return list.size() >= most_; }
  void put(const std::string& name, const Shape& shape, Piece piece) {
    const auto [at, is_new] = index_.emplace(name, list.size());
    if (is_new) list.push_back({name, shape, {}});
    HfTensor& tensor = list[at->second];
    if (tensor.shape != shape)
      fail("tensor %s would be %s for one of its parameters and %s for another", quote(name).c_str(),
           shape_text(tensor.shape).c_str(), shape_text(shape).c_str());
    tensor.pieces.push_back(std::move(piece));
  }
  // The parameter alone, element by element.
  void same(const Parameter& p, const std::string& name) { same(p, name, p.shape); }
  void same(const Parameter& p, const std::string& name, const Shape& shape) {
    put(name, shape, {p.name, 0, 0, {{p.size, 1, 1}}});
  }

 private:
  size_t most_;
  std::map<std::string, size_t> index_;
};

// Blocks of `rows` rows, one from each of `groups` groups: they follow one another in the parameter, from row `first`
// on; in the tensor every group has `group_rows` rows, and the block begins at row `at` of them. C elements a row.
Piece rows_of_groups(const Parameter& p, size_t groups, size_t rows, size_t first, size_t group_rows, size_t at,
                     size_t C) {
  return {p.name, first * C, at * C, {{groups, rows * C, group_rows * C}, {rows * C, 1, 1}}};
}

// ---- names and forms that several architectures share

// Where the scores of a gate stand in q_proj: those of the output of attention alone do.
bool is_gated_query(const Place& at, const AttentionConfig& a) {
  return a.gate_at == GatePosition::g1 && a.gate.kind != GateKind::static_ &&
         (at.part == "self_attn.q_proj.weight" || at.part == "self_attn.g_proj.weight");
}

// q_proj with the rows of the gate's scores: group by group first those of its queries, then those of its scores. A
// group is a head (Qwen3-Next), or all query heads of a key/value head (arXiv 2505.06708).
void put_gated_queries(Tensors& t, const Parameter& p, const std::string& name, const ModelConfig& m, size_t groups) {
  const AttentionConfig& a = m.attention;
  const size_t queries = a.H / groups * a.D;
  const size_t scores = a.gate.kind == GateKind::headwise ? a.H / groups : queries, all = queries + scores;
  const bool gate = p.name.ends_with("g_proj.weight");
  t.put(name, {groups * all, m.hidden},
        rows_of_groups(p, groups, gate ? scores : queries, 0, all, gate ? queries : 0, m.hidden));
}

// A tensor for every expert.
void put_experts(Tensors& t, const Parameter& p, const Place& at) {
  const size_t E = p.shape[0], rows = p.shape[1], columns = p.shape[2];
  for (size_t e = 0; e < E && !t.full(); e++) {
    const std::string name = at.prefix + "mlp.experts." + std::to_string(e) + at.part.substr(at.part.find('.', 4));
    t.put(name, {rows, columns}, {p.name, e * rows * columns, 0, {{rows * columns, 1, 1}}});
  }
}

void place_same(Tensors& t, const Parameter& p, const ModelConfig&) {
  t.same(p, p.name);
}

void place_qwen(Tensors& t, const Parameter& p, const ModelConfig& m) {
  const Place at(p.name);
  if (is_gated_query(at, m.attention))
    return put_gated_queries(t, p, at.prefix + "self_attn.q_proj.weight", m, m.attention.KVH);
  if (at.part.starts_with("mlp.experts.") && p.shape.size() == 3) return put_experts(t, p, at);
  t.same(p, p.name);
}

// The rows of a linear layer's projections stand key head by key head: q, k, the v of its value heads, their z; and b,
// a.
void place_qwen3_next(Tensors& t, const Parameter& p, const ModelConfig& m) {
  const Place at(p.name);
  const LinearAttentionConfig& l = m.linear;
  const size_t C = m.hidden, r = l.Hv / l.Hk, values = r * l.Dv, all = 2 * l.Dk + 2 * values;
  const std::string qkvz = at.prefix + "linear_attn.in_proj_qkvz.weight";
  if (at.part == "linear_attn.in_proj_qkv.weight") {
    t.put(qkvz, {l.Hk * all, C}, rows_of_groups(p, l.Hk, l.Dk, 0, all, 0, C));
    t.put(qkvz, {l.Hk * all, C}, rows_of_groups(p, l.Hk, l.Dk, l.Hk * l.Dk, all, l.Dk, C));
    t.put(qkvz, {l.Hk * all, C}, rows_of_groups(p, l.Hk, values, 2 * l.Hk * l.Dk, all, 2 * l.Dk, C));
  } else if (at.part == "linear_attn.in_proj_z.weight") {
    t.put(qkvz, {l.Hk * all, C}, rows_of_groups(p, l.Hk, values, 0, all, 2 * l.Dk + values, C));
  } else if (at.part == "linear_attn.in_proj_ba.weight") {
    t.put(p.name, p.shape, rows_of_groups(p, l.Hk, r, 0, 2 * r, 0, C));
    t.put(p.name, p.shape, rows_of_groups(p, l.Hk, r, l.Hv, 2 * r, r, C));
  } else if (at.part == "linear_attn.conv1d.weight") {
    t.same(p, p.name, {p.shape[0], 1, p.shape[1]});
  } else if (is_gated_query(at, m.attention)) {
    put_gated_queries(t, p, at.prefix + "self_attn.q_proj.weight", m, m.attention.H);
  } else {
    place_qwen(t, p, m);
  }
}

// The matrices of all experts in one tensor, [in, out]; columns of gate and up stand in turns.
void place_gpt_oss(Tensors& t, const Parameter& p, const ModelConfig& m) {
  const Place at(p.name);
  const size_t E = m.moe.E, C = m.hidden, F = m.moe.F;
  const std::string experts = at.prefix + "mlp.experts.";
  const size_t turn = at.part.starts_with("mlp.experts.up_proj") ? 1 : 0;
  if (at.part == "mlp.experts.gate_proj.weight" || at.part == "mlp.experts.up_proj.weight")
    t.put(experts + "gate_up_proj", {E, C, 2 * F},
          {p.name, 0, turn, {{E, F * C, C * 2 * F}, {F, C, 2}, {C, 1, 2 * F}}});
  else if (at.part == "mlp.experts.gate_proj.bias" || at.part == "mlp.experts.up_proj.bias")
    t.put(experts + "gate_up_proj_bias", {E, 2 * F}, {p.name, 0, turn, {{E * F, 1, 2}}});
  else if (at.part == "mlp.experts.down_proj.weight")
    t.put(experts + "down_proj", {E, F, C}, {p.name, 0, 0, {{E, C * F, F * C}, {C, F, 1}, {F, 1, C}}});
  else if (at.part == "mlp.experts.down_proj.bias")
    t.same(p, experts + "down_proj_bias");
  else if (at.part.starts_with("mlp.gate."))
    t.same(p, at.prefix + "mlp.router." + at.part.substr(9));
  else
    t.same(p, p.name);
}

void place_gemma3(Tensors& t, const Parameter& p, const ModelConfig&) {
  static const std::map<std::string, std::string> names = {
      {"self_attn_out_layernorm.weight", "post_attention_layernorm.weight"},
      {"post_attention_layernorm.weight", "pre_feedforward_layernorm.weight"},
      {"mlp_out_layernorm.weight", "post_feedforward_layernorm.weight"}};
  const Place at(p.name);
  t.same(p, names.contains(at.part) ? at.prefix + names.at(at.part) : p.name);
}

// Matrices are [in, out] (Conv1D), those of q, k and v side by side.
void place_gpt2(Tensors& t, const Parameter& p, const ModelConfig& m) {
  static const std::map<std::string, std::string> outside = {{"model.embed_tokens.weight", "transformer.wte.weight"},
                                                             {"model.embed_positions.weight", "transformer.wpe.weight"},
                                                             {"model.norm.weight", "transformer.ln_f.weight"},
                                                             {"model.norm.bias", "transformer.ln_f.bias"},
                                                             {"lm_head.weight", "lm_head.weight"}};
  static const std::map<std::string, std::string> modules = {
      {"input_layernorm", "ln_1"},         {"post_attention_layernorm", "ln_2"}, {"self_attn.q_proj", "attn.c_attn"},
      {"self_attn.k_proj", "attn.c_attn"}, {"self_attn.v_proj", "attn.c_attn"},  {"self_attn.o_proj", "attn.c_proj"},
      {"mlp.up_proj", "mlp.c_fc"},         {"mlp.down_proj", "mlp.c_proj"}};
  const Place at(p.name);
  if (outside.contains(p.name)) return t.same(p, outside.at(p.name));
  const size_t dot = at.part.rfind('.'), C = m.hidden;
  const std::string module = at.part.substr(0, dot);
  if (!modules.contains(module)) return t.same(p, p.name);
  const std::string name = "transformer.h." + at.layer + "." + modules.at(module) + at.part.substr(dot);
  const size_t third = module == "self_attn.k_proj" ? 1 : module == "self_attn.v_proj" ? 2 : 0;
  const bool of_three = modules.at(module) == "attn.c_attn";
  if (p.shape.size() == 1) {
    if (of_three) return t.put(name, {3 * C}, {p.name, 0, third * C, {{C, 1, 1}}});
    return t.same(p, name);
  }
  const size_t out = p.shape[0], in = p.shape[1], all = of_three ? 3 * out : out;
  t.put(name, {in, all}, {p.name, 0, third * out, {{out, in, 1}, {in, 1, all}}});
}

// ---- tiling

// Where one side of a piece lies: all of begin + i*axes[0].step + j*axes[1].step + ...
struct Box {
  struct Axis {
    size_t count, step;
  };
  size_t begin;
  std::vector<Axis> axes;  // the largest step first
};

// One side of a piece. Axes that are one, as rows that follow one another, are one here.
Box box_of(const Piece& piece, bool ours) {
  Box box = {ours ? piece.ours : piece.theirs, {}};
  for (const Axis& a : piece.axes)
    if (a.count != 1) box.axes.push_back({a.count, ours ? a.ours : a.theirs});
  std::stable_sort(box.axes.begin(), box.axes.end(), [](const auto& a, const auto& b) { return a.step > b.step; });
  for (size_t i = 1; i < box.axes.size();) {
    Box::Axis &outer = box.axes[i - 1], inner = box.axes[i];
    if (inner.count == 0 || outer.step / inner.count != inner.step || outer.step % inner.count != 0) {
      i++;
      continue;
    }
    outer = {outer.count * inner.count, inner.step};
    box.axes.erase(box.axes.begin() + ptrdiff_t(i));
  }
  return box;
}

// Do the boxes cover 0 to n-1, every number once? No where they do it in ways that no tensor is made in: what is left
// when the axes that repeat all of them are taken away has to be ranges.
bool tile(std::vector<Box> boxes, size_t n) {
  const auto repeat = [&](const Box& b) {
    return !b.axes.empty() && b.axes[0].count > 0 && n % b.axes[0].count == 0 &&
           n / b.axes[0].count == b.axes[0].step && b.axes[0].step == boxes[0].axes[0].step;
  };
  while (n > 1 && !boxes.empty() && std::all_of(boxes.begin(), boxes.end(), repeat)) {
    n = boxes[0].axes[0].step;
    for (Box& b : boxes) b.axes.erase(b.axes.begin());
  }
  std::sort(boxes.begin(), boxes.end(), [](const Box& a, const Box& b) { return a.begin < b.begin; });
  size_t covered = 0;
  for (const Box& b : boxes) {
    const bool is_range = b.axes.empty() || (b.axes.size() == 1 && b.axes[0].step == 1);
    const size_t size = b.axes.empty() ? 1 : b.axes[0].count;
    if (!is_range || b.begin != covered || size > n - covered) return false;
    covered += size;
  }
  return covered == n;
}

}  // namespace

std::vector<HfTensor> hf_tensors(HfArchitecture architecture, const ModelConfig& model, size_t most) {
  const auto place = [&] {
    switch (architecture) {
      case HfArchitecture::gpt2: return place_gpt2;
      case HfArchitecture::qwen3_next: return place_qwen3_next;
      case HfArchitecture::gpt_oss: return place_gpt_oss;
      case HfArchitecture::gemma3: return place_gemma3;
      case HfArchitecture::code: return place_same;
      case HfArchitecture::llama:
      case HfArchitecture::qwen2:
      case HfArchitecture::qwen3:
      case HfArchitecture::qwen3_moe: return place_qwen;
    }
    fail("hf_tensors: no architecture %d", int(architecture));
  }();
  Tensors tensors(most);
  const Model whole(model);
  for (const Parameter& p : whole.weights.list())
    if (!tensors.full()) place(tensors, p, model);
  if (!tensors.full()) check_tiling(tensors.list, whole.weights.list());
  return std::move(tensors.list);
}

void check_tiling(const std::vector<HfTensor>& tensors, const std::vector<Parameter>& list) {
  std::unordered_map<std::string, std::vector<Box>> of_parameter;
  for (const HfTensor& t : tensors) {
    std::vector<Box> boxes;
    for (const Piece& piece : t.pieces) {
      boxes.push_back(box_of(piece, false));
      of_parameter[piece.parameter].push_back(box_of(piece, true));
    }
    if (!tile(std::move(boxes), count(t.shape)))
      fail("tensor %s of %s elements: not each of them is one of the model's", quote(t.name).c_str(),
           shape_text(t.shape).c_str());
  }
  for (const Parameter& p : list)
    if (!tile(std::move(of_parameter[p.name]), p.size))
      fail("parameter %s of %s elements: not each of them is in one place of the tensors", quote(p.name).c_str(),
           shape_text(p.shape).c_str());
  require(of_parameter.size() == list.size(), "tensors have %zu parameters, the model has %zu", of_parameter.size(),
          list.size());
}

void take_piece(const Piece& piece, float* ours, const float* theirs) {
  walk(piece, 0, piece.ours, piece.theirs,
       [&](size_t i, size_t j, size_t n) { std::memcpy(ours + i, theirs + j, n * sizeof(float)); });
}

void give_piece(const Piece& piece, const float* ours, float* theirs) {
  walk(piece, 0, piece.ours, piece.theirs,
       [&](size_t i, size_t j, size_t n) { std::memcpy(theirs + j, ours + i, n * sizeof(float)); });
}

}  // namespace gated
