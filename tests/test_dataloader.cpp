// The data loader: what each source gives, what it refuses and in which words, and that a step's batch is a
// pure function of (seed, step, micro-batch). Files are made in a folder of their own and removed.
#include <sys/stat.h>

#include <numeric>

#include "core/philox.cuh"
#include "dataloader/bigram_backcopy.h"
#include "dataloader/bigram_entropy.h"
#include "dataloader/shards.h"
#include "dataloader/shuffle.h"
#include "dataloader/text.h"
#include "tests/refusal.h"
#include "tests/script.h"
#include "tests/shard.h"
#include "tests/tokens.h"

using namespace gated;

namespace {

// Refuses what is no whole shard.
void parse_shard(const std::string& bytes) {
  const Folder folder;
  ShardCorpus({folder.write("x.bin", bytes)}, 0);
}

std::string all_text(const TokenStream& stream) {
  const std::vector<int32_t> tokens = all_of(stream);
  return {tokens.begin(), tokens.end()};
}

std::string text_of(const std::string& spec, const std::string& root = "") {
  return all_text(*open_data({.data = spec, .val_fraction = 0, .root = root}).train);
}

// A corpus whose token i is i, so that a batch tells where it came from.
struct Counting : Corpus {
  explicit Counting(size_t n) : n(n) {}
  size_t n;
  size_t vocab() const override { return n; }
  size_t size() const override { return n; }
  bool is_text() const override { return false; }
  std::string description() const override { return format("%zu counting tokens", n); }
  std::string content_hash() const override { return Hash().number(n).hex(); }
  void copy(size_t begin, size_t count, int32_t* out) const override {
    REQUIRE(begin + count <= n);
    std::iota(out, out + count, int32_t(begin));
  }
};

Data counting(size_t train, size_t val) {
  return {std::make_shared<Counting>(train), std::make_shared<Counting>(val)};
}

// The first input of each row of a batch.
std::vector<int32_t> starts(const TokenLoader& loader, TokenLoader::Shape s, size_t step, size_t m) {
  std::vector<int32_t> inputs(s.B * s.T), targets(s.B * s.T), first(s.B);
  loader.training_batch(step, m, inputs.data(), targets.data());
  for (size_t i = 0; i < s.B * s.T; ++i) CHECK(targets[i] == inputs[i] + 1);
  for (size_t i = 0; i + 1 < s.B * s.T; ++i)
    if ((i + 1) % s.T) CHECK(inputs[i + 1] == targets[i]);
  for (size_t b = 0; b < s.B; ++b) first[b] = inputs[b * s.T];
  return first;
}

}  // namespace

// ---- shards

TEST_CASE_METHOD(Folder, "shards: tokens come through, across files", "[dataloader]") {
  write("x_train_1.bin", shard_of({5, 6, 7}));
  write("x_train_0.bin", shard_of({1, 2, 3, 50256}));
  write("x_val_0.bin", shard_of({9}));
  const Data data = open_data({.data = path / "x_train_*.bin", .val_data = path / "x_val_*.bin"});
  const Corpus& corpus = dynamic_cast<const Corpus&>(*data.train);
  CHECK(corpus.vocab() == 50257);
  const std::vector<int32_t> all = all_of(corpus);
  CHECK(all == std::vector<int32_t>{1, 2, 3, 50256, 5, 6, 7});
  for (size_t begin = 0; begin <= 7; ++begin)
    for (size_t count = 0; begin + count <= 7; ++count)
      CHECK(copied(corpus, begin, count) == std::vector<int32_t>(all.begin() + begin, all.begin() + begin + count));
  CHECK_REFUSED(corpus.copy(6, 2, nullptr), "6 to 8", "of 7");
  CHECK_REFUSED(corpus.copy(8, 0, nullptr), "8 to 8", "of 7");
  CHECK_REFUSED(corpus.copy(1, ~size_t(0), nullptr), "of 7");
  CHECK(dynamic_cast<const Corpus&>(*data.val).size() == 1);
}

TEST_CASE_METHOD(Folder, "shards: the last few stay open, and one opened again has to be what it was", "[dataloader]") {
  std::vector<std::string> paths;
  for (size_t i = 0; i < 20; i++) paths.push_back(write(format("%02zu.bin", i), shard_of({1, 2})));
  const auto descriptors = [] {
    return std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator());
  };
  const auto before = descriptors();
  const ShardCorpus corpus(paths, 0);
  CHECK(copied(corpus, 0, 40)[39] == 2);
  CHECK(descriptors() - before <= 8);

  // The last of them are still open. One that is cut short is refused by name, as far as it is gone.
  fs::remove(paths[19]);
  copied(corpus, 39, 1);
  fs::resize_file(paths[18], 1026);
  copied(corpus, 36, 1);
  for (const size_t count : {1, 2})
    CHECK_REFUSED(copied(corpus, 38 - count, count), "18.bin", "ends at byte 1026", "to byte 1028", "cut short");
  fs::resize_file(paths[0], 1026);
  CHECK_REFUSED(copied(corpus, 0, 1), "00.bin", "ends at byte 1026", "to byte 1028", "cut short");
  fs::rename(write("other", shard_of({3, 4})), paths[1]);
  for (int again = 0; again < 2; again++)
    CHECK_REFUSED(copied(corpus, 2, 1), "01.bin", "was changed or replaced after it was opened");
  fs::remove(paths[2]);
  CHECK_REFUSED(copied(corpus, 4, 1), "02.bin", "cannot open");
  copied(corpus, 6, 1);
}

TEST_CASE_METHOD(Folder, "shards: tokens of 32 bits, and a vocabulary that the header tells", "[dataloader]") {
  const std::string a = write("a.bin", shard_of<uint32_t>({1, 65536, 128255})),
                    b = write("b.bin", shard_of<uint32_t>({7}));
  const ShardCorpus corpus({a, b}, 0);
  CHECK(corpus.vocab() == 128256);
  CHECK(all_of(corpus) == std::vector<int32_t>{1, 65536, 128255, 7});
  CHECK(ShardCorpus({a}, 200000).vocab() == 200000);
  CHECK_REFUSED(all_of(ShardCorpus({a}, 65536)), "a.bin", "token 1 is 65536", "65536");
  const std::string huge = write("h.bin", shard_of<uint32_t>({0x80000000}));
  CHECK_REFUSED(all_of(ShardCorpus({huge}, size_t{1} << 31)), "2147483648");

  CHECK(ShardCorpus({write("c.bin", shard_of<uint32_t>({5}, 20240801, 7, 151936))}, 0).vocab() == 151936);
  CHECK(ShardCorpus({write("d.bin", shard_of<uint16_t>({5}, 20240520, 1, 300))}, 0).vocab() == 300);
  CHECK_REFUSED(ShardCorpus({a, path / "d.bin"}, 0), "d.bin", "300", "a.bin", "128256");

  const std::string good = shard_of<uint32_t>({1, 2, 3});
  CHECK(refusal([&] { parse_shard(good); }) == "");
  CHECK_REFUSED(parse_shard(good.substr(0, 1030)), "x.bin", "1030 bytes", "1036", "3 tokens", "truncated");
  CHECK_REFUSED(parse_shard(good + "x"), "x.bin", "1037 bytes", "1036", "trailing");
  CHECK_REFUSED(parse_shard(shard_of<uint32_t>({1}, 20240801, 1)), "x.bin", "version 1", "expected 7");
  CHECK_REFUSED(parse_shard(shard_of<uint32_t>({1}, 20240801, 7, -5)), "x.bin", "vocabulary of -5");
}

TEST_CASE("shards: what is not a whole GPT-2 shard is refused by name and number", "[dataloader]") {
  const std::string good = shard_of({1, 2, 3});
  CHECK(refusal([&] { parse_shard(good); }) == "");
  CHECK_REFUSED(parse_shard(""), "x.bin", "0 bytes", "1024");
  CHECK_REFUSED(parse_shard(good.substr(0, 1023)), "x.bin", "1023 bytes", "1024", "truncated");
  CHECK_REFUSED(parse_shard(good.substr(0, 1024)), "x.bin", "1024 bytes", "1030", "3 tokens", "truncated");
  CHECK_REFUSED(parse_shard(good.substr(0, 1029)), "x.bin", "1029 bytes", "1030", "truncated");
  CHECK_REFUSED(parse_shard(good + "x"), "x.bin", "1031 bytes", "1030", "trailing");
  CHECK_REFUSED(parse_shard(shard_of<uint16_t>({1}, 20240802)), "x.bin", "magic", "20240802", "20240520", "20240801");
  CHECK_REFUSED(parse_shard(shard_of<uint16_t>({1}, 20240520, 7)), "x.bin", "version 7", "expected 1");
  CHECK_REFUSED(parse_shard(shard_of({})), "x.bin", "0 tokens");
  std::string negative = good;
  negative[11] = '\xff';
  CHECK_REFUSED(parse_shard(negative), "x.bin", "-16777213 tokens");
}

TEST_CASE_METHOD(Folder,
                 "data: its hash is of the content: a copy has the same, other content of the same size another",
                 "[dataloader]") {
  const auto hash = [&](const std::string& spec, double val_fraction = 0) {
    return open_data({.data = spec, .val_fraction = val_fraction}).train->content_hash();
  };
  const std::string text = write("a.txt", "some text\n"), copy = write("b/c.txt", "some text\n");
  CHECK(hash(text).size() == 16);
  CHECK(hash(text) == hash(copy));
  CHECK(hash(text) == hash(path / "b"));  // a folder that holds the same bytes
  CHECK(hash(text) != hash(write("d.txt", "some texT\n")));
  CHECK(hash(text, 0.1) != hash(text, 0.2));

  const Data synthetic = open_data({.data = "bigram-backcopy"}),
             other_seed = open_data({.data = "bigram-backcopy", .seed = 1});
  CHECK(synthetic.train->content_hash() == open_data({.data = "bigram-backcopy"}).train->content_hash());
  CHECK(synthetic.train->content_hash() != synthetic.val->content_hash());
  CHECK(synthetic.train->content_hash() != other_seed.train->content_hash());
  CHECK(hash("bigram-backcopy:" + text) != hash("bigram-backcopy:" + write("e.txt", "some other\n")));

  // Shards: size, order and a sample of blocks. The first, the last and one between are in it; a small shard is as a
  // whole.
  const auto shards = [&](const std::vector<uint16_t>& first, const std::vector<uint16_t>& second) {
    return hash(write("x_0.bin", shard_of(first)) + "," + write("x_1.bin", shard_of(second)));
  };
  const std::vector<uint16_t> small = {1, 2, 3, 4}, large(3u << 20, 7);
  const std::string expected = shards(small, large);
  CHECK(expected == shards(small, large));
  CHECK(expected != shards(large, small));
  CHECK(expected != shards({1, 2, 3, 5}, large));
  CHECK(shards({1, 2, 3}, {4, 5}) != shards({1, 2}, {3, 4, 5}));
  for (const size_t at : {size_t(0), large.size() / 15 * 7, large.size() - 1}) {
    std::vector<uint16_t> changed = large;
    changed[at] = 8;
    INFO(at);
    CHECK(expected != shards(small, changed));
  }
}

TEST_CASE_METHOD(Folder, "shards: a token outside the vocabulary is refused by file, index and value", "[dataloader]") {
  const std::string a = write("a.bin", shard_of({0, 50256})), b = write("b.bin", shard_of({4, 50257, 5}));
  const ShardCorpus corpus({a, b}, 0), wide({a, b}, 50304);
  copied(corpus, 0, 3);
  CHECK_REFUSED(all_of(corpus), "b.bin", "token 1 is 50257", "50257", "--vocab");
  CHECK(all_of(wide)[3] == 50257);
  CHECK(wide.vocab() == 50304);
}

// ---- text

TEST_CASE_METHOD(Folder, "text: files are joined by a newline where one is missing", "[dataloader]") {
  const std::string a = write("a", "ab"), b = write("b", "c\n"), c = write("c", "\xff");
  CHECK(text_of(a) == "ab");
  CHECK(text_of(a + "," + b + "," + c) == std::string("ab\nc\n\xff"));
  CHECK(text_of(c + "," + a) == std::string("\xff\nab"));
  CHECK(all_of(*open_data({.data = c, .val_fraction = 0}).train)[0] == 255);
}

TEST_CASE_METHOD(Folder, "text: a folder is walked in byte order, binary and hidden files left out", "[dataloader]") {
  write("d/b.txt", "b");
  write("d/B/z", "Bz");
  write("d/a/q", "aq");
  write("d/binary", std::string("x\0y", 3));
  write("d/empty", "");
  write("d/.hidden", "hidden");
  write("d/.git/config", "hidden too");
  CHECK(text_of(path / "d") == "Bz\naq\nb");
  CHECK(says(open_data({.data = path / "d"}).train->description(), {"3 text files", "1 binary files skipped"}));
  write("junk/binary", std::string("\0", 1));
  CHECK_REFUSED(text_of(path / "junk"), "junk", "no text", "1 files hold NUL");
  for (const std::string& shard : {shard_of({1}), shard_of({1}, 20240801, 7)}) {
    write("d/a/named.other", shard);
    CHECK_REFUSED(text_of(path / "d"), "d/a/named.other: is a token shard", "as '" + (*this / "d/a") + "/train_*.bin'");
  }
  fs::create_directory(path / "none");
  CHECK_REFUSED(text_of(path / "none"), "none", "no text");
}

TEST_CASE_METHOD(Folder, "text: list files, patterns and their refusals", "[dataloader]") {
  const std::string a = write("t1", "one"), b = write("t2", "two"), comma = write("t,3*", "three");
  const std::string list = write("list", b + "\r\n\n" + comma + "  \n" + a);
  CHECK(text_of("@" + list) == "two\nthree\none");
  CHECK(text_of(a + ",@" + list) == "one\ntwo\nthree\none");
  CHECK(text_of(path / "t[12]") == "one\ntwo");
  std::string in_order;
  for (int i = 0; i < 20; i++) {  // a file system lists them by age, or in an order of its own
    write(format("many%02d", i * 7 % 20), format("%02d", i * 7 % 20));
    in_order += format(i ? "\n%02d" : "%02d", i);
  }
  CHECK(text_of(path / "many*") == in_order);
  CHECK_REFUSED(text_of(path / "nothing*"), "nothing*", "no file matches");
  CHECK_REFUSED(text_of(path / "absent/*.bin"), "absent/*.bin", "no file matches");
  CHECK_REFUSED(text_of(path / "absent"), "absent", "No such file");
  CHECK_REFUSED(text_of("@" + write("blank", " \n\n")), "blank", "names no file");
  CHECK_REFUSED(text_of("@" + write("nul", std::string("a\0b", 3))), "nul", "NUL");
  CHECK_REFUSED(text_of("@" + write("nul at the end", a + std::string(1, '\0'))), "nul", "NUL");
  CHECK_REFUSED(text_of("@" + write("bad", a + "\n" + (*this / "gone"))), "gone", "No such file");
  CHECK_REFUSED(text_of("@"), "@: expected @FILE");
  CHECK_REFUSED(text_of(a + ",@"), "@: expected @FILE");
  CHECK_REFUSED(text_of(""), "empty path");
  CHECK_REFUSED(text_of(a + ","), "empty path");
  CHECK_REFUSED(text_of(write("empty", "")), "empty: empty");
  CHECK_REFUSED(text_of(write("nul2", std::string("ab\0", 3))), "nul2", "byte 2 is NUL", ".bin");
  CHECK_REFUSED(text_of(a + "," + write("s.bin", shard_of({1}))), "1 token shards", "2 paths");
  REQUIRE(mkfifo((path / "pipe").c_str(), 0600) == 0);
  CHECK_REFUSED(text_of(path / "pipe"), "pipe", "not a regular file");  // and no waiting for a writer
  CHECK_REFUSED(open_data({.data = a, .vocab = 255}), "--vocab=255", "256");
  if (geteuid() != 0) {
    fs::permissions(b, fs::perms::none);
    CHECK_REFUSED(text_of(b), "t2", "Permission denied");
  }
}

TEST_CASE_METHOD(Folder, "self: the source's own files and nothing a build leaves beside them", "[dataloader]") {
  write("train_gpt.cu", "main");
  write("Makefile", "make");
  write("kernels/b.cuh", "kernel");
  write("kernels/b.o", "object");
  write("tests/t.cpp", "test");
  write("training/a.h", "loop");
  write("build/x.cpp", "built");
  write("notes.md", "notes");
  CHECK(text_of("self", path.string()) == "make\nkernel\ntest\nmain\nloop");
  fs::create_directory(path / "elsewhere");
  CHECK_REFUSED(text_of("self", path / "elsewhere"), "--data=self", "no source file", "elsewhere", "--data=PATH");
}

TEST_CASE_METHOD(Folder, "self: without a root given, the current folder when it holds train_gpt.cu", "[dataloader]") {
  struct Restore {
    fs::path path = fs::current_path();
    ~Restore() { fs::current_path(path); }
  } restore;
  fs::current_path(path.string());
  CHECK_REFUSED(text_of("self"), "no train_gpt.cu", path.string(), "--data=PATH");
  write("train_gpt.cu", "main");
  CHECK(text_of("self") == "main");
}

TEST_CASE("printable: text as it stands, the rest escaped", "[dataloader]") {
  CHECK(printable("a\n\t ~\\") == "a\n\t ~\\");
  CHECK(printable(std::string("\0\x07\x1b\x7f\xff", 5)) == "\\x00\\x07\\x1b\\x7f\\xff");
  CHECK(printable("\u00e9\u20ac\U0001f600") == "\u00e9\u20ac\U0001f600");
  CHECK(printable("\xe2\x82") == "\\xe2\\x82");                             // cut short
  CHECK(printable("\xc0\xaf\xe0\x80\xaf") == "\\xc0\\xaf\\xe0\\x80\\xaf");  // overlong
  CHECK(printable("\xed\xa0\x80") == "\\xed\\xa0\\x80");                    // a surrogate
  CHECK(printable("\xf4\x90\x80\x80") == "\\xf4\\x90\\x80\\x80");           // above U+10FFFF
  CHECK(printable("\xc2\x9b") == "\\xc2\\x9b");                             // a control character
  CHECK(printable("") == "");
}

// ---- splits

TEST_CASE_METHOD(Folder, "validation: the last fraction of the stream, or data of its own", "[dataloader]") {
  const std::string a = write("a", "0123456789abcdefghijXYZ"), b = write("b", "val");
  Data data = open_data({.data = a});
  CHECK(all_text(*data.train) == "0123456789abcdefghijX");
  CHECK(all_text(*data.val) == "YZ");
  CHECK_REFUSED(copied(*data.train, 20, 2), "20 to 22", "of 21");
  data = open_data({.data = a, .val_data = b});
  CHECK(all_text(*data.train).size() == 23);
  CHECK(all_text(*data.val) == "val");
  CHECK(open_data({.data = a, .val_fraction = 0}).val == nullptr);
  CHECK(open_data({.data = "bigram-backcopy", .val_fraction = 0}).val == nullptr);
  for (const double fraction : {-0.1, 1.0, double(NAN)})
    CHECK_REFUSED(open_data({.data = a, .val_fraction = fraction}), "--val-fraction");
  CHECK_REFUSED(open_data({.data = a, .val_data = write("v.bin", shard_of({1}))}), "v.bin", "50257", "256");
}

// ---- order

TEST_CASE("shuffle: a permutation for every n, another one each epoch and seed", "[dataloader]") {
  for (const size_t n : {1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 1000, 4096, 4097}) {
    std::vector<uint64_t> order(n), again(n), sorted(n);
    for (size_t i = 0; i < n; ++i) order[i] = shuffled(i, n, 1, 0);
    for (size_t i = 0; i < n; ++i) again[i] = shuffled(i, n, 1, 1);
    if (n >= 15) CHECK(order != again);
    for (size_t i = 0; i < n; ++i) again[i] = shuffled(i, n, 2, 0);
    if (n >= 15) CHECK(order != again);
    std::sort(order.begin(), order.end());
    std::iota(sorted.begin(), sorted.end(), uint64_t(0));
    CHECK(order == sorted);
  }
  for (uint64_t i = 0; i < 1000; ++i) CHECK(shuffled(i, uint64_t(1) << 40, 3, 0) < uint64_t(1) << 40);
  CHECK(shuffled(~uint64_t(0) - 1, ~uint64_t(0), 3, 0) < ~uint64_t(0));
}

TEST_CASE("shuffle: over epochs every place is equally likely, and neighbours part", "[dataloader]") {
  for (const size_t n : {2, 3, 7, 16, 50}) {
    constexpr size_t epochs = 20000;
    std::vector<size_t> place(n), step(n);
    for (size_t e = 0; e < epochs; ++e) {
      const size_t x = shuffled(0, n, 9, e), y = shuffled(1, n, 9, e);
      ++place[x], ++step[(y + n - x) % n];
    }
    CHECK(step[0] == 0);
    const auto chi2 = [&](const std::vector<size_t>& cells, size_t first) {
      const double expected = double(epochs) / double(n - first);
      double sum = 0;
      for (size_t i = first; i < n; ++i)
        sum += (double(cells[i]) - expected) * (double(cells[i]) - expected) / expected;
      return sum;
    };
    const double bound = double(n) + 5 * std::sqrt(2.0 * double(n));
    INFO("n = " << n);
    CHECK(chi2(place, 0) < bound);
    CHECK(chi2(step, 1) < bound);
  }
}

TEST_CASE("loader: every sequence once an epoch, in windows that share one token", "[dataloader]") {
  constexpr size_t T = 5, n = 33;
  const TokenLoader::Shape shape{4, T, 2};
  const TokenLoader loader(counting(n * T + 3, 100), shape, 42);  // two tokens too few for sequence 33
  CHECK(loader.epoch_sequences() == n);
  std::vector<int32_t> seen;
  for (size_t step = 0; seen.size() < 3 * n; ++step)
    for (size_t m = 0; m < 2; ++m)
      for (const int32_t first : starts(loader, shape, step, m)) seen.push_back(first);
  std::set<std::vector<int32_t>> orders;
  for (size_t epoch = 0; epoch < 3; ++epoch) {  // 33 is no multiple of 8: epochs end inside a batch
    std::vector<int32_t> order(seen.begin() + long(epoch * n), seen.begin() + long((epoch + 1) * n));
    orders.insert(order);
    std::sort(order.begin(), order.end());
    for (size_t i = 0; i < n; ++i) CHECK(order[i] == int32_t(i * T));
  }
  CHECK(orders.size() == 3);
}

TEST_CASE("loader: a step sees the same sequences in few micro-batches as in many", "[dataloader]") {
  const TokenLoader::Shape one{2, 3, 6}, wide{4, 3, 3};
  const Data data = counting(200, 50);
  const TokenLoader six(data, one, 5), three(data, wide, 5), other(data, one, 6);
  bool differs = false;
  for (const size_t step : {7, 0, 123456}) {  // any order: nothing is remembered
    for (size_t m = 0; m < 3; ++m) {
      std::vector<int32_t> expected = starts(six, one, step, 2 * m);
      const std::vector<int32_t> second = starts(six, one, step, 2 * m + 1);
      expected.insert(expected.end(), second.begin(), second.end());
      CHECK(starts(three, wide, step, m) == expected);
      differs = differs || starts(other, one, step, 2 * m + 1) != second;
    }
  }
  CHECK(differs);
  CHECK_REFUSED(starts(three, wide, 0, 3), "micro-batch 3 of 3");
}

TEST_CASE("loader: validation in order from its start, never past its end", "[dataloader]") {
  constexpr size_t B = 2, T = 4;
  std::vector<int32_t> inputs(B * T), targets(B * T);
  for (size_t size = B * T + 1; size < 40; ++size) {  // Counting refuses to be read past its end
    const TokenLoader loader(counting(50, size), {B, T}, 1);
    CHECK(loader.validation_batches() == (size - 1) / T / B);
    for (size_t batch = 0; batch < loader.validation_batches(); ++batch) {
      loader.validation_batch(batch, inputs.data(), targets.data());
      for (size_t i = 0; i < B * T; ++i) {
        CHECK(inputs[i] == int32_t(batch * B * T + i));
        CHECK(targets[i] == inputs[i] + 1);
      }
    }
    CHECK_REFUSED(loader.validation_batch(loader.validation_batches(), nullptr, nullptr), "batch");
  }
  CHECK_REFUSED(TokenLoader(counting(50, B * T), {B, T}, 1), "validation", "1 sequences", "5 tokens",
                "8 counting tokens", "--batch (now 2)", "--context (now 4)");
  CHECK_REFUSED(TokenLoader(counting(4, 50), {B, T}, 1), "training", "--context=4", "5 tokens", "4 counting tokens");
  CHECK_REFUSED(TokenLoader(counting(50, 50), {B, 0}, 1), "2 sequences of 0 tokens");
  CHECK(TokenLoader({std::make_shared<Counting>(50), nullptr}, {B, T}, 1).validation_batches() == 0);
}

// ---- synthetic data

TEST_CASE("bigram-backcopy: BOS, bigrams, and copies after triggers", "[dataloader]") {
  const Data data = open_data({.data = "bigram-backcopy", .seed = 3});
  const auto& source = dynamic_cast<const BigramBackcopy&>(*data.train);
  CHECK(source.vocab() == 64);
  size_t copies = 0, triggers = 0;
  for (int32_t x = 0; x < 63; ++x) triggers += source.is_trigger(x);
  CHECK(triggers == 3);
  CHECK(!source.is_trigger(source.bos()));
  std::set<std::vector<int32_t>> all;
  for (size_t i = 0; i < 200; ++i) {
    const std::vector<int32_t> x = sequence_of(source, i, 100);
    all.insert(x);
    CHECK(x[0] == 63);
    CHECK(!source.is_trigger(x[1]));
    for (size_t t = 1; t <= 100; ++t) {
      CHECK((x[t] >= 0 && x[t] < 63));
      if (!source.is_trigger(x[t - 1])) continue;
      ++copies;
      CHECK(x[t] == x[t - 2]);
    }
  }
  CHECK(all.size() == 200);
  CHECK(copies > 200 * 100 / 5);  // triggers are frequent tokens
}

// (That its index does too: the 200 sequences above.)
TEST_CASE_METHOD(Folder, "bigram-backcopy: the seed decides the language, and split and seed its sequences",
                 "[dataloader]") {
  std::set<std::vector<std::vector<int32_t>>> seen;
  const std::string bytes = "the quick brown fox jumps over the lazy dog, and back again.", text = write("text", bytes);
  const auto sequences = [](const TokenStream& stream) {
    return std::vector{sequence_of(stream, 0, 20), sequence_of(stream, 1, 20), sequence_of(stream, 2, 20)};
  };
  for (const uint64_t seed : {7, 8}) {
    const Data random = open_data({.data = "bigram-backcopy", .vocab = 30, .seed = seed}),
               of_text = open_data({.data = "bigram-backcopy:" + text, .seed = seed});
    const BigramWeights made = random_bigrams(29, seed), counted = text_bigrams(bytes);
    CHECK(sequences(*random.train) == sequences(BigramBackcopy(made, seed, 0)));
    CHECK(sequences(*random.val) == sequences(BigramBackcopy(made, seed, 1)));
    CHECK(sequences(*of_text.train) == sequences(BigramBackcopy(counted, seed, 0)));
    CHECK(sequences(*of_text.val) == sequences(BigramBackcopy(counted, seed, 1)));
    for (const Data& data : {random, of_text}) seen.insert({sequences(*data.train), sequences(*data.val)});
    CHECK(open_data({.data = "bigram-backcopy", .seed = seed}).train->vocab() == 64);
    std::vector<int32_t> longer = sequence_of(*random.train, 4, 80);  // a longer context prolongs the same sequence
    longer.resize(51);
    CHECK(longer == sequence_of(*random.train, 4, 50));
  }
  CHECK(seen.size() == 8);
  CHECK(open_data({.data = "bigram-backcopy", .vocab = 300}).train->vocab() == 300);
  CHECK_REFUSED(open_data({.data = "bigram-backcopy", .vocab = 5}), "--vocab=5", "8 to 4096");
}

TEST_CASE_METHOD(Folder, "bigram-backcopy: the text's own bigrams, its commonest bytes as triggers", "[dataloader]") {
  // Bytes a b c d e x have ids 0 to 5; x, e, d are the commonest. The last 'x' is followed by the first byte.
  const std::string text = "axbxcxdxexeded", file = write("t", text);
  const BigramWeights bigrams = text_bigrams(text);
  REQUIRE(bigrams.n == 6);
  CHECK(bigrams.w[0 * 6 + 5] == 1);  // a x
  CHECK(bigrams.w[3 * 6 + 0] == 1);  // d a, around the end
  CHECK(bigrams.w[3 * 6 + 4] == 1);  // d e
  CHECK(std::accumulate(bigrams.w.begin(), bigrams.w.end(), uint64_t(0)) == text.size());
  const Data data = open_data({.data = "bigram-backcopy:" + file});
  const auto& source = dynamic_cast<const BigramBackcopy&>(*data.train);
  CHECK(source.vocab() == 7);
  for (const int32_t x : {0, 1, 2}) CHECK(!source.is_trigger(x));
  for (const int32_t x : {3, 4, 5}) CHECK(source.is_trigger(x));
  const std::vector<int32_t> x = sequence_of(source, 0, 20);
  for (size_t t = 2; t <= 20; ++t) CHECK(x[t] == (t % 2 ? x[1] : 5));  // a, b and c are always followed by x
  CHECK_REFUSED(text_of("bigram-backcopy:" + write("s", "aabb")), "2 tokens", "3 triggers");
  CHECK_REFUSED(text_of("bigram-backcopy:" + (*this / "absent")), "absent", "No such file");
  CHECK_REFUSED(open_data({.data = "bigram-backcopy:" + file, .vocab = 6}), "--vocab=6", "7");
}

TEST_CASE("bigram-backcopy: what follows a token is drawn by its weights, after BOS by the sums of their columns",
          "[dataloader]") {
  constexpr size_t n = 12, T = 30;
  const BigramWeights bigrams = random_bigrams(n, 8);
  const BigramBackcopy source(bigrams, 8, 0);
  std::vector<double> weights(bigrams.w.begin(), bigrams.w.end()), counts((n + 1) * n);
  weights.resize(counts.size());
  for (size_t i = 0; i < n * n; ++i)
    if (!source.is_trigger(int32_t(i % n))) weights[n * n + i % n] += weights[i];
  for (size_t i = 0; i < 4000; ++i) {
    const std::vector<int32_t> x = sequence_of(source, i, T);
    for (size_t t = 1; t <= T; ++t) ++counts[size_t(x[t - 1]) * n + size_t(x[t])];
  }
  for (size_t a = 0; a <= n; ++a) {
    if (source.is_trigger(int32_t(a))) continue;
    const auto sum = [&](const std::vector<double>& of) { return std::accumulate(&of[a * n], &of[a * n] + n, 0.0); };
    for (size_t b = 0; b < n; ++b) {
      const double p = weights[a * n + b] / sum(weights), drawn = sum(counts);
      CHECK(std::abs(counts[a * n + b] - p * drawn) <= 4 * std::sqrt(p * (1 - p) * drawn));
    }
  }
}

// ---- bigram entropy

TEST_CASE_METHOD(Folder, "bigram entropy: known values, whatever the vocabulary", "[dataloader]") {
  const auto entropy = [&](const std::string& text, size_t vocab, size_t T = 1) {
    return bigram_entropy(TextCorpus({write("e", text)}, vocab), T);
  };
  for (const size_t vocab : {256, 5000}) {
    CHECK(entropy("abababab", vocab) == 0);
    // a b, a c, b a, c a: after a one bit, after b and c nothing
    CHECK(std::abs(entropy("abaca", vocab) - 0.5 * std::log(2.0)) < 1e-15);
    // a a once, a b twice, b a twice: (ln 3 + 2 ln 3/2) over five pairs
    CHECK(std::abs(entropy("aababa", vocab) - (std::log(3.0) + 2 * std::log(1.5)) / 5) < 1e-15);
  }
  std::string text;
  for (size_t i = 0; i < 5000; ++i) text += char('a' + random_below(1, stream_of(Purpose::sample, 0), i, 20));
  CHECK(entropy(text, 256, 7) == entropy(text, 5000, 7));
  CHECK(std::abs(entropy(text, 256) - std::log(20.0)) < 0.1);
  const TextCorpus corpus({write("f", text + std::string(5000, 'a'))}, 0);
  CHECK(bigram_entropy(corpus, 10, 5000) > bigram_entropy(corpus, 10) + 0.5);  // the limit counts the front only
  CHECK_REFUSED(bigram_entropy(corpus, 10000), "10001 tokens", "10000 bytes");
}
