// activation: y = act(x), element by element
//   Between the two matrix products of a feed-forward layer. Without it both would be one matrix product.
// backward: x_i reaches the loss L through y_i alone, so the chain rule has one term:
//     dx_i = ∂L/∂x_i = ∂L/∂y_i * ∂y_i/∂x_i = dy_i * act'(x_i)
//   A gradient of the loss is named d + what it is the gradient of: dx stands for ∂L/∂x. Every other derivative is
//   written with ∂, or with a stroke where it is of a function of one argument: act'(x). The backward takes x and
//   recomputes what it needs of the forward, because arithmetic is cheaper than a load.
// act and act': core/nonlinear.cuh, which derives them one by one; HD marks a function for host and device. One of
//   them, with s = 1/(1 + e^-x):
//     silu(x) = x*s        silu'(x) = s * (1 + x*(1-s))
// in bf16: everything is computed in float, and each number is rounded once, as it is stored
// shapes: every array (n) f32 or bf16, written; y may be x, dx may be dy or x
// twins: kernels/cpu/activation_cpu.cpp
// --ffn=gelu|relu2, --gelu, --sdpa-out=silu | tests/test_activation.cpp
//
// This is the smallest operation of the project, and every other is laid out like it: the maths, a reference, the
// kernels, the launchers. It is the one to read first. Twins are the same operation in other loops: those of the CPU
// (kernels/cpu/), on tensor cores (kernels/bf16/), or one token after those of a cache (kernels/decode/).
#include "kernels/activation.h"

#include "core/launch_shape.cuh"
#include "core/quad.cuh"

namespace gated {

// ---- reference
//
// The reference says what is computed, in loops as plain as possible. It is the oracle: what the CPU and the GPU train
// with must give the bits of the reference in float. In double it is held to finite differences, which proves the
// backward. Activations may also be stored as bf16, floats of two bytes (core/bf16.cuh). Then the program widens what
// it reads to float, computes as the reference does in float, and rounds what it writes to bf16, once.

template <class T>
void activation_forward_ref(T* y, const T* x, size_t n, Activation act) {
  for (size_t i = 0; i < n; i++) y[i] = activation_value(act, x[i]);
}

template <class T>
void activation_backward_ref(T* dx, const T* dy, const T* x, size_t n, Activation act) {
  for (size_t i = 0; i < n; i++) dx[i] = dy[i] * activation_slope(act, x[i]);
}

// The header only declares these templates. The two lines compile them here, for float and double.
IN_FLOAT_AND_DOUBLE(activation_forward_ref);
IN_FLOAT_AND_DOUBLE(activation_backward_ref);

// ---- kernels
//
// S is what a number is stored as: float or bf16.
//
// Elements do not meet, so a thread takes a few of its own and asks nobody. It takes four neighbours, a Quad: of floats
// one load instruction moves 16 bytes, the most that one moves on GPUs up to Hopper, and the 32 threads of a warp
// together move 512 bytes that lie side by side:
//
//   thread    0           1           2                 31
//   element   0 1 2 3     4 5 6 7     8 9 10 11   ...   124 125 126 127
//
// The time of such a kernel is that of its memory: the forward moves 8 bytes an element, the backward 12, and in bf16
// half of these. While some warps wait for their loads, others do their arithmetic.
//
// A block is elementwise_block = 256 threads. elementwise_index() is the first element of this thread. Threads past the
// end do nothing. load_quad() takes the four at once if n is a multiple of 4; otherwise it takes them one by one, with
// 0 for those past the end, which store_quad() does not write. A Quad holds floats: load_quad() widens bf16,
// store_quad() rounds.

// `act` is a constant of the kernel: the launcher chooses among kernels, and none asks at each element which it is.

template <class S, Activation act>
__global__ void __launch_bounds__(elementwise_block) activation_forward_kernel(S* y, const S* x, size_t n) {
  const size_t i = elementwise_index();
  if (i >= n) return;
  Quad q = load_quad(x, i, n);
  for (int k = 0; k < 4; k++) q.v[k] = activation_value(act, q.v[k]);
  store_quad(y, i, n, q);
}

// Both loads come before the store, so dx may be dy or x.
template <class S, Activation act>
__global__ void __launch_bounds__(elementwise_block)
    activation_backward_kernel(S* dx, const S* dy, const S* x, size_t n) {
  const size_t i = elementwise_index();
  if (i >= n) return;
  Quad q = load_quad(dy, i, n);
  const Quad xq = load_quad(x, i, n);
  for (int k = 0; k < 4; k++) q.v[k] = q.v[k] * activation_slope(act, xq.v[k]);
  store_quad(dx, i, n, q);
}

// ---- launchers
//
// What layers call. A Context carries what a launch needs: the device to run on, the CUDA stream, scratch memory. On
// the CPU, loops with OpenMP run instead (kernels/cpu/activation_cpu.cpp). With --device=emulated, launch() runs the
// kernels above on the CPU, thread by thread. Reals is a pointer that knows whether it points to floats or bf16
// (core/storage.h): with_storage() calls the function that follows with a value of that type, for which S then stands.

void activation_forward(Reals y, ConstReals x, size_t n, Activation act, Context& ctx) {
  require_activation("activation_forward", act, of_plain);
  with_storage(y, [&](auto stored) {
    using S = decltype(stored);
    if (ctx.device == Device::cpu) return activation_forward_cpu(y.as<S>(), x.as<S>(), n, act);
    with_known_activation<of_plain>(act, [&](auto known) {
      launch(activation_forward_kernel<S, known>, elementwise_grid(n), elementwise_block, 0, ctx, y.as<S>(), x.as<S>(),
             n);
    });
  });
}

void activation_backward(Reals dx, ConstReals dy, ConstReals x, size_t n, Activation act, Context& ctx) {
  require_activation("activation_backward", act, of_plain);
  with_storage(dx, [&](auto stored) {
    using S = decltype(stored);
    if (ctx.device == Device::cpu) return activation_backward_cpu(dx.as<S>(), dy.as<S>(), x.as<S>(), n, act);
    with_known_activation<of_plain>(act, [&](auto known) {
      launch(activation_backward_kernel<S, known>, elementwise_grid(n), elementwise_block, 0, ctx, dx.as<S>(),
             dy.as<S>(), x.as<S>(), n);
    });
  });
}

}  // namespace gated
