// decay: g = -exp(A_log) * softplus(a + dt_bias), beta = sigmoid(b)
//   The two numbers that a token gives the gated delta rule (kernels/gated_delta.cu) for each head: e^g, between 0 and
//   1, is what the state keeps of itself, and beta, between 0 and 1, how much of the token's value it takes in. Both
//   are made from a logit of the token, a or b. exp(A_log) > 0 is the rate of a head, and softplus(a + dt_bias) > 0 how
//   long the token lasts for it: e^g = e^(-rate * time).                   (Gu & Dao 2023, arXiv 2312.00752)
// backward, of one number. softplus' = sigmoid, and A_log is in g as a factor e^A_log, whose derivative is itself:
//     da = dg * -exp(A_log) * sigmoid(a + dt_bias)      ddt_bias += sum over tokens of da
//     db = dbeta * sigmoid'(b)                          dA_log   += sum over tokens of dg * g
// exactly: g = -(exp(A_log) * softplus), da = dg * -(exp(A_log) * sigmoid); dA_log has the links fma(dg, g, chain),
//   ddt_bias da + chain, both in the order of a column sum (core/reduce.cuh)
// in bf16: everything is computed in float, and each number is rounded once, as it is stored
// shapes: a, b, da, db (N,H) f32 or bf16, g, beta (N,H), A_log, dt_bias (H) f32
//         g, beta, da, db are written; dA_log, ddt_bias accumulated
// exp, softplus and sigmoid: core/math.cuh
// twins: none; the CPU's loops stand in this file
// tests/test_decay.cpp
#include "kernels/decay.h"

#include "core/launch_shape.cuh"
#include "core/nonlinear.cuh"
#include "core/reduce.cuh"

namespace gated {

namespace decay {

template <class T>
HD T g_of(T a, T A_log, T dt_bias) {
  return -(exact_exp(A_log) * exact_softplus(a + dt_bias));
}
template <class T>
HD T da_of(T dg, T a, T A_log, T dt_bias) {
  return dg * -(exact_exp(A_log) * exact_sigmoid(a + dt_bias));
}

}  // namespace decay

// ---- reference

template <class T>
void decay_forward_ref(T* g, T* beta, const T* a, const T* b, const T* A_log, const T* dt_bias, const DecayShape& s) {
  for (size_t n = 0; n < s.N; n++)
    for (size_t h = 0; h < s.H; h++) {
      g[n * s.H + h] = decay::g_of(a[s.at(n, h)], A_log[h], dt_bias[h]);
      beta[n * s.H + h] = exact_sigmoid(b[s.at(n, h)]);
    }
}
IN_FLOAT_AND_DOUBLE(decay_forward_ref);

template <class T>
void decay_backward_ref(T* da, T* db, T* dA_log, T* ddt_bias, const T* dg, const T* dbeta, const T* a, const T* b,
                        const T* A_log, const T* dt_bias, const DecayShape& s) {
  for (size_t h = 0; h < s.H; h++) {
    ColumnSum<T> to_A_log, to_dt_bias;
    for (size_t n = 0; n < s.N; n++) {
      const size_t i = n * s.H + h, at = s.at(n, h);
      const T x = a[at], d = decay::da_of(dg[i], x, A_log[h], dt_bias[h]);
      to_A_log.fma(dg[i], decay::g_of(x, A_log[h], dt_bias[h]));
      to_dt_bias.add(d);
      da[at] = d;
      db[at] = dbeta[i] * sigmoid_slope(b[at]);
    }
    dA_log[h] = dA_log[h] + to_A_log.total();
    ddt_bias[h] = ddt_bias[h] + to_dt_bias.total();
  }
}
IN_FLOAT_AND_DOUBLE(decay_backward_ref);

// ---- kernels
//
// There is one number for a head of a token, some hundredth of what the rest of the layer moves: a thread takes one,
// and neighbouring threads neighbouring heads. The sums are made before da is written, which may stand in the place of
// a.

template <class S>
__global__ void __launch_bounds__(elementwise_block)
    decay_forward_kernel(float* g, float* beta, const S* a, const S* b, const float* A_log, const float* dt_bias,
                         DecayShape s) {
  const size_t i = threadIdx.x + size_t(blockDim.x) * blockIdx.x, n = i / s.H, h = i % s.H;
  if (n >= s.N) return;
  g[i] = decay::g_of(float(a[s.at(n, h)]), A_log[h], dt_bias[h]);
  beta[i] = exact_sigmoid(float(b[s.at(n, h)]));
}

template <class S>
__global__ void __launch_bounds__(elementwise_block)
    decay_backward_kernel(S* da, S* db, const float* dg, const float* dbeta, const S* a, const S* b, const float* A_log,
                          const float* dt_bias, DecayShape s) {
  const size_t i = threadIdx.x + size_t(blockDim.x) * blockIdx.x, n = i / s.H, h = i % s.H, at = s.at(n, h);
  if (n >= s.N) return;
  da[at] = S(decay::da_of(dg[i], float(a[at]), A_log[h], dt_bias[h]));
  db[at] = S(dbeta[i] * sigmoid_slope(float(b[at])));
}

template <class S>
struct DecayFold {
  const float* dg;
  const S* a;
  const float *A_log, *dt_bias;
  DecayShape s;
  HD void operator()(float (&acc)[2], size_t n, size_t h) const {
    const float d = dg[n * s.H + h], x = float(a[s.at(n, h)]);
    acc[0] = fused(d, decay::g_of(x, A_log[h], dt_bias[h]), acc[0]);
    acc[1] = acc[1] + decay::da_of(d, x, A_log[h], dt_bias[h]);
  }
};

// ---- on CPU cores: rows are shared out, and the heads of a row lie in vectors

template <class S>
static void decay_forward_cpu(float* g, float* beta, const S* a, const S* b, const float* A_log, const float* dt_bias,
                              const DecayShape& s) {
#pragma omp parallel for if (worth_waking(s.N * s.H))
  for (size_t n = 0; n < s.N; n++) {
#pragma omp simd
    for (size_t h = 0; h < s.H; h++) {
      g[n * s.H + h] = decay::g_of(float(a[s.at(n, h)]), A_log[h], dt_bias[h]);
      beta[n * s.H + h] = exact_sigmoid(float(b[s.at(n, h)]));
    }
  }
}

template <class S>
static void decay_backward_cpu(S* da, S* db, const float* dg, const float* dbeta, const S* a, const S* b,
                               const float* A_log, const float* dt_bias, const DecayShape& s) {
#pragma omp parallel for
  for (size_t n = 0; n < s.N; n++) {
#pragma omp simd
    for (size_t h = 0; h < s.H; h++) {
      const size_t at = s.at(n, h);
      store(da[at], decay::da_of(dg[n * s.H + h], float(a[at]), A_log[h], dt_bias[h]));
      store(db[at], dbeta[n * s.H + h] * sigmoid_slope(float(b[at])));
    }
  }
}

// ---- launchers

static void require_decay(const char* name, const DecayShape& s) {
  require(!s.stride || s.stride >= s.H, "%s: the stride is %zu, expected 0 or at least the %zu heads", name, s.stride,
          s.H);
}

void decay_forward(float* g, float* beta, ConstReals a, ConstReals b, const float* A_log, const float* dt_bias,
                   const DecayShape& s, Context& ctx) {
  require_decay("decay_forward", s);
  with_storage(a, [&](auto stored) {
    using S = decltype(stored);
    if (ctx.device == Device::cpu) return decay_forward_cpu(g, beta, a.as<S>(), b.as<S>(), A_log, dt_bias, s);
    launch(decay_forward_kernel<S>, grid_of(ceil_div(s.N * s.H, elementwise_block)), elementwise_block, 0, ctx, g, beta,
           a.as<S>(), b.as<S>(), A_log, dt_bias, s);
  });
}

size_t decay_backward_scratch(const DecayShape& s) {
  return column_reduce_scratch(s.N, s.H, 2);
}

void decay_backward(const DecayGradients& out, const float* dg, const float* dbeta, ConstReals a, ConstReals b,
                    const float* A_log, const float* dt_bias, const DecayShape& s, Context& ctx) {
  require_decay("decay_backward", s);
  with_storage(a, [&](auto stored) {
    using S = decltype(stored);
    column_reduce_add(std::array{out.dA_log, out.ddt_bias}, s.N, s.H, DecayFold<S>{dg, a.as<S>(), A_log, dt_bias, s},
                      ctx);
    if (ctx.device == Device::cpu)
      return decay_backward_cpu(out.da.as<S>(), out.db.as<S>(), dg, dbeta, a.as<S>(), b.as<S>(), A_log, dt_bias, s);
    launch(decay_backward_kernel<S>, grid_of(ceil_div(s.N * s.H, elementwise_block)), elementwise_block, 0, ctx,
           out.da.as<S>(), out.db.as<S>(), dg, dbeta, a.as<S>(), b.as<S>(), A_log, dt_bias, s);
  });
}

}  // namespace gated
