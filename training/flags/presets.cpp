#include "training/flags/presets.h"

#include <initializer_list>

namespace gated {

const std::vector<Preset>& presets() {
  static const std::vector<Preset> all = [] {
    auto with = [](std::vector<std::string> flags, std::initializer_list<const char*> more) {
      flags.insert(flags.end(), more.begin(), more.end());
      return flags;
    };
    const std::vector<std::string> gpt2 = {
        "--norm=layernorm", "--position=learned",  "--qk-norm=off", "--attn-bias=all", "--ffn=gelu",
        "--ffn-bias=on",    "--init=depth-scaled", "--vocab=50257", "--context=1024",  "--head-dim=64"};
    const std::vector<std::string> qwen = {"--vocab=151936", "--context=4096", "--layers=28",    "--hidden=2048",
                                           "--heads=16",     "--kv-heads=8",   "--head-dim=128", "--ffn-hidden=6144"};
    const std::vector<std::string> p2_2b = with(qwen, {"--heads=8", "--kv-heads=2", "--head-dim=256"});
    const std::vector<std::string> p2_2b_linear = with(
        p2_2b, {"--linear-key-heads=8", "--linear-value-heads=16", "--linear-key-dim=128", "--linear-value-dim=128"});
    const std::vector<std::string> p1_moe =
        with(qwen, {"--layers=24", "--heads=32", "--kv-heads=4", "--tied=off", "--experts=128", "--experts-per-token=8",
                    "--expert-hidden=736"});
    const std::vector<std::string> p2_moe = with(p2_2b, {"--tied=off", "--mixer=hybrid", "--linear-key-dim=128",
                                                         "--linear-value-dim=128", "--shared-experts=1"});
    return std::vector<Preset>{
        {"tiny", "the default: trains in a minute on a laptop", {}},
        {"gpt2-124m", "GPT-2",
         with(gpt2, {"--layers=12", "--hidden=768", "--heads=12", "--kv-heads=12", "--ffn-hidden=3072"})},
        {"gpt2-350m", "GPT-2 medium",
         with(gpt2, {"--layers=24", "--hidden=1024", "--heads=16", "--kv-heads=16", "--ffn-hidden=4096"})},
        {"gpt2-774m", "GPT-2 large",
         with(gpt2, {"--layers=36", "--hidden=1280", "--heads=20", "--kv-heads=20", "--ffn-hidden=5120"})},
        {"gpt2-1558m", "GPT-2 XL",
         with(gpt2, {"--layers=48", "--hidden=1600", "--heads=25", "--kv-heads=25", "--ffn-hidden=6400"})},
        {"qwen3-1.7b", "Qwen3-1.7B", with(qwen, {"--rope-theta=1e6"})},
        {"p1-1.7b-28l", "P1's dense 1.7B, 28 layers", qwen},
        {"p1-1.7b-48l", "P1's dense 1.7B, 48 layers", with(qwen, {"--layers=48", "--ffn-hidden=2730"})},
        {"p1-15a2b", "P1's mixture of experts", p1_moe},
        {"p2-2b", "P2's dense 2B", p2_2b},
        {"p2-2b-linear", "P2's 2B with linear attention", with(p2_2b_linear, {"--mixer=gated-delta"})},
        {"p2-2b-hybrid", "P2's 2B, three linear layers to one with attention", with(p2_2b_linear, {"--mixer=hybrid"})},
        {"p2-7b-a2b", "P2's 7B-A2B: a hybrid of 48 layers, 6 of 128 experts and a shared one",
         with(p2_moe, {"--layers=48", "--kv-heads=1", "--linear-key-heads=8", "--linear-value-heads=16",
                       "--experts=128", "--experts-per-token=6", "--expert-hidden=384"})},
        {"p2-24b-a3b", "P2's 24B-A3B: a hybrid of 24 layers, 8 of 256 experts and a shared one",
         with(p2_moe, {"--layers=24", "--heads=16", "--linear-key-heads=16", "--linear-value-heads=32", "--experts=256",
                       "--experts-per-token=8", "--expert-hidden=512"})}};
  }();
  return all;
}

}  // namespace gated
