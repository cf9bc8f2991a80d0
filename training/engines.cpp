#include "training/engines.h"

#include "core/context.cuh"

namespace gated {

void use_engines(Context& ctx, const Config& config) {
  if (config.cublas) ctx.use_cublas(config.tf32);
  if (config.model.storage == Storage::bf16) ctx.use_mma(config.mma);
  if (config.graph) ctx.use_graphs();
}

}  // namespace gated
