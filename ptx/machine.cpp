#include "ptx/machine.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <boost/context/fiber.hpp>
#include <boost/context/protected_fixedsize_stack.hpp>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <stdexcept>
#include <unordered_map>
#include <utility>

#include "core/mma_lanes.h"
#include "core/tma.h"
#include "ptx/count.h"
#include "ptx/thread.h"

namespace ptx {
namespace {

[[gnu::format(printf, 1, 2)]] std::string words(const char* format, ...) {
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return text;
}

const char* environment(const char* name, const char* otherwise) {
  const char* value = getenv(name);
  return value && *value ? value : otherwise;
}

// ---- device memory

// By address: how many bytes begin there.
std::map<uint64_t, size_t> live_allocations;
size_t bytes_in_use = 0;
uint64_t next_address = device_begin;
const uint64_t page = uint64_t(sysconf(_SC_PAGESIZE));  // 16 or 64 KiB on some ARM64 machines
constexpr uint64_t apart = 1 << 16;                     // what runs past an allocation meets no other

uint64_t number_of(const void* p) {
  return reinterpret_cast<uint64_t>(p);
}
unsigned char* storage_of(uint64_t address) {
  return reinterpret_cast<unsigned char*>(address - device_begin + storage_begin);
}

// How many of an allocation's bytes lie in each granule; 0 once it is given back.
void mark(uint64_t begin, size_t bytes, bool is_live) {
  auto* live = reinterpret_cast<unsigned char*>(live_begin) + (begin - device_begin) / global_granule;
  memset(live, is_live ? global_granule : 0, bytes / global_granule);
  if (bytes % global_granule) live[bytes / global_granule] = is_live ? bytes % global_granule : 0;
}

struct sigaction before_us;
void followed_device_pointer(int number, siginfo_t* info, void* context) {
  if (is_device_address(info->si_addr))
    fprintf(stderr, "ptx: the host follows a device pointer: %s\n", explain(info->si_addr, 1).c_str());
  if (before_us.sa_flags & SA_SIGINFO) return before_us.sa_sigaction(number, info, context);
  if (before_us.sa_handler != SIG_DFL && before_us.sa_handler != SIG_IGN) return before_us.sa_handler(number);
  signal(SIGSEGV, SIG_DFL);  // the access is tried again, and ends the program
}

// A test's runner puts its own handler in the place of ours: ours goes before it, whenever memory is allocated.
void watch_the_host() {
  struct sigaction now;
  sigaction(SIGSEGV, nullptr, &now);
  if (now.sa_flags & SA_SIGINFO && now.sa_sigaction == followed_device_pointer) return;
  before_us = now;
  struct sigaction ours {};
  ours.sa_sigaction = followed_device_pointer;
  ours.sa_flags = SA_SIGINFO | (now.sa_flags & SA_ONSTACK);
  sigaction(SIGSEGV, &ours, nullptr);
}

void reserve(uint64_t begin, uint64_t bytes, int protection) {
  void* const at = reinterpret_cast<void*>(begin);
  if (mmap(at, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0) != at) {
    fprintf(stderr, "ptx: %zu GiB of addresses at 0x%zx are not free: %s\n", size_t(bytes >> 30), size_t(begin),
            strerror(errno));
    exit(1);
  }
}

}  // namespace

bool is_device_address(const void* p) {
  return number_of(p) - device_begin < device_bytes;
}

void* allocate(size_t bytes) {
  [[maybe_unused]] static const bool reserved = [] {
    reserve(device_begin, device_bytes, PROT_NONE);
    reserve(storage_begin, device_bytes, PROT_READ | PROT_WRITE);
    reserve(live_begin, device_bytes / global_granule, PROT_READ | PROT_WRITE);
    return true;
  }();
  watch_the_host();
  // (the next boundary of 256 bytes that is none of 512, so that nobody may count on more)
  const uint64_t begin = (next_address + 511) / 512 * 512 + 256;
  if (bytes > memory_use().free || begin + bytes + apart > device_begin + device_bytes) return nullptr;
  next_address = begin + bytes + apart;
  live_allocations[begin] = bytes;
  bytes_in_use += bytes;
  mark(begin, bytes, true);
  if (!Counter::wanted()) memset(storage_of(begin), 0xFF, bytes);
  return reinterpret_cast<void*>(begin);
}

bool release(void* p) {
  const auto found = live_allocations.find(number_of(p));
  if (found == live_allocations.end()) return false;
  const auto [begin, bytes] = *found;
  live_allocations.erase(found);
  bytes_in_use -= bytes;
  mark(begin, bytes, false);
  const uint64_t first = (begin + page - 1) / page * page, last = (begin + bytes) / page * page;
  if (first < last) madvise(storage_of(first), last - first, MADV_DONTNEED);
  return true;
}

MemoryUse memory_use() {
  if (const std::string wanted = environment("PTX_MEMORY", ""); !wanted.empty()) {
    char* end;
    const size_t bytes = size_t(strtoull(wanted.c_str(), &end, 10)) << 20;
    if (*end || bytes == 0) throw std::runtime_error("PTX_MEMORY=" + wanted + ": expected a number of MiB from 1");
    return {bytes - std::min(bytes, bytes_in_use), bytes};
  }
  std::ifstream file("/proc/meminfo");
  for (std::string name, rest; file >> name && name != "MemAvailable:";) std::getline(file, rest);
  size_t kib = 0;
  file >> kib;
  return {kib << 10, (kib << 10) + bytes_in_use};
}

void* storage(const void* p, size_t n) {
  auto after = live_allocations.upper_bound(number_of(p));
  if (after == live_allocations.begin()) return nullptr;
  const auto [begin, bytes] = *--after;
  const uint64_t from = number_of(p) - begin;
  return from <= bytes && n <= bytes - from ? storage_of(number_of(p)) : nullptr;
}

std::string explain(const void* p, size_t n) {
  const uint64_t at = number_of(p);
  const std::string what = words("%zu bytes at 0x%zx", n, size_t(at));
  if (!is_device_address(p)) return what + ", which is no device memory";
  auto after = live_allocations.upper_bound(at);
  if (after == live_allocations.begin()) return what + ", before every live allocation";
  const auto [begin, bytes] = *--after;
  const uint64_t from = at - begin;
  if (from < bytes) return what + words(", %zu bytes into a live allocation of %zu bytes", size_t(from), size_t(bytes));
  return what + words(", %zu bytes past the end of the live allocation before it, of %zu bytes", size_t(from - bytes),
                      size_t(bytes));
}

int compute_capability() {
  const std::string gpu = environment("PTX_GPU", "90");
  for (int known : {80, 86, 89, 90})
    if (gpu == std::to_string(known)) return known;
  throw std::runtime_error("PTX_GPU=" + gpu + ": expected 80, 86, 89 or 90");
}

// ---- kernels

namespace {

const std::string& program() {
  static const std::string path = [] {
    char text[4096];
    const ssize_t n = readlink("/proc/self/exe", text, sizeof text);
    return std::string(text, n > 0 ? size_t(n) : 0);
  }();
  return path;
}

// Beside the program, unless PTX_KERNELS says where.
const std::string& kernel_folder() {
  static const std::string folder =
      environment("PTX_KERNELS", (program().substr(0, program().rfind('/')) + "/kernels").c_str());
  return folder;
}

// Which file a kernel's C++ is in: a kernel of the program, or of the test that this is. What a template makes in
// several files of PTX is one kernel, and the first will do.
const std::map<std::string, std::string>& kernel_files() {
  static const std::map<std::string, std::string> files = [] {
    std::map<std::string, std::string> all;
    for (const std::string& index : {std::string("kernels"), program().substr(program().rfind('/') + 1)}) {
      std::ifstream file(kernel_folder() + "/" + index + ".index");
      for (std::string name, digest; file >> name >> digest;) all.emplace(name, digest);
    }
    return all;
  }();
  return files;
}

// Compiles a kernel, once among all programs that run now.
void compile(const std::string& cpp, const std::string& library) {
  std::ifstream file(cpp);
  std::string command;
  std::getline(file, command);  // which says how
  const int lock = open((library + ".lock").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0666);
  if (lock < 0 || flock(lock, LOCK_EX)) throw std::runtime_error(library + ".lock: " + strerror(errno));
  if (access(library.c_str(), R_OK)) {
    const std::string made = library + "." + std::to_string(getpid());
    command = command.substr(command.find(' ') + 1) + " -o '" + made + "' '" + cpp + "'";
    if (system(command.c_str()) || rename(made.c_str(), library.c_str())) {
      close(lock);
      throw std::runtime_error("this command has failed: " + command);
    }
    unlink((library + ".lock").c_str());
  }
  close(lock);
}

std::string plain_name(const std::string& mangled) {
  char* const plain = abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, nullptr);
  std::string name = plain ? plain : mangled;
  free(plain);
  return name;
}

}  // namespace

const Kernel& find_kernel(const std::string& mangled) {
  static std::map<std::string, Kernel> known;
  if (const auto found = known.find(mangled); found != known.end()) return found->second;
  const auto listed = kernel_files().find(mangled);
  if (listed == kernel_files().end())
    throw std::runtime_error("there is no PTX of " + plain_name(mangled) + " in " + kernel_folder());
  const std::string file = kernel_folder() + "/" + listed->second, library = file + ".so";
  if (access(library.c_str(), R_OK)) compile(file + ".cpp", library);
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  const auto* const d = handle ? static_cast<const Description*>(dlsym(handle, "description")) : nullptr;
  if (!d) throw std::runtime_error(dlerror());
  Kernel kernel{mangled,         {}, {},           d->parameter_bytes, d->static_shared, d->local_bytes,
                d->most_threads, d,  file + ".cpp"};
  for (uint32_t i = 0; i < d->parameter_count; i++)
    kernel.parameters.push_back({d->parameters[2 * i], d->parameters[2 * i + 1]});
  for (uint32_t i = 0; i < d->loaded_count; i++) kernel.loaded.push_back({d->loaded[2 * i], d->loaded[2 * i + 1]});
  return known.emplace(mangled, std::move(kernel)).first->second;
}

// ---- launches

namespace {

constexpr uint32_t warp_size = 32;
constexpr size_t stack_bytes = 256 << 10;

// What is known of other threads: of each, up to what time.
using Known = std::vector<uint32_t>;

// A barrier in shared memory, and the copies of which it counts the bytes.
struct Mbarrier {
  gated::MbarrierCount count;
  // The thread that made it, and how many fences of proxies, and of barriers for the cluster, it had behind it.
  uint32_t maker = 0, fences = 0, init_fences = 0;
  struct Copy {
    gated::TmaMatrix matrix;
    uint64_t to;
    int32_t x, y;
  };
  std::vector<Copy> copies;  // that have not arrived, oldest first
  Known gathered, over;      // from those who arrived in this phase, and in the one before
};

struct Fiber {
  enum State { ready, at_barrier, at_cluster, in_warp, at_mbarrier, done } state = done;
  Thread thread;
  boost::context::fiber context;
  unsigned line = 0;     // where it waits
  uint32_t barrier = 0;  // its number
  WarpOp op{};
  uint32_t mask = 0;
  void* record = nullptr;
  // Copies that have not arrived, oldest first, and the group that each belongs to.
  struct Copy {
    uint64_t to, from;
    uint32_t bytes, group;
    unsigned line;
  };
  std::vector<Copy> copies;
  uint32_t groups = 0;
  // Products that a mark may stand for, oldest first; the number of the oldest of them.
  struct Product : Wgmma {
    uint32_t group;
    unsigned line;
    bool done;
  };
  std::deque<Product> products;
  uint32_t first_product = 0, product_groups = 0;
  bool products_fenced = false;
  uint32_t proxy_fences = 0, init_fences = 0;
  bool at_cluster_barrier = false;  // has it arrived there, and not waited yet?
  // The barrier that it waits for, and the parity of the phase; has it tried once in vain?
  const Mbarrier* mbarrier = nullptr;
  uint32_t parity = 0;
  bool has_tried = false;
};

// What accesses to two bytes of memory have been since the last barrier, and in this launch's blocks before. `epoch`
// counts barriers of the block, over all blocks; `warp_epoch` those of the warp alone; `time` what came to mbarriers.
struct Access {
  uint32_t epoch = 0, warp_epoch = 0, thread = 0, time = 0;
  unsigned line = 0;
};
struct Cell {
  Access write, read;
  bool several_warps = false, several_lanes = false;  // have read
  bool other_block = false;                           // has read, before the last one that did
};

class Machine : Services {
 public:
  Fault launch(const Kernel& kernel, Index grid, Index block, uint32_t cluster, size_t dynamic_shared,
               const void* parameters, Counter* counter, const std::vector<uint64_t>& counted);

 private:
  [[noreturn]] void fault(Thread&, Space, uint64_t address, unsigned bytes, unsigned line) override;
  [[noreturn]] void refuse(Thread&, const char* why, unsigned line) override;
  void barrier(Thread&, uint32_t number, unsigned line) override;
  void arrive_at_cluster(Thread&, unsigned line) override;
  void wait_for_cluster(Thread&, unsigned line) override;
  void meet(Thread&, WarpOp, uint32_t mask, void* record, unsigned line) override;
  uint32_t warp_of(const Thread& t) const { return t.warp % (warps_ / ranks_); }  // of its block
  void pass(unsigned line) override {
    if (counter_) counter_->warp_op(line, warp_of(running_->thread));
  }
  void watch(Thread&, Space, uint64_t address, unsigned bytes, bool write, unsigned line) override;
  void copy_async(Thread&, uint64_t to, uint64_t from, uint32_t bytes, unsigned line) override;
  void commit_copies(Thread&) override;
  void wait_copies(Thread&, uint32_t pending) override;
  void multiply_async(Thread&, Wgmma&, unsigned line) override;
  void fence_products(Thread& t) override { fiber_of(t).products_fenced = true; }
  void commit_products(Thread& t) override { fiber_of(t).product_groups++; }
  void wait_products(Thread&, uint32_t pending, unsigned line) override;
  float arrived(Thread&, float mark) override;
  void fence_proxy(Thread& t) override { fiber_of(t).proxy_fences++; }
  void fence_mbarrier_init(Thread& t) override { fiber_of(t).init_fences++; }
  void make_mbarrier(Thread&, uint64_t address, uint32_t arrivals, unsigned line) override;
  void arrive_at_mbarrier(Thread&, uint64_t address, uint32_t announced_bytes, unsigned line) override;
  bool try_mbarrier(Thread&, uint64_t address, uint32_t parity, unsigned line) override;
  void copy_box(Thread&, uint64_t to, uint64_t map, int32_t x, int32_t y, uint64_t mbarrier, uint32_t ranks,
                unsigned line) override;

  static Fiber& fiber_of(Thread& t) {
    return *reinterpret_cast<Fiber*>(reinterpret_cast<char*>(&t) - offsetof(Fiber, thread));
  }
  Fiber& lane(uint32_t warp, uint32_t i) { return *fibers_[warp * warp_size + i]; }
  bool exists(uint32_t warp, uint32_t i) const { return warp * warp_size + i < threads_; }

  void make_fibers();
  void lay_out_shared(size_t dynamic_shared);
  void run_block(Index ctaid);
  bool pass_barrier(uint32_t rank);
  bool pass_cluster();
  void be_in_block(Thread& t, uint32_t rank) { t.shared = shared_.data() + rank * pitch_; }
  // Where an address of a thread's block stands in shared_.
  uint64_t place_of(const Thread& t, uint64_t address) const { return uint64_t(t.shared - shared_.data()) + address; }
  void copy_box_here(Thread&, uint64_t to, const gated::TmaMatrix&, int32_t x, int32_t y, uint64_t mbarrier,
                     unsigned line);
  bool complete(Fiber& f);
  void finish(Fiber& f);
  void suspend();
  [[noreturn]] void end(Fault fault, Thread& t, unsigned line, const std::string& what);
  void report(Thread& t, unsigned line, const std::string& what);
  std::string place(unsigned line) const;
  std::string who(const Thread& t) const;
  void stuck();
  Mbarrier& mbarrier_at(Thread& t, uint64_t address, bool is_made, unsigned line);
  void pass_mbarrier(Mbarrier& b, uint32_t before);
  bool land_copies();
  void check_end();
  void tell(Known& to, const Thread& t);
  void learn(const Thread& t, const Known& from);
  Access access_of(const Thread& t, unsigned line) const;
  bool in_other_block(const Access& before, Space space) const;
  bool meets(const Access& before, const Access& now, Space space) const;
  [[noreturn]] void race(Thread& t, Space space, uint64_t address, bool write, const Access& before, const char* did,
                         unsigned line);
  void watch_async(Thread& t, uint64_t address, bool write, unsigned line);

  void shuffle(Fiber* const* lanes);
  void ballot(Fiber* const* lanes);
  void ldmatrix(Fiber* const* lanes);
  template <gated::MmaArithmetic arithmetic>
  void mma(Fiber* const* lanes);
  void wgmma(Fiber* const* lanes);
  void set_registers(Fiber* const* lanes);
  struct WgmmaTiles;
  void load(WgmmaTiles& to, Thread& t, const Fiber::Product& product);

  const Kernel* kernel_ = nullptr;
  Index grid_{}, block_{};
  uint32_t ranks_ = 1, threads_ = 0, warps_ = 0;  // blocks of a cluster; what all of these have
  std::vector<std::unique_ptr<Fiber>> fibers_;
  boost::context::fiber scheduler_;
  Fiber* running_ = nullptr;
  Fault fault_ = Fault::none;
  bool hopper_ = true;
  std::vector<unsigned char> shared_;  // of one block after the other
  size_t pitch_ = 0;                   // from one to the next
  std::vector<uint16_t> shared_live_;
  std::vector<uint32_t> warp_order_, lane_order_;
  std::vector<Cell> cells_;  // of shared memory
  static constexpr uint64_t cells_bytes = 4096;
  std::unordered_map<uint64_t, std::vector<Cell>> global_cells_;  // of so many bytes of global memory each
  uint32_t epoch_ = 1, block_epoch_ = 1;                          // now, and when the block began
  std::vector<uint32_t> warp_epochs_;
  Counter* counter_ = nullptr;  // with PTX_COUNT
  // Of each 16 bytes of shared memory: the thread, from 1, that has written there, and how many fences of proxies it
  // had behind it.
  struct Written {
    uint32_t thread = 0, fences = 0;
  };
  std::vector<Written> written_;
  // Of each 16 bytes of shared memory and each warp: when wgmma last read them for it, and when one of its threads did.
  std::vector<Access> read_async_, read_by_warp_;
  std::map<uint64_t, Mbarrier> mbarriers_;
  std::vector<Known> learned_;  // [thread][other thread], from mbarriers; empty where there was none
  Known warp_times_;            // when all lanes of a warp last met
  Known in_cluster_;            // from those who are at the cluster's barrier
  uint32_t time_ = 1;
  // What the four warps of a warpgroup must have in common, and the last line at which each changed.
  struct OfWarp {
    uint32_t registers = 0;
    unsigned registers_line = 0;
    uint64_t products = 0;  // a hash of those that were asked for, in their order
    unsigned products_line = 0;
  };
  std::vector<OfWarp> of_warp_;
};

// All threads of a block together have so many registers; each has the same number to begin with, in eights.
constexpr uint32_t all_registers = 1 << 16;
uint32_t registers_at_first(uint32_t warps) {
  const uint32_t in_fours = (warps + 3) / 4 * 4;
  return std::min(all_registers / warp_size / in_fours / 8 * 8, 255u);
}

// ---- orders

struct Order {
  enum { forward, reverse, drawn } kind = forward;
  uint64_t state = 0;
  // The numbers below n, each once.
  std::vector<uint32_t> of(uint32_t n) {
    std::vector<uint32_t> order(n);
    std::iota(order.begin(), order.end(), 0u);
    if (kind == reverse) std::reverse(order.begin(), order.end());
    if (kind == drawn)
      for (uint32_t i = n; i > 1; i--) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        std::swap(order[i - 1], order[state % i]);
      }
    return order;
  }
};

Order order_wanted() {
  const std::string order = environment("PTX_ORDER", "forward");
  if (order == "forward") return {};
  if (order == "reverse") return {Order::reverse};
  char* end;
  const uint64_t seed = strtoull(order.c_str(), &end, 10);
  if (*end || seed == 0)
    throw std::runtime_error("PTX_ORDER=" + order + ": expected forward, reverse or a number from 1");
  return {Order::drawn, seed * 0x9E3779B97F4A7C15ull + 1};
}

// ---- one launch

// The blocks of a cluster run together, as the threads of one would: `ranks_` of them are one here.
Fault Machine::launch(const Kernel& kernel, Index grid, Index block, uint32_t cluster, size_t dynamic_shared,
                      const void* parameters, Counter* counter, const std::vector<uint64_t>& counted) {
  kernel_ = &kernel;
  grid_ = grid, block_ = block;
  ranks_ = cluster;
  const uint32_t of_block = block.x * block.y * block.z;
  threads_ = ranks_ * of_block;
  warps_ = (threads_ + warp_size - 1) / warp_size;
  fault_ = Fault::none;
  hopper_ = compute_capability() >= 90;
  warp_epochs_.assign(warps_, 1);
  make_fibers();
  lay_out_shared(dynamic_shared);
  counter_ = counter;
  const bool watched = counter || *environment("PTX_RACES", "0") == '1';
  if (watched && !counter) {
    cells_.assign(shared_.size() / 2, {});
    read_by_warp_.assign(shared_.size() / shared_granule * warps_, {});
  }
  if (watched) written_.assign(shared_.size() / shared_granule, {});
  read_async_.clear();
  global_cells_.clear();  // launches are in order
  for (uint32_t i = 0; i < threads_; i++) {
    Thread& t = fibers_[i]->thread;
    t = {};
    const uint32_t in_block = i % of_block;
    t.tid = {in_block % block.x, in_block / block.x % block.y, in_block / block.x / block.y};
    t.rank = i / of_block, t.ranks = ranks_;
    t.ntid = block, t.nctaid = grid;
    t.lane = i % warp_size, t.warp = i / warp_size;
    t.parameters = static_cast<const unsigned char*>(parameters);
    be_in_block(t, t.rank);
    t.shared_live = shared_live_.data(), t.shared_bytes = uint32_t(pitch_);
    t.watched = watched;
    t.machine = this;
  }
  Order order = order_wanted();
  lane_order_ = order.of(warp_size);
  warp_order_ = order.of(warps_);
  const uint32_t wide = grid.x / ranks_;
  const auto run = [&](uint64_t i) {
    run_block({uint32_t(i % wide) * ranks_, uint32_t(i / wide % grid.y), uint32_t(i / wide / grid.y)});
    return fault_ == Fault::none;
  };
  const uint64_t blocks = uint64_t(wide) * grid.y * grid.z;
  if (counter) {
    for (uint64_t i : counted) {
      counter->begin_block(i, threads_);
      if (!run(i)) break;
      counter->end_block();
    }
    if (fault_ == Fault::none && counter->decides_work(kernel)) {
      counter_ = nullptr;
      for (uint32_t i = 0; i < threads_; i++) fibers_[i]->thread.watched = false;
      for (uint64_t i = 0; i < blocks; i++)  // each once: a block may overwrite what it has read
        if (std::find(counted.begin(), counted.end(), i) == counted.end() && !run(i)) break;
    }
  } else if (order.kind == Order::drawn && blocks <= 1u << 20) {
    for (uint32_t i : order.of(uint32_t(blocks))) {
      lane_order_ = order.of(warp_size);
      warp_order_ = order.of(warps_);
      if (!run(i)) break;
    }
  } else {
    for (uint64_t i = 0; i < blocks; i++)
      if (!run(order.kind == Order::forward ? i : blocks - 1 - i)) break;
  }
  if (fault_ != Fault::none) fibers_.clear();  // they stand in the middle of a kernel
  return fault_;
}

// A fiber runs the kernel once for each block.
void Machine::make_fibers() {
  while (fibers_.size() < threads_) {
    fibers_.push_back(std::make_unique<Fiber>());
    Fiber* const f = fibers_.back().get();
    f->context = boost::context::fiber(std::allocator_arg, boost::context::protected_fixedsize_stack(stack_bytes),
                                       [this, f](boost::context::fiber&& from) {
                                         scheduler_ = std::move(from);
                                         for (;;) {
                                           kernel_->description->code(f->thread);
                                           finish(*f);
                                           suspend();
                                         }
                                         return boost::context::fiber();
                                       });
  }
}

// Shared variables as the translator has placed them, then the dynamic part; the table of what is inside of one.
void Machine::lay_out_shared(size_t dynamic_shared) {
  const Description& d = *kernel_->description;
  const auto rounded = [](size_t n) { return (n + shared_granule - 1) / shared_granule * shared_granule; };
  pitch_ = rounded(d.dynamic_at + dynamic_shared);
  shared_.assign(ranks_ * pitch_, 0xFF);
  shared_live_.assign(pitch_ / shared_granule, 0);
  const auto put = [&](size_t at, size_t bytes) {
    for (size_t i = at; i < at + bytes; i++) shared_live_[i / shared_granule] |= uint16_t(1u << i % shared_granule);
  };
  for (uint32_t i = 0; i < d.variable_count; i++) put(d.variables[2 * i], d.variables[2 * i + 1]);
  put(d.dynamic_at, dynamic_shared);
}

void Machine::run_block(Index ctaid) {
  memset(shared_.data(), 0xFF, shared_.size());
  block_epoch_ = ++epoch_;
  for (uint32_t i = 0; i < threads_; i++) {
    Fiber& f = *fibers_[i];
    f.state = Fiber::ready;
    f.thread.ctaid = {ctaid.x + f.thread.rank, ctaid.y, ctaid.z};
    f.thread.volatile_loads = 0;
    f.thread.local_bytes = 0;
    f.copies.clear();
    f.groups = 0;
    f.products.clear();
    f.product_groups = f.proxy_fences = f.init_fences = 0;
    f.products_fenced = f.has_tried = f.at_cluster_barrier = false;
  }
  mbarriers_.clear();
  learned_.clear();
  warp_times_.assign(warps_, 0);
  in_cluster_.clear();
  of_warp_.assign(warps_, {registers_at_first(warps_ / ranks_)});
  std::fill(written_.begin(), written_.end(), Written());
  for (;;) {
    bool any = false;  // (one warp may let another go on)
    for (uint32_t warp : warp_order_)
      for (bool progress = true; progress;) {
        progress = false;
        for (uint32_t i : lane_order_) {
          if (!exists(warp, i) || lane(warp, i).state != Fiber::ready) continue;
          any = progress = true;
          running_ = &lane(warp, i);
          running_->context = std::move(running_->context).resume();
          if (fault_ != Fault::none) return;
        }
      }
    if (any) continue;
    if (std::all_of(fibers_.begin(), fibers_.begin() + threads_, [](auto& f) { return f->state == Fiber::done; }))
      return check_end();
    bool passed = land_copies();
    for (uint32_t rank = 0; rank < ranks_ && !passed; rank++) passed = pass_barrier(rank);
    if (!passed && !pass_cluster()) stuck();
    if (fault_ != Fault::none) return;
  }
}

void Machine::suspend() {
  scheduler_ = std::move(scheduler_).resume();
}

// ---- barriers: all threads of the block that have not returned, at one number; those of a warp at one instruction
//      (PTX ISA 9.7.13.1: bar.sync is barrier.sync.aligned)

void Machine::barrier(Thread& t, uint32_t number, unsigned line) {
  if (counter_ && t.lane == 0) counter_->warp_op(line, warp_of(t));
  Fiber& f = fiber_of(t);
  f.state = Fiber::at_barrier, f.barrier = number, f.line = line;
  suspend();
}

// False where not all threads of that block of the cluster have come who are left.
bool Machine::pass_barrier(uint32_t rank) {
  const uint32_t of_block = threads_ / ranks_, begin = rank * of_block, end = begin + of_block;
  const Fiber* first = nullptr;
  for (uint32_t i = begin; i < end; i++) {
    const Fiber& f = *fibers_[i];
    if (f.state == Fiber::done) continue;
    if (!first || f.thread.warp != first->thread.warp) {
      if (first && f.barrier != first->barrier) return false;
      first = &f;
    }
    if (f.state != Fiber::at_barrier || f.barrier != first->barrier || f.line != first->line) return false;
  }
  if (!first) return false;
  if (ranks_ == 1) {
    epoch_++;
  } else {
    Known all;
    for (uint32_t i = begin; i < end; i++) tell(all, fibers_[i]->thread);
    for (uint32_t i = begin; i < end; i++) learn(fibers_[i]->thread, all);
  }
  for (uint32_t i = begin; i < end; i++)
    if (fibers_[i]->state == Fiber::at_barrier) fibers_[i]->state = Fiber::ready;
  return true;
}

// (9.7.13.4: barrier.cluster) All threads of the cluster that have not returned arrive; who waits goes on then.
void Machine::arrive_at_cluster(Thread& t, unsigned line) {
  if (!hopper_) refuse(t, "clusters are for compute capability 9.0", line);
  if (std::exchange(fiber_of(t).at_cluster_barrier, true))
    refuse(t, "a thread arrives at the cluster's barrier for which it has not waited yet", line);
  tell(in_cluster_, t);
}

void Machine::wait_for_cluster(Thread& t, unsigned line) {
  Fiber& f = fiber_of(t);
  if (!f.at_cluster_barrier) refuse(t, "a thread waits for the cluster's barrier, where it has not arrived", line);
  f.state = Fiber::at_cluster, f.line = line;
  suspend();
}

bool Machine::pass_cluster() {
  const auto begin = fibers_.begin(), end = begin + threads_;
  if (!std::all_of(begin, end, [](auto& f) { return f->state == Fiber::done || f->at_cluster_barrier; }) ||
      std::none_of(begin, end, [](auto& f) { return f->state == Fiber::at_cluster; }))
    return false;
  const Known all = std::exchange(in_cluster_, {});
  for (uint32_t i = 0; i < threads_; i++) {
    Fiber& f = *fibers_[i];
    f.at_cluster_barrier = false;
    if (f.state != Fiber::at_cluster) continue;
    learn(f.thread, all);
    f.state = Fiber::ready;
  }
  return true;
}

// " 3, 5 to 9": runs of neighbours.
std::string runs(const std::vector<uint32_t>& of) {
  std::string text;
  for (size_t i = 0, end; i < of.size(); i = end) {
    if (text.size() > 200) return text + ", ...";
    for (end = i + 1; end < of.size() && of[end] == of[end - 1] + 1;) end++;
    text += i ? "," : "";
    text += end - i > 1 ? words(" %u to %u", of[i], of[end - 1]) : words(" %u", of[i]);
  }
  return text;
}

// Nobody can go on: says who waits where, and who has returned.
void Machine::stuck() {
  std::map<std::string, std::vector<uint32_t>> where;
  for (uint32_t i = 0; i < threads_; i++) {
    const Fiber& f = *fibers_[i];
    where[f.state == Fiber::done
              ? "have returned"
              : words("wait%s at ", f.state == Fiber::in_warp       ? words(" for lanes %08x", f.mask).c_str()
                                    : f.state == Fiber::at_mbarrier ? words(" for parity %u of a barrier in phase %u",
                                                                            f.parity, f.mbarrier->count.phase())
                                                                          .c_str()
                                                                    : "") +
                    place(f.line)]
        .push_back(i);
  }
  std::string text = "threads wait for one another, and nobody can go on:";
  for (const auto& [what, threads] : where) text += "\n  threads" + runs(threads) + " " + what;
  Fiber& any = **std::find_if(fibers_.begin(), fibers_.end(), [](auto& f) { return f->state != Fiber::done; });
  fault_ = Fault::launch_failure;
  report(any.thread, any.line, text);
}

// ---- instructions of a warp: every lane of the mask that has not returned, at one instruction with one mask

void Machine::meet(Thread& t, WarpOp op, uint32_t mask, void* record, unsigned line) {
  Fiber& f = fiber_of(t);
  if (!(mask >> t.lane & 1)) refuse(t, "a lane that is not in the mask executes this", line);
  f.op = op, f.mask = mask, f.record = record, f.line = line;
  f.state = Fiber::in_warp;
  if (!complete(f)) suspend();
}

// Does what a lane waits for, if all who belong to it are there: all of them can go on.
bool Machine::complete(Fiber& f) {
  Fiber* lanes[warp_size] = {};
  const uint32_t warp = f.thread.warp;
  std::vector<uint32_t> missing;  // of the mask: those that have returned, or never were
  bool others = false;            // does anybody else run?
  for (uint32_t i = 0; i < warp_size; i++) {
    const bool runs = exists(warp, i) && lane(warp, i).state != Fiber::done;
    if (!(f.mask >> i & 1)) {
      others |= runs;
      continue;
    }
    if (!runs) {
      missing.push_back(i);
      continue;
    }
    Fiber& other = lane(warp, i);
    if (other.state != Fiber::in_warp || other.op != f.op || other.mask != f.mask ||
        (other.line != f.line && f.op != WarpOp::sync))
      return false;
    lanes[i] = &other;
  }
  if (!missing.empty() &&
      (f.op == WarpOp::mma || f.op == WarpOp::ldmatrix || f.op == WarpOp::wgmma || f.op == WarpOp::registers)) {
    const auto beyond = std::find_if(missing.begin(), missing.end(), [&](uint32_t i) { return !exists(warp, i); });
    const std::vector<uint32_t> returned(missing.begin(), beyond), never(beyond, missing.end());
    std::string who = "all 32 lanes of a warp must execute this:";
    if (!returned.empty()) who += " lanes" + runs(returned) + " have returned";
    if (!never.empty()) who += " lanes" + runs(never) + words(" are beyond the block's %u threads", threads_);
    refuse(f.thread, who.c_str(), f.line);
  }
  // (A product is made at its wait, and counted where it was asked for.)
  if (counter_)
    counter_->warp_op(f.op == WarpOp::wgmma ? static_cast<const Fiber::Product*>(f.record)->line : f.line,
                      warp_of(f.thread));
  switch (f.op) {
    case WarpOp::sync:
      if (!others) warp_epochs_[warp]++, warp_times_[warp] = time_++;
      break;
    case WarpOp::shuffle: shuffle(lanes); break;
    case WarpOp::ballot: ballot(lanes); break;
    case WarpOp::ldmatrix: ldmatrix(lanes); break;
    case WarpOp::mma:
      if (!counter_) hopper_ ? mma<gated::MmaArithmetic::hopper>(lanes) : mma<gated::MmaArithmetic::ampere>(lanes);
      break;
    case WarpOp::wgmma: wgmma(lanes); break;
    case WarpOp::registers: set_registers(lanes); break;
  }
  for (Fiber* other : lanes)
    if (other) other->state = Fiber::ready;
  return true;
}

// A thread has returned: whoever waited for it alone can go on.
void Machine::finish(Fiber& f) {
  f.state = Fiber::done;
  for (uint32_t i = 0; i < warp_size; i++)
    if (exists(f.thread.warp, i) && lane(f.thread.warp, i).state == Fiber::in_warp) complete(lane(f.thread.warp, i));
}

// (9.7.9.6) Each lane names another, and whether that one is inside of its segment; where not, it gets its own value.
void Machine::shuffle(Fiber* const* lanes) {
  for (uint32_t i = 0; i < warp_size; i++) {
    if (!lanes[i]) continue;
    Shuffle& s = *static_cast<Shuffle*>(lanes[i]->record);
    const uint32_t by = s.b & 31, clamp = s.c & 31, segment = s.c >> 8 & 31;
    const uint32_t last = (i & segment) | (clamp & ~segment), first = i & segment;
    int j = int(i);
    switch (s.mode) {
      case Shuffle::up: j = int(i) - int(by), s.inside = j >= int(last); break;
      case Shuffle::down: j = int(i + by), s.inside = j <= int(last); break;
      case Shuffle::butterfly: j = int(i ^ by), s.inside = j <= int(last); break;
      case Shuffle::index: j = int(first | (by & ~segment)), s.inside = j <= int(last); break;
    }
    if (!s.inside) j = int(i);
    // (What a lane gets from one that is not there is undefined: all bits 1, a NaN.)
    s.result = lanes[j] ? static_cast<const Shuffle*>(lanes[j]->record)->value : ~0u;
  }
}

void Machine::ballot(Fiber* const* lanes) {
  uint32_t votes = 0;
  for (uint32_t i = 0; i < warp_size; i++)
    if (lanes[i] && static_cast<Ballot*>(lanes[i]->record)->mine) votes |= 1u << i;
  for (uint32_t i = 0; i < warp_size; i++)
    if (lanes[i]) static_cast<Ballot*>(lanes[i]->record)->result = votes;
}

// (9.7.14.5.15) Lane i brings the address of row i % 8 of matrix i / 8. Of each matrix, lane i gets elements 2 (i % 4)
// and the next of row i / 4; transposed, rows 2 (i % 4) and the next of column i / 4.
void Machine::ldmatrix(Fiber* const* lanes) {
  const LdMatrix& first = *static_cast<const LdMatrix*>(lanes[0]->record);
  for (unsigned m = 0; m < first.tiles; m++) {
    uint16_t rows[8][8];
    for (unsigned r = 0; r < 8; r++) {
      Fiber& from = *lanes[8 * m + r];
      const uint64_t row = static_cast<LdMatrix*>(from.record)->row;
      memcpy(rows[r], shared<uint64_t, 2>(from.thread, row, false, from.line), 16);
    }
    for (unsigned i = 0; i < warp_size; i++) {
      const unsigned g = i / 4, t = 2 * (i % 4);
      const uint16_t low = first.transposed ? rows[t][g] : rows[g][t];
      const uint16_t high = first.transposed ? rows[t + 1][g] : rows[g][t + 1];
      static_cast<LdMatrix*>(lanes[i]->record)->result[m] = low | uint32_t(high) << 16;
    }
  }
}

// (9.7.14.5.8, figures of m16n8k16 with .bf16) With g = i / 4 and t = i % 4, lane i holds, two elements in a register:
//   A (16,16)  a0: (g, 2t)  a1: (g+8, 2t)  a2: (g, 2t+8)  a3: (g+8, 2t+8)      and the next of the row
//   B (16,8)   b0: (2t, g)  b1: (2t+8, g)                                      and the next of the column
//   C (16,8)   c0, c1: (g, 2t)   c2, c3: (g+8, 2t)                             and the next of the row
// The sums of products are those of core/mma.h, the model of a tensor core.
// wgmma has A as it is here where it has it in registers.
static void put_pair(gated::bf16* to, uint32_t pair) {
  to[0] = gated::bf16::from_bits(uint16_t(pair)), to[1] = gated::bf16::from_bits(uint16_t(pair >> 16));
}
static void put_lane(gated::bf16 (*A)[16], unsigned i, const uint32_t (&a)[4]) {
  const unsigned g = i / 4, t = 2 * (i % 4);
  put_pair(&A[g][t], a[0]), put_pair(&A[g + 8][t], a[1]);
  put_pair(&A[g][t + 8], a[2]), put_pair(&A[g + 8][t + 8], a[3]);
}
template <gated::MmaArithmetic arithmetic>
void Machine::mma(Fiber* const* lanes) {
  using gated::bf16;
  bf16 A[16][16], B[8][16];  // (B by columns)
  float C[8][16];
  for (unsigned i = 0; i < warp_size; i++) {
    const Mma& m = *static_cast<const Mma*>(lanes[i]->record);
    const unsigned g = i / 4, t = 2 * (i % 4);
    put_lane(A, i, m.a);
    put_pair(&B[g][t], m.b[0]), put_pair(&B[g][t + 8], m.b[1]);
    C[t][g] = m.c[0], C[t + 1][g] = m.c[1], C[t][g + 8] = m.c[2], C[t + 1][g + 8] = m.c[3];
  }
  gated::mma_sixteen_rows<arithmetic>(C, A, B, 8);
  for (unsigned i = 0; i < warp_size; i++) {
    Mma& m = *static_cast<Mma*>(lanes[i]->record);
    const unsigned g = i / 4, t = 2 * (i % 4);
    m.c[0] = C[t][g], m.c[1] = C[t + 1][g], m.c[2] = C[t][g + 8], m.c[3] = C[t + 1][g + 8];
  }
}

// ---- copies that arrive at their wait, and not before

void Machine::copy_async(Thread& t, uint64_t to, uint64_t from, uint32_t bytes, unsigned line) {
  if (bytes > 16) refuse(t, "cp.async copies more than its 16 bytes", line);
  if (from % 16) fault(t, Space::global, from, 16, line);
  if (bytes && !storage(reinterpret_cast<const void*>(from), bytes)) fault(t, Space::global, from, bytes, line);
  if (bytes && t.watched) watch(t, Space::global, from, bytes, false, line);
  memset(shared<uint64_t, 2>(t, to, true, line), 0xFF, 16);
  Fiber& f = fiber_of(t);
  f.copies.push_back({to, from, bytes, f.groups, line});
}

void Machine::commit_copies(Thread& t) {
  fiber_of(t).groups++;
}

void Machine::wait_copies(Thread& t, uint32_t pending) {
  Fiber& f = fiber_of(t);
  size_t arrived = 0;
  for (; arrived < f.copies.size() && f.copies[arrived].group + pending < f.groups; arrived++) {
    const Fiber::Copy& copy = f.copies[arrived];
    unsigned char bytes[16] = {};
    const bool watched = std::exchange(t.watched, t.watched && !counter_);  // (it is counted where it began)
    if (copy.bytes && t.watched) watch(t, Space::global, copy.from, copy.bytes, false, copy.line);
    memcpy(bytes, storage_of(copy.from), copy.bytes);
    memcpy(shared<uint64_t, 2>(t, copy.to, true, copy.line), bytes, 16);
    t.watched = watched;
  }
  f.copies.erase(f.copies.begin(), f.copies.begin() + ptrdiff_t(arrived));
}

// ---- products of a warpgroup (9.7.15): asked for, made at their wait. Each warp makes its own 16 rows, of what stands
//      in shared memory then. A mark holds the product's number in bits 8 to 21, and which sum, from 1, below.

struct Machine::WgmmaTiles {
  gated::bf16 A[16][16], B[256][16];
};

void Machine::load(WgmmaTiles& to, Thread& t, const Fiber::Product& p) {
  const auto at = [&](uint32_t address) {
    const bool watched = std::exchange(t.watched, false);
    const auto* const chunk = reinterpret_cast<const gated::bf16*>(shared<uint64_t, 2>(t, address, false, p.line));
    t.watched = watched;
    if (watched) watch_async(t, address, false, p.line);
    return chunk;
  };
  if (!p.in_registers) gated::wgmma_load(to.A, p.a, p.a_along, t.warp % 4 * 16, 16, at);
  gated::wgmma_load(to.B, p.b, p.b_along, 0, p.columns, at);
}

void Machine::multiply_async(Thread& t, Wgmma& m, unsigned line) {
  if (!hopper_) refuse(t, "wgmma is for compute capability 9.0", line);
  for (uint64_t descriptor : {m.in_registers ? m.b : m.a, m.b})
    if (const char* const wrong = gated::wgmma_refuses(descriptor)) refuse(t, wrong, line);
  Fiber& f = fiber_of(t);
  const uint32_t sums = m.columns / 2;
  if (!f.products_fenced && !std::all_of(m.sums, m.sums + sums, is_mark))
    refuse(t, "the sums of wgmma were in the thread's own hands: wgmma.fence is missing", line);
  constexpr size_t most = 64;
  if (f.products.size() == most) {
    if (!f.products.front().done) refuse(t, "more than 64 wgmma are under way", line);
    f.products.pop_front();
    f.first_product++;
  }
  const uint32_t number = f.first_product + uint32_t(f.products.size());
  f.products.push_back({m, f.product_groups, line, false});
  if (OfWarp& mine = of_warp_[t.warp]; t.lane == 0) {
    mine.products_line = line;
    for (const uint64_t part : {m.a, m.b, uint64_t(m.add), uint64_t(line)})
      mine.products = (mine.products ^ part) * 0x9E3779B97F4A7C15ull;
  }
  if (t.watched && !counter_ && t.lane == 0) {
    WgmmaTiles seen;
    load(seen, t, f.products.back());
  }
  for (uint32_t i = 0; i < sums; i++) m.sums[i] = as<float>(mark_begin | (number << 8 & mark_bits) | (i + 1));
}

void Machine::wait_products(Thread& t, uint32_t pending, unsigned line) {
  Fiber& f = fiber_of(t);
  f.products_fenced = false;
  for (size_t i = 0; i < f.products.size(); i++)
    if (Fiber::Product& p = f.products[i]; !p.done && p.group + pending < f.product_groups)
      meet(t, WarpOp::wgmma, ~0u, &p, line);
}

// What a mark stands for, once its product is made; else the mark.
float Machine::arrived(Thread& t, float mark) {
  const Fiber& f = fiber_of(t);
  const uint32_t bits = as<uint32_t>(mark) & mark_bits, i = ((bits >> 8) - f.first_product) & (mark_bits >> 8);
  const bool known = i < f.products.size() && f.products[i].done && (bits & 255) - 1 < std::size(f.products[i].sums);
  return known ? f.products[i].sums[(bits & 255) - 1] : mark;
}

// (figure of the accumulator's fragment, m64nNk16) Of the 16 rows of its warp, with g = i / 4 and t = i % 4, lane i has
// d[4j], d[4j+1]: (g, 8j + 2t) and the next; d[4j+2], d[4j+3]: (g + 8, 8j + 2t) and the next.
void Machine::wgmma(Fiber* const* lanes) {
  const auto product = [&](unsigned i) -> Fiber::Product& { return *static_cast<Fiber::Product*>(lanes[i]->record); };
  Fiber::Product& p = product(0);
  for (unsigned i = 1; i < warp_size; i++) {
    const Fiber::Product& q = product(i);
    if (q.a != p.a || q.b != p.b || q.add != p.add || q.line != p.line)
      refuse(lanes[i]->thread, "the lanes of a warp multiply different matrices", q.line);
  }
  if (counter_) {  // nothing is computed
    for (unsigned i = 0; i < warp_size; i++) {
      std::fill(std::begin(product(i).sums), std::end(product(i).sums), 0.0f);
      product(i).done = true;
    }
    return;
  }
  WgmmaTiles tiles;
  load(tiles, lanes[0]->thread, p);
  for (unsigned i = 0; i < warp_size && p.in_registers; i++) put_lane(tiles.A, i, product(i).registers);
  float C[256][16];
  const auto for_all = [&](auto f) {
    for (unsigned i = 0; i < warp_size; i++)
      for (unsigned j = 0; j < p.columns / 2; j++)
        f(lanes[i]->thread, product(i).sums[j], C[j / 4 * 8 + i % 4 * 2 + j % 2][i / 4 + j / 2 % 2 * 8]);
  };
  for_all([&](Thread& t, float sum, float& c) { c = p.add ? ptx::arrived(t, sum) : 0; });
  gated::mma_sixteen_rows<gated::MmaArithmetic::hopper>(C, tiles.A, tiles.B, p.columns);
  for_all([](Thread&, float& sum, float c) { sum = c; });
  for (unsigned i = 0; i < warp_size; i++) product(i).done = true;
  if (learned_.empty()) return;
  // (each lane has waited for what the warp has read)
  Known read;
  tell(read, lanes[0]->thread);
  for (unsigned i = 1; i < warp_size; i++) learn(lanes[i]->thread, read);
}

// (9.7.19.5) Each thread of a warpgroup executes this, with the same number.
void Machine::set_registers(Fiber* const* lanes) {
  Thread& t = lanes[0]->thread;
  const unsigned line = lanes[0]->line;
  const Registers& wanted = *static_cast<const Registers*>(lanes[0]->record);
  OfWarp& mine = of_warp_[t.warp];
  if (!hopper_) refuse(t, "setmaxnreg is for compute capability 9.0", line);
  if (wanted.count % 8 || wanted.count < 24 || wanted.count > 256)
    refuse(t, "setmaxnreg wants a multiple of 8 from 24 to 256", line);
  if (wanted.more ? wanted.count < mine.registers : wanted.count > mine.registers)
    refuse(t, words("setmaxnreg: the warp has %u registers", mine.registers).c_str(), line);
  mine.registers = wanted.count, mine.registers_line = line;
}

// ---- barriers in shared memory (9.7.13.15), and boxes of matrices that arrive there (9.7.9.27). A copy arrives when
//      nobody else can go on, and not before; from when it was asked for what it will write is NaN.

void Machine::tell(Known& to, const Thread& t) {
  if (learned_.empty()) learned_.assign(threads_, Known(threads_));
  to.resize(threads_);
  const uint32_t me = t.warp * warp_size + t.lane;
  for (uint32_t i = 0; i < threads_; i++) to[i] = std::max(to[i], learned_[me][i]);
  for (uint32_t i = 0; i < warp_size && exists(t.warp, i); i++)
    to[t.warp * warp_size + i] = std::max(to[t.warp * warp_size + i], warp_times_[t.warp]);
  to[me] = time_++;
}

void Machine::learn(const Thread& t, const Known& from) {
  for (uint32_t i = 0; i < from.size(); i++) {
    uint32_t& known = learned_[t.warp * warp_size + t.lane][i];
    known = std::max(known, from[i]);
  }
}

Mbarrier& Machine::mbarrier_at(Thread& t, uint64_t address, bool is_made, unsigned line) {
  if (!hopper_) refuse(t, "barriers that count bytes are for compute capability 9.0", line);
  const bool watched = std::exchange(t.watched, t.watched && !counter_);
  shared<uint64_t, 1>(t, address, !is_made, line);
  t.watched = watched;
  const auto found = mbarriers_.find(place_of(t, address));
  if (!is_made) return mbarriers_[place_of(t, address)];
  if (found == mbarriers_.end()) refuse(t, "no barrier was made at this address", line);
  Mbarrier& b = found->second;
  const uint32_t rank = fibers_[b.maker]->thread.rank, of_block = threads_ / ranks_;
  if (rank == t.rank) return b;
  if (fibers_[b.maker]->init_fences == b.init_fences)
    refuse(t,
           words("another block does not see the barrier that thread %u made: no fence.mbarrier_init", b.maker).c_str(),
           line);
  const auto begin = fibers_.begin() + rank * of_block;
  if (std::all_of(begin, begin + of_block, [](auto& f) { return f->state == Fiber::done; }))
    refuse(t, words("block %u of the cluster has ended, and its barrier is come to", rank).c_str(), line);
  return b;
}

// Of those who wait there, lets go whoever may. `before`: its phase was that when something came.
void Machine::pass_mbarrier(Mbarrier& b, uint32_t before) {
  if (b.count.phase() == before) return;
  b.over = std::exchange(b.gathered, {});
  for (uint32_t i = 0; i < threads_; i++) {
    Fiber& f = *fibers_[i];
    if (f.state == Fiber::at_mbarrier && f.mbarrier == &b && b.count.is_over(f.parity)) f.state = Fiber::ready;
  }
}

void Machine::make_mbarrier(Thread& t, uint64_t address, uint32_t arrivals, unsigned line) {
  Mbarrier& b = mbarrier_at(t, address, false, line);
  if (const char* const wrong = b.count.init(arrivals)) refuse(t, wrong, line);
  b.maker = t.warp * warp_size + t.lane, b.fences = fiber_of(t).proxy_fences, b.init_fences = fiber_of(t).init_fences;
}

void Machine::arrive_at_mbarrier(Thread& t, uint64_t address, uint32_t announced_bytes, unsigned line) {
  const uint64_t in_cluster = address / cluster_window;
  if (in_cluster) be_in_block(t, uint32_t(in_cluster - 1));
  Mbarrier& b = mbarrier_at(t, address % cluster_window, true, line);
  be_in_block(t, t.rank);
  const uint32_t phase = b.count.phase();
  tell(b.gathered, t);
  if (const char* const wrong = b.count.arrive(announced_bytes)) refuse(t, wrong, line);
  pass_mbarrier(b, phase);
}

bool Machine::try_mbarrier(Thread& t, uint64_t address, uint32_t parity, unsigned line) {
  Mbarrier& b = mbarrier_at(t, address, true, line);
  Fiber& f = fiber_of(t);
  if (!b.count.is_over(parity)) {
    f.has_tried ^= true;
    if (f.has_tried) {  // in vain, though it may be over when the others have run
      suspend();
      return false;
    }
    f.mbarrier = &b, f.parity = parity, f.line = line;
    f.state = Fiber::at_mbarrier;
    suspend();
  }
  f.has_tried = false;
  learn(t, b.over);
  return true;
}

void Machine::copy_box(Thread& t, uint64_t to, uint64_t map, int32_t x, int32_t y, uint64_t mbarrier, uint32_t ranks,
                       unsigned line) {
  const uint64_t offset = map - parameter_window;
  if (offset >= kernel_->parameter_bytes || offset % 64 || kernel_->parameter_bytes - offset < tensor_map_bytes)
    refuse(t, "the tensor map is no parameter of the kernel on a boundary of 64 bytes", line);
  gated::TmaMatrix matrix;
  if (!read_tensor_map(matrix, t.parameters + offset)) refuse(t, "this is no tensor map", line);
  if (to % gated::wgmma_group_bytes) refuse(t, "a box of swizzled lines begins off a boundary of 1024 bytes", line);
  if (counter_) counter_->copied(line, matrix, x, y);
  if (ranks == 0) return copy_box_here(t, to, matrix, x, y, mbarrier, line);
  if (ranks >> ranks_) refuse(t, words("a copy into blocks %x of a cluster of %u", ranks, ranks_).c_str(), line);
  for (uint32_t rank = 0; rank < ranks_; rank++)
    if (ranks >> rank & 1) {
      be_in_block(t, rank);
      copy_box_here(t, to, matrix, x, y, mbarrier, line);
    }
  be_in_block(t, t.rank);
}

// Into the block that the thread is in now.
void Machine::copy_box_here(Thread& t, uint64_t to, const gated::TmaMatrix& matrix, int32_t x, int32_t y,
                            uint64_t mbarrier, unsigned line) {
  Mbarrier& b = mbarrier_at(t, mbarrier, true, line);
  if (fibers_[b.maker]->proxy_fences == b.fences)
    refuse(t, words("copies do not see the barrier that thread %u made: no fence.proxy.async", b.maker).c_str(), line);
  gated::tma_copy_box(matrix, x, y, [&](uint32_t place, uint64_t from, uint32_t elements) {
    const auto bytes = uint32_t(elements * sizeof(gated::bf16));
    const bool watched = std::exchange(t.watched, false);
    if (bytes && !storage(reinterpret_cast<const void*>(from), bytes)) fault(t, Space::global, from, bytes, line);
    memset(shared<uint64_t, 2>(t, to + place, true, line), 0xFF, 16);
    t.watched = watched;
    if (!watched) return;
    if (bytes && !counter_) watch(t, Space::global, from, bytes, false, line);
    watch_async(t, to + place, true, line);
  });
  tell(b.gathered, t);
  b.copies.push_back({matrix, place_of(t, to), x, y});
}

// Nobody can go on: the copies that only they are missing for arrive. False where there are none.
bool Machine::land_copies() {
  bool any = false;
  for (auto& [address, b] : mbarriers_) {
    if (b.copies.empty() || !b.count.awaits_bytes_alone()) continue;
    const uint32_t phase = b.count.phase();
    for (const Mbarrier::Copy& copy : std::exchange(b.copies, {})) {
      any = true;
      if (!counter_)
        gated::tma_copy_box(copy.matrix, copy.x, copy.y, [&](uint32_t place, uint64_t from, uint32_t elements) {
          memset(&shared_[copy.to + place], 0, 16);
          if (elements) memcpy(&shared_[copy.to + place], storage_of(from), elements * sizeof(gated::bf16));
        });
      if (const char* const wrong = b.count.land(gated::tma_box_bytes(copy.matrix.box_lines))) {
        fault_ = Fault::launch_failure;
        const auto waits = std::find_if(fibers_.begin(), fibers_.begin() + threads_, [&, &b = b](auto& f) {
          return f->state == Fiber::at_mbarrier && f->mbarrier == &b;
        });
        Fiber& who = waits == fibers_.begin() + threads_ ? *fibers_[b.maker] : **waits;
        report(who.thread, who.line, wrong);
        return true;
      }
    }
    pass_mbarrier(b, phase);
  }
  return any;
}

// What a block must not leave behind, what the warps of a warpgroup did otherwise than each other, and how registers
// were shared out.
void Machine::check_end() {
  const auto wrong = [&](uint32_t warp, unsigned line, const std::string& what) {
    fault_ = Fault::launch_failure;
    report(lane(warp, 0).thread, line, what);
  };
  for (const auto& [address, b] : mbarriers_)
    if (!b.copies.empty())
      return wrong(b.maker / warp_size, 0, "the block has ended, and copies are under way into its shared memory");
  std::vector<uint32_t> of_block(ranks_);
  const auto all_beside = [&](uint32_t warp) -> uint32_t& { return of_block[warp / (warps_ / ranks_)]; };
  for (uint32_t warp = 0; warp < warps_; warp++) {
    const OfWarp &mine = of_warp_[warp], &first = of_warp_[warp / 4 * 4];
    all_beside(warp) += mine.registers;
    if (mine.registers != first.registers)
      return wrong(warp, std::max(mine.registers_line, first.registers_line),
                   "setmaxnreg: the warps of a warpgroup have not the same number of registers");
    if (mine.products != first.products || (mine.products && warp / 4 * 4 + 4 > warps_))
      return wrong(warp, std::max(mine.products_line, first.products_line),
                   "the warps of a warpgroup have not asked for the same products");
  }
  for (uint32_t warp = 0; warp < warps_; warp++)
    if (const uint32_t all = all_beside(warp) * warp_size; all > all_registers && of_warp_[warp].registers_line)
      return wrong(warp, of_warp_[warp].registers_line,
                   words("setmaxnreg: the warps have %u registers in all, and there are %u", all, all_registers));
}

// ---- races

Access Machine::access_of(const Thread& t, unsigned line) const {
  return {epoch_, warp_epochs_[t.warp], uint32_t(t.warp * warp_size + t.lane), time_, line};
}

// Was that access in a block of this launch that ran before? (Of shared memory such an access is forgotten.)
bool Machine::in_other_block(const Access& before, Space space) const {
  return space == Space::global && before.epoch && before.epoch < block_epoch_;
}

// Is there no barrier between that access and this one?
bool Machine::meets(const Access& before, const Access& now, Space space) const {
  if (in_other_block(before, space)) return true;
  if (before.epoch != epoch_ || before.thread == now.thread) return false;
  if (!learned_.empty() && before.time <= learned_[now.thread][before.thread]) return false;
  return before.thread / warp_size != now.thread / warp_size || before.warp_epoch == now.warp_epoch;
}

void Machine::race(Thread& t, Space space, uint64_t address, bool write, const Access& before, const char* did,
                   unsigned line) {
  end(Fault::launch_failure, t, line,
      words("a race: thread %u %s %s memory at %zu, and so does thread %u%s, which %s it, with no barrier between: %s",
            unsigned(t.warp * warp_size + t.lane), write ? "writes" : "reads",
            space == Space::global ? "global" : "shared", size_t(address), before.thread,
            in_other_block(before, space) ? " of another block" : "", did, place(before.line).c_str()));
}

// An access of wgmma or of a copy of a box to 16 bytes of shared memory: by the async proxy, which sees what a thread
// has written after its fence alone.
void Machine::watch_async(Thread& t, uint64_t address, bool write, unsigned line) {
  if (counter_) return;
  const Access now = access_of(t, line);
  const uint64_t place = place_of(t, address), granule = place / shared_granule;
  if (read_async_.empty()) read_async_.assign(shared_.size() / shared_granule * warps_, {});
  if (const Written& w = written_[granule]; w.thread && fibers_[w.thread - 1]->proxy_fences == w.fences)
    refuse(t,
           words("%s shared memory at %zu as it was before thread %u wrote: no fence.proxy.async",
                 write ? "a copy finds" : "wgmma reads", size_t(address), w.thread - 1)
               .c_str(),
           line);
  for (uint64_t at = place / 2; at < place / 2 + 8; at++) {
    Cell& cell = cells_[at];
    if (meets(cell.write, now, Space::shared)) race(t, Space::shared, address, write, cell.write, "writes", line);
    if (!write) continue;
    if (meets(cell.read, now, Space::shared)) race(t, Space::shared, address, write, cell.read, "reads", line);
    cell.write = now;
  }
  if (!write) {
    read_async_[granule * warps_ + t.warp] = now;
    return;
  }
  for (const std::vector<Access>* reads : {&read_async_, &read_by_warp_})
    for (uint32_t warp = 0; warp < warps_; warp++)
      if (const Access& read = (*reads)[granule * warps_ + warp]; meets(read, now, Space::shared))
        race(t, Space::shared, address, write, read, "reads", line);
  written_[granule] = {};
}

void Machine::watch(Thread& t, Space space, uint64_t address, unsigned bytes, bool write, unsigned line) {
  if (counter_) return counter_->access(t, space, address, bytes, write, line);
  if (bytes == 1) refuse(t, "the watch for races knows no accesses to single bytes", line);
  const Access now = access_of(t, line);
  const uint32_t me = now.thread;
  const auto race = [&](const Access& before, const char* did) {
    this->race(t, space, address, write, before, did, line);
  };
  const auto in_other_block = [&](const Access& before) { return this->in_other_block(before, space); };
  const auto meets = [&](const Access& before) { return this->meets(before, now, space); };
  const uint64_t place = space == Space::shared ? place_of(t, address) : address;
  if (space == Space::shared && write) {
    written_[place / shared_granule] = {me + 1, fiber_of(t).proxy_fences};
    for (uint32_t warp = 0; warp < warps_ && !read_async_.empty(); warp++)
      if (const Access& read = read_async_[place / shared_granule * warps_ + warp]; meets(read)) race(read, "reads");
  }
  if (space == Space::shared && !write) read_by_warp_[place / shared_granule * warps_ + t.warp] = now;
  std::vector<Cell>* cells = &cells_;
  uint64_t first = place / 2;
  if (space == Space::global) {  // (an access lies on a boundary of its size: in one piece)
    cells = &global_cells_[place / cells_bytes];
    if (cells->empty()) cells->resize(cells_bytes / 2);
    first = place % cells_bytes / 2;
  }
  for (uint64_t at = first; at < first + (bytes + 1) / 2; at++) {
    Cell& cell = (*cells)[at];
    if (meets(cell.write)) race(cell.write, "writes");
    const bool read_now = cell.read.epoch == epoch_, other_block = in_other_block(cell.read);
    if (write) {
      const bool same_warp_now = cell.read.thread / warp_size == t.warp && cell.read.warp_epoch == now.warp_epoch;
      if (meets(cell.read) || cell.other_block ||
          (read_now && (cell.several_warps || (cell.several_lanes && same_warp_now))))
        race(cell.read, "reads");
      cell.write = now;
    } else {
      if (!read_now) cell.several_warps = cell.several_lanes = false;
      cell.other_block |= other_block;
      cell.several_warps |= read_now && cell.read.thread / warp_size != t.warp;
      cell.several_lanes =
          read_now && cell.read.warp_epoch == now.warp_epoch && (cell.several_lanes || cell.read.thread != me);
      cell.read = now;
    }
  }
}

// ---- faults

// The line of the source and the instruction, which the kernel's C++ has beside its own lines.
std::string Machine::place(unsigned line) const {
  std::ifstream file(kernel_->file);
  std::string text, source = "unknown source";
  for (unsigned i = 1; std::getline(file, text); i++) {
    const size_t comment = text.find("// ");
    if (comment == std::string::npos) continue;
    if (i == line) return source + ": " + text.substr(comment + 3);
    if (text.find_first_not_of(' ') == comment && i > 1) source = text.substr(comment + 3);
  }
  return kernel_->file + words(":%u", line);
}

std::string Machine::who(const Thread& t) const {
  return words("block (%u,%u,%u) of (%u,%u,%u), thread (%u,%u,%u) of (%u,%u,%u)", t.ctaid.x, t.ctaid.y, t.ctaid.z,
               grid_.x, grid_.y, grid_.z, t.tid.x, t.tid.y, t.tid.z, block_.x, block_.y, block_.z);
}

void Machine::report(Thread& t, unsigned line, const std::string& what) {
  fprintf(stderr, "ptx: %.300s: %s\n  at %s\n  %s\n", plain_name(kernel_->name).c_str(), who(t).c_str(),
          place(line).c_str(), what.c_str());
}

void Machine::end(Fault fault, Thread& t, unsigned line, const std::string& what) {
  fault_ = fault;
  report(t, line, what);
  for (;;) suspend();
}

void Machine::refuse(Thread& t, const char* why, unsigned line) {
  end(Fault::launch_failure, t, line, why);
}

void Machine::fault(Thread& t, Space space, uint64_t address, unsigned bytes, unsigned line) {
  const bool misaligned = address % (bytes & -bytes) != 0;
  std::string what;
  if (space == Space::global) {
    what = "global memory: " + explain(reinterpret_cast<const void*>(address), bytes);
  } else if (space == Space::shared) {
    what = words(
        "shared memory: %u bytes at %zu, which are not all inside one variable (the block has %u bytes, dynamic ones "
        "from %u)",
        bytes, size_t(address), t.shared_bytes, kernel_->description->dynamic_at);
  } else if (space == Space::local) {
    what = words("%u bytes at 0x%zx, which are neither device memory nor shared memory nor the thread's own", bytes,
                 size_t(address));
  } else {
    what = words("parameters: %u bytes at %zu of %zu", bytes, size_t(address), kernel_->parameter_bytes);
  }
  if (misaligned) what += ", not on a boundary of their size";
  end(misaligned ? Fault::misaligned_address : Fault::illegal_address, t, line, what);
}

}  // namespace

Fault run(const Kernel& kernel, Extent grid, Extent block, unsigned cluster, size_t dynamic_shared,
          const void* parameters) {
  static Machine machine;
  static std::set<std::string> launched;
  if (const char* const file = getenv("PTX_LAUNCHED"); file && launched.insert(kernel.name).second)
    std::ofstream(file, std::ios::app) << kernel.name << std::endl;
  static struct Counted : Counter {
    ~Counted() {
      if (wanted()) write();
    }
  } counter;
  std::vector<uint64_t> counted;
  if (Counter::wanted()) {
    counted = counter.blocks_of(kernel, grid, block, cluster, dynamic_shared, parameters);
    if (counted.empty() && !Counter::decides_work(kernel)) return Fault::none;
  }
  return machine.launch(kernel, {grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, cluster, dynamic_shared,
                        parameters, Counter::wanted() ? &counter : nullptr, counted);
}

}  // namespace ptx
