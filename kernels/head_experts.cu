// head_experts: y = sum over the chosen experts e of s_e*x_e, for every head of every token
//   s_e = sigmoid(z_e); chosen are the k experts of the largest score, and of two equal scores the lower expert comes
//   first. The weights are the scores as they are: they do not add up to 1, and a token may turn all its experts down.
//   With one expert this is a gate with one score a head (kernels/gate.cu, group D), and has its bits.
//   (SwitchHead: Csordas et al. 2023, arXiv 2312.07987)
// backward: which experts are chosen jumps between tokens and has no slope. Of a chosen expert x_e and z_e reach the
//   loss through y, and what was not chosen reaches it not at all:
//     dx_e,d = dy_d * s_e
//     ds_e   = sum over d of dy_d * x_e,d
//     dz_e   = ds_e * ∂s_e/∂z_e = ds_e * (s_e * (1 - s_e))
//   The score alone is needed, not the logit: the forward saves it, with -1, which is no score, where it did not
//   choose.
// order: y is one chain in ascending e, the first product rounded alone and fmaf from there; ds is the sum of a row of
//   D elements (core/reduce.cuh)
// A NaN among the logits has no place in an order: it counts as chosen, and y shows it.
// shapes: x, dx (N,H,E,D) f32 or bf16; z, s (N,H,E) f32; dz (N,H,E); y, dy (N,H,D); all written; s may be z, dz may be
//   s
// twins: kernels/cpu/head_experts_cpu.cpp
// --head-experts | tests/test_head_experts.cpp
#include "kernels/head_experts.h"

#include "core/launch_shape.cuh"
#include "core/math.cuh"
#include "core/reduce.cuh"

namespace gated {

// ---- reference

template <class T>
void head_experts_forward_ref(T* y, T* s, const T* x, const T* z, const HeadExpertsShape& shape) {
  const size_t D = shape.D, E = shape.E;
  for (size_t head = 0; head < shape.N * shape.H; head++) {
    T* scores = s + head * E;
    for (size_t e = 0; e < E; e++) scores[e] = exact_sigmoid(z[head * E + e]);
    head_experts_choose(scores, E, shape.k);
    for (size_t d = 0; d < D; d++) {
      bool first = true;
      for (size_t e = 0; e < E; e++) {
        if (scores[e] < T(0)) continue;
        const T xe = x[(head * E + e) * D + d];
        y[head * D + d] = first ? xe * scores[e] : fused(xe, scores[e], y[head * D + d]);
        first = false;
      }
    }
  }
}

template <class T>
void head_experts_backward_ref(T* dx, T* dz, const T* dy, const T* x, const T* s, const HeadExpertsShape& shape) {
  const size_t D = shape.D, E = shape.E;
  for (size_t expert = 0; expert < shape.N * shape.H * E; expert++) {
    const T score = s[expert], *dyh = dy + expert / E * D;
    if (score < T(0)) {
      for (size_t d = 0; d < D; d++) dx[expert * D + d] = T(0);
      dz[expert] = T(0);
      continue;
    }
    RowSum<T> ds;
    for (size_t d = 0; d < D; d++) {
      ds.fma(dyh[d], x[expert * D + d]);
      dx[expert * D + d] = dyh[d] * score;
    }
    dz[expert] = ds.total() * (score * (T(1) - score));
  }
}

IN_FLOAT_AND_DOUBLE(head_experts_forward_ref);
IN_FLOAT_AND_DOUBLE(head_experts_backward_ref);

// ---- kernels
//
// Forward: a warp owns a head of a token. First a lane is an expert: it makes the score of expert `lane` and counts how
// many experts come before it, by a shuffle from each; the bits of `chosen` are the experts that a token takes. Then a
// lane is four neighbouring d (a Quad) of every 128, and goes through the chosen experts from the lowest bit up; their
// scores come by shuffles. All lanes take part in these, those too whose Quad lies past the head. With D = 128 a warp
// reads 128 neighbouring elements of an expert; of x it reads no expert that was not chosen.

template <class S>
__global__ void __launch_bounds__(rows_block)
    head_experts_forward_kernel(S* y, float* s, const S* x, const float* z, HeadExpertsShape shape) {
  const size_t D = shape.D, E = shape.E, head = warp_row();
  if (head >= shape.N * shape.H) return;
  constexpr unsigned all = 0xffffffffu;
  const unsigned lane = threadIdx.x % 32;

  const float score = lane < E ? exact_sigmoid(z[head * E + lane]) : 0.0f;
  size_t before = 0;
  for (unsigned f = 0; f < E; f++) {
    const float other = __shfl_sync(all, score, int(f));
    before += f < lane ? other >= score : other > score;
  }
  const unsigned chosen = __ballot_sync(all, lane < E && before < shape.k);
  if (lane < E) s[head * E + lane] = before < shape.k ? score : -1.0f;

  for (size_t first = 0; first < D; first += row_chains) {
    const size_t i = first + 4 * lane;
    Quad sum = {};
    for (unsigned left = chosen; left != 0; left &= left - 1) {
      const int e = __ffs(int(left)) - 1;
      const float weight = __shfl_sync(all, score, e);
      if (i >= D) continue;
      const Quad q = load_quad(x + (head * E + size_t(e)) * D, i, D);
      for (int j = 0; j < 4; j++) sum.v[j] = left == chosen ? q.v[j] * weight : fused(q.v[j], weight, sum.v[j]);
    }
    if (i < D) store_quad(y + head * D, i, D, sum);
  }
}

// A warp owns an expert of a head, as in the backward of a gate with one score a head: dx leaves in the pass that adds
// up ds. dy of a head is read by all its experts, once from memory and from then on from a cache.
template <class S>
__global__ void __launch_bounds__(rows_block)
    head_experts_backward_kernel(S* dx, S* dz, const S* dy, const S* x, const float* s, HeadExpertsShape shape) {
  const size_t D = shape.D, E = shape.E, expert = warp_row();
  if (expert >= shape.N * shape.H * E) return;
  const float score = s[expert];
  __syncwarp();  // dz may be s: all lanes have read the score before one writes over it
  S* dxe = dx + expert * D;
  if (score < 0.0f) {
    for (size_t i = 4 * (threadIdx.x % 32); i < D; i += row_chains) store_quad(dxe, i, D, Quad{});
    if (threadIdx.x % 32 == 0) dz[expert] = S(0.0f);
    return;
  }
  const S *dyh = dy + expert / E * D, *xe = x + expert * D;
  float chain[4] = {};
  for (size_t i = 4 * (threadIdx.x % 32); i < D; i += row_chains) {
    Quad q = load_quad(dyh, i, D);
    const Quad xq = load_quad(xe, i, D);
    for (int j = 0; j < 4; j++)
      if (i + j < D) chain[j] = fused(q.v[j], xq.v[j], chain[j]);
    for (int j = 0; j < 4; j++) q.v[j] = q.v[j] * score;
    store_quad(dxe, i, D, q);
  }
  const float ds = warp_chains_sum(chain);
  if (threadIdx.x % 32 == 0) dz[expert] = S(ds * (score * (1.0f - score)));
}

// ---- launchers

static void require_head_experts(const char* operation, const HeadExpertsShape& s) {
  require(s.E >= 1 && s.E <= 32, "%s: %zu experts of a head, expected 1 to 32", operation, s.E);
  require(s.k >= 1 && s.k <= s.E, "%s: a token takes %zu experts, expected 1 to the %zu of a head", operation, s.k,
          s.E);
}

void head_experts_forward(Reals y, float* s, ConstReals x, const float* z, const HeadExpertsShape& shape,
                          Context& ctx) {
  require_head_experts("head_experts_forward", shape);
  with_storage(y, [&](auto stored) {
    using S = decltype(stored);
    if (ctx.device == Device::cpu) return head_experts_forward_cpu(y.as<S>(), s, x.as<S>(), z, shape);
    launch(head_experts_forward_kernel<S>, rows_grid(shape.N * shape.H), rows_block, 0, ctx, y.as<S>(), s, x.as<S>(), z,
           shape);
  });
}

void head_experts_backward(Reals dx, Reals dz, ConstReals dy, ConstReals x, const float* s,
                           const HeadExpertsShape& shape, Context& ctx) {
  require_head_experts("head_experts_backward", shape);
  with_storage(dx, [&](auto stored) {
    using S = decltype(stored);
    if (ctx.device == Device::cpu)
      return head_experts_backward_cpu(dx.as<S>(), dz.as<S>(), dy.as<S>(), x.as<S>(), s, shape);
    launch(head_experts_backward_kernel<S>, rows_grid(shape.N * shape.H * shape.E), rows_block, 0, ctx, dx.as<S>(),
           dz.as<S>(), dy.as<S>(), x.as<S>(), s, shape);
  });
}

}  // namespace gated
