// checkpoint: a training state on disk that is either whole or absent
//
// A checkpoint is a safetensors file (training/safetensors.h), so other programs read its weights. Its
// metadata holds the run's strings (step, configuration) and three keys of its own:
//   gated.format       "1"
//   gated.fingerprint  H over the tensors in ascending name order: name, dtype, rank, dimensions, bytes
//   gated.checksum     H over the other metadata in ascending key order: key, value
// H is XXH3-64 (Y. Collet, xxhash.com) in 16 hex digits; numbers enter as 64-bit little endian and strings
// behind their length, so that no two contents spell the same bytes. The fingerprint does not depend on where
// a file puts a tensor: it also compares two runs that wrote nothing. A changed byte of name, shape, data or
// metadata shows when the file is opened, before one weight is overwritten.
//
// Writing: <path>.tmp.<pid> in the same folder, fsync, rename onto <path>, fsync of the folder. rename
// replaces in one step (POSIX), so at any moment, kill -9 and power loss included, <path> is the old file or
// the new one.
//
// tests/test_checkpoint.cpp
#pragma once
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <sys/file.h>

#include "training/safetensors.h"

// The hash is the same in every vector width; SSE2 keeps up with memory, and AVX-512 makes g++ 12 warn.
#define XXH_INLINE_ALL
#ifdef __x86_64__
#define XXH_VECTOR XXH_SSE2
#endif
#include <xxhash.h>

namespace gated {

// ---- hash

class Hash {
 public:
  Hash() { XXH3_64bits_reset(&state_); }
  Hash& bytes(const void* data, size_t n) {
    XXH3_64bits_update(&state_, data, n);
    return *this;
  }
  Hash& number(uint64_t value) { return bytes(&value, sizeof value); }
  Hash& text(std::string_view s) { return number(s.size()).bytes(s.data(), s.size()); }
  // What stands before a tensor's bytes.
  Hash& tensor(std::string_view name, std::string_view dtype, const std::vector<size_t>& shape) {
    text(name).text(dtype).number(shape.size());
    for (size_t dim : shape) number(dim);
    return *this;
  }
  std::string hex() const { return format("%016llx", static_cast<unsigned long long>(XXH3_64bits_digest(&state_))); }

 private:
  XXH3_state_t state_;
};

inline std::string fingerprint(const std::vector<TensorView>& tensors) {
  std::vector<const TensorView*> by_name;
  for (const TensorView& t : tensors) by_name.push_back(&t);
  std::sort(by_name.begin(), by_name.end(), [](auto* a, auto* b) { return a->name < b->name; });
  Hash hash;
  for (const TensorView* t : by_name) hash.tensor(t->name, "F32", t->shape).bytes(t->data, t->bytes());
  return hash.hex();
}

// The same over a file, through a buffer that stays in cache.
inline std::string fingerprint(const SafetensorsFile& file) {
  std::vector<char> buffer(size_t{1} << 20);
  Hash hash;
  for (const auto& [name, t] : file.header().tensors) {
    hash.tensor(name, t.dtype, t.shape);
    const size_t size = t.end - t.begin;
    for (size_t done = 0; done < size; done += buffer.size()) {
      const size_t n = std::min(buffer.size(), size - done);
      file.read(t, done, buffer.data(), n);
      hash.bytes(buffer.data(), n);
    }
  }
  return hash.hex();
}

inline constexpr std::string_view kOwnKeys = "gated.";  // prefix of the metadata that belongs to this file
inline constexpr const char* kFormatKey = "gated.format";
inline constexpr const char* kFingerprintKey = "gated.fingerprint";
inline constexpr const char* kChecksumKey = "gated.checksum";
inline constexpr const char* kFormatVersion = "1";

inline std::string metadata_checksum(const std::map<std::string, std::string>& metadata) {
  Hash hash;
  for (const auto& [key, value] : metadata)
    if (key != kChecksumKey) hash.text(key).text(value);
  return hash.hex();
}

// ---- names in a folder: step_00001000.safetensors

inline std::string checkpoint_name(size_t step) {
  return format("step_%08zu.safetensors", step);
}

// The inverse: nothing for any other name.
inline std::optional<size_t> checkpoint_step(const std::string& name) {
  constexpr std::string_view prefix = "step_";
  size_t step = 0;
  if (!name.starts_with(prefix)) return std::nullopt;
  std::from_chars(name.data() + prefix.size(), name.data() + name.size(), step);
  return name == checkpoint_name(step) ? std::optional(step) : std::nullopt;
}

// File names of a folder; none when it does not exist.
inline std::vector<std::string> folder_names(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    names.push_back(at->path().filename().string());
  require(!error || error == std::errc::no_such_file_or_directory, "%s: cannot list: %s", folder.c_str(),
          error.message().c_str());
  return names;
}

// step -> path, newest first.
inline std::map<size_t, std::string, std::greater<>> list_checkpoints(const std::string& folder) {
  std::map<size_t, std::string, std::greater<>> found;
  for (const std::string& name : folder_names(folder))
    if (const auto step = checkpoint_step(name)) found[*step] = folder + "/" + name;
  return found;
}

// ---- atomic, durable writing

// Appears at `path` on commit(), whole and on stable storage; without commit() it leaves no trace.
class AtomicFile {
 public:
  explicit AtomicFile(const std::string& path)
      : path_(path), folder_(folder_of(path)), file_(clear_way(), O_WRONLY | O_CREAT | O_EXCL, 0666) {
    // The lock says that the writer lives; the system drops it when the process ends, in whatever way. Its
    // process id would not do: containers hand out the same few again. Where locks are not supported,
    // leftovers stay.
    ::flock(file_.descriptor(), LOCK_EX | LOCK_NB);
  }
  AtomicFile(const AtomicFile&) = delete;
  ~AtomicFile() {
    if (!committed_) ::unlink(file_.path().c_str());
  }

  void write(const void* src, size_t n) { file_.write(src, n); }

  void commit() {
    file_.sync();
    if (::rename(file_.path().c_str(), path_.c_str()) != 0) fail_errno(path_, "rename the finished file to");
    committed_ = true;
    File(folder_, O_RDONLY | O_DIRECTORY).sync();  // the new name too must outlive a power cut
  }

 private:
  static constexpr std::string_view kSuffix = ".tmp.";

  static std::string folder_of(const std::string& path) {
    const auto folder = std::filesystem::path(path).parent_path();
    return folder.empty() ? "." : folder.string();
  }

  // Returns the name to write under, after refusing what rename must not replace (a device such as /dev/null)
  // or could not, after hours of writing (a folder), and after deleting the temporary files of killed runs:
  // of this path, and of any step if this is a step. Before writing, because a full disk needs their space.
  std::string clear_way() const {
    struct stat s;
    require(::stat(path_.c_str(), &s) != 0 || S_ISREG(s.st_mode),
            "%s: exists and is not a regular file: cannot replace it", path_.c_str());
    const std::string own = std::filesystem::path(path_).filename().string();
    for (const std::string& name : folder_names(folder_)) {
      const size_t suffix = name.rfind(kSuffix);
      if (suffix == std::string::npos) continue;
      const std::string target = name.substr(0, suffix);
      if (target == own || (checkpoint_step(target) && checkpoint_step(own))) remove_if_unlocked(folder_ + "/" + name);
    }
    return path_ + std::string(kSuffix) + std::to_string(::getpid());
  }

  static void remove_if_unlocked(const std::string& path) {
    const int descriptor = ::open(path.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (descriptor < 0) return;
    if (::flock(descriptor, LOCK_EX | LOCK_NB) == 0) ::unlink(path.c_str());
    ::close(descriptor);
  }

  std::string path_, folder_;
  File file_;
  bool committed_ = false;
};

// The previous file at `path` stays until the new one is complete, and stays for good if that fails.
inline void save_checkpoint(const std::string& path, const std::vector<TensorView>& tensors,
                            std::map<std::string, std::string> metadata) {
  for (const auto& [key, value] : metadata)
    require(!key.starts_with(kOwnKeys), "%s: metadata key %s: keys that begin with %s are the checkpoint's own",
            path.c_str(), quote(key).c_str(), kOwnKeys.data());
  metadata[kFormatKey] = kFormatVersion;
  metadata[kFingerprintKey] = fingerprint(tensors);
  metadata[kChecksumKey] = metadata_checksum(metadata);
  const std::string header = safetensors_header(path, tensors, metadata);
  AtomicFile file(path);
  file.write(header.data(), header.size());
  for (const TensorView& t : tensors) file.write(t.data, t.bytes());
  file.commit();
}

// ---- reading

class Checkpoint {
 public:
  // Opens, checks the structure and, for a file of our own, every byte that carries meaning.
  explicit Checkpoint(const std::string& path) : file_(path) {
    const auto& keys = metadata();
    const auto own = keys.lower_bound(std::string(kOwnKeys));
    has_training_state_ = own != keys.end() && own->first.starts_with(kOwnKeys);
    if (!has_training_state_) return;
    // One key of ours promises all three: a damaged key must not turn the file into a foreign, unchecked one.
    for (const char* key : {kFormatKey, kFingerprintKey, kChecksumKey})
      require(keys.contains(key), "%s: metadata lacks %s: the header is damaged", path.c_str(), key);
    require(keys.at(kFormatKey) == kFormatVersion, "%s: checkpoint format %s, expected %s: written by another version",
            path.c_str(), quote(keys.at(kFormatKey)).c_str(), kFormatVersion);
    verify("metadata", keys.at(kChecksumKey), metadata_checksum(keys));
    verify("tensors", keys.at(kFingerprintKey), fingerprint(file_));
  }

  const std::string& path() const { return file_.path(); }
  const std::map<std::string, std::string>& metadata() const { return file_.header().metadata; }
  const std::map<std::string, TensorEntry>& tensors() const { return file_.header().tensors; }
  bool has(const std::string& name) const { return tensors().contains(name); }

  // False for a safetensors file of another program: it gives weights, nothing to continue from.
  bool has_training_state() const { return has_training_state_; }

  // A metadata value that resuming needs.
  const std::string& state(const std::string& key) const {
    require(has_training_state_, "%s: carries no training state, only weights: it was not written by gated.cu",
            path().c_str());
    const auto found = metadata().find(key);
    require(found != metadata().end(), "%s: metadata has no %s", path().c_str(), quote(key).c_str());
    return found->second;
  }

  // The same, or `otherwise` in a checkpoint that was written before there was such a key.
  std::string state_or(const std::string& key, const std::string& otherwise) const {
    return metadata().count(key) ? state(key) : otherwise;
  }

  size_t step() const {
    const std::string& text = state("step");
    size_t step = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), step);
    require(error == std::errc() && end == text.data() + text.size(), "%s: step is %s, expected a whole number",
            path().c_str(), quote(text).c_str());
    return step;
  }

  void read(const std::string& name, const std::vector<size_t>& shape, float* dst) const {
    const auto found = tensors().find(name);
    require(found != tensors().end(), "%s: no tensor %s among the %zu it holds", path().c_str(), quote(name).c_str(),
            tensors().size());
    const TensorEntry& t = found->second;
    require(t.dtype == "F32" && t.shape == shape, "%s: tensor %s is %s %s, expected F32 %s", path().c_str(),
            quote(name).c_str(), t.dtype.c_str(), shape_text(t.shape).c_str(), shape_text(shape).c_str());
    file_.read(t, 0, dst, t.end - t.begin);
  }

 private:
  void verify(const char* what, const std::string& stored, const std::string& found) const {
    require(stored == found, "%s: checksum of %s is %s, expected %s: the file is corrupt", path().c_str(), what,
            found.c_str(), quote(stored).c_str());
  }

  SafetensorsFile file_;
  bool has_training_state_ = false;
};

// ---- rotation

// For the start of a run, so that a folder that cannot be written is refused then, not at the first save.
inline void prepare_checkpoint_folder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  require(!error, "%s: cannot create the checkpoint folder: %s", folder.c_str(), error.message().c_str());
  AtomicFile probe(folder + "/" + checkpoint_name(0));  // never committed
}

// Writes the checkpoint of `step`, then deletes all but the newest `keep` (0 keeps all). Only steps up to
// this one count: newer files are what a run was resumed from behind, and must not push out what replaces
// them.
inline void save_step(const std::string& folder, size_t step, const std::vector<TensorView>& tensors,
                      std::map<std::string, std::string> metadata, size_t keep) {
  metadata["step"] = std::to_string(step);
  save_checkpoint(folder + "/" + checkpoint_name(step), tensors, std::move(metadata));
  size_t kept = 0;
  for (const auto& [other, path] : list_checkpoints(folder)) {
    if (keep == 0 || other > step || kept++ < keep) continue;
    if (::unlink(path.c_str()) != 0)
      std::fprintf(stderr, "warning: %s: cannot delete: %s\n", path.c_str(), std::strerror(errno));
  }
}

// The newest checkpoint that can be continued from; those passed over are named on stderr. Nothing when the
// folder has none. Refused when it has some and none is good: starting anew would hide that they are lost.
inline std::optional<Checkpoint> find_latest(const std::string& folder) {
  const auto candidates = list_checkpoints(folder);
  for (const auto& [step, path] : candidates) {
    try {
      Checkpoint checkpoint(path);
      require(checkpoint.step() == step, "%s: holds step %zu, expected the step of its name", path.c_str(),
              checkpoint.step());
      return checkpoint;
    } catch (const Error& e) {
      std::fprintf(stderr, "warning: %s; trying the checkpoint before it\n", e.what());
    }
  }
  require(candidates.empty(), "%s: none of its %zu checkpoints can be read: remove them to start anew", folder.c_str(),
          candidates.size());
  return std::nullopt;
}

}  // namespace gated
