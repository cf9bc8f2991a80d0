// One operation alone: RMSNorm's forward and backward on one's own buffers, its gradients held to finite differences.
//   make build/release/check_a_kernel && build/release/check_a_kernel
// For another operation change the two calls; its header says what is written and what is accumulated.
#include <cmath>
#include <cstdio>

#include "kernels/rmsnorm.h"

int main() {
  using namespace gated;
  const size_t N = 3, C = 70;
  Context ctx(kernel_device);  // compiled by nvcc a GPU, else the same kernels emulated. Device::cpu: the CPU's loops
  std::vector<float> x(N * C), w(C), dy(N * C);
  for (size_t i = 0; i < N * C; i++) x[i] = std::sin(3.7f * float(i)), dy[i] = std::cos(1.3f * float(i));
  for (size_t c = 0; c < C; c++) w[c] = 1 + 0.5f * std::sin(float(c));

  Buffer<float> on_x(ctx.device, x), on_w(ctx.device, w), on_dy(ctx.device, dy), y(ctx.device, N * C), r(ctx.device, N);
  Buffer<float> dx(ctx.device, N * C), dw(ctx.device, std::vector<float>(C, 0.0f));  // dw is accumulated
  const auto loss = [&] {  // L = sum of y*dy, whose gradient by y is dy
    on_x.upload(x), on_w.upload(w);
    rmsnorm_forward(y.data(), r.data(), on_x.data(), on_w.data(), N, C, 1e-6f, ctx);
    ctx.synchronize();
    double sum = 0;
    const std::vector<float> outputs = y.download();
    for (size_t i = 0; i < N * C; i++) sum += double(outputs[i]) * double(dy[i]);
    return sum;
  };
  loss();
  rmsnorm_backward(dx.data(), dw.data(), on_dy.data(), on_x.data(), on_w.data(), r.data(), N, C, ctx);
  ctx.synchronize();

  // Every number moved a little up and a little down. In float that gives three digits; the tests do it in double.
  const auto differs = [&](const char* name, std::vector<float>& input, const std::vector<float>& gradient) {
    double off = 0, largest = 0;
    for (size_t i = 0; i < input.size(); i++) {
      const float before = input[i], h = 0x1p-7f;
      input[i] = before + h;
      const double up = loss();
      input[i] = before - h;
      const double slope = (up - loss()) / (2 * double(h));
      input[i] = before;
      off = std::fmax(off, std::fabs(slope - double(gradient[i])));
      largest = std::fmax(largest, std::fabs(slope));
    }
    printf("rmsnorm on %s: %zu numbers of %s, the largest %.1e, off by %.1e\n", name_of(ctx.device), input.size(), name,
           largest, off);
    return !(off < 1e-3 * largest);
  };
  const bool of_x = differs("dx", x, dx.download()), of_w = differs("dw", w, dw.download());
  return of_x || of_w;
}
