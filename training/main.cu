// main: from the command line to a run on a device.
//
// g++ compiles this for the CPU and the emulator, and, where nvcc is found, nvcc compiles it once more for the GPU.
// main() stands in the g++ half; --device decides which half runs.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "training/flags/command_line.h"
#include "training/describe.h"
#include "training/models/hf_model.h"
#include "training/process/interrupt.h"
#include "training/flags/match_params.h"
#include "training/process/terminal.h"
#include "training/process/threads.h"
#include "training/process/version.h"
#include "training/trainer.h"

#ifdef __CUDACC__

__global__ void no_work_kernel() {}

// Why no GPU can run the kernels of this build; empty where one can, which this process then has: of several ranks on
// a host each takes the GPU of its place there, and those behind the last GPU begin with the first again.
std::string take_gpu(size_t place_on_host) {
  const auto because = [](cudaError_t e) {
    cudaGetLastError();
    return gated::format("no GPU answers here (%s)", cudaGetErrorString(e));
  };
  int devices = 0;
  const cudaError_t answer = cudaGetDeviceCount(&devices);
  if (answer != cudaSuccess || devices == 0) return because(answer == cudaSuccess ? cudaErrorNoDevice : answer);
  const cudaError_t taken = cudaSetDevice(int(place_on_host % size_t(devices)));
  if (taken != cudaSuccess) return because(taken);
  const int capability = gated::compute_capability();
  const std::string gpu = gated::format("this GPU has compute capability %d.%d", capability / 10, capability % 10);
  if (capability < 80) return gpu + ", expected 8.0 or higher";
  cudaFuncAttributes attributes;
  const cudaError_t code = cudaFuncGetAttributes(&attributes, no_work_kernel);
  if (code == cudaErrorNoKernelImageForDevice || code == cudaErrorInvalidDeviceFunction) {
    cudaGetLastError();
    return gpu + gated::format(", for which this build has no code: make clean, then make CUDA_ARCH=%d", capability);
  }
  return code == cudaSuccess ? "" : because(code);
}
// The nvcc half reads the same command line again: its Config is a type of its own. What the program is the half of g++
// knows alone.
int train_on_cuda(int argc, char** argv, const std::map<std::string, std::string>& version,
                  const std::pair<ranks::Transport*, ranks::GpuTransport*>& between) {
  gated::Config config;
  gated::parse_command_line(config, argc, argv);
  config.program_version = version;
  return gated::train(config, gated::Device::cuda, {between.first, between.second});
}
std::string own_gpu() {
  return gated::memory_name(gated::Device::cuda);
}

#else

#ifdef WITH_CUDA
std::string take_gpu(size_t place_on_host);
int train_on_cuda(int argc, char** argv, const std::map<std::string, std::string>& version,
                  const std::pair<ranks::Transport*, ranks::GpuTransport*>& between);
std::string own_gpu();
#else
namespace ranks {
const bool has_nccl = false;
std::unique_ptr<GpuTransport> start_nccl(Transport&) {
  return nullptr;
}
}  // namespace ranks
static std::string own_gpu() {
  return "";
}
static std::string take_gpu(size_t) {
  return "this build has no half for GPUs: with nvcc, make adds it where a GPU answers, and make gpu-build, or "
         "make CUDA_ARCH=90, elsewhere";
}
#endif

// Files that are opened do not get the number of an output that is closed: there writing fails.
static void hold_outputs() {
  for (int number = 0; number < 3; number++)
    if (fcntl(number, F_GETFD) < 0) open("/dev/null", O_RDONLY);  // it takes the lowest that is free
}

// The ranks of the run; null where it is alone.
static ranks::Transport* transport = nullptr;

// Does NCCL move bytes between the ranks? It does where it can between all, unless one of them says otherwise.
static bool by_nccl(const gated::Config& c, bool on_gpu) {
  using gated::TransportChoice;
  const bool wanted = c.transport == TransportChoice::nccl;
  gated::require(!wanted || ranks::has_nccl,
                 "--transport=nccl: this build has no NCCL: make NCCL=DIR adds it, with DIR/include/nccl.h and "
                 "DIR/lib/libnccl.so, where nvcc and MPI are; or take --transport=mpi");
  const gated::Ranks all(transport);
  if (all.alone()) return false;
  const std::string no = "no: ";  // and why not
  const std::vector<std::string> gpus = all.all_texts(c.transport == TransportChoice::mpi ? no + "has --transport=mpi"
                                                      : !on_gpu                           ? no + "computes on no GPU"
                                                      : !ranks::has_nccl                  ? no + "has no NCCL"
                                                                                          : own_gpu());
  std::string why;
  for (size_t i = 0; i < gpus.size() && why.empty(); i++) {
    const size_t same = size_t(std::find(gpus.begin(), gpus.end(), gpus[i]) - gpus.begin());
    if (gpus[i].starts_with(no))
      why = gated::format("rank %zu %s", i, gpus[i].substr(no.size()).c_str());
    else if (same < i)
      why = gated::format("ranks %zu and %zu share a GPU, and NCCL wants one for each", same, i);
  }
  gated::require(!wanted || why.empty(), "--transport=nccl: %s: take --transport=mpi, or as many ranks as GPUs",
                 why.c_str());
  return why.empty();
}

// What all ranks refuse the first says, and ends the others. What another rank alone refuses is said by that rank, once
// the first has had time to speak.
static int refused(const std::string& message) {
  const size_t rank = transport ? transport->rank() : 0;
  if (rank > 0) sleep(2);
  fprintf(stderr, "error: %s%s\n", transport ? gated::format("rank %zu: ", rank).c_str() : "", message.c_str());
  if (transport) transport->abort(1);
  return 1;
}

static int run(int argc, char** argv) try {
  using gated::DeviceChoice;
  hold_outputs();
  gated::set_limits(argv);
  transport = ranks::start();
  signal(SIGXFSZ, SIG_IGN);  // a file-size limit is a write that fails with a message, not a death
  // What ranks print is the same: the first prints it.
  if (transport && transport->rank() > 0) dup2(open("/dev/null", O_WRONLY), STDOUT_FILENO);
  gated::Config config;
  if (!gated::parse_command_line(config, argc, argv)) return 0;
  if (transport && transport->rank() > 0 && (!config.export_folder.empty() || config.describe)) return 0;
  if (!config.export_folder.empty()) {
    gated::export_model(config);
    return 0;
  }
  if (config.describe) {
    if (!config.source) config.model.vocab = gated::open_data(config.data).train->vocab();
    gated::choose_ffn_width(config);
    if (config.source) fputs(gated::source_text(config, gated::terminal_width()).c_str(), stdout);
    fputs(gated::describe(config).c_str(), stdout);
    return 0;
  }
  const std::string no_gpu = take_gpu(transport ? transport->place_on_host() : 0);
  gated::check_device_flags(config, no_gpu);
#ifdef GPU_LEFT_OUT
  if (config.device == DeviceChoice::automatic) config.gpu_left_out = GPU_LEFT_OUT;
#endif
  const bool on_gpu =
      config.device == DeviceChoice::cuda || (config.device == DeviceChoice::automatic && no_gpu.empty());
  const auto nccl = by_nccl(config, on_gpu) ? ranks::start_nccl(*transport) : nullptr;
#ifdef WITH_CUDA
  if (on_gpu) return train_on_cuda(argc, argv, gated::program_version(), {transport, nccl.get()});
#endif
  config.program_version = gated::program_version();
  return gated::train(config, config.device == DeviceChoice::emulated ? gated::Device::emulated : gated::Device::cpu,
                      transport);
} catch (const gated::Interrupted& e) {
  fprintf(stderr, "error: %s\n", e.what());
  return 128 + gated::interrupted();
} catch (const std::bad_alloc&) {
  return refused("out of memory: take a smaller model, file or prompt; in training, a smaller --batch or --context");
} catch (const std::exception& e) {
  return refused(e.what());
}

int main(int argc, char** argv) {
  const int code = run(argc, argv);
  ranks::finish();
  if ((fflush(stdout) == 0 && !ferror(stdout)) || code != 0) return code;
  pollfd output = {STDOUT_FILENO, POLLOUT, 0};
  if (poll(&output, 1, 0) == 1 && (output.revents & POLLERR)) return 128 + SIGPIPE;  // nobody reads any more
  fprintf(stderr, "error: standard output: not all of it could be written: make room there, or send it elsewhere\n");
  return 1;
}

#endif
