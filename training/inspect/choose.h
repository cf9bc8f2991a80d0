// choose: which of several endings a model finds likeliest after a context (dataloader/choices.h)
//   the loss of an ending is the sum of -log p(token | all before it) over its tokens, in double
//   an answer by the sum is the ending of the smallest sum; an answer by the mean, the one of the smallest sum /
//   tokens, which does not prefer short endings: the accuracy that llm.c and others give for HellaSwag. Of equal ones
//   the first is taken.
// --choices | tests/test_choices.cpp
#pragma once
#include <string>
#include <vector>

#include "dataloader/choices.h"
#include "layers/model.h"

namespace gated {

struct EndingLosses {
  std::vector<std::vector<double>> sums;  // of each question, of each of its endings
  size_t shortened = 0;                   // endings whose context was too long and lost tokens at its front
};

// The model has memory for B sequences of T tokens, which hold a context and an ending but for the last token. Refuses
// an ending of more tokens than T.
EndingLosses ending_losses(const std::vector<ChoiceQuestion>& questions, Model& model, size_t B, size_t T,
                           Device device);

struct Choices {
  size_t questions, right_by_mean, right_by_sum, shortened;
  double chance;  // share of right answers that guessing gives
};

Choices choose(const std::vector<ChoiceQuestion>& questions, const EndingLosses& losses);

std::string choices_text(const Choices& choices);

}  // namespace gated
