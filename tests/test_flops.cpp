// flops: the FLOPs and the bytes of a line of flags, worked out by hand.
//
// A factor of a matrix product costs 6 FLOPs a weight and token: 2 forward, 4 backward. Attention costs 12 FLOPs for an
// element of a query and each key that it sees: 4 forward (score and weighted value), 8 backward.
#include <cmath>

#include "kernels/embedding.h"
#include "tests/catch.h"
#include "training/flags/command_line.h"
#include "training/memory.h"
#include "training/optimizer.cuh"

using namespace gated;

namespace {

struct Line {
  const char* flags;
  double products;   // weights of matrix products
  double attention;  // elements of queries times keys that they see, over all layers, of the mean token
  size_t others;     // weights that no product has
  // Of the experts that a token does not take, in the mean: weights of products, and others.
  double idle = 0, idle_others = 0;
};

// The default model: 256 tokens, hidden 128, 4 layers, 4 query and 2 key/value heads of 32, FFN 384, context 128.
constexpr double attention_weights = 128 * 128 + 2 * 64 * 128 + 128 * 128, ffn = 3 * 128 * 384, embed = 256 * 128;
constexpr double expert = 3 * 128 * 192,
                 without_ffn = 4 * attention_weights + embed;  // an expert is as wide as half an FFN
constexpr double plain = without_ffn + 4 * ffn;                // tied: the embedding is the output matrix
constexpr double sees = 4 * 128 * 64;                          // half of the context
constexpr double linear_weights = 128 * (256 + 128 + 8 + 128), rule = (256 * 4 + 3 * 4 * 32 * 32) / 2.0;
constexpr size_t norms = 9 * 128 + 4 * 2 * 32;  // two in each layer and the last; QK-norm

const Line lines[] = {
    {"", plain, sees, norms},
    {"--tied=off", plain, sees, norms + 256 * 128},  // the embedding is looked up, which costs nothing
    {"--micro-batches=3", plain, sees, norms},
    {"--kv-heads=4", plain + 4 * 2 * 64 * 128, sees, norms},
    {"--qk-norm=off", plain, sees, 9 * 128},
    {"--position=learned", plain, sees, norms + 128 * 128},
    {"--embedding-scale=on", plain, sees, norms + 1},
    {"--norm=layernorm", plain, sees, norms + 9 * 128},
    {"--norm=preaffine", plain, sees, norms + 9 * 128},
    {"--norm=dyt", plain, sees, norms + 9 * 129},
    {"--norm=none", plain, sees, 4 * 2 * 32},
    {"--norm-placement=sandwich", plain, sees, norms + 8 * 128},
    {"--norm-placement=post", plain, sees, norms - 128},
    {"--norm=gated", plain + 9 * 2 * 16 * 128, sees, norms},
    {"--norm=gated --norm-rank=5", plain + 9 * 2 * 5 * 128, sees, norms},
    {"--norm=gated --norm-gate=tensorwise", plain + 9 * (16 * 128 + 16), sees, norms},
    {"--norm=gated-dyt", plain + 9 * 2 * 16 * 128, sees, norms + 9 * 129},
    {"--attn=g1", plain + 4 * 128 * 128, sees, norms},
    {"--attn=g1 --gate=shared", plain + 4 * 128 * 128, sees, norms},
    {"--attn=g1 --gate=headwise", plain + 4 * 4 * 128, sees, norms},
    {"--attn=g1 --gate=static", plain, sees, norms + 4 * 128},
    {"--attn=g2", plain + 4 * 64 * 128, sees, norms},
    {"--attn=g3", plain + 4 * 64 * 128, sees, norms},
    {"--attn=g4", plain + 4 * 128 * 128, sees, norms},
    {"--attn=g5", plain + 4 * 128 * 128, sees, norms},
    // A head's matrices are all computed, those too that a token does not take.
    {"--head-experts=1", plain + 4 * 2 * 128, sees, norms},
    {"--head-experts=4 --head-experts-per-token=2", plain + 4 * (3 * 64 + 2 * 4) * 128, sees, norms},
    {"--head-experts=4 --head-experts-of=kv", plain + 4 * 2 * (3 * 64 + 2 * 4) * 128, sees, norms},
    {"--attn-bias=qkv", plain, sees, norms + 4 * 256},
    {"--attn-bias=all --ffn-bias=on", plain, sees, norms + 4 * (256 + 128 + 2 * 384 + 128)},
    {"--attn-sink=learned", plain, sees, norms + 4 * 4},
    {"--attn-sink=kv-bias", plain, sees, norms + 4 * 2 * 128},
    {"--sdpa-out=groupnorm", plain, sees, norms + 4 * 32},
    {"--ffn=swiglu-clamped", plain, sees, norms},
    {"--ffn=gelu", plain - 4 * 384 * 128, sees, norms},
    {"--ffn=polynorm", plain - 4 * 384 * 128, sees, norms + 4 * 4},
    // Projections to 64 + 64 + 128 of q, k, v, to 128 of z, to 8 of b and a, and back; 4 taps for each of 256 channels
    // and three products with a state of 32 x 32 in each of 4 heads; A_log and dt_bias of 4 heads, the norm of a head.
    {"--mixer=gated-delta", 4 * (linear_weights + ffn) + embed, 4 * rule, 9 * 128 + 4 * (256 * 4 + 8 + 32)},
    {"--mixer=hybrid", 3 * linear_weights + attention_weights + 4 * ffn + embed, 3 * rule + 128 * 64,
     9 * 128 + 3 * (256 * 4 + 8 + 32) + 2 * 32},
    // Of layers 3 and 7, which attend, the first has the window.
    {"--mixer=hybrid --layers=8 --window=32 --window-layers=even",
     6 * linear_weights + 2 * attention_weights + 8 * ffn + embed, 6 * rule + 128 * 28 + 128 * 64,
     17 * 128 + 6 * (256 * 4 + 8 + 32) + 4 * 32},
    // A token meets all of the router, the shared expert and its gate, and k of E experts. Biases and PolyNorm's
    // weights are in no product.
    {"--experts=8", without_ffn + 4 * (8 * 128 + 2 * expert), sees, norms, 4 * 6 * expert},
    {"--experts=8 --experts-per-token=3 --expert-hidden=64", without_ffn + 4 * (8 * 128 + 3 * expert / 3), sees, norms,
     4 * 5 * expert / 3},
    {"--experts=8 --shared-experts=2", without_ffn + 4 * (8 * 128 + 4 * expert + 128), sees, norms, 4 * 6 * expert},
    {"--experts=8 --shared-experts=2 --shared-expert-gate=off", without_ffn + 4 * (8 * 128 + 4 * expert), sees, norms,
     4 * 6 * expert},
    {"--experts=8 --dense-layers=3", without_ffn + 3 * ffn + 8 * 128 + 2 * expert, sees, norms, 6 * expert},
    {"--experts=8 --router-bias --ffn-bias=on", without_ffn + 4 * (8 * 128 + 2 * expert), sees,
     norms + 4 * (8 + 8 * (2 * 192 + 128)), 4 * 6 * expert, 4 * 6 * (2 * 192 + 128)},
    {"--experts=8 --ffn=polynorm", without_ffn + 4 * (8 * 128 + 2 * expert * 2 / 3), sees, norms + 4 * 4,
     4 * 6 * expert * 2 / 3},
    {"--experts=8 --balance-loss=0 --z-loss=0 --mixer=hybrid",
     3 * linear_weights + attention_weights + embed + 4 * (8 * 128 + 2 * expert), 3 * rule + 128 * 64,
     9 * 128 + 3 * (256 * 4 + 8 + 32) + 2 * 32, 4 * 6 * expert},
    {"--context=64", plain, 4 * 128 * 32, norms},
    // In a window of W of T tokens the first W queries see W/2 keys in the mean, and the others W: W - W^2/2T.
    {"--window=32", plain, 4 * 128 * 28, norms},
    {"--window=32 --window-layers=even", plain, 2 * 128 * 28 + 2 * 128 * 64, norms},
    {"--window=128", plain, sees, norms},
    {"--window=500", plain, sees, norms},
};

}  // namespace

// A weight takes 4 bytes, its gradient, its sum over slices and its moments as many.
TEST_CASE("flops: and bytes of weights, as worked out by hand for every flag that changes them", "[flops]") {
  for (const Line& line : lines) {
    INFO(line.flags);
    const Config c = config_of_flags(line.flags);
    const Model model(c.model);
    REQUIRE(model.flops_per_token(c.model.context) == 6 * line.products + 12 * line.attention);
    REQUIRE(model.weights.product_flops() == 6 * line.products);
    REQUIRE(double(model.weights.total()) == line.products + line.idle + double(line.others));
    REQUIRE(double(model.weights.active()) == line.products + double(line.others) - line.idle_others);

    size_t bytes = 0;  // every tensor begins at a multiple of 32
    for (const Parameter& p : model.weights.list()) bytes += 4 * ((p.size + 31) / 32 * 32);
    const auto memory = [&](size_t micro_batches) {
      return training_memory(c.model, 2, c.model.context, micro_batches, Device::cpu);
    };
    const TrainingMemory one = memory(1), three = memory(3);
    REQUIRE(one.weights == bytes);
    REQUIRE(one.gradients == bytes);
    REQUIRE(three.gradients == 2 * bytes);
    REQUIRE(one.optimizer == 2 * bytes);
    REQUIRE(three.total() == one.total() + bytes);
    REQUIRE(memory(9).total() == three.total() + bytes);  // a group of slices
  }
}

TEST_CASE("flops: attention's are those of the pairs that a query and its keys make", "[flops]") {
  // Counted pair by pair. The formula leaves out the half key by which a query sees itself.
  for (size_t T : {16, 100, 128})
    for (size_t window : {0, 1, 5, 16, 50, 200}) {
      INFO(T << " tokens, window " << window);
      const ModelConfig c =
          model_of_flags("--layers=1 --context=" + std::to_string(T) + " --window=" + std::to_string(window));
      size_t pairs = 0;
      for (size_t query = 0; query < T; query++)
        for (size_t key = 0; key <= query; key++) pairs += window == 0 || query - key < window;
      const Model model(c);
      const double keys = (model.flops_per_token(T) - model.weights.product_flops()) / (12.0 * 128);
      REQUIRE(std::fabs(keys - double(pairs) / double(T)) <= 0.5);
    }
}

TEST_CASE("flops: tables are a batch's tokens and targets, their groups, angles, and what the optimizer reads",
          "[flops]") {
  for (auto [flags, angles] : {std::pair{"--position=none", 0},
                               {"", 16},
                               {"--mixer=gated-delta", 0},
                               {"--rope-fraction=0.5", 8},
                               {"--window=4 --window-rope-theta=100", 32}}) {
    INFO(flags);
    const ModelConfig c = model_of_flags(flags);
    const Model model(c);
    const size_t B = 3, T = 20, optimizer = Optimizer::table_bytes(model.weights);
    // Numbers of 4 bytes: two for a token; a cosine and a sine of every angle of a place; the loss.
    const size_t numbers = 2 * B * T + 2 * T * size_t(angles) + 1;
    REQUIRE(training_memory(c, B, T, 1, Device::cpu).tables ==
            TokenGroups::bytes(B * T, 256) + 4 * numbers + optimizer);
  }
}

TEST_CASE("flops: activations of the default model, tensor by tensor", "[flops]") {
  // N = 2*128 tokens. Floats a token: the embedding; in each layer the normed input with its 1/rms; q, k, v, the
  // 1/rms of their heads, q and k turned, weighted values, their logsumexp, the output; the stream, the second norm
  // with its 1/rms; gate, up, their product, the output. The stream before the first layer is the embedding. Then the
  // last stream, its norm, 1/rms, the loss, and the logits of all tokens.
  const size_t N = 256, layer = (128 + 1) + (128 + 64 + 64) + (4 + 2) + (128 + 64) + (128 + 4) + 128 + (128 + 128 + 1) +
                                (3 * 384 + 128);
  const size_t floats = 128 + 4 * layer + 3 * 128 + (128 + 128 + 1) + 1 + 256;
  REQUIRE(training_memory(model_of_flags(""), 2, 128, 1, Device::cpu).activations == 4 * N * floats);
}
