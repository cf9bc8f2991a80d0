// partition: which rank owns what of the flat buffers, and in which buckets that travels (training/ranks/exchange.cuh).
//
// The flat buffers hold the parameters in the order in which a forward reads them, so a backward is done with the last
// ones first. A bucket is some whole chunks of a layer, as the gradient's norm is added up. Every rank owns a share of
// every bucket: so all send and get equally much at any time, and none is left with the bucket that is ready last.
//
//   chunks    | 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 | ...
//   layers    | embedding     | layer 0  | layer 1 ...
//   buckets   | 0         | 1 | 2    | 3        | ...     of three chunks at most
//
// A chunk in which layers meet travels with the first of them: its weights are read first, its gradient is done last.
// tests/test_ranks.cpp
#pragma once
#include "kernels/gradient.h"
#include "layers/parameters.h"
#include "training/ranks/ranks.h"

namespace gated {

// Where a parameter stands in them.
inline Span span_of(const Parameter& p) {
  return {p.offset, p.offset + p.size};
}

class Partition {
 public:
  Partition(const Parameters& weights, size_t ranks) : ranks_(ranks), size_(weights.flat_size()) {
    std::vector<size_t> ends = weights.layer_begins();
    if (ranks == 1) ends.clear();  // nothing travels
    ends.push_back(size_);
    const size_t most = ranks == 1 ? buffer_chunks(size_) : ranks * most_chunks;
    size_t begin = 0;
    for (const size_t end : ends)
      for (; begin < buffer_chunks(end); begin = buckets_.back().end)
        buckets_.push_back({begin, std::min(buffer_chunks(end), begin + most)});
  }

  size_t buckets() const { return buckets_.size(); }
  // In chunks, and in elements.
  Span chunks(size_t bucket, size_t rank) const {
    const Span all = buckets_[bucket], share = share_of(all.size(), rank, ranks_);
    return {all.begin + share.begin, all.begin + share.end};
  }
  Span part(size_t bucket, size_t rank) const { return elements(chunks(bucket, rank)); }
  Span bucket(size_t i) const { return elements(buckets_[i]); }

  size_t owned(size_t rank) const {
    size_t n = 0;
    for (size_t i = 0; i < buckets(); i++) n += part(i, rank).size();
    return n;
  }
  // Of any rank, and of one bucket.
  size_t most_owned() const {
    size_t most = 0;
    for (size_t rank = 0; rank < ranks_; rank++) most = std::max(most, owned(rank));
    return most;
  }
  size_t most_part() const {
    size_t most = 0;
    for (size_t i = 0; i < buckets(); i++)
      for (size_t rank = 0; rank < ranks_; rank++) most = std::max(most, part(i, rank).size());
    return most;
  }

 private:
  // Of a rank's part of a bucket: a message of 1 MiB.
  static constexpr size_t most_chunks = 16;

  Span elements(Span chunks) const {
    return {std::min(size_, chunks.begin * buffer_chunk), std::min(size_, chunks.end * buffer_chunk)};
  }

  size_t ranks_, size_;
  std::vector<Span> buckets_;  // in chunks
};

}  // namespace gated
