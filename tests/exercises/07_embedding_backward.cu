// Exercise 7, embedding_backward: many tokens add to one row of a table, without atomics.
//
//     dweight[v] += sum of dh[n] over the tokens n with ids[n] = v
//
// An atomic addition would be right up to the order, and the order would be another at every run. So a row of the
// table is the work of one block, which looks for its tokens. Their order, n ascending: pieces of 1024 tokens, each
// one chain from +0, then ((piece 0 + piece 1) + piece 2) + ..., and that is added to dweight. A row whose id does not
// occur keeps its bits.
// The chapter: kernels/embedding.cu. The launch: a block of 64 threads for each row v of the table.
//
// hint 1: A thread owns columns j, j+64, ... of its row, and goes through all ids for each.
//
// hint 2: Count the tokens that have been found: after 1024 of them the piece is done.
//
// hint 3: Where ids[n] is v: if 1024 are in the piece, total += piece, piece = 0; then piece += dh[n*C + c]. At the end
// total += piece; the first piece is the total. Add it to dweight only if a token was found.
//
// A wrong answer usually gives each token to a block (a race), or adds +0 to rows that do not occur: -0 becomes +0.
#include "tests/exercises/try.h"

using namespace gated;

// ---- reference
// <<< from kernels/embedding.h: embedding_piece
// <<< from kernels/embedding.cu: embedding_scaled_backward_ref
// <<< from kernels/embedding.cu: embedding_backward_ref

// ---- yours: dweight (V,C) is added to; dh (N,C), ids (N)

__global__ void embedding_kernel(float* dweight, const float* dh, const int* ids, size_t N, size_t C) {
  // <<< solution
  const int v = int(blockIdx.x);
  for (size_t c = threadIdx.x; c < C; c += blockDim.x) {
    float total = 0, piece = 0;
    size_t found = 0;
    for (size_t n = 0; n < N; n++) {
      if (ids[n] != v) continue;
      if (found % embedding_piece == 0 && found > 0) {
        total = found == embedding_piece ? piece : total + piece;
        piece = 0;
      }
      piece += dh[n * C + c];
      found++;
    }
    total = found <= embedding_piece ? piece : total + piece;
    if (found > 0) dweight[size_t(v) * C + c] += total;
  }
  // >>>
}

// ---- how it is judged

void exercise(Try& t) {
  t.cases({"N", "C", "V"}, {{9, 5, 4}, {40, 100, 6}, {1500, 3, 3}}, [&](size_t N, size_t C, size_t V) {
    Tried& dweight = t.sum("dweight", V, C).sums(N).ordered_by("kernels/embedding.cu: exactly");
    Tried& dh = t.in("dh", N, C);
    for (size_t c = 0; c < C; c++) dweight.start[(V - 1) * C + c] = dweight(1.0f)[(V - 1) * C + c] = -0.0f;
    for (size_t c = 0; c < C; c++) dweight(1.0)[(V - 1) * C + c] = -0.0;
    std::vector<int> ids(N);  // the last row does not occur, the first often
    for (size_t n = 0; n < N; n++) ids[n] = n % 7 == 3 ? int(n / 7 % (V - 1)) : 0;
    Tried& tokens = t.in_as("ids", N, 1, ids);
    t.reference([&](auto real) { embedding_backward_ref(dweight(real), dh(real), ids.data(), N, C, V); });
    t.judge([&] { t.launch(embedding_kernel, V, 64, 0, dweight, dh, tokens, N, C); });
    PROJECT(t, TokenGroups groups(N, V, ctx); groups.build(ids.data(), N, ctx);
            t.also(groups.count(), TokenGroups::bytes(N, V));
            embedding_backward(dweight, dh.floats(), groups, nullptr, C, ctx));
  });
}
