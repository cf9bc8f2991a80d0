// model_state: what stands behind a Model: its layers, and the memory of one that can run.
// layers/model.cu, layers/model_memory.cu
#pragma once
#include <optional>

#include "kernels/embedding.h"
#include "layers/block_parts.cuh"
#include "layers/model.h"

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
  std::vector<size_t> begins;  // of their parameters: Parameters::layer_begins()
  Norm final_norm;
  Weight embed, positions, scale, lm_head;
  const Weight& head() const { return tied ? embed : lm_head; }

  Reals h0;  // activations
  float *losses = nullptr, *logits = nullptr;
  bf16* dlogits = nullptr;  // with bf16; of floats they take the place of the logits
  Reals dy, dh, dbranch;    // gradients
  float* embedding_row_sums = nullptr;
  ConstReals y;  // what the last forward left for the output matmul

  // What each block read in the last forward; and with --recompute=full where that is kept, but of block 0, which reads
  // h0.
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
  std::vector<uint64_t> streams;  // of dropout, one for each site, where there is dropout; and on the device
  Buffer<uint64_t> device_streams;
  Buffer<float> loss;
  Buffer<float> routing;  // (layers, router_report_values), where there are experts
  // Of the batch that is on the device. has_forward: forward() ran on the host since it came; where a LaunchGraph
  // repeated the launches it did not, and nothing can be shown or gone back through.
  std::optional<Pass> pass;
  bool has_forward = false;
  // Of the last upload(): where these change, so does what is launched.
  struct Uploaded {
    size_t B, T;
    bool drops;
    bool operator==(const Uploaded&) const = default;
  };
  std::optional<Uploaded> uploaded;
  size_t in_place = 0;      // the block that was the last to write where blocks share memory
  bool has_losses = false;  // of that forward
  // Sequences that grow.
  Buffer<char> cache;
  size_t sequences = 0;
  Growing growing = {0, 0};
  std::optional<RowQuantizer> quantizer;
};

}  // namespace gated
