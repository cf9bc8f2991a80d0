#include "training/engines.h"

#include "core/context.cuh"

namespace gated {

// What the device refuses, with the flags that help.
static void use_mma(Context& ctx, MmaArithmetic arithmetic) {
  try {
    ctx.use_mma(arithmetic);
  } catch (const Error& e) {
    const std::string other = gpu_mma() ? format("--mma=%s", name_of(*gpu_mma())) : "--precision=fp32";
    fail("--mma=%s: %s: take %s", name_of(arithmetic), e.what(), other.c_str());
  }
}

void use_engines(Context& ctx, const Config& config) {
  if (config.cublas) ctx.use_cublas(config.tf32);
  if (config.model.storage == Storage::bf16) use_mma(ctx, config.mma);
  if (config.graph) ctx.use_graphs();
}

}  // namespace gated
