// bench: how fast each operation is, beside a peer or a ceiling measured in the same run.
//   matmul        GFLOP/s beside OpenBLAS (CPU) or cuBLAS (GPU, fp32, no TF32), and as a share of the measured FMA peak
//   bf16          GFLOP/s of products of bf16 matrices beside cuBLASLt (GPU), and as a share of the faster one's best;
//                 on the CPU by the arithmetic of tensor cores, beside our own products of floats
//   grouped       GFLOP/s of products with a matrix per expert beside one product of as many rows with one matrix;
//                 grouped-bf16 of bf16
//   attention     GFLOP/s, and as a share of the measured FMA peak (CPU); attention-bf16 of bf16, on a GPU as a share
//                 of the best product of bf16 matrices
//   operations    the others, over floats: GB/s of the bytes that one must move, as a share of the measured copy
//                 bandwidth; operations-bf16 over bf16
//   training      tokens/s of whole steps: the default model, and one of GPT-2 124M's size at B 4, T 64
//   gpt2-124m     on a GPU: the same of GPT-2 124M at B 32, T 1024 in bf16, with our products, with cuBLASLt's, and
//                 with its launches as CUDA graphs
//   generation    tokens/s of sequences that grow, and the bytes of weights that a token needs as a share of the copy
//                 bandwidth
// Times on a shared machine wander: every pair is measured in turns and each side keeps its best, so that the ratios
// stand where the times do not.
// make bench | build/release/bench [FILE.json] [PART]: writes the rows to the file; only the part that is named, or all
// build/release/bench --parts: names them
#include <omp.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "core/clock.h"
#include "core/simd.h"
#include "kernels/activation.h"
#include "kernels/adamw.h"
#include "kernels/attention.h"
#include "kernels/bf16/attention_bf16.h"
#include "kernels/bias.h"
#include "kernels/combine.h"
#include "kernels/decay.h"
#include "kernels/dispatch.h"
#include "kernels/dyt.h"
#include "kernels/embedding.h"
#include "kernels/bf16/gated_delta_bf16.h"
#include "kernels/gated_delta_chunk.h"
#include "kernels/gated_norm.h"
#include "kernels/glu.h"
#include "kernels/head_experts.h"
#include "kernels/gradient.h"
#include "kernels/grouped_matmul.h"
#include "kernels/bf16/grouped_matmul_bf16.h"
#include "kernels/bf16/matmul_bf16.h"
#include "kernels/mean.h"
#include "kernels/l2norm.h"
#include "kernels/layernorm.h"
#include "kernels/linear_cross_entropy.h"
#include "kernels/polynorm.h"
#include "kernels/rmsnorm.h"
#include "kernels/rope.h"
#include "kernels/bf16/round.h"
#include "kernels/router.h"
#include "kernels/shared_gate.h"
#include "kernels/short_conv.h"
#include "kernels/sinks.h"
#include "kernels/static_gate.h"
#include "tests/small_runs.h"
#include "training/matmul_peak.h"
#include "training/process/threads.h"
#include "training/process/version.h"
#ifdef __CUDACC__
#include <cublas_v2.h>
#else
#include <cblas.h>
extern "C" void openblas_set_num_threads(int);
#endif

using namespace gated;

namespace {

constexpr Device device = kernel_device == Device::cuda ? Device::cuda : Device::cpu;

// Until everything is done that any stream was given.
void wait_for_device() {
#ifdef __CUDACC__
  CUDA_CHECK(cudaDeviceSynchronize());
#endif
}

// Best seconds of each function, measured in turns for about `budget` seconds. On a GPU a turn has as many calls as
// take a millisecond: what is measured of a short one is its work, not how long a launch takes to arrive.
std::vector<double> best_seconds(std::vector<std::function<void()>> functions, double budget = 0.5) {
  constexpr bool gpu = device == Device::cuda;
  constexpr int before = gpu ? 2 : 1;  // turns that do not count: a warm-up, and on a GPU one that counts the calls
  std::vector<double> best(functions.size(), INFINITY);
  std::vector<size_t> calls(functions.size(), 1);
  const double begin = seconds_now();
  for (int round = 0; round < before + 2 || (round < 200 && seconds_now() - begin < budget); round++)
    for (size_t i = 0; i < functions.size(); i++) {
      wait_for_device();
      const double start = seconds_now();
      for (size_t call = 0; call < calls[i]; call++) functions[i]();
      wait_for_device();
      const double seconds = (seconds_now() - start) / double(calls[i]);
      if (round >= before)
        best[i] = std::min(best[i], seconds);
      else if (round > 0)
        calls[i] = size_t(std::clamp(1e-3 / seconds, 1.0, 1000.0));
    }
  return best;
}

// What goes to the file: the ceilings, and "rows".
nlohmann::ordered_json results;
std::string file_name;

// What is measured: a line for the reader, and its numbers for the file, which is written after every row: a bench that
// is stopped leaves what it has measured.
void tell(const std::string& line, nlohmann::ordered_json row) {
  printf("%s\n", line.c_str());
  fflush(stdout);
  results["rows"].push_back(std::move(row));
  if (file_name.empty()) return;
  const std::string fresh = file_name + ".new";
  std::ofstream file(fresh);
  file << results.dump(1) << "\n";
  file.close();
  require(file.good() && rename(fresh.c_str(), file_name.c_str()) == 0, "bench: cannot write %s", file_name.c_str());
}

// "   12 %", of a ceiling that is known.
std::string percent(double share, double ceiling) {
  return ceiling > 0 ? format(" %8.0f %%", 100 * share / ceiling) : "";
}

// The FLOP/s of ours and of a peer in these seconds, ours as a share of a ceiling that is known.
void tell_beside(const std::string& op, const std::string& shown, double flops, const std::vector<double>& seconds,
                 const char* peer, double peak = 0) {
  const double ours = flops / seconds[0], theirs = flops / seconds[1];
  tell(format("%-36s %10.1f %10.1f %7.2fx", shown.c_str(), ours * 1e-9, theirs * 1e-9, ours / theirs) +
           percent(ours, peak),
       {{"op", op},
        {"gflops", ours * 1e-9},
        {"peer", peer},
        {"ratio_to_peer", ours / theirs},
        {"share_of_peak", peak > 0 ? ours / peak : 0}});
}

// The FLOP/s of an operation forward and backward.
void tell_both_ways(const std::string& op, const std::string& name, double forward, double backward, double peak,
                    const std::string& more = "") {
  const double share = peak > 0 ? 1 / peak : 0;
  tell(format("%-42s %10.1f %10.1f", name.c_str(), forward * 1e-9, backward * 1e-9) +
           (peak > 0 ? format(" %5.0f/%.0f %%", 100 * forward / peak, 100 * backward / peak) : "") + more,
       {{"op", op + name},
        {"forward_gflops", forward * 1e-9},
        {"backward_gflops", backward * 1e-9},
        {"forward_share_of_peak", forward * share},
        {"backward_share_of_peak", backward * share}});
}

// Device memory that stands where a pointer is expected.
template <class S>
struct Numbers : Buffer<S> {
  using Buffer<S>::Buffer;
  operator S*() const { return this->data(); }
  operator Reals() const requires(!std::is_integral_v<S>) { return this->data(); }
  operator ConstReals() const requires(!std::is_integral_v<S>) { return this->data(); }
};

// A vector on the device, filled with small values: denormals and NaN would not be what training sees.
template <class T = float>
Numbers<T> filled(size_t n, uint64_t seed = 1, float low = -1, float high = 1) {
  std::vector<T> host(n);
#pragma omp parallel for
  for (size_t i = 0; i < n; i++)
    host[i] = T(low + (high - low) * float((i * 2654435761u + seed * 40503u) % 2000) / 2000);
  return Numbers<T>(device, host);
}

// ---- ceilings

struct Ceilings {
  double fma, copy;  // FLOP/s of multiply-adds, on a GPU not measured, and bytes/s
};

// Independent chains of vector fmas on every core: what the arithmetic units can do. 0 on a GPU.
double fma_peak() {
  double best = 0;
#ifndef __CUDACC__
  const size_t rounds = 2000000, chains = 12;
  for (int attempt = 0; attempt < 5; attempt++) {
    const double start = seconds_now();
    float total = 0;
#pragma omp parallel reduction(+ : total)
    {
      vec acc[chains];
      for (size_t c = 0; c < chains; c++) acc[c] = broadcast(float(c));
      const vec a = broadcast(0.999f), b = broadcast(1e-3f);
      for (size_t i = 0; i < rounds; i++)
#pragma GCC unroll 12
        for (size_t c = 0; c < chains; c++) acc[c] = fma(acc[c], a, b);
      for (size_t c = 0; c < chains; c++) total += acc[c][0];
    }
    const double flops = 2.0 * double(rounds * chains * lanes) * omp_get_max_threads();
    if (total != 0) best = std::max(best, flops / (seconds_now() - start));
  }
#endif
  return best;
}

double copy_bandwidth([[maybe_unused]] Context& ctx) {
  const size_t n = size_t{1} << 26;  // 256 MiB: far more than the caches of a core
  Buffer<float> from = filled(n), to(device, n);
  const double seconds = best_seconds({[&] {
#ifdef __CUDACC__
    CUDA_CHECK(cudaMemcpyAsync(to.data(), from.data(), n * 4, cudaMemcpyDeviceToDevice, ctx.stream));
#else
#pragma omp parallel
    {
      const size_t share = n / size_t(omp_get_num_threads()), first = share * size_t(omp_get_thread_num());
      memcpy(to.data() + first, from.data() + first, share * 4);
    }
#endif
  }})[0];
  return 8.0 * double(n) / seconds;
}

// ---- matmul

struct Peer {
  explicit Peer(Context& ctx) {
#ifdef __CUDACC__
    check(cublasCreate(&handle));
    check(cublasSetStream(handle, ctx.stream));
    check(cublasSetMathMode(handle, CUBLAS_DEFAULT_MATH));  // floats; TF32 would have to be asked for
#else
    (void)ctx;
    openblas_set_num_threads(omp_get_max_threads());
#endif
  }
  // C (M,N) = op(A) op(B) + accumulate*C, row-major
  void matmul(float* C, const float* A, const float* B, size_t M, size_t N, size_t K, Layout layout, Accumulate acc) {
    const int m = int(M), n = int(N), k = int(K);
    const int lda = layout == Layout::tn ? m : k, ldb = layout == Layout::nt ? k : n;
    const float one = 1, beta = acc == Accumulate::yes ? 1 : 0;
#ifdef __CUDACC__
    // column-major C^T = op(B)^T op(A)^T
    check(cublasSgemm(handle, layout == Layout::nt ? CUBLAS_OP_T : CUBLAS_OP_N,
                      layout == Layout::tn ? CUBLAS_OP_T : CUBLAS_OP_N, n, m, k, &one, B, ldb, A, lda, &beta, C, n));
#else
    cblas_sgemm(CblasRowMajor, layout == Layout::tn ? CblasTrans : CblasNoTrans,
                layout == Layout::nt ? CblasTrans : CblasNoTrans, m, n, k, one, A, lda, B, ldb, beta, C, n);
#endif
  }
#ifdef __CUDACC__
  cublasHandle_t handle;
  static void check(cublasStatus_t answer) {
    require(answer == CUBLAS_STATUS_SUCCESS, "bench: cuBLAS: %s", cublasGetStatusString(answer));
  }
#endif
};

void bench_matmul(Context& ctx, const Ceilings& ceilings) {
  const char* const peer_name = device == Device::cuda ? "cuBLAS" : "OpenBLAS";
  Peer peer(ctx);
  printf("\n%-36s %10s %10s %8s %10s\n", "matmul M x N x K", "GFLOP/s", peer_name, "ratio", "of peak");
  const auto compare = [&](const char* role, Layout layout, size_t M, size_t N, size_t K,
                           Accumulate accumulate = Accumulate::no) {
    const Numbers<float> A = filled(M * K, 1), B = filled(N * K, 2), C = filled(M * N, 3), D = filled(M * N, 3);
    const auto seconds = best_seconds({[&] { matmul(C, A, B, M, N, K, layout, accumulate, ctx); },
                                       [&] { peer.matmul(D, A, B, M, N, K, layout, accumulate); }});
    tell_beside(format("matmul %s %zux%zux%zu", role, M, N, K),
                format("%-7s %5zux%4zux%4zu %s", role, M, N, K, accumulate == Accumulate::yes ? "+=" : "="),
                2.0 * double(M) * double(N) * double(K), seconds, peer_name, ceilings.fma);
  };
  const size_t tokens = 2048;
  for (auto [out, in] : {std::pair<size_t, size_t>{768, 768}, {3072, 768}, {768, 3072}}) {
    compare("forward", Layout::nt, tokens, out, in);
    compare("dx", Layout::nn, tokens, in, out);
    compare("dW", Layout::tn, out, in, tokens, Accumulate::yes);
  }
  for (size_t n : {512, 1024, 4096, 8192})
    if (n <= 1024 || device == Device::cuda) compare("square", Layout::nt, n, n, n);
}

// Beside cuBLASLt on a GPU; on a CPU, which has no tensor cores, beside our products of floats.
void bench_bf16(Context& ctx, const Ceilings&) {
  constexpr bool gpu = device == Device::cuda;
  const char* const peer = gpu ? "cuBLASLt" : "our floats";
  Context other(device);
  if (gpu) other.use_cublas(false);
  // On a GPU: the best so far of both, and the largest matrices come first.
  double peak = gpu ? measured_matmul_peak(Storage::bf16, ctx) : 0;
  printf("\n%-36s %10s %10s %8s %10s\n", "bf16 M x N x K", "GFLOP/s", peer, "ratio", gpu ? "of peak" : "");
  const auto compare = [&](const char* of_layout, Layout layout, size_t M, size_t N, size_t K) {
    const Numbers<bf16> A = filled<bf16>(M * K, 1), B = filled<bf16>(N * K, 2);
    const Numbers<float> C = filled(M * N, 3), D = filled(M * N, 3), wide_a = filled(gpu ? 0 : M * K, 1),
                         wide_b = filled(gpu ? 0 : N * K, 2);
    const auto ours = [&] { matmul_bf16(C, A, B, M, N, K, layout, Accumulate::no, ctx); };
    const auto theirs = [&] {
      if (gpu)
        matmul_bf16(D, A, B, M, N, K, layout, Accumulate::no, other);
      else
        matmul(D, wide_a, wide_b, M, N, K, layout, Accumulate::no, other);
    };
    const auto seconds = best_seconds({ours, theirs});
    const double flops = 2.0 * double(M) * double(N) * double(K);
    const std::string name = format("%s %zux%zux%zu", of_layout, M, N, K);
    if (gpu) peak = std::max(peak, flops / std::min(seconds[0], seconds[1]));
    tell_beside("bf16 " + name, name, flops, seconds, peer, peak);
  };
  if (gpu)
    for (size_t n : {8192, 4096}) compare("nt", Layout::nt, n, n, n);
  for (auto [name, layout] : {std::pair("nt", Layout::nt), {"nn", Layout::nn}, {"tn", Layout::tn}})
    compare(name, layout, 512, 768, 768);
  if (!gpu) return;
  // GPT-2 124M's products over 32 sequences of 1024 tokens, its output matrix among them.
  const size_t tokens = 32 * 1024;
  for (auto [out, in] : {std::pair<size_t, size_t>{768, 768}, {2304, 768}, {3072, 768}, {768, 3072}, {50304, 768}}) {
    compare("nt", Layout::nt, out > tokens ? 8192 : tokens, out, in);
    compare("nn", Layout::nn, out > tokens ? 8192 : tokens, in, out);
    compare("tn", Layout::tn, out, in, out > tokens ? 8192 : tokens);
  }
  // The activation of a feed-forward layer in the end of its product, beside one in a kernel of its own.
  const size_t F = 3072, C = 768;
  const Numbers<bf16> x = filled<bf16>(tokens * C, 1), w = filled<bf16>(F * C, 2), g = filled<bf16>(tokens * F, 3),
                      u = filled<bf16>(tokens * F, 4), y = filled<bf16>(tokens * F, 5);
  const auto multiply = [&](const Activated& activated) {
    matmul_bf16(u, x, w, tokens, F, C, Layout::nt, Accumulate::no, ctx, nullptr, activated);
  };
  const Activated in_the_end = {y, g, Activation::silu}, none;
  const auto one_after = [&] {
    multiply(none);
    glu_forward(y, g, u, tokens * F, Activation::silu, ctx);
  };
  const auto seconds = best_seconds({[&] { multiply(in_the_end); }, one_after});
  tell(format("SwiGLU in the end of the product of W_up: %.2fx the speed of one after it", seconds[1] / seconds[0]),
       {{"op", "bf16 product with SwiGLU"}, {"peer", "SwiGLU after it"}, {"ratio_to_peer", seconds[1] / seconds[0]}});
}

// The products of one layer's experts, of rows of S, beside one product of all rows.
template <class S>
void bench_grouped(Context& ctx, const Ceilings&) {
  constexpr bool is_bf16 = std::is_same_v<S, bf16>;
  // y = x w^T and its gradients: for each expert, and as if there were one.
  const auto product = [&](S* to, const S* from, const S* w, const int* row_start, const GroupedShape& s,
                           Layout layout) {
    if constexpr (is_bf16)
      grouped_matmul_bf16(to, from, w, row_start, s, layout, Accumulate::no, ctx);
    else
      grouped_matmul(to, from, w, row_start, s, layout, Accumulate::no, ctx);
  };
  const auto gradient = std::get<is_bf16>(std::make_pair(grouped_matmul_tn, grouped_matmul_bf16_tn));
  const auto dense = [&](Reals to, const S* a, const S* b, size_t M, size_t N, size_t K, Layout layout,
                         Accumulate accumulate) {
    matmul_stored({to, N}, {a, packed_lda(M, K, layout)}, {b, packed_ldb(N, K, layout)}, M, N, K, layout, accumulate,
                  ctx);
  };
  printf("\n%-36s %10s %10s %8s\n", format("%sgrouped matmul rows E N K", is_bf16 ? "bf16 " : "").c_str(), "GFLOP/s",
         "one matrix", "ratio");
  const std::vector<GroupedShape> shapes = {{4096, 8, 768, 512},  {4096, 16, 768, 512},  {4096, 32, 768, 512},
                                            {4096, 64, 768, 512}, {4096, 128, 768, 512}, {2048, 16, 384, 128}};
  for (const GroupedShape& s : shapes)
    for (bool skewed : {false, true}) {  // half of the rows go to the first expert
      std::vector<int> start(s.E + 1, 0);
      const size_t first = skewed ? s.M / 2 : s.M / s.E;
      for (size_t e = 1; e <= s.E; e++) start[e] = int(first + (s.M - first) * (e - 1) / (s.E - 1));
      const Numbers<int> row_start(device, start);
      const Numbers<S> x = filled<S>(s.M * s.K, 1), w = filled<S>(s.E * s.N * s.K, 2), y = filled<S>(s.M * s.N, 3),
                       dx = filled<S>(s.M * s.K), one = filled<S>(s.N * s.K, 2);
      const Numbers<float> dw = filled(s.E * s.N * s.K), d_one = filled(s.N * s.K);
      const GroupedShape back = {s.M, s.E, s.K, s.N};
      const struct {
        const char* name;
        std::function<void()> grouped, dense;
      } roles[] = {{"forward", [&] { product(y, x, w, row_start, s, Layout::nt); },
                    [&] { dense(y, x, one, s.M, s.N, s.K, Layout::nt, Accumulate::no); }},
                   {"dx", [&] { product(dx, y, w, row_start, back, Layout::nn); },
                    [&] { dense(dx, y, one, s.M, s.K, s.N, Layout::nn, Accumulate::no); }},
                   {"dW", [&] { gradient(dw, y, x, row_start, s, ctx); },
                    [&] { dense(d_one, y, x, s.N, s.K, s.M, Layout::tn, Accumulate::yes); }}};
      for (const auto& role : roles) {
        const std::string name =
            format("%s %zu %zu %zu %zu%s", role.name, s.M, s.E, s.N, s.K, skewed ? " skewed" : " balanced");
        tell_beside((is_bf16 ? "bf16 grouped matmul " : "grouped matmul ") + name, name,
                    2.0 * double(s.M) * double(s.N) * double(s.K), best_seconds({role.grouped, role.dense}),
                    "one matrix");
      }
    }
}

// ---- operations that memory bounds

// What stands around the experts of a mixture, 8 of 128 for every token. x, y and z hold 65536 rows of 2048: as many
// tokens for the router, and the rows of an eighth of them for what moves tokens.
using Row = std::function<void(const std::string& name, double bytes, std::function<void()>)>;

// x, y and z hold at least 65536 rows of 2048 numbers.
template <class S>
void bench_routing(const Row& row, const Numbers<S>& x, const Numbers<S>& y, const Numbers<S>& z, Context& ctx) {
  const size_t M = 65536, C = 2048, E = 128, k = 8;
  const RouterShape every = {M, E, k, true};
  const DispatchShape s = {M / k, E, k};
  Numbers<float> logits = filled(M * E, 1), p(device, M * E), lse(device, M), weight(device, M * k),
                 report(device, router_report_values), dweight = filled(M * k, 2);
  Numbers<int> expert(device, M * k), start(device, E + 1), row_of_slot(device, M);
  Numbers<size_t> counts(device, E);
  const RouterOut out = {p, lse, expert, weight};
  const Dispatch d = {start, row_of_slot};
  const double scores = double(M * E), sorted = sizeof(S) * double(M * C), tokens = sizeof(S) * double(s.N * C);
  row("router forward, 8 of 128", 8 * scores, [&] { router_forward(out, logits, every, ctx); });
  dispatch_sort(d, expert, s, ctx);
  dispatch_count(counts, start, true, E, ctx);
  row("router backward", (4 + sizeof(S)) * scores, [&] {
    router_backward(z, dweight, out, {1e-3f, 1e-3f, counts}, every, ctx);
  });
  row("router report", 4 * scores, [&] { router_report(report, p, lse, counts, every, ctx); });
  row("slots sorted by expert", 8 * double(M), [&] { dispatch_sort(d, expert, s, ctx); });
  row("tokens to their experts' rows", sorted + tokens, [&] { dispatch_gather(y, x, d, s, C, ctx); });
  row("tokens to their experts' rows, backward", sorted + tokens,
      [&] { dispatch_gather_backward(y, Accumulate::no, x, d, s, C, ctx); });
  row("combine forward", sorted + tokens, [&] { combine_forward(y, x, weight, nullptr, d, s, C, ctx); });
  row("combine backward", 2 * sorted + tokens, [&] { combine_backward(y, dweight, z, x, weight, d, s, C, ctx); });
}

// Arrays far larger than a last-level cache, so that every byte comes from memory.
template <class S>
void bench_operations(Context& ctx, const Ceilings& ceilings) {
  constexpr bool is_bf16 = storage_of<S> == Storage::bf16;
  const size_t N = 65536, C = 2048, n = N * C, H = 16, D = 128, tokens_wide = 50257;
  printf("\n%-42s %10s %10s\n", format("%s (%zu rows of %zu)", is_bf16 ? "bf16 operation" : "operation", N, C).c_str(),
         "GB/s", "of copy");
  Numbers<S> x = filled<S>(n, 1), y = filled<S>(n, 2), z = filled<S>(n, 3), dx = filled<S>(n, 4), dz = filled<S>(n, 5);
  Numbers<float> w = filled(C, 6), dw = filled(C, 7), b = filled(C, 8), db = filled(C, 9), r = filled(N * H, 10),
                 mean = filled(N, 11), scores = filled(N * H, 12), dscores = filled(N * H, 13), alpha = filled(4, 14),
                 dalpha = filled(4, 15), row_sums = filled(4 * N, 16);
  const Row row = [&](const std::string& name, double bytes, std::function<void()> run) {
    const double rate = bytes / best_seconds({run}, 0.2)[0];
    tell(format("%-42s %10.1f", name.c_str(), rate * 1e-9) + percent(rate, ceilings.copy),
         {{"op", (is_bf16 ? "bf16 " : "") + name}, {"gb_per_s", rate * 1e-9}, {"share_of_copy", rate / ceilings.copy}});
  };
  const double f = sizeof(S) * double(n), wide = 4 * double(n);  // bytes of an array, of one of floats
  const ResidualIn alone = {x}, joined = {x, z};
  const ResidualBackwardIn back = {.x = x, .dresidual = z};
  const Numbers<uint64_t> stream(device, {1});
  Join rough;
  rough.clip_branch = 1, rough.clip_sum = 2, rough.dropout = {0.1f, 1, stream};
  row("rmsnorm forward", 2 * f, [&] { rmsnorm_forward(y, r, x, w, N, C, 1e-6f, ctx); });
  row("residual + rmsnorm forward", 4 * f, [&] { rmsnorm_forward({y, r, dx}, joined, {w}, N, C, 1e-6f, ctx); });
  row("residual with clips and dropout + rmsnorm", 4 * f, [&] {
    rmsnorm_forward({y, r, dx}, {x, z, rough}, {w}, N, C, 1e-6f, ctx);
  });
  row("rmsnorm backward", 4 * f, [&] { rmsnorm_backward({.dx = dx, .dw = dw}, y, back, {w}, r, N, C, ctx); });
  row("preaffine forward", 2 * f, [&] { rmsnorm_forward({y, r}, alone, {w, b}, N, C, 1e-6f, ctx); });
  row("preaffine backward", 4 * f, [&] {
    rmsnorm_backward({.dx = dx, .dw = dw, .dpre = db, .mean = mean}, y, back, {w, b}, r, N, C, ctx);
  });
  row("layernorm forward", 2 * f, [&] { layernorm_forward({y, mean, r}, {x}, w, b, N, C, 1e-5f, ctx); });
  row("layernorm backward", 4 * f,
      [&] { layernorm_backward({.dx = dx, .dw = dw, .db = db}, y, back, w, mean, r, N, C, ctx); });
  row("dyt forward", 2 * f, [&] { dyt_forward({y}, {x}, alpha, w, b, N, C, ctx); });
  row("dyt backward", 4 * f, [&] {
    dyt_backward({dx, nullptr, dalpha, dw, db, row_sums}, y, back, alpha, w, N, C, ctx);
  });
  const GatedNormShape gated_norm = {N, C, 16, NormGateBase::rmsnorm, NormGateScore::elementwise, {}, 0, 1e-6f};
  // Weights of a model's size. With those of size 1 many logits would be so large that exp(-|z|) is denormal, for which
  // an Intel processor takes many times as long.
  Numbers<float> low = filled(N * 16, 18), down = filled(16 * C, 19, -0.02f, 0.02f),
                 up = filled(C * 16, 20, -0.02f, 0.02f), ddown = filled(16 * C), dup = filled(16 * C);
  const GatedNormWeights weights = {nullptr, w, nullptr, down, up};
  const GatedNormGradients gradients = {nullptr, dw, nullptr, ddown, dup};
  row("residual + gated norm forward, rank 16", 4 * f,
      [&] { gated_norm_forward(y, r, low, dx, joined, weights, gated_norm, ctx); });
  row("gated norm backward, rank 16", 6 * f,
      [&] { gated_norm_backward(dx, nullptr, gradients, y, back, low, r, weights, gated_norm, ctx); });
  row("residual add alone", 3 * f, [&] { residual_forward(dx, {x, z}, N, C, ctx); });
  const GateOp op;
  row("gate forward, elementwise", 3 * f, [&] { gate_forward(y, x, z, N, C, 1, op, ctx); });
  row("gate backward, elementwise", 5 * f, [&] { gate_backward(dx, dz, y, x, z, N, C, 1, op, ctx); });
  Numbers<S> of_heads = filled<S>(N * H, 12), dof_heads = filled<S>(N * H, 13);
  row("gate forward, headwise", 2 * f, [&] { gate_forward(y, x, of_heads, N, C, D, op, ctx); });
  row("gate backward, headwise", 3 * f, [&] { gate_backward(dx, dof_heads, y, x, of_heads, N, C, D, op, ctx); });
  row("shared gate forward", 3 * f, [&] { shared_gate_forward(y, x, z, N, H, D, op, ctx); });
  row("shared gate backward", 5 * f, [&] { shared_gate_backward(dx, dz, y, x, z, N, H, D, op, ctx); });
  row("static gate forward", 2 * f, [&] { static_gate_forward(y, x, w, N, C, op, ctx); });
  row("static gate backward", 3 * f, [&] { static_gate_backward(dx, dw, y, x, w, N, C, op, ctx); });
  for (size_t k : {8, 2}) {
    const HeadExpertsShape experts = {N, 2, D, 8, k};  // the scores of H = 16 heads, for 2 heads of 8 experts
    const double chosen = double(k) / 8 * f, values = f / 8;
    row(format("head experts forward, %zu of 8", k).c_str(), chosen + values,
        [&] { head_experts_forward(y, dscores, x, scores, experts, ctx); });
    row(format("head experts backward, %zu of 8", k).c_str(), chosen + f + values,
        [&] { head_experts_backward(dx, dz, y, x, dscores, experts, ctx); });
  }
  row("clamped swiglu forward", 3 * f, [&] { swiglu_clamped_forward(y, x, z, n, ctx); });
  row("clamped swiglu backward", 5 * f, [&] { swiglu_clamped_backward(dx, dz, y, x, z, n, ctx); });
  for (auto [name, act] : {std::pair{"swiglu", Activation::silu},
                           {"glu", Activation::sigmoid},
                           {"geglu", Activation::gelu_tanh},
                           {"geglu erf", Activation::gelu_erf}}) {
    row(format("%s forward", name), 3 * f, [&] { glu_forward(y, x, z, n, act, ctx); });
    row(format("%s backward", name), 5 * f, [&] { glu_backward(dx, dz, y, x, z, n, act, ctx); });
  }
  for (auto [name, act] : {std::pair{"silu", Activation::silu},
                           {"gelu tanh", Activation::gelu_tanh},
                           {"gelu erf", Activation::gelu_erf},
                           {"relu2", Activation::relu2}}) {
    row(format("%s forward", name), 2 * f, [&] { activation_forward(y, x, n, act, ctx); });
    row(format("%s backward", name), 3 * f, [&] { activation_backward(dx, y, x, n, act, ctx); });
  }
  row("polynorm forward", 2 * f, [&] { polynorm_forward(y, r, x, alpha, w, N, C, 1e-6f, ctx); });
  row("polynorm backward", 3 * f, [&] { polynorm_backward(dx, dalpha, dw, row_sums, y, x, alpha, r, N, C, ctx); });
  const size_t sequence = 2048;
  const RopeTables rope = make_rope_tables(sequence, D, 10000, device),
                   half = make_rope_tables(sequence, D / 2, 10000, device);
  row("rope forward", 2 * f, [&] { rope_forward(y, x, rope, 0, N / sequence, sequence, H, D, ctx); });
  row("rope forward, half of a head", 2 * f, [&] { rope_forward(y, x, half, 0, N / sequence, sequence, H, D, ctx); });
  const AttentionShape heads{N / sequence, sequence, H, H, D};
  row("kv bias logits", f, [&] { kv_bias_logits(r, x, w, heads, ctx); });
  row("kv bias backward", 2 * f, [&] { kv_bias_backward(dw, db, scores, dscores, x, y, heads, ctx); });
  const L2normShape lengths{.N = N, .H = H, .D = D};
  row("l2 norm of heads forward", 2 * f, [&] { l2norm_forward(y, r, x, lengths, ctx); });
  row("l2 norm of heads backward", 3 * f, [&] { l2norm_backward(dx, y, x, r, lengths, ctx); });
  row("bias gradient", f, [&] { bias_backward(dw, x, N, C, ctx); });
  std::vector<int> ids(N);
  for (size_t i = 0; i < N; i++) ids[i] = int(i * 7919 % tokens_wide);
  const Numbers<int> device_ids(device, ids);
  TokenGroups groups(N, tokens_wide, ctx);
  groups.build(ids.data(), N, ctx);
  Numbers<float> table = filled(tokens_wide * C, 17);
  const Numbers<S> stored_table = filled<S>(tokens_wide * C, 17);
  row("embedding forward", 2 * f, [&] { embedding_forward(y, device_ids, stored_table, {}, N, C, tokens_wide, ctx); });
  row("embedding backward", 2 * wide + f, [&] { embedding_backward(table, x, groups, nullptr, C, ctx); });
  Numbers<float> logits = filled(n, 3);
  const auto cross_entropy_of = [&](size_t rows, size_t V) {
    cross_entropy(r, z, logits, device_ids, 1e-3f, rows, V, ctx);
  };
  row("cross-entropy and its gradient", wide + f, [&] { cross_entropy_of(N, C); });
  const size_t padded = padded_vocab(tokens_wide);
  row("the same of 50257 logits", double(n / padded * padded) * (4 + sizeof(S)),
      [&] { cross_entropy_of(n / padded, tokens_wide); });
  bench_routing(row, x, y, z, ctx);
  Numbers<float> weight = filled(n, 1), gradient = filled(n, 2), m = filled(n, 1), v(device, n), norm(device, 1);
  set_zero(+v, n, ctx);
  Numbers<float> sums(device, buffer_chunks(n));
  const auto gradient_norm = [&](const float* g) {
    gradient_squares(sums, g, n, ctx);
    gradient_root(norm, sums, buffer_chunks(n), ctx);
  };
  gradient_norm(gradient);
  AdamWPlan plan({{0, n, true}}, ctx);
  plan.set_step(adamw_at_step({1e-6f, 0.9f, 0.95f, 1e-8f, 0.1f}, 10, 1.0f), ctx);
  bf16* copies = nullptr;
  if constexpr (is_bf16) copies = x;
  row(is_bf16 ? "adamw and copies" : "adamw", 7 * wide + (is_bf16 ? f : 0), [&] {
    adamw_update(weight, m, v, copies, gradient, norm, plan, {0, plan.block_count()}, ctx);
  });
  const ShortConvShape taps{N / sequence, sequence, C, 4};
  Numbers<float> conv = filled(4 * C, 20), dconv = filled(4 * C, 21);
  row("short convolution and silu forward", 2 * f,
      [&] { short_conv_forward(y, nullptr, x, conv, nullptr, taps, ctx); });
  row("short convolution and silu backward", 3 * f,
      [&] { short_conv_backward(dx, dconv, nullptr, y, nullptr, x, conv, nullptr, taps, ctx); });
  const DecayShape decays{N, H};
  Numbers<float> head = filled(H, 22), dhead = filled(H, 23), dhead2 = filled(H, 24);
  row("decay forward, 16 heads", 2 * (f + wide) / D,
      [&] { decay_forward(scores, dscores, of_heads, dof_heads, head, head, decays, ctx); });
  row("decay backward, 16 heads", (4 * f + 2 * wide) / D, [&] {
    decay_backward({dx, dz, dhead, dhead2}, scores, dscores, of_heads, dof_heads, head, head, decays, ctx);
  });
  if constexpr (is_bf16) {
    row("rounding", wide + f, [&] { round_to_bf16(x, weight, n, ctx); });
  } else {
    row("gradient norm", f, [&] { gradient_norm(x); });
    row("gradient accumulation", 3 * f, [&] { accumulate_gradient(y, x, n, ctx); });
  }
}

// Of arrays of floats, with a share of the FMA peak; or of arrays of bf16, on the CPU by the arithmetic of tensor
// cores.
template <class S>
void bench_attention(Context& ctx, const Ceilings& ceilings) {
  constexpr bool is_bf16 = std::is_same_v<S, bf16>, gpu = device == Device::cuda;
  const double peak = !is_bf16 ? ceilings.fma : gpu ? measured_matmul_peak(Storage::bf16, ctx) : 0;
  const auto backward_of = std::get<is_bf16>(std::make_pair(attention_backward, attention_bf16_backward));
  struct Case {
    AttentionShape shape;
    const char* what;
    bool sink = false, kv_bias = false, gate = false;
  };
  AttentionShape base = {1, 1024, 12, 12, 64}, sigmoid = base, window = base;
  sigmoid.score = AttentionScore::sigmoid, sigmoid.bias = -7;
  window.window = 128;
  printf("\n%-42s %10s %10s %10s\n", is_bf16 ? "bf16 attention B T H KVH D" : "attention B T H KVH D", "fwd GFLOP/s",
         "bwd", peak > 0 ? "of peak" : "");
  std::vector<Case> cases = {
      {{16, 128, 4, 2, 32}, ""}, {{4, 64, 12, 12, 64}, ""},      {base, ""},
      {base, "sink", true},      {base, "kv bias", false, true}, {base, "G1", false, false, true},
      {sigmoid, "sigmoid"},      {window, "window 128"},         {{1, 1024, 8, 2, 128}, ""}};
  // What fills a GPU: GPT-2 124M's batch, and the shapes of which other kernels' figures are public.
  if (is_bf16 && gpu)
    for (const AttentionShape& s :
         {AttentionShape{32, 1024, 12, 12, 64}, {8, 2048, 16, 16, 128}, {2, 8192, 16, 16, 128}})
      cases.push_back({s, ""});
  for (const Case& c : cases) {
    const AttentionShape& s = c.shape;
    const size_t q_size = s.B * s.T * s.H * s.D, k_size = s.B * s.T * s.KVH * s.D, stats = s.B * s.H * s.T;
    Numbers<S> q = filled<S>(q_size, 1), k = filled<S>(k_size, 2), v = filled<S>(k_size, 3), o = filled<S>(q_size),
               dout = filled<S>(q_size, 4), dq = filled<S>(q_size), dk = filled<S>(k_size), dv = filled<S>(k_size),
               z = filled<S>(c.gate ? q_size : 0, 8), gated = filled<S>(c.gate ? q_size : 0);
    Numbers<float> lse = filled(stats), logit = filled(stats, 5), key = filled(s.H * s.D, 6),
                   value = filled(s.H * s.D, 7), sink_p = filled(stats), sink_ds = filled(stats);
    Sink position;
    if (c.sink) position.logit = logit;
    if (c.kv_bias) position = {logit, true, key, value};
    // (with G1 forward alone: over bf16 arrays attention gates its own output)
    auto forward = [&] {
      if constexpr (is_bf16) {
        attention_bf16_forward(o, lse, q, k, v, s, position, ctx, c.gate ? OutputGate{gated, z} : OutputGate());
      } else {
        attention_forward(o, lse, q, k, v, s, position, ctx);
        if (c.gate) gate_forward(gated, o, z, s.B * s.T, s.H * s.D, 1, {}, ctx);
      }
    };
    auto backward = [&] { backward_of(dq, dk, dv, sink_p, sink_ds, dout, q, k, v, o, lse, s, position, ctx); };
    forward();
    const double fwd = best_seconds({forward})[0], bwd = best_seconds({backward})[0];
    // two products forward, five backward, over the pairs that see each other
    double pairs = 0;
    for (size_t i = 0; i < s.T; i++) pairs += double(i + 1 - s.first_key(i));
    const double product = 2 * double(s.B * s.H * s.D) * pairs;
    const std::string name = format("%zu %zu %zu %zu %zu %s", s.B, s.T, s.H, s.KVH, s.D, c.what);
    tell_both_ways(is_bf16 ? "bf16 attention " : "attention ", name, 2 * product / fwd, 5 * product / bwd, peak);
  }
}

void bench_gated_delta(Context& ctx, const Ceilings& ceilings) {
  printf("\n%-42s %10s %10s %10s\n", "gated delta rule B T Hk Hv Dk Dv", "fwd GFLOP/s", "bwd", "of peak");
  std::vector<GatedDeltaShape> shapes = {
      {16, 128, 2, 4, 32, 32}, {1, 1024, 8, 16, 128, 128}, {4, 2048, 16, 32, 128, 128}};
  if (device == Device::cuda)
    shapes.push_back({4, 8192, 16, 32, 128, 128});  // of which other kernels' figures are public
  for (const GatedDeltaShape& s : shapes) {
    const size_t qk = s.B * s.T * s.Hk * s.Dk, v = s.B * s.T * s.Hv * s.Dv, numbers = s.B * s.T * s.Hv;
    const float largest = 1.7f / std::sqrt(float(s.Dk));  // so that heads have lengths near 1
    Numbers<float> q = filled(qk, 1, -largest, largest), k = filled(qk, 2, -largest, largest), values = filled(v, 3),
                   g = filled(numbers, 5, -0.1f, 0), beta = filled(numbers, 6, 0, 1), o = filled(v), error = filled(v),
                   kept = filled(s.B * s.Hv * s.kept() * s.Dk * s.Dv), dout = filled(v, 4), dq = filled(qk),
                   dk = filled(qk), dv = filled(v), dg = filled(numbers), dbeta = filled(numbers);
    const GatedDeltaIn in = {q, k, values, g, beta};
    const GatedDeltaOut out = {.o = o, .error = error, .kept = kept};
    const GatedDeltaGradients gradients = {dq, dk, dv, dg, dbeta};
    const GatedDeltaBackwardIn back = {.dout = dout, .error = error, .kept = kept};
    gated_delta_forward(out, in, s, ctx);
    Numbers<bf16> nq = filled<bf16>(qk, 1, -largest, largest), nk = filled<bf16>(qk, 2, -largest, largest),
                  nv = filled<bf16>(v, 3), no = filled<bf16>(v), states = filled<bf16>(gated_delta_bf16_kept_size(s)),
                  u = filled<bf16>(v), miss = filled<bf16>(v), ndout = filled<bf16>(v, 4), ndq = filled<bf16>(qk),
                  ndk = filled<bf16>(qk), ndv = filled<bf16>(v);
    const GatedDeltaBf16In narrow = {nq, nk, nv, g, beta};
    const GatedDeltaBf16Out narrow_out = {.o = no, .kept = states, .u = u, .miss = miss};
    const GatedDeltaBf16BackwardIn narrow_back = {.dout = ndout, .kept = states, .u = u, .miss = miss};
    const auto seconds = best_seconds(
        {[&] { gated_delta_forward(out, in, s, ctx); }, [&] { gated_delta_backward(gradients, back, in, s, ctx); },
         [&] { gated_delta_chunk_forward(out, in, s, ctx); },
         [&] { gated_delta_chunk_backward(gradients, back, in, s, ctx); },
         [&] { gated_delta_bf16_forward(narrow_out, narrow, s, ctx); },
         [&] {
           gated_delta_bf16_backward({ndq, ndk, ndv, dg, dbeta}, narrow_back, narrow, s, ctx);
         }});
    // Of the recurrence, for every number of a state and token: forward 3 multiply-adds and a product; backward 8
    // multiply-adds (dq, twice dk, du, twice dS, dg, and S again) and 2 products. The chunk form is given the same
    // numbers, so that what differs is the time.
    const double numbers_of_states = double(s.B * s.T * s.Hv) * double(s.Dk * s.Dv);
    for (size_t form : {0, 1, 2}) {
      const double fwd = 7 * numbers_of_states / seconds[2 * form],
                   bwd = 18 * numbers_of_states / seconds[2 * form + 1];
      const char* const names[] = {"", " in chunks", " in chunks, bf16"};
      const std::string name = format("%zu %zu %zu %zu %zu %zu%s", s.B, s.T, s.Hk, s.Hv, s.Dk, s.Dv, names[form]);
      tell_both_ways("gated delta rule ", name, fwd, bwd, ceilings.fma,
                     format("   %.0f + %.0f ms, %.0f tokens/s", 1e3 * seconds[2 * form], 1e3 * seconds[2 * form + 1],
                            double(s.B * s.T) / (seconds[2 * form] + seconds[2 * form + 1])));
    }
  }
}

// ---- whole steps

// Models of the same sizes, their steps in turns, each model's best: what a variant costs beside the first. gpt2: of
// GPT-2 124M with whole batches, which wants a GPU.
template <bool gpt2>
void bench_training(Context& ctx, const Ceilings&) {
  struct Measured {
    Context ctx{device};  // with scratch as its model has planned
    std::optional<Run> run;
    explicit Measured(const std::string& flags) {
      Config config = config_of_flags(flags);
      config.model.vocab = std::max(config.model.vocab, open_data(config.data).train->vocab());
      config.mma = usual_mma();
      use_engines(ctx, config);
      run.emplace(config, ctx);
    }
  };
  const double peaks[] = {measured_matmul_peak(Storage::fp32, ctx), measured_matmul_peak(Storage::bf16, ctx)};
  auto compare = [&](const std::string& sizes, const std::vector<std::string>& variants, double budget) {
    std::vector<std::unique_ptr<Measured>> runs;
    std::vector<std::function<void()>> steps;
    for (const std::string& v : variants) {
      runs.push_back(std::make_unique<Measured>("--data=bigram-backcopy " + sizes + " " + v));
      steps.push_back([&run = *runs.back()->run] { run.steps(1); });
    }
    const std::vector<double> seconds = best_seconds(steps, budget);
    printf("\ntraining %s\n%-42s %10s %10s %10s %12s\n", sizes.c_str(), "", "tok/s", "ms a step", "of matmul",
           "beside first");
    for (size_t i = 0; i < runs.size(); i++) {
      Trainer& t = runs[i]->run->trainer;
      const double rate = double(t.tokens_per_step()) / seconds[i], cost = seconds[i] / seconds[0] - 1,
                   share = rate * t.model.flops_per_token(t.model.config.context) /
                           peaks[t.model.config.storage == Storage::bf16];
      tell(format("%-42s %10.0f %10.1f %8.0f %% %+10.1f %%", variants[i].empty() ? "(plain)" : variants[i].c_str(),
                  rate, seconds[i] * 1e3, 100 * share, 100 * cost),
           {{"op", "training " + sizes + " " + variants[i]},
            {"tokens_per_s", rate},
            {"milliseconds", seconds[i] * 1e3},
            {"share_of_matmul_peak", share},
            {"cost", cost}});
    }
  };
  if (gpt2)
    return compare("--data=self --preset=gpt2-124m --context=1024 --batch=32 --precision=bf16",
                   {"", "--matmul=cublas", "--graph"}, 20);
  const std::vector<std::string> gates = {"", "--norm=gated", "--attn=g1", "--attn=g1 --gate=headwise",
                                          "--norm=gated --attn=g1"};
  compare("", gates, 15);
  // Other mixers; and experts with as many active weights in the FFN: 2 of 8, each half as wide.
  compare("", {"", "--mixer=hybrid", "--mixer=gated-delta", "--experts=8", "--experts=8 --shared-experts=1"}, 15);
  compare("--hidden=2048 --heads=16 --kv-heads=8 --head-dim=128 --ffn-hidden=6144 --layers=2 --context=256 --batch=2",
          gates, 40);
  compare("--data=self --preset=gpt2-124m --context=64 --batch=4", {""}, 5);
  compare("", {"", "--precision=bf16"}, 10);
  if (device == Device::cuda)
    for (const char* sizes : {"", "--precision=bf16"}) compare(sizes, {"", "--graph"}, 10);
}

// A token at a time, after `past` tokens. It must read every weight that is multiplied, once for all sequences. (Keys
// and values of 960 tokens are another seventh of GPT-2's weights.)
void bench_generation(Context& ctx, const Ceilings& ceilings) {
  printf("\n%-42s %10s %10s %10s\n", "generation", "tok/s", "ms a step", "of copy");
  for (const auto& [line, past, B] : std::vector<std::tuple<std::string, size_t, size_t>>{
           {"--preset=gpt2-124m --vocab=50257", 64, 1},
           {"--preset=gpt2-124m --vocab=50257", 960, 1},
           {"--preset=gpt2-124m --vocab=50257", 64, 8},
           {"--preset=gpt2-124m --vocab=50257 --mixer=gated-delta --position=none --linear-key-heads=12 "
            "--linear-value-heads=12 --linear-key-dim=64 --linear-value-dim=64",
            960, 1},
           {"", 64, 1}}) {
    const ModelConfig config = model_of_flags(line);
    const size_t steps = 60;
    Model model(config, Generation{B, past, past + steps}, ctx);
    model.weights.initialise(model.config.init, model.config.layers, 1);
    double best = INFINITY;
    for (size_t round = 0; round < 3; round++) {
      model.begin_sequences(B, past + steps);
      model.read(std::vector<int>(B * past, 7));
      for (size_t i = 0; i < steps; i++) {
        const double begin = seconds_now();
        model.read(std::vector<int>(B, int(i)));
        best = std::min(best, seconds_now() - begin);
      }
    }
    const double weights = model.weights.product_flops() / 6 * sizeof(float);
    const std::string name = format("%s B %zu, past %zu", line.substr(0, line.find(" --vocab")).c_str(), B, past);
    tell(format("%-42s %10.1f %10.2f", name.c_str(), double(B) / best, best * 1e3) +
             percent(weights / best, ceilings.copy),
         {{"op", "generation " + name},
          {"tokens_per_s", double(B) / best},
          {"share_of_copy", weights / best / ceilings.copy}});
  }
}

// ---- its parts

struct Part {
  const char* name;
  void (*measure)(Context&, const Ceilings&);
};

// First what is asked of a GPU first, and at last what takes minutes.
const std::vector<Part> parts = {
#ifdef __CUDACC__
    {"gpt2-124m", bench_training<true>},
#endif
    {"bf16", bench_bf16},
    {"attention-bf16", bench_attention<bf16>},
    {"operations-bf16", bench_operations<bf16>},
    {"operations", bench_operations<float>},
    {"matmul", bench_matmul},
    {"attention", bench_attention<float>},
    {"grouped", bench_grouped<float>},
    {"grouped-bf16", bench_grouped<bf16>},
    {"gated-delta", bench_gated_delta},
    {"generation", bench_generation},
    {"training", bench_training<false>},
};

std::string names_of_parts() {
  std::string names;
  for (const Part& part : parts) names += std::string(names.empty() ? "" : " ") + part.name;
  return names;
}

}  // namespace

int main(int argc, char** argv) try {
  std::string only;
  for (int i = 1; i < argc; i++) (std::string(argv[i]).ends_with(".json") ? file_name : only) = argv[i];
  if (only == "--parts") return printf("%s\n", names_of_parts().c_str()), 0;
  std::vector<Part> wanted = parts;
  if (!only.empty()) std::erase_if(wanted, [&](const Part& part) { return only != part.name; });
  require(!wanted.empty(), "bench: no part is named %s: expected one of %s", only.c_str(), names_of_parts().c_str());
  setenv("OPENBLAS_THREAD_TIMEOUT", "10", 0);  // OpenBLAS's threads must not spin while ours work
  set_limits(argv);
  Context ctx(device);
  const Ceilings ceilings{fma_peak(), copy_bandwidth(ctx)};
  printf("%s", name_of(device));
  if (device == Device::cpu) printf(", %d threads, FMA peak %.1f GFLOP/s", omp_get_max_threads(), ceilings.fma * 1e-9);
  printf(", copy %.1f GB/s\n", ceilings.copy * 1e-9);
  // (in universal time)
  const std::chrono::year_month_day today = std::chrono::floor<std::chrono::days>(std::chrono::system_clock::now());
  results = {{"device", name_of(device)},
             {"cpu", cpu_model()},
             {"date", format("%d-%02u-%02u", int(today.year()), unsigned(today.month()), unsigned(today.day()))},
             {"threads", omp_get_max_threads()},
             {"fma_peak_gflops", ceilings.fma * 1e-9},
             {"copy_gb_per_s", ceilings.copy * 1e-9},
             {"rows", nlohmann::ordered_json::array()}};
  for (const Part& part : wanted) part.measure(ctx, ceilings);
  return 0;
} catch (const std::exception& e) {
  fprintf(stderr, "error: %s\n", e.what());
  return 1;
}
