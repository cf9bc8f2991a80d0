// adamw: one step of the optimizer over all parameters of a model. What it computes, and how: kernels/adamw.cu
#pragma once
#include <vector>

#include "core/context.cuh"
#include "core/storage.h"

namespace gated {

// What a run sets. The learning rate is that of the step, after warm-up and decay.
struct AdamWHyperparameters {
  float learning_rate, beta1, beta2, epsilon, weight_decay;
};

// The numbers of one step. clip is the largest norm that a gradient keeps; INFINITY clips nothing.
struct AdamWStep : AdamWHyperparameters {
  float clip, correction1, correction2;
};

// Those of step t = 1, 2, ... Refuses t = 0, betas outside [0, 1), an epsilon or a clip of 0 or less.
AdamWStep adamw_at_step(const AdamWHyperparameters& settings, size_t t, float clip);

// A parameter's place in the flat buffers, in elements; offset is a multiple of 4. Weight decay is for some of them.
struct AdamWTensor {
  size_t offset, size;
  bool decays;
};

// At most 1024 elements of one tensor: what a block of the kernel updates.
struct AdamWBlock {
  size_t begin;
  unsigned count, decays;
};

// So many of a plan's blocks, from the `first` on.
struct AdamWBlocks {
  size_t first, count;
};

// What an update reads besides the flat buffers, on the device. Made once for a run. set_step() allocates nothing and
// waits for nothing.
class AdamWPlan {
 public:
  AdamWPlan(const std::vector<AdamWTensor>& tensors, Context& ctx);

  // The numbers that the updates from here on use. It is a copy in the order of the stream: a CUDA graph that holds an
  // update may be replayed after it.
  void set_step(const AdamWStep& step, Context& ctx) { ctx.upload(step_.data(), &step, 1); }

  const AdamWStep* step() const { return step_.data(); }
  const AdamWBlock* blocks() const { return blocks_.data(); }
  size_t block_count() const { return blocks_.size(); }
  int* stopped() const { return stopped_.data(); }  // 1 after an update whose norm was not finite, 0 before
  // Of a plan for these tensors: its blocks, which are in their order; bytes of device memory.
  static size_t block_count(const std::vector<AdamWTensor>& tensors);
  static size_t bytes(const std::vector<AdamWTensor>& tensors);

 private:
  Buffer<AdamWBlock> blocks_;
  Buffer<AdamWStep> step_;
  Buffer<int> stopped_;
};

// Moves the weights w, updates their moments m and v (zero before the first step), from the gradient g; copy, if it is
// not null, becomes the new w, rounded. All five are flat buffers with the offsets of the plan; what lies between its
// tensors, or outside of those blocks, is neither read nor written.
// norm: the norm of the whole gradient, one float on the device. Where it is larger than clip, g counts clip/norm
// times. Where it is NaN or infinite, w, m, v and copy stay as they are, by this update and by every later one of the
// plan. So the host need not wait for the norm of a step before it launches the next one: when it reads a norm that is
// not finite, the weights are those of the last good step.
void adamw_update(float* w, float* m, float* v, bf16* copy, const float* g, const float* norm, const AdamWPlan& plan,
                  AdamWBlocks some, Context& ctx);

// One tensor of n elements, which decays by step.weight_decay.
template <class T>
void adamw_tensor_ref(T* w, T* m, T* v, const T* g, const T* norm, size_t n, const AdamWStep& step);
// All of them.
template <class T>
void adamw_update_ref(T* w, T* m, T* v, const T* g, const T* norm, const std::vector<AdamWTensor>& tensors,
                      const AdamWStep& step);

}  // namespace gated
