#include "layers/parameters.h"

#include <algorithm>

#include "core/host_math.h"
#include "core/philox.cuh"
#include "kernels/bf16/round.h"

namespace gated {

size_t count(const Shape& shape) {
  size_t n = 1;
  for (size_t d : shape) require(!__builtin_mul_overflow(n, d, &n), "a tensor's shape overflows: lower the sizes");
  return n;
}

size_t add_sizes(size_t a, size_t b) {
  require(!__builtin_add_overflow(a, b, &a), "the model's sizes overflow: lower them");
  return a;
}

// ---- tensors

namespace {

constexpr size_t transaction = 128;  // bytes

size_t padded_bytes(size_t bytes) {
  return add_sizes(bytes, transaction - 1) / transaction * transaction;
}

// Parameters begin at multiples of 32 elements.
size_t padded_elements(size_t n) {
  return padded_bytes(count({n, sizeof(float)})) / sizeof(float);
}

// FNV-1a over the name (RFC 9923).
uint64_t hash_of(const std::string& name) {
  uint64_t h = 0xcbf29ce484222325;
  for (unsigned char c : name) h = (h ^ c) * 0x100000001b3;
  return h;
}

}  // namespace

size_t bytes_of(const TensorList& list, Storage storage) {
  size_t total = 0;
  list(TensorVisitor(
      [&](const TensorVisitor::Tensor& t, const auto&) { total = add_sizes(total, padded_bytes(t.bytes)); }, storage));
  return total;
}

void place_tensors(void* memory, const TensorList& list, Storage storage) {
  char* next = static_cast<char*>(memory);
  list(TensorVisitor(
      [&](const TensorVisitor::Tensor& t, const std::function<void(void*)>& place) {
        place(next);
        next += padded_bytes(t.bytes);
      },
      storage));
}

// ---- parameters

Parameters::Parameters(const List& list) {
  list(ParameterVisitor([&](Weight&, const Parameter& p) {
    list_.push_back(p);
    list_.back().offset = size_;
    size_ = add_sizes(size_, padded_elements(p.size));
    list_.back().fp32_offset = fp32_size_;
    if (is_read_in_fp32(p.use)) fp32_size_ += padded_elements(p.size);
  }));
}

void Parameters::allocate(const List& list, Device device, Storage storage, bool gradients, Masters masters) {
  masters_ = masters;
  values = Buffer<float>(device, masters == Masters::whole ? size_ : fp32_size_);
  if (gradients) grads = Buffer<float>(device, size_);
  if (storage == Storage::bf16) copies = Buffer<bf16>(device, size_);
  size_t i = 0;
  list(ParameterVisitor([&](Weight& weight, const Parameter&) {
    const Parameter& p = list_[i++];
    if (masters == Masters::whole)
      weight.value = values.data() + p.offset;
    else
      weight.value = is_read_in_fp32(p.use) ? values.data() + p.fp32_offset : nullptr;
    if (gradients) weight.grad = grads.data() + p.offset;
    if (copies.size()) weight.copy = copies.data() + p.offset;
  }));
}

namespace {

double standard_deviation(const Parameter& p, const InitRule& rule, size_t layers) {
  if (rule.kind == InitRule::Kind::fan_in && is_product(p.use)) return 1 / std::sqrt(double(p.shape.back()));
  const bool scaled = rule.kind == InitRule::Kind::depth_scaled && p.init.kind == Init::Kind::written;
  return scaled ? rule.std / std::sqrt(2.0 * double(layers)) : rule.std;
}

void fill(float* to, size_t n, const Init& init, double deviation, uint64_t seed, uint64_t stream) {
  const auto uniform = [&](size_t i, double low, double high) {
    return low + (high - low) * uniform_double(seed, stream, i);
  };
  const auto time_step = [&](size_t i) {
    const double step = host_exp(uniform(i, host_log(0.001), host_log(0.1)));
    return host_log(host_exp(step) - 1);  // the inverse of softplus
  };
  switch (init.kind) {
    case Init::Kind::constant: std::fill_n(to, n, float(init.value)); return;
    case Init::Kind::normal:
    case Init::Kind::written:
#pragma omp parallel for simd
      for (size_t pair = 0; pair < n / 2; pair++) {
        const NormalPair draw = normal_pair(seed, stream, pair);
        to[2 * pair] = float(deviation * draw.z[0]);
        to[2 * pair + 1] = float(deviation * draw.z[1]);
      }
      if (n % 2) to[n - 1] = float(deviation * normal(seed, stream, n - 1));
      return;
    case Init::Kind::log_of_uniform:
      for (size_t i = 0; i < n; i++) to[i] = float(host_log(uniform(i, 0.01, 16)));
      return;
    case Init::Kind::time_step:
      for (size_t i = 0; i < n; i++) to[i] = float(time_step(i));
  }
}

}  // namespace

void Parameters::initialise(const InitRule& rule, size_t layers, uint64_t seed) {
  fill_from_host(whole(), [&](float* host) {
    for (const Parameter& p : list_) {
      const uint64_t stream = stream_of(Purpose::init, hash_of(p.name));
      fill(host + p.offset, p.size, p.init, standard_deviation(p, rule, layers), seed, stream);
    }
  });
}

void Parameters::whole_changed(Context& ctx) {
  if (copies.size()) round_to_bf16(copies.data(), whole().data(), size_, ctx);
  if (masters_ == Masters::shared)
    for (const Parameter& p : list_)
      if (is_read_in_fp32(p.use))
        copy_rows(values.data() + p.fp32_offset, 1, grads.data() + p.offset, 1, 1, p.size, ctx);
}

std::vector<size_t> Parameters::layer_begins() const {
  const std::string layers = "model.layers.";
  std::vector<size_t> begins;
  std::string last;  // the layer before: "model.layers.3.", or nothing
  for (const Parameter& p : list_) {
    const bool inside = p.name.starts_with(layers);
    const std::string here = inside ? p.name.substr(0, p.name.find('.', layers.size()) + 1) : "";
    if (here != last) begins.push_back(p.offset);
    last = here;
  }
  if (!last.empty()) begins.push_back(size_);
  return begins;
}

size_t Parameters::total() const {
  size_t n = 0;
  for (const Parameter& p : list_) n += p.size;
  return n;
}

size_t Parameters::active() const {
  double n = 0;
  for (const Parameter& p : list_) n += p.share * double(p.size);
  return size_t(n + 0.5);
}

double Parameters::product_flops() const {
  double flops = 0;
  for (const Parameter& p : list_)
    if (is_product(p.use)) flops += 6.0 * p.share * double(p.size);
  return flops;
}

}  // namespace gated
