// reduce: both canonical orders against a literal evaluation of their description: RowSum and ColumnSum, the CPU's
// code, the kernels. (+guarded is its pointer: a launch takes its arguments by value.)
#include "core/launch_shape.cuh"
#include "core/reduce.cuh"

#include "tests/harness.h"

using namespace gated;

namespace {

// The row order as reduce.cuh describes it, step by step: chains, groups of four, a butterfly in which all 32
// lanes take part.
float literal_row_dot(const std::vector<float>& a, const std::vector<float>& b) {
  std::vector<float> chain(128, 0.0f), lane(32);
  for (size_t i = 0; i < a.size(); i++) chain[i % 128] = std::fma(a[i], b[i], chain[i % 128]);
  for (size_t l = 0; l < 32; l++) {
    const float low = chain[4 * l] + chain[4 * l + 1], high = chain[4 * l + 2] + chain[4 * l + 3];
    lane[l] = low + high;
  }
  for (size_t apart : {16, 8, 4, 2, 1}) {
    const std::vector<float> before = lane;
    for (size_t l = 0; l < 32; l++) lane[l] = before[l] + before[l ^ apart];
  }
  return lane[0];
}

// The column order: a list of terms becomes the list of its slice sums, until one value is left.
float literal_column_sum(std::vector<float> terms) {
  do {
    std::vector<float> sums;
    for (size_t i = 0; i < terms.size(); i++) {
      if (i % 128 == 0) sums.push_back(0.0f);
      sums.back() += terms[i];
    }
    terms = sums;
  } while (terms.size() > 1);
  return terms[0];
}

// Three sums that share what they read: x, the products x*y, and y.
struct ThreeSums {
  const float *x, *y;
  size_t cols;
  HD void operator()(float (&acc)[3], size_t row, size_t c) const {
    const float xc = x[row * cols + c], yc = y[row * cols + c];
    acc[0] = acc[0] + xc;
    acc[1] = fused(xc, yc, acc[1]);
    acc[2] = acc[2] + yc;
  }
};

// Every lane's copy of the sum, and the warp's maximum.
template <bool aligned>
__global__ void row_dot_kernel(float* sums, float* maxima, const float* a, const float* b, size_t n) {
  float max = -INFINITY, chain[4] = {};
  for (size_t i = 4 * (threadIdx.x % 32); i < n; i += row_chains) {
    const Quad aq = load_quad<aligned>(a, i, n), bq = load_quad<aligned>(b, i, n);
    for (int k = 0; k < 4 && i + k < n; k++) {
      chain[k] = fused(aq.v[k], bq.v[k], chain[k]);
      max = max_of(max, aq.v[k]);
    }
  }
  sums[threadIdx.x] = warp_chains_sum(chain);
  maxima[threadIdx.x] = warp_max(max);
}

template <bool aligned>
__global__ void copy_quads_kernel(float* y, const float* x, size_t n) {
  const size_t i = 4 * threadIdx.x;
  if (i < n) store_quad<aligned>(y, i, n, load_quad<aligned>(x, i, n));
}

// Marks the row each warp owns.
__global__ void own_row_kernel(float* count, size_t rows) {
  const size_t row = warp_row();
  if (row < rows && threadIdx.x % 32 == 0) count[row] += 1.0f;
}

// For tests that launch kernels of their own, which a CPU context cannot.
template <class Test>
void on_every_kernel_device(Trial& t, Test test) {
  on_every_device([&](Context& ctx) {
    if (ctx.device == kernel_device) t.on(ctx, test);
  });
}

}  // namespace

TEST_CASE("reduce: a row in its canonical order", "[bitwise]") {
  for (size_t n : {1, 2, 3, 4, 5, 31, 126, 127, 128, 129, 130, 131, 200, 255, 256, 257, 1000, 1030, 4096, 16385}) {
    INFO("n " << n);
    const auto a = random_values<float>(n, n, 3.0f), b = random_values<float>(n, n + 1);
    const float expected = literal_row_dot(a, b);
    REQUIRE(float_bits(row_reduce_cpu<float>(n, [&](float acc, size_t i) { return fused(a[i], b[i], acc); })) ==
            float_bits(expected));
    RowSum<float> products, sum;
    for (size_t i = 0; i < n; i++) products.fma(a[i], b[i]), sum.add(a[i]);
    REQUIRE(float_bits(products.total()) == float_bits(expected));
    REQUIRE(float_bits(sum.total()) == float_bits(literal_row_dot(a, std::vector<float>(n, 1.0f))));
    REQUIRE(float_bits(sum.total()) ==
            float_bits(row_reduce_cpu<float>(n, [&](float acc, size_t i) { return acc + a[i]; })));

    Trial t;
    const auto ga = t.in(a), gb = t.in(b), sums = t.expect(std::vector<float>(32, expected)), by_quads = t.again(sums),
               maxima = t.expect(std::vector<float>(32, std::ranges::max(a))), max_by_quads = t.again(maxima);
    on_every_kernel_device(t, [&](Context& ctx) {
      launch(row_dot_kernel<false>, 1, 32, 0, ctx, +sums, +maxima, +ga, +gb, n);
      launch(n % 4 ? row_dot_kernel<false> : row_dot_kernel<true>, 1, 32, 0, ctx, +by_quads, +max_by_quads, +ga, +gb,
             n);
    });
  }
}

TEST_CASE("reduce: the sign of a sum of nothing, and of -0 alone") {
  RowSum<float> no_row, row;
  REQUIRE(float_bits(no_row.total()) == 0);
  row.add(-0.0f);
  REQUIRE(float_bits(row.total()) == 0);  // a chain starts at +0
  ColumnSum<float> no_column, slice;
  REQUIRE(float_bits(no_column.total()) == 0x80000000u);  // adds nothing, to -0 too
  slice.add(-0.0f);
  REQUIRE(float_bits(slice.total()) == 0);  // a slice starts at +0
}

TEST_CASE("reduce: the largest of a row, wherever it stands") {
  REQUIRE(row_max_cpu(nullptr, 0) == -INFINITY);
  for (size_t n : {1, 2, 127, 128, 129, 300, 1030}) {
    INFO("n " << n);
    std::vector<float> row = random_values<float>(n, n);
    for (size_t i = 0; i < n; i += 1 + n / 50) {
      const float before = row[i];
      row[i] = 2.0f;
      REQUIRE(row_max_cpu(row.data(), n) == 2.0f);
      row[i] = NAN;
      const float rest = row_max_cpu(row.data(), n);
      REQUIRE(rest < 1.0f);
      REQUIRE((n > 1 || rest == -INFINITY));
      row[i] = before;
    }
  }
}

TEST_CASE("reduce: padding does not enter a chain", "[bitwise]") {
  // Every product underflows to -0, and so do the 128 chains and their sum. The last quad holds three
  // elements: 0*0 for the fourth would turn its chain, and with it the sum, into +0.
  const std::vector<float> tiny(131, 1e-30f), minus(131, -1e-30f);
  float chain[row_chains] = {};
  for (size_t i = 0; i < 131; i++) chain[i % row_chains] = fused(tiny[i], minus[i], chain[i % row_chains]);
  for (float c : chain) REQUIRE(float_bits(c) == 0x80000000u);
  REQUIRE(float_bits(literal_row_dot(tiny, minus)) == 0x80000000u);
  Trial t;
  const auto a = t.in(tiny), b = t.in(minus), sums = t.expect(std::vector<float>(32, -0.0f));
  on_every_kernel_device(t, [&](Context& ctx) {
    const Guarded maxima(ctx, 32);
    launch(row_dot_kernel<false>, 1, 32, 0, ctx, +sums, +maxima, +a, +b, tiny.size());
  });
}

TEST_CASE("reduce: a column in its canonical order, alone and as one of several sums in one pass", "[bitwise]") {
  // Nothing; one slice; a last slice of one row; a second level; its last slice of one slice; a third level (> 16384
  // rows) with few columns, since it needs the rows.
  const std::pair<size_t, size_t> sizes[] = {{0, 3},    {1, 1},     {5, 3},     {63, 200},   {127, 200},
                                             {128, 65}, {129, 65},  {129, 131}, {300, 64},   {300, 131},
                                             {2049, 7}, {16384, 2}, {16385, 3}, {16640, 30}, {40000, 2}};
  for (auto [rows, cols] : sizes) {
    INFO("rows " << rows << " cols " << cols);
    auto start = random_values<float>(cols, cols + 5);
    start[0] = -0.0f;  // stays where nothing is added
    Trial t;
    const auto x = t.random(rows * cols, rows, 3.0f), y = t.random(rows * cols, 2), out = t.sum(start),
               of_x = t.sum(start), of_products = t.sum(start), of_y = t.sum(start);
    for (size_t c = 0; c < cols; c++) {
      std::vector<float> column;
      ColumnSum<float> sum, sum_by_fma, products, other;
      for (size_t i = c; i < rows * cols; i += cols) {
        column.push_back(x.ref[i]);
        sum.add(x.ref[i]), sum_by_fma.fma(x.ref[i], 1.0f), products.fma(x.ref[i], y.ref[i]), other.add(y.ref[i]);
      }
      if (rows > 0) out.ref[c] += literal_column_sum(column);
      of_x.ref[c] += sum.total(), of_products.ref[c] += products.total(), of_y.ref[c] += other.total();
      REQUIRE(float_bits(of_x.ref[c]) == float_bits(out.ref[c]));
      REQUIRE(float_bits(sum_by_fma.total()) == float_bits(sum.total()));
    }
    t.on_every_device([&, rows = rows, cols = cols](Context& ctx) {
      column_reduce_add(+out, rows, cols, AddRows<float>{x, cols}, ctx);
      column_reduce_add(std::array{+of_x, +of_products, +of_y}, rows, cols, ThreeSums{x, y, cols}, ctx);
      if (ctx.device == kernel_device) REQUIRE(ctx.most_scratch_used() == column_reduce_scratch(rows, cols, 3));
    });
  }
}

TEST_CASE("reduce: two sums of slices that lie ready", "[bitwise]") {
  // No slice, and one, which is the sum; the ends of a group and of a block's columns; 32 groups, which one launch
  // takes, and more; so many that a level lies where the first one lay.
  const std::pair<size_t, size_t> sizes[] = {{0, 3},   {1, 33},   {128, 31}, {129, 32},  {255, 64},  {256, 1},
                                             {257, 3}, {300, 65}, {4096, 2}, {4097, 33}, {524289, 1}};
  for (auto [slices, cols] : sizes) {
    INFO("slices " << slices << " cols " << cols);
    auto values = random_values<float>(slices * 2 * cols, slices, 3.0f), start = random_values<float>(cols, 5);
    for (size_t slice = 0; slice < slices; slice++) values[slice * 2 * cols] = -0.0f;  // alone, it is the sum
    start[0] = -0.0f;
    Trial t;
    const std::array out = {t.sum(start), t.sum(cols, 6)};
    for (size_t i = 0; i < 2 * cols && slices > 0; i++) {
      std::vector<float> column;
      for (size_t slice = 0; slice < slices; slice++) column.push_back(values[slice * 2 * cols + i]);
      out[i / cols].ref[i % cols] += slices == 1 ? column[0] : literal_column_sum(column);
    }
    values.resize(column_reduce_scratch(slices * column_slice, cols, 2) / sizeof(float), NAN);
    on_every_kernel_device(t, [&, slices = slices, cols = cols](Context& ctx) {
      const Guarded level(ctx, values);
      column_add_slices(std::array{+out[0], +out[1]}, +level, slices, cols, ctx);
      level.download();  // nothing is written past the end
    });
  }
}

TEST_CASE("reduce: quads past the end of a row are neither read nor written", "[bitwise]") {
  for (size_t n : {1, 2, 3, 4, 5, 7, 8, 61}) {
    Trial t;
    const auto x = t.random(n, n), y = t.expect(x.values());
    on_every_kernel_device(t, [&](Context& ctx) {
      launch(n % 4 ? copy_quads_kernel<false> : copy_quads_kernel<true>, 1, 32, 0, ctx, +y, +x, n);
    });
  }
}

TEST_CASE("reduce: every row has one warp", "[bitwise]") {
  for (size_t rows : {1, 7, 8, 9, 63}) {
    Trial t;
    const auto count = t.sum(std::vector<float>(rows, 0.0f), std::vector<float>(rows, 1.0f));
    on_every_kernel_device(
        t, [&](Context& ctx) { launch(own_row_kernel, rows_grid(rows), rows_block, 0, ctx, +count, rows); });
  }
}
