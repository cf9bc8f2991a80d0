#include "layers/smoothquant.h"

#include <algorithm>

#include "core/host_math.h"
#include "layers/mixer.h"
#include "layers/norm.cuh"

namespace gated {

namespace {

// largest[c] = the larger of itself and every |x[r][c]|.
void take_in(std::vector<float>& largest, const float* x, size_t rows, Device device) {
  const size_t C = largest.size();
  std::vector<float> host(rows * C);
  Buffer<float>::copy_to_host(device, host.data(), x, host.size());
  for (size_t r = 0; r < rows; r++)
    for (size_t c = 0; c < C; c++) largest[c] = max_of(std::fabs(host[r * C + c]), largest[c]);
}

}  // namespace

void fold_scales(Norm& norm, Mixer& reader, const std::vector<float>& s, Context& ctx) {
  const size_t C = s.size();
  norm.divide_columns(s, ctx.device);
  reader.readers([&](const Weight& weight, size_t rows, Use) {
    edit_on_host(ctx.device, weight.value, rows * C, [&](float* w) {
      for (size_t i = 0; i < rows * C; i++) w[i] *= s[i % C];
    });
  });
}

SmoothQuant::SmoothQuant(Model& model, Context& ctx) : model_(model), C_(model.config.hidden), ctx_(ctx) {
  const ModelConfig& c = model.config;
  require(c.norm.kind != NormKind::none, "SmoothQuant: there are no norms to fold its scales into");
  require(c.placement != NormPlacement::post,
          "SmoothQuant: norms write the residual stream, which is not theirs to scale");
  model.norms_of_mixers([&](Norm& norm, Mixer& mixer) { pairs_.push_back({norm, mixer, std::vector<float>(C_)}); });
}

void SmoothQuant::see(size_t N) {
  ctx_.synchronize();
  auto pair = pairs_.begin();
  model_.norms_of_mixers(
      [&](Norm& norm, Mixer&) { take_in((pair++)->largest, norm.output().as<float>(), N, ctx_.device); });
}

void SmoothQuant::fold(double alpha) {
  for (Pair& pair : pairs_) {
    std::vector<float> of_weights(C_), s(C_, 1.0f);
    pair.mixer.readers([&](const Weight& weight, size_t rows, Use use) {
      if (use == Use::linear) take_in(of_weights, weight.value, rows, ctx_.device);
    });
    for (size_t c = 0; c < C_; c++)
      if (pair.largest[c] > 0 && of_weights[c] > 0)
        s[c] =
            float(host_exp(alpha * host_log(double(pair.largest[c])) - (1 - alpha) * host_log(double(of_weights[c]))));
    fold_scales(pair.norm, pair.mixer, s, ctx_);
  }
}

}  // namespace gated
