// hf_tensors: how the parameters of a model lie in the tensors of Hugging Face's transformers. One description serves
// reading and writing.
//
// Most parameters are a tensor of their own, of the same name. Where transformers keeps several in one, or one in
// several, or transposed, the description says which element is which by strides: a Piece is a block of a parameter in
// a tensor,
//
//   ours[ours + i*axes[0].ours + j*axes[1].ours + ...]  is  theirs[theirs + i*axes[0].theirs + j*axes[1].theirs + ...]
//
// for all i < axes[0].count, j < axes[1].count, ... tests/test_hf_model.cpp, tests/test_from_matrix.cpp
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "layers/model_config.h"

namespace gated {

// The architectures of transformers that a line of flags can say; and `code`, which comes with its code and is any
// model (training/models/modeling_gated.py).
enum class HfArchitecture { gpt2, llama, qwen2, qwen3, qwen3_moe, qwen3_next, gpt_oss, gemma3, code };

struct Axis {
  size_t count, ours, theirs;  // steps from one element to the next
};

struct Piece {
  std::string parameter;
  size_t ours, theirs;  // the first element in each
  std::vector<Axis> axes;
};

struct HfTensor {
  std::string name;
  Shape shape;
  std::vector<Piece> pieces;
};

// The tensors of a model, in the order of its parameters: all of them, or of more than `most` the first and no piece of
// others. A parameter that the architecture has no place for is a tensor of its own name, which no file of it has.
// Refuses a model that they do not tile.
std::vector<HfTensor> hf_tensors(HfArchitecture architecture, const ModelConfig& model, size_t most = SIZE_MAX);

// Refuses tensors that are not these parameters: pieces have to cover every element of every parameter once, and every
// element of every tensor once.
void check_tiling(const std::vector<HfTensor>& tensors, const std::vector<Parameter>& list);

// Copies a piece from the tensor into the parameter, whose first elements these are; or the other way.
void take_piece(const Piece& piece, float* ours, const float* theirs);
void give_piece(const Piece& piece, const float* ours, float* theirs);

}  // namespace gated
