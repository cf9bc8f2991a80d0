// loader: which tokens a step sees: a pure function of (seed, step, micro-batch), with no state to save
//   --data=self | bigram-backcopy[:FILE] | recall | texts | FILE.bin, 'dir/*_train_*.bin'
//   --val-data= the same forms; without it the last --val-fraction of --data is kept for validation
//   (bigram-backcopy and recall have validation sequences of their own)
//
// Order. Row b of micro-batch m is the sequence with running number
//   g = (step*M + m)*B + b
// and number g is the (g mod n)-th of epoch g/n, the n training sequences being shuffled anew each epoch. An epoch may
// end inside a batch: each sequence still comes once in each epoch.
//
// Validation takes whole batches of B from the split's start, unshuffled. Sequences that do not fill one more
// batch are left out, so all batches have one shape and the mean over batches is the mean over tokens.
// tests/test_dataloader.cpp
#pragma once
#include <memory>
#include <string>

#include "core/check.h"
#include "dataloader/token_stream.h"

namespace gated {

struct DataOptions {
  std::string data = "self";
  std::string val_data = "";  // "" takes the last val_fraction of data
  double val_fraction = 0.1;  // 0: no validation
  size_t vocab = 0;           // 0: 256 for text, the shards' own, 64 for bigram-backcopy, 128 for recall
  uint64_t seed = 0;
  std::string root = "";  // where --data=self looks; "": beside the program, else the current folder
};

struct Data {
  std::shared_ptr<const TokenStream> train, val;  // val is null when there is no validation
};

// Is this --data made up, with validation data of its own?
bool is_synthetic(const std::string& spec);

Data open_data(const DataOptions& options);

// Data that was there when it was opened cannot be read, or holds what no data may.
struct UnreadableData : Error {
  using Error::Error;
};

class TokenLoader {
 public:
  struct Shape {
    size_t B, T, micro_batches = 1;
  };

  TokenLoader(Data data, Shape shape, uint64_t seed);

  size_t epoch_sequences() const { return sequences_; }
  size_t validation_batches() const { return validation_batches_; }
  std::string validation_description() const { return data_.val->description(); }

  // inputs, targets (B,T). Both throw UnreadableData.
  void training_batch(size_t step, size_t micro_batch, int32_t* inputs, int32_t* targets) const;
  void validation_batch(size_t batch, int32_t* inputs, int32_t* targets) const;

 private:
  void row(const TokenStream& stream, size_t sequence, int32_t* inputs, int32_t* targets) const;

  Data data_;
  Shape shape_;
  uint64_t seed_;
  size_t sequences_, validation_batches_ = 0;
};

}  // namespace gated
