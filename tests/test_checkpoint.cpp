// Checkpoints: every bit comes back; whatever was done to a file, it is refused in one line; whatever stops a
// save (a full disk, a kill), the checkpoint before it still loads; resuming takes the newest that is good.
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>

#include "tests/child.h"
#include "tests/fixtures.h"
#include "tests/refusal.h"
#include "tests/save_checkpoint.h"
#include "tests/script.h"
#include "training/checkpoint/checkpoint.h"

using namespace gated;

namespace {

// What decides whether a checkpoint outlives a power cut cannot be seen in the file: it is the order of these
// calls. They take the place of the C library's in this binary: noted, and made to fail on demand as a dying
// disk would.
struct Calls {
  std::vector<std::string> log;
  std::string failing;  // "fsync a.tmp", say: the call that begins so fails with `error`
  int error = 0;
  bool fails(const std::string& call) {
    log.push_back(call);
    errno = error;
    return !failing.empty() && call.starts_with(failing);
  }
};
Calls calls;

std::string file_name(const std::string& path) {
  return fs::path(path).filename().string();
}

}  // namespace

extern "C" int fsync(int descriptor) {
  const std::string path = fs::read_symlink("/proc/self/fd/" + std::to_string(descriptor)).string();
  return calls.fails("fsync " + file_name(path)) ? -1 : int(::syscall(SYS_fsync, descriptor));
}

extern "C" int rename(const char* from, const char* to) noexcept {
  if (calls.fails("rename " + file_name(from) + " " + file_name(to))) return -1;
  return int(::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}

namespace {

using Names = std::set<std::string>;
using Metadata = std::map<std::string, std::string>;

// A file with this header and `data` zero bytes.
std::string file_of(const std::string& header, size_t data) {
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + header + std::string(data, '\0');
}

SafetensorsHeader parse(const std::string& bytes) {
  return parse_safetensors("x.safetensors", bytes.size(), [&](void* dst, size_t n, size_t offset) {
    REQUIRE((offset <= bytes.size() && n <= bytes.size() - offset));
    std::memcpy(dst, bytes.data() + offset, n);
  });
}

std::string tensor_json(const char* name, const char* dtype, const char* shape, size_t begin, size_t end) {
  return format(R"("%s":{"dtype":"%s","shape":%s,"data_offsets":[%zu,%zu]})", name, dtype, shape, begin, end);
}

// One float tensor whose values all say which step wrote it.
struct Step {
  std::vector<float> values;
  Step(size_t step, size_t n = 16) : values(n, float(step)) {}
  std::vector<TensorView> tensors() const { return {{"w", {values.size()}, values.data()}}; }
};

float first_value(const Checkpoint& c) {
  std::vector<float> values(c.tensors().at("w").shape.at(0));
  c.read_numbers("w", {values.size()}, values.data());
  CHECK(std::all_of(values.begin(), values.end(), [&](float v) { return v == values[0]; }));
  return values[0];
}

void save_step(const std::string& folder, size_t step, size_t keep) {
  const std::vector<float> values = Step(step).values;
  gated::save_step(
      folder, step, {{"w", "F32", {values.size()}}}, [&](size_t) { return values.data(); }, {}, keep);
}

}  // namespace

TEST_CASE_METHOD(Folder,
                 "checkpoint: every bit comes back: NaN payloads, -0, denormals, scalars, empty tensors, any name",
                 "[checkpoint]") {
  const std::vector<uint32_t> patterns = {0x7fc00000, 0x7f800001, 0xffc12345, 0xffffffff, 0x80000000,
                                          0x00000001, 0x807fffff, 0x7f800000, 0xff800000, 0x3f800000};
  std::vector<float> values(patterns.size());
  std::memcpy(values.data(), patterns.data(), patterns.size() * 4);
  const std::vector<TensorView> tensors = {{"model.layers.0.mlp.up_proj.weight", {2, 5}, values.data()},
                                           {"scalar", {}, values.data() + 2},
                                           {"empty", {3, 0, 2}, nullptr},
                                           {"λ₁ 层 \"quoted\" \\ \n\t", {1, 1, 3}, values.data() + 4},
                                           {std::string("nul\0inside", 10), {1}, values.data()},
                                           {"", {2}, values.data() + 8}};
  const Metadata metadata = {{"step", "12"}, {"config", R"({"norm":"gated","λ":[1,2]})"}, {"", ""}, {"line", "a\nb"}};
  save_checkpoint(path / "a", tensors, metadata);

  const Checkpoint loaded(path / "a");
  CHECK(loaded.has_training_state());
  CHECK(loaded.step() == 12);
  CHECK(loaded.tensors().size() == tensors.size());
  for (const auto& [key, value] : metadata) CHECK(loaded.metadata().at(key) == value);
  for (const TensorView& t : tensors) {
    const size_t n = t.bytes() / sizeof(float);
    std::vector<float> back(n + 1, 42.0f);  // one more, which must stay
    SafetensorsFile(path / "a").read(loaded.entry(t.name, t.shape), 0, back.data(), t.bytes());
    CHECK(std::memcmp(back.data(), t.data, t.bytes()) == 0);
    CHECK(back[n] == 42.0f);
  }

  // The data begins on 64 bytes, and the same state gives the same file.
  CHECK(SafetensorsFile(path / "a").header().data_start % 64 == 0);
  save_checkpoint(path / "b", tensors, metadata);
  CHECK(contents(path / "a") == contents(path / "b"));
  CHECK(names() == Names{"a", "b"});
}

TEST_CASE_METHOD(Folder, "checkpoint: the fingerprint is a published function of names, shapes and bytes",
                 "[checkpoint]") {
  const float a[] = {1, 2, 3, 4, 5, 6}, b[] = {-0.0f}, zero[] = {0.0f};
  // Python: xxhash.xxh3_64 over struct.pack("<Q1sQ3sQQQ6f", 1, b"a", 3, b"F32", 2, 2, 3, 1, 2, 3, 4, 5, 6)
  //                          + struct.pack("<Q1sQ3sQf", 1, b"b", 3, b"F32", 0, -0.0)
  const std::string expected = "0d63369473530296";
  CHECK(fingerprint({{"a", {2, 3}, a}, {"b", {}, b}}) == expected);
  CHECK(fingerprint({{"b", {}, b}, {"a", {2, 3}, a}}) == expected);
  const std::vector<std::vector<TensorView>> others = {{{"a", {3, 2}, a}, {"b", {}, b}},
                                                       {{"a", {6}, a}, {"b", {}, b}},
                                                       {{"c", {2, 3}, a}, {"b", {}, b}},
                                                       {{"a", {2, 3}, a}, {"b", {}, zero}},
                                                       {{"a", {2, 3}, a}},
                                                       {{"a", {2, 3}, a}, {"b", {1}, b}}};
  for (const auto& other : others) CHECK(fingerprint(other) != expected);
  CHECK(fingerprint({{"ab", {}, b}, {"c", {}, b}}) != fingerprint({{"a", {}, b}, {"bc", {}, b}}));

  // Longer than the buffer a file is read through, and the same from the file as from memory.
  std::vector<float> large((3u << 18) + 5);
  for (size_t i = 0; i < large.size(); ++i) large[i] = float(i);
  const std::vector<TensorView> tensors = {{"z", {large.size()}, large.data()}, {"a", {2, 3}, a}};
  save_checkpoint(path / "a", tensors, {});
  CHECK(fingerprint(SafetensorsFile(path / "a")) == fingerprint(tensors));
}

TEST_CASE_METHOD(Folder, "checkpoint: a wrong name, shape or dtype is refused and nothing is written", "[checkpoint]") {
  const Step state(3, 6);
  save_checkpoint(path / "a", state.tensors(), {});
  const Checkpoint loaded(path / "a");
  std::vector<float> dst(8, 42.0f);
  CHECK_REFUSED(loaded.read_numbers("v", {6}, dst.data()), "no tensor \"v\" among the 1");
  for (const std::vector<size_t>& shape : {std::vector<size_t>{}, {5}, {7}, {2, 3}, {6, 1}, {0}})
    CHECK_REFUSED(loaded.read_numbers("w", shape, dst.data()),
                  "tensor \"w\" is F32 [6], expected F32 " + shape_text(shape));
  write("i", file_of("{" + tensor_json("w", "I32", "[6]", 0, 24) + "}", 24));
  CHECK_REFUSED(Checkpoint(path / "i").read_numbers("w", {6}, dst.data()), "is I32 [6], expected F32 [6]");
  CHECK(dst == std::vector<float>(8, 42.0f));
  CHECK_REFUSED(loaded.step(), "metadata has no \"step\"");
  for (const char* step : {"", "-1", "12x", "1e3", "99999999999999999999999"}) {
    save_checkpoint(path / "s", {}, {{"step", step}});
    CHECK_REFUSED(Checkpoint(path / "s").step(), "expected a whole number");
  }
}

TEST_CASE_METHOD(Folder, "checkpoint: what cannot be written is refused before anything is", "[checkpoint]") {
  const float x[4] = {};
  const auto refused = [&](const std::vector<TensorView>& tensors, const Metadata& metadata, const char* part) {
    CHECK_REFUSED(save_checkpoint(path / "a", tensors, metadata), part);
  };
  refused({{"w", {1}, x}, {"w", {2}, x}}, {}, "\"w\" is given twice");
  refused({{"__metadata__", {1}, x}}, {}, "reserved");
  refused({{"w", {size_t(1) << 40, size_t(1) << 40}, x}}, {}, "more bytes than 64 bits");
  CHECK_REFUSED(write_safetensors(path / "a", {{"w", {1}, nullptr}}, {}), "has no data");
  refused({{"w\xff", {1}, x}}, {}, "UTF-8");
  refused({}, {{"key", "\xc3"}}, "UTF-8");
  refused({}, {{"gated.checksum", "0"}}, "checkpoint's own");
  refused({}, {{"long", std::string(max_safetensors_header, 'x')}}, "expected at most 100000000");
  CHECK(names().empty());
}

TEST_CASE("checkpoint: headers that break the format, each refused by its own rule", "[checkpoint]") {
  const std::string w = tensor_json("w", "F32", "[2]", 0, 8);
  CHECK(parse(file_of("{" + w + "}  ", 8)).tensors.at("w") == TensorEntry{"F32", {2}, 0, 8});
  CHECK(parse(file_of("{}", 0)).tensors.empty());
  for (const auto& [dtype, size] : std::map<std::string, size_t>{
           {"U8", 1}, {"BOOL", 1}, {"BF16", 2}, {"F16", 2}, {"I32", 4}, {"F32", 4}, {"I64", 8}, {"F64", 8}})
    CHECK(parse(file_of("{" + tensor_json("w", dtype.c_str(), "[3]", 0, 3 * size) + "}", 3 * size)).tensors.size() ==
          1);

  // Rows of tests/fixtures/refused_headers.json: the header, in which ' stands for ", how many bytes of data follow,
  // and what is said of it. Here what is no text, or long.
  std::vector<std::pair<std::string, std::string>> cases = {
      {"", "file has 0 bytes"},
      {std::string(7, '\0'), "file has 7 bytes"},
      {std::string(8, '\0'), "does not begin with '{'"},
      {std::string(16, '\xff'), "header length is 18446744073709551615, expected at most 100000000"},
      {file_of(std::string(100, ' '), 0).substr(0, 107), "header length is 100 but only 99 bytes follow"},
      {file_of("\xef\xbb\xbf{}", 0), "does not begin with '{'"},
      {file_of("{\"w\xff\":1}", 0), "not valid JSON"},
      {file_of("{\"w\":" + std::string(100000, '['), 0), "nested deeper"},
      {file_of("{\"" + std::string(100000, 'n') + "\":1}", 0), "nnn..."},
  };
  for (const json& row : read_fixtures("refused_headers.json")) {
    std::string header = row[0];
    std::replace(header.begin(), header.end(), '\'', '"');
    cases.emplace_back(file_of(header, row[1]), row[2]);
  }
  for (const auto& [bytes, part] : cases) {
    const std::string message = refusal([&, &bytes = bytes] { parse(bytes); });
    INFO("found: " << message);
    CHECK(one_line(message, {"x.safetensors: ", part}));
    CHECK(message.size() < 400);
  }

  // A mixture of experts has tens of thousands of tensors: reading them must not take quadratic time (a
  // minute).
  std::string many = "{";
  constexpr size_t n = 60000;
  for (size_t i = 0; i < n; ++i) many += (i ? "," : "") + tensor_json(format("w%zu", i).c_str(), "U8", "[1]", i, i + 1);
  const auto start = std::chrono::steady_clock::now();
  CHECK(parse(file_of(many + "}", n)).tensors.size() == n);
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(20));
}

TEST_CASE_METHOD(Folder, "checkpoint: a byte changed, missing or extra anywhere, and it is refused", "[checkpoint]") {
  const float x[] = {1, 2, 3, 4};
  save_checkpoint(path / "good", {{"b", {2}, x}, {"a", {}, x + 2}, {"e", {0}, x}}, {{"step", "7"}});
  const std::string good = contents(path / "good");
  const auto refused = [&](const std::string& bytes) {
    fs::remove(path / "bad");  // some file systems flush one that is truncated, which takes long
    write("bad", bytes);
    const std::string said = refusal([&] { Checkpoint loaded(path / "bad"); });
    return said.starts_with((*this / "bad") + ": ") && !contains(said, "\n");
  };
  REQUIRE_FALSE(refused(good));
  CHECK(refused(good + '\0'));
  size_t accepted = 0;
  for (size_t n = 0; n < good.size(); ++n) {
    accepted += !refused(good.substr(0, n));
    for (int bit = 0; bit < 8; ++bit) {
      std::string bytes = good;
      bytes[n] = char(bytes[n] ^ (1 << bit));
      accepted += !refused(bytes);
    }
  }
  CHECK(accepted == 0);

  // Whole fields put out of order by somebody who keeps the format valid.
  const auto replaced = [&](const std::string& from, const std::string& to) {
    std::string bytes = good;
    REQUIRE(from.size() == to.size());
    REQUIRE(contains(bytes, from));
    return bytes.replace(bytes.find(from), from.size(), to);
  };
  CHECK(refused(replaced(R"("step":"7")", R"("step":"8")")));
  CHECK(refused(replaced(R"([0,8],"dtype":"F32","shape":[2])", R"([0,8],"dtype":"I64","shape":[1])")));
  CHECK(refused(replaced(R"([8,12],"dtype":"F32")", R"([8,12],"dtype":"I32")")));
  CHECK(refused(replaced(R"("gated.format")", R"("other.format")")));
  CHECK(refused(replaced(R"("gated.checksum")", R"("other.checksum")")));
  CHECK(refused(replaced(R"("gated.fingerprint")", R"("other.fingerprint")")));
}

TEST_CASE_METHOD(Folder, "checkpoint: a safetensors file of another program gives weights and no training state",
                 "[checkpoint]") {
  std::string bytes = file_of(R"({"__metadata__":{"format":"pt","step":"5"},)" + tensor_json("w", "F32", "[2]", 2, 10) +
                                  "," + tensor_json("h", "BF16", "[1]", 0, 2) + "}",
                              10);
  const float x[] = {1.5f, -2.0f};
  std::memcpy(bytes.data() + bytes.size() - sizeof x, x, sizeof x);
  write("model.safetensors", bytes);
  const Checkpoint loaded(path / "model.safetensors");
  CHECK_FALSE(loaded.has_training_state());
  CHECK(loaded.metadata() == Metadata{{"format", "pt"}, {"step", "5"}});
  float back[2] = {};
  loaded.read_numbers("w", {2}, back);
  CHECK(std::memcmp(back, x, sizeof x) == 0);
  CHECK(loaded.tensors().at("h").dtype == "BF16");
  CHECK_REFUSED(loaded.step(), "carries no training state");
}

TEST_CASE_METHOD(Folder, "checkpoint: paths that cannot be read or written", "[checkpoint]") {
  const Step state(1);
  const auto save = [&](const std::string& path) {
    return refusal([&] { save_checkpoint(path, state.tensors(), {}); });
  };
  const auto open = [](const std::string& path) { return refusal([&] { Checkpoint loaded(path); }); };
  CHECK(open(path / "missing") == (*this / "missing") + ": cannot open: No such file or directory");
  CHECK(one_line(save(path / "no/such/a"), {"No such file or directory"}));
  REQUIRE(::mkfifo((path / "pipe").c_str(), 0600) == 0);
  fs::create_directory(path / "dir");
  for (const std::string& file : std::vector<std::string>{path / "pipe", path / "dir", "/dev/null"})
    for (const std::string& said : {open(file), save(file)}) CHECK(one_line(said, {"not a regular file"}));
  write("file", "x");
  CHECK_REFUSED(prepare_checkpoint_folder(path / "file"), "cannot create the checkpoint folder");
  CHECK_REFUSED(list_checkpoints(path / "file"), "cannot list: Not a directory");
  CHECK(names() == Names{"pipe", "dir", "file"});

  // A folder without write permission, as a user whom permissions bind.
  save_checkpoint(path / "a", state.tensors(), {});
  fs::permissions(path, fs::perms(0555));
  const auto look = [&] {
    if (::geteuid() == 0 && ::setresuid(65534, 65534, 65534) != 0) return 2;
    const bool refused = contains(save(path / "a"), "a.tmp." + std::to_string(::getpid()) + ": cannot create: Perm") &&
                         contains(refusal([&] { prepare_checkpoint_folder(path); }), "Permission denied");
    return refused && open(path / "a").empty() ? 0 : 1;
  };
  CHECK(in_child([&] { exit(look()); }).status == 0);
  fs::permissions(path, fs::perms(0755));
}

TEST_CASE_METHOD(Folder, "checkpoint: a full disk leaves the older checkpoint, and no temporary file", "[checkpoint]") {
  const Step before(1, 1000), after(2, 100000);
  save_checkpoint(path / "a", before.tensors(), {});
  const std::string bytes = contents(path / "a");

  // A limit on file size stands for the disk: the first write is short, the next fails.
  for (const rlim_t limit : {rlim_t(0), rlim_t(100), rlim_t(4096), rlim_t(400000)}) {
    rlimit old{};
    REQUIRE(::getrlimit(RLIMIT_FSIZE, &old) == 0);
    const auto handler = std::signal(SIGXFSZ, SIG_IGN);
    const rlimit small = {limit, old.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &small);
    const std::string message = refusal([&] { save_checkpoint(path / "a", after.tensors(), {}); });
    ::setrlimit(RLIMIT_FSIZE, &old);
    std::signal(SIGXFSZ, handler);
    CHECK(contains(message, "cannot write: File too large"));
    CHECK(names() == Names{"a"});
    CHECK(contents(path / "a") == bytes);
  }
  if (fs::exists("/dev/full")) {
    File full("/dev/full", O_WRONLY);
    CHECK(refusal([&] { full.write("x", 1); }) == "/dev/full: cannot write: No space left on device");
  }
  // An error after which the writer never commits, whatever it was.
  {
    AtomicFile file(path / "a");
    file.write("half", 4);
    CHECK(names().size() == 2);
  }
  CHECK(names() == Names{"a"});
  CHECK(contents(path / "a") == bytes);
}

TEST_CASE_METHOD(Folder, "checkpoint: contents reach the disk before the name, the name before the save is reported",
                 "[checkpoint]") {
  const Step before(1), after(2);
  const std::string temporary = "a.tmp." + std::to_string(::getpid());
  const auto save_failing = [&](const std::string& call, int error) {
    calls = {{}, call, error};
    const std::string message = refusal([&] { save_checkpoint(path / "a", after.tensors(), {}); });
    calls.failing.clear();
    CHECK(names() == Names{"a"});
    return message;
  };
  calls = {};
  save_checkpoint(path / "a", before.tensors(), {});
  CHECK(calls.log ==
        std::vector<std::string>{"fsync " + temporary, "rename " + temporary + " a", "fsync " + file_name(path)});

  CHECK(one_line(save_failing("fsync a.tmp", EIO), {"cannot fsync: Input/output error"}));
  CHECK(one_line(save_failing("fsync a.tmp", ENOSPC), {"cannot fsync: No space left on device"}));
  CHECK(one_line(save_failing("rename", EIO), {"cannot rename the finished file to: Input/output error"}));
  CHECK(first_value(Checkpoint(path / "a")) == 1.0f);

  // Too late to keep the old file, so the new one is there; whether its name is on the disk is not known.
  const std::string folder_sync = "fsync " + file_name(path);
  CHECK(one_line(save_failing(folder_sync, EIO), {"cannot fsync: Input/output error"}));
  CHECK(first_value(Checkpoint(path / "a")) == 2.0f);
  CHECK(save_failing(folder_sync, EINVAL).empty());  // a file system whose folders cannot be synced
}

TEST_CASE_METHOD(Folder, "checkpoint: killed at any moment, the file at the path is whole", "[checkpoint]") {
  const std::string file = path / "a";
  std::set<float> seen;
  for (int round = 0; round < 24; ++round) {
    const pid_t child = ::fork();
    if (child == 0) {
      // Sizes alternate, so that a file partly overwritten could not pass for whole.
      for (size_t step = 1;; ++step) {
        const Step state(step, step % 2 ? 1 << 18 : 1 << 16);
        save_checkpoint(file, state.tensors(), {{"step", std::to_string(step)}});
      }
    }
    std::this_thread::sleep_for(std::chrono::microseconds(500 + 1733 * round));
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    CHECK((WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));  // and of nothing else before
    CHECK(names().size() <= 2);                                   // the leftovers of the rounds before are gone
    if (!fs::exists(file)) continue;
    const Checkpoint loaded(file);
    CHECK(first_value(loaded) == float(loaded.step()));
    seen.insert(first_value(loaded));
  }
  CHECK_FALSE(seen.empty());
  save_checkpoint(file, Step(0).tensors(), {});
  CHECK(names() == Names{"a"});
}

TEST_CASE_METHOD(Folder, "checkpoint: temporary files of the dead go, those of the living stay", "[checkpoint]") {
  const std::string step = checkpoint_name(5);
  AtomicFile living(path / checkpoint_name(6));
  for (const char* name : {"a.tmp.1", "b.tmp.1", "a.tmp", "a"}) write(name, "x");
  write(step + ".tmp.1", "x");
  const std::string lives = checkpoint_name(6) + ".tmp." + std::to_string(::getpid());

  save_checkpoint(path / "a", {}, {});
  CHECK(names() == Names{"a", "a.tmp", "b.tmp.1", step + ".tmp.1", lives});
  save_step(path, 7, 0);
  CHECK(names() == Names{"a", "a.tmp", "b.tmp.1", checkpoint_name(7), lives});
  // Where locks are not supported a leftover stays, as the file of a living one does. It may have any process id.
  {
    const AtomicFile second(path / checkpoint_name(6));
    CHECK(names().contains(lives + ".2"));
    save_checkpoint(path / checkpoint_name(6), {}, {});
    CHECK(names().contains(checkpoint_name(6)));
  }
  living.commit();
  CHECK(names() == Names{"a", "a.tmp", "b.tmp.1", checkpoint_name(6), checkpoint_name(7)});
}

TEST_CASE_METHOD(Folder, "checkpoint: only what has a name of an unfinished file is one", "[checkpoint]") {
  for (const char* name : {"a.tmp.1", "a.tmp.4194304", "a.tmp.17.2", "a.tmp.0.12"}) CHECK(finished_name(name) == "a");
  CHECK(finished_name("a.tmp.1.tmp.2") == "a.tmp.1");
  for (const char* name : {"a", "a.tmp", "a.tmp.", "a.tmp.backup", "a.tmp.old", "a.tmp.1x", "a.tmp.01", "a.tmp.-1",
                           "a.tmp.+1", "a.tmp. 1", "a.tmp.4194305", "a.tmp.20241124", "a.tmp.1.", "a.tmp.1.x",
                           "a.tmp.1.2.3", "a.tmp.99999999999999999999999", ".tmp.1", "a.TMP.1", "a.tmp1"}) {
    INFO(name);
    CHECK_FALSE(finished_name(name).has_value());
  }

  const std::string step = checkpoint_name(2), own = "log.jsonl.tmp." + std::to_string(::getpid());
  const Names kept = {step + ".tmp.backup", "log.jsonl.tmp.old", "log.jsonl.tmp.1 (copy)"};
  for (const std::string& name : kept) write(name, "x");
  write(step + ".tmp.1", "x");
  prepare_checkpoint_folder(path);  // the run may yet be refused
  CHECK(names().size() == 4);
  save_step(path, 7, 1);
  write_text(path / "log.jsonl", "");
  Names now = names();
  for (const std::string& name : {checkpoint_name(7), std::string("log.jsonl")}) CHECK(now.erase(name) == 1);
  CHECK(now == kept);
}

TEST_CASE_METHOD(Folder, "checkpoint: one of another version is neither passed over nor removed", "[checkpoint]") {
  for (const size_t step : {1, 2}) save_step(path, step, 0);
  const std::string newest = path / checkpoint_name(2);
  std::string bytes = contents(newest);
  const size_t at = bytes.find(R"("gated.format":"1")");
  bytes[at + 16] = '2';
  write(newest, bytes);
  const std::string said = refusal([&] { find_latest(path); });
  CHECK(said ==
        newest +
            ": checkpoint format \"2\", expected 1: written by another version of this program: read it with that one");
  fs::remove(newest);
  CHECK(find_latest(path)->step() == 1);
}

TEST_CASE("checkpoint: names of steps sort and parse back", "[checkpoint]") {
  CHECK(checkpoint_name(1000) == "step_00001000.safetensors");
  for (const size_t step : {size_t(0), size_t(7), size_t(99999999), size_t(123456789012), SIZE_MAX})
    CHECK(checkpoint_step(checkpoint_name(step)) == step);
  for (const char* name : {"", "step_", "step_1000.safetensors", "step_00001000", "step_0000100x.safetensors",
                           "step_-0001000.safetensors", "step_000001000.safetensors", "xstep_00001000.safetensors",
                           "step_00001000.safetensors.tmp.7", "step_99999999999999999999999.safetensors"})
    CHECK_FALSE(checkpoint_step(name).has_value());
}

TEST_CASE_METHOD(Folder, "checkpoint: a run keeps its newest steps and resumes from the last good one",
                 "[checkpoint]") {
  const std::string folder = path / "runs/a";
  const auto steps = [&] {
    std::vector<size_t> found;
    for (const auto& [step, path] : list_checkpoints(folder)) found.push_back(step);
    return found;
  };
  const auto file = [&](size_t step) { return folder + "/" + checkpoint_name(step); };
  const auto damage = [&](size_t step) {
    std::string bytes = contents(file(step));
    bytes.back() = char(bytes.back() ^ 1);
    write(file(step), bytes);
  };

  CHECK_FALSE(find_latest(folder).has_value());  // no folder yet
  prepare_checkpoint_folder(folder);
  CHECK(fs::is_empty(folder));
  CHECK_FALSE(find_latest(folder).has_value());

  for (const size_t step : {100, 200, 300}) save_step(folder, step, 2);
  CHECK(steps() == std::vector<size_t>{300, 200});
  write(folder + "/notes.txt", "x");
  save_step(folder, 100000000, 0);  // nine digits: by name it sorts before the others
  CHECK(steps() == std::vector<size_t>{100000000, 300, 200});
  CHECK(find_latest(folder)->step() == 100000000);
  CHECK(first_value(*find_latest(folder)) == 100000000.0f);

  // The newest is damaged: the one before it is taken, and what the run then saves is not pushed out.
  const auto latest = [&] {
    return in_child([&] {
             const std::string refused = refusal([&] { fprintf(stderr, "step %zu", find_latest(folder)->step()); });
             fputs(refused.c_str(), stderr);
           })
        .said;
  };
  CHECK(latest() == "step 100000000");
  damage(100000000);
  const std::string warning = latest();
  CHECK(warning.starts_with("warning: " + file(100000000) + ": checksum of tensors is "));
  CHECK(warning.ends_with("\nstep 300"));
  CHECK(std::count(warning.begin(), warning.end(), '\n') == 1);
  save_step(folder, 400, 1);
  CHECK(steps() == std::vector<size_t>{100000000, 400});

  // A file under another's name is not what its name says, and a foreign one has no step.
  fs::copy_file(file(400), file(500));
  write(file(600), file_of("{}", 0));
  CHECK(says(latest(), {"holds step 400", "\nstep 400"}));

  damage(400);
  CHECK(contains(latest(), "none of its 4 checkpoints can be read"));
  CHECK(fs::exists(folder + "/notes.txt"));
}
