// adamw: Adam with decoupled weight decay      (Loshchilov & Hutter 2017, arXiv 1711.05101, algorithm 2)
//   Every weight has a step length of its own: the gradient over its typical size.
//     g' = scale*g, scale = norm > clip ? clip/norm : 1     the whole gradient is shortened to a length of `clip`
//     m  = beta1*m + (1-beta1)*g'                           running mean of the gradient
//     v  = beta2*v + (1-beta2)*g'^2                         running mean of its square
//     w  = w - lr*weight_decay*w - lr * mhat / (sqrt(vhat) + epsilon)
//   mhat = m/(1-beta1^t) and vhat = v/(1-beta2^t) correct for the start at zero. After t steps of one and the same
//   gradient g', m is g' times the sum of the weights that the steps have in it,
//     (1-beta1) * (1 + beta1 + ... + beta1^(t-1)) = 1 - beta1^t     (a geometric series)
//   so mhat is g', and likewise vhat is g'^2: the step is lr * sign(g'), from the first on.
//   Decay pulls at w directly. As a term of the gradient (L2 regularisation) it would be divided by sqrt(vhat), too,
//   and a weight with large gradients would hardly decay. Matrices decay. Biases and norm weights do not, unless these
//   are zero-centred (kernels/rmsnorm.cu): `decays` of a tensor says it.
//   There is no backward: this is the end of a step.
// exactly, with correction1 = 1/(1-beta1^t) and correction2 = 1/sqrt(1-beta2^t) rounded once from double:
//     m = fma(beta1, m, (1-beta1)*g')   v = fma(beta2, v, (1-beta2)*(g'*g'))
//     w = fma(-(lr*correction1), m / fma(sqrt(v), correction2, epsilon), fma(-(lr*weight_decay), w, w))
//   sqrt(vhat) = sqrt(v)*correction2, pulled out of the root, leaves one division and one root an element.
// shapes: w, m, v, g flat buffers f32 with the same offsets, m and v zero before the first step; norm one f32 on the
//   device | w, m and v are updated in place
// The master weights are f32. Products of bf16 matrices read a rounded copy, which is written in the same launch as w.
//   A step is often smaller than what a copy can show: it is the master that remembers it.
// A norm that is not finite leaves w, m and v as they are, and so do all updates after it: one bad batch must not reach
//   the weights before the training loop has seen it.
// twins: none; the CPU's loops stand in this file
// --lr, --beta1, --beta2, --adam-eps, --weight-decay, --clip | tests/test_adamw.cpp
#include "kernels/adamw.h"

#include <cfloat>

#include "core/host_math.h"
#include "core/launch_shape.cuh"
#include "core/math.cuh"
#include "core/quad.cuh"

namespace gated {

// ---- the numbers of a step

// The betas enter as the floats that the kernel uses, so that the corrected moments of a constant gradient are
// unbiased.
AdamWStep adamw_at_step(const AdamWHyperparameters& settings, size_t t, float clip) {
  require(t >= 1, "adamw: steps count from 1");
  for (float beta : {settings.beta1, settings.beta2})
    require(beta >= 0 && beta < 1, "adamw: beta is %g, expected 0 <= beta < 1", double(beta));
  require(settings.epsilon > 0, "adamw: epsilon is %g, expected more than 0 (0/0 where the gradient is zero)",
          double(settings.epsilon));
  require(clip > 0, "adamw: clip is %g, expected more than 0", double(clip));
  const double left1 = 1 - host_power(settings.beta1, t), left2 = 1 - host_power(settings.beta2, t);
  return {settings, clip, float(1 / left1), float(1 / std::sqrt(left2))};
}

// ---- reference

// False for NaN as well.
template <class T>
HD bool adamw_norm_is_finite(T norm) {
  return norm <= T(FLT_MAX);
}

template <class T>
HD T adamw_gradient_scale(T norm, T clip) {
  return norm > clip ? clip / norm : T(1);
}

// One element of the formulas above; g is scaled already. The kernel shares these three functions.
template <class T>
HD void adamw_element(T& w, T& m, T& v, T g, const AdamWStep& a, float weight_decay) {
  const T beta1 = a.beta1, beta2 = a.beta2, rate = a.learning_rate;
  m = fused(beta1, m, (T(1) - beta1) * g);
  v = fused(beta2, v, (T(1) - beta2) * (g * g));
  const T decayed = fused(-(rate * T(weight_decay)), w, w);
  const T denominator = fused(exact_sqrt(v), T(a.correction2), T(a.epsilon));
  w = fused(-(rate * T(a.correction1)), m / denominator, decayed);
}

template <class T>
void adamw_tensor_ref(T* w, T* m, T* v, const T* g, const T* norm, size_t n, const AdamWStep& step) {
  if (!adamw_norm_is_finite(*norm)) return;
  const T scale = adamw_gradient_scale(*norm, T(step.clip));
  for (size_t i = 0; i < n; i++) adamw_element(w[i], m[i], v[i], scale * g[i], step, step.weight_decay);
}

template <class T>
void adamw_update_ref(T* w, T* m, T* v, const T* g, const T* norm, const std::vector<AdamWTensor>& tensors,
                      const AdamWStep& step) {
  for (const AdamWTensor& t : tensors) {
    AdamWStep here = step;
    if (!t.decays) here.weight_decay = 0;
    adamw_tensor_ref(w + t.offset, m + t.offset, v + t.offset, g + t.offset, norm, t.size, here);
  }
}
IN_FLOAT_AND_DOUBLE(adamw_tensor_ref);
IN_FLOAT_AND_DOUBLE(adamw_update_ref);

// ---- the plan
//
// A model has hundreds of tensors, and many are tiny: a launch for each would spend more time on launching than on
// updating. One launch covers them all. Every tensor is cut into blocks of 1024 elements; the last of a tensor may be
// shorter:
//
//   flat buffer   | embedding: decays ......................... | norm  |  Wq: decays ............. | ...
//   blocks        |    0    |    1    |    2    |    3    |  4  |   5   |    6    |    7    |   8   | ...
//
// A block of threads looks up where its elements begin, how many they are, and whether they decay: 16 bytes for 28 KB
// that it moves.

constexpr size_t adamw_block_elements = 4 * elementwise_block;

size_t AdamWPlan::block_count(const std::vector<AdamWTensor>& tensors) {
  size_t n = 0;
  for (const AdamWTensor& t : tensors) n += ceil_div(t.size, adamw_block_elements);
  return n;
}

AdamWPlan::AdamWPlan(const std::vector<AdamWTensor>& tensors, Context& ctx)
    : step_(ctx.device, 1), stopped_(ctx.device, 1) {
  set_zero(stopped_.data(), 1, ctx);
  std::vector<AdamWBlock> blocks;
  blocks.reserve(block_count(tensors));
  for (const AdamWTensor& t : tensors) {
    require(t.offset % 4 == 0, "adamw: a tensor begins at element %zu, expected a multiple of 4", t.offset);
    for (size_t i = 0; i < t.size; i += adamw_block_elements) {
      const size_t left = t.size - i, count = left < adamw_block_elements ? left : adamw_block_elements;
      blocks.push_back({t.offset + i, unsigned(count), t.decays});
    }
  }
  blocks_ = Buffer<AdamWBlock>(ctx.device, blocks);
}

size_t AdamWPlan::bytes(const std::vector<AdamWTensor>& tensors) {
  return block_count(tensors) * sizeof(AdamWBlock) + sizeof(AdamWStep) + sizeof(int);
}

// ---- kernel

// A thread owns four neighbouring elements of its block, a Quad (kernels/activation.cu). It reads four arrays and
// writes three, each once: 28 bytes an element cross the bus, and 2 for a copy. All threads read the same norm, so
// either all of them update or none. One that is not finite stops the later updates, too: the first block says so.
// `stopped` is written under a bad norm alone and read under a good one alone, never both in one launch, so nobody has
// to wait.
__global__ void __launch_bounds__(elementwise_block)
    adamw_update_kernel(float* w, float* m, float* v, bf16* copy, const float* g, const float* norm,
                        const AdamWBlock* blocks, const AdamWStep* step, int* stopped) {
  if (!adamw_norm_is_finite(*norm)) {
    if (blockIdx.x == 0 && threadIdx.x == 0) *stopped = 1;
    return;
  }
  const AdamWBlock block = blocks[blockIdx.x];
  const size_t i = 4 * threadIdx.x, n = block.count;
  if (*stopped || i >= n) return;
  const AdamWStep a = *step;
  const float scale = adamw_gradient_scale(*norm, a.clip), weight_decay = block.decays ? a.weight_decay : 0.0f;

  const Quad gq = load_quad(g + block.begin, i, n);
  Quad wq = load_quad(w + block.begin, i, n), mq = load_quad(m + block.begin, i, n),
       vq = load_quad(v + block.begin, i, n);
  for (int k = 0; k < 4; k++) adamw_element(wq.v[k], mq.v[k], vq.v[k], scale * gq.v[k], a, weight_decay);
  store_quad(w + block.begin, i, n, wq);
  store_quad(m + block.begin, i, n, mq);
  store_quad(v + block.begin, i, n, vq);
  if (copy) store_quad(copy + block.begin, i, n, wq);
}

// ---- the CPU: blocks are shared out among threads, the elements of a block vectorise; every element is computed
// alone, so the bits are those of the reference

static void adamw_update_cpu(float* w, float* m, float* v, bf16* copy, const float* g, const float* norm,
                             const AdamWPlan& plan, AdamWBlocks some) {
  if (!adamw_norm_is_finite(*norm)) *plan.stopped() = 1;
  if (*plan.stopped()) return;
  const AdamWStep a = *plan.step();  // a copy that no store to w, m or v can change
  const AdamWBlock* const blocks = plan.blocks() + some.first;
  const float scale = adamw_gradient_scale(*norm, a.clip);
#pragma omp parallel for firstprivate(a)
  for (size_t b = 0; b < some.count; b++) {
    const AdamWBlock block = blocks[b];
    const float weight_decay = block.decays ? a.weight_decay : 0.0f;
    float *wb = w + block.begin, *mb = m + block.begin, *vb = v + block.begin;
    const float* gb = g + block.begin;
#pragma omp simd
    for (size_t i = 0; i < block.count; i++) adamw_element(wb[i], mb[i], vb[i], scale * gb[i], a, weight_decay);
    for (size_t i = 0; copy && i < block.count; i++) copy[block.begin + i] = bf16(wb[i]);
  }
}

// ---- launcher: what changes from step to step comes from device memory, so a CUDA graph may hold this launch

void adamw_update(float* w, float* m, float* v, bf16* copy, const float* g, const float* norm, const AdamWPlan& plan,
                  AdamWBlocks some, Context& ctx) {
  if (ctx.device == Device::cpu) return adamw_update_cpu(w, m, v, copy, g, norm, plan, some);
  launch(adamw_update_kernel, grid_of(some.count), elementwise_block, 0, ctx, w, m, v, copy, g, norm,
         plan.blocks() + some.first, plan.step(), plan.stopped());
}

}  // namespace gated
