// save_checkpoint: that of training/checkpoint/checkpoint.h, of tensors in memory.
#pragma once
#include "training/checkpoint/checkpoint.h"

namespace gated {

inline void save_checkpoint(const std::string& path, const std::vector<TensorView>& tensors,
                            std::map<std::string, std::string> metadata) {
  std::vector<TensorForm> forms;
  for (const TensorView& t : tensors) forms.push_back({t.name, "F32", t.shape});
  const auto values = [&](size_t i) { return tensors[i].data; };
  save_checkpoint(path, forms, values, std::move(metadata));
}

}  // namespace gated
