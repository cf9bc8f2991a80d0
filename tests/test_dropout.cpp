// dropout: which random numbers a branch of a layer, a micro-batch, a step and a seed draw, and that nothing outside
// training drops. (What a mask does to a branch: tests/test_residual.cpp.)
#include <algorithm>
#include <set>

#include "core/philox.cuh"
#include "tests/compare.h"
#include "tests/small_runs.h"

using namespace gated;

namespace {

using Mask = std::vector<bool>;  // of the channels of one token: kept or not

constexpr float p = 0.4f;
constexpr size_t C = 40;

// The mask as README and core/philox.cuh define it: draw c of a row is word c%4 of Philox block c/4, with the key
// `seed` and the stream (2 << 48) + site. The sites of a model are numbered through micro-batches: 2*layers + 1 for
// each.
Mask mask_of(uint64_t seed, uint64_t draw, size_t layers, size_t site) {
  const uint64_t stream = (uint64_t(2) << 48) + draw * (2 * layers + 1) + site;
  Mask kept;
  for (size_t c = 0; c < C; c++) {
    const PhiloxBlock block = philox4x32({{uint32_t(c / 4), 0, uint32_t(stream), uint32_t(stream >> 32)}},
                                         uint32_t(seed), uint32_t(seed >> 32));
    kept.push_back(double(block.word[c % 4] >> 8) / double(1 << 24) >= double(p));
  }
  return kept;
}

// A model whose last parameter on every branch is a shift of that branch: the parameter's gradient is the gradient of
// the stream where the branch was kept, and 0 where it was dropped.
struct Placement {
  const char *flags, *attention_shift, *ffn_shift;
  size_t first_site;  // of attention in layer 0; its FFN's is the next
};
const Placement placements[] = {
    // A branch joins in the norm after it. The first norm of the model has the site 0, and no branch to join.
    {"--norm=none --attn-bias=all --ffn-bias=on", "self_attn.o_proj.bias", "mlp.down_proj.bias", 1},
    {"--norm=layernorm --attn-bias=all --ffn-bias=on", "self_attn.o_proj.bias", "mlp.down_proj.bias", 1},
    {"--norm=layernorm --norm-placement=sandwich", "self_attn_out_layernorm.bias", "mlp_out_layernorm.bias", 1},
    {"--norm=layernorm --norm-placement=post --attn-bias=all --ffn-bias=on", "self_attn.o_proj.bias",
     "mlp.down_proj.bias", 0}};

ModelConfig model_of(const Placement& placement, const std::string& more = "") {
  return small_model(std::string(placement.flags) + format(" --layers=3 --hidden=%zu --tied=off --dropout=%g ", C, p) +
                     more);
}

// The masks of the branches of all layers, attention, FFN, attention, ...: is kept(i) of an element of their shifts?
template <class Kept>
std::vector<Mask> masks_seen(const Model& model, const Placement& placement, Kept kept) {
  std::vector<Mask> masks;
  for (size_t layer = 0; layer < model.config.layers; layer++)
    for (const char* shift : {placement.attention_shift, placement.ffn_shift})
      for (const Parameter& parameter : model.weights.list())
        if (parameter.name == format("model.layers.%zu.%s", layer, shift)) {
          masks.emplace_back();
          for (size_t c = 0; c < C; c++) masks.back().push_back(kept(parameter.offset + c));
        }
  return masks;
}

}  // namespace

TEST_CASE("dropout: every branch, layer, micro-batch and seed has the mask that Philox gives its number", "[dropout]") {
  for (const Placement& placement : placements) {
    INFO(placement.flags);
    const ModelConfig config = model_of(placement);
    std::set<Mask> all;
    size_t count = 0;
    for (uint64_t seed : {uint64_t(3), uint64_t(5) << 32}) {
      Context ctx(Device::cpu);
      Model model(config, 1, 1, seed, ctx);
      for (uint64_t draw : {0, 1, 2, 7}) {
        forward_backward(model, {{4}, {9}, 1, 1}, ctx, {}, draw);
        const std::vector<float> g = model.weights.grads.download();
        const std::vector<Mask> seen = masks_seen(model, placement, [&](size_t i) { return g[i] != 0; });
        REQUIRE(seen.size() == 2 * config.layers);
        for (size_t branch = 0; branch < seen.size(); branch++) {
          INFO("seed " << seed << ", draw " << draw << ", branch " << branch);
          REQUIRE(seen[branch] == mask_of(seed, draw, config.layers, placement.first_site + branch));
          all.insert(seen[branch]);
          count++;
        }
      }
    }
    REQUIRE(all.size() == count);  // 40 channels: two masks that are equal by chance are not to be expected
  }
}

TEST_CASE("dropout: a step of training draws anew for each of its micro-batches", "[dropout]") {
  // The step's gradient of a shift is 0 where all its micro-batches dropped the channel.
  const Placement& placement = placements[0];
  for (size_t micro_batches : {1, 2, 3}) {
    Config config = small_run(model_of(placement, "--context=1"), 4, micro_batches);
    config.batch = 1;
    Context ctx(Device::cpu);
    Run run(config, ctx);
    for (size_t step = 0; step < 4; step++) {
      std::vector<Mask> expected;
      for (size_t branch = 0; branch < 6; branch++) {
        Mask any(C);
        for (size_t m = 0; m < micro_batches; m++) {
          const Mask kept = mask_of(config.seed, step * micro_batches + m, 3, 1 + branch);
          for (size_t c = 0; c < C; c++) any[c] = any[c] || kept[c];
        }
        expected.push_back(any);
      }
      const std::vector<float> before = run.trainer.optimizer.states[0].values.download();
      run.steps(1);
      // AdamW's mean gradient: m = 0.9 m + 0.1 g.
      const std::vector<float> after = run.trainer.optimizer.states[0].values.download();
      INFO(micro_batches << " micro-batches, step " << step);
      REQUIRE(masks_seen(run.trainer.model, placement, [&](size_t i) { return after[i] != 0.9f * before[i]; }) ==
              expected);
    }
  }
}

TEST_CASE("dropout: validation, the loss alone and sampling are those of the model without dropout", "[dropout]") {
  for (const char* flags : {"", "--norm=layernorm --norm-placement=post", "--norm=gated --norm-placement=sandwich"}) {
    INFO(flags);
    Context ctx(Device::cpu);
    Run with(small_run(small_model(std::string(flags) + " --dropout=0.5")), ctx),
        without(small_run(small_model(flags)), ctx);
    with.steps(3);
    without.trainer.model.weights.values.upload(with.trainer.model.weights.values.download());
    REQUIRE(with.trainer.validate(3) == without.trainer.validate(3));
    const Batch batch = with.trainer.training_batch(0);
    REQUIRE(with.trainer.model.loss(batch) == without.trainer.model.loss(batch));
    REQUIRE_BITWISE(without.trainer.model.next_token_logits({1, 2, 3}),
                    with.trainer.model.next_token_logits({1, 2, 3}));
    // In training it does drop.
    REQUIRE(forward_backward(with.trainer.model, batch, ctx) != with.trainer.model.loss(batch));
  }
}
