#include "training/checkpoint/checkpoint.h"

#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <numeric>

#include "core/hash.h"
#include "dataloader/quote.h"

namespace gated {

// ---- hash

// What stands before a tensor's bytes.
static void add_tensor(Hash& hash, std::string_view name, std::string_view dtype, const std::vector<size_t>& shape) {
  hash.text(name).text(dtype).number(shape.size());
  for (size_t dim : shape) hash.number(dim);
}

std::string fingerprint(const std::vector<TensorView>& tensors) {
  std::vector<const TensorView*> by_name;
  for (const TensorView& t : tensors) by_name.push_back(&t);
  std::sort(by_name.begin(), by_name.end(), [](auto* a, auto* b) { return a->name < b->name; });
  Hash hash;
  for (const TensorView* t : by_name) {
    add_tensor(hash, t->name, "F32", t->shape);
    hash.bytes(t->data, t->bytes());
  }
  return hash.hex();
}

// Through a buffer that stays in cache.
std::string fingerprint(const SafetensorsFile& file) {
  std::vector<char> buffer(size_t{1} << 20);
  Hash hash;
  for (const auto& [name, t] : file.header().tensors) {
    add_tensor(hash, name, t.dtype, t.shape);
    const size_t size = t.end - t.begin;
    for (size_t done = 0; done < size; done += buffer.size()) {
      const size_t n = std::min(buffer.size(), size - done);
      file.read(t, done, buffer.data(), n);
      hash.bytes(buffer.data(), n);
    }
  }
  return hash.hex();
}

// ---- the metadata of its own

static constexpr std::string_view own_keys = "gated.";  // prefix of the metadata that belongs to this file
static constexpr const char* format_key = "gated.format";
static constexpr const char* fingerprint_key = "gated.fingerprint";
static constexpr const char* checksum_key = "gated.checksum";
static constexpr const char* format_version = "1";

static std::string metadata_checksum(const std::map<std::string, std::string>& metadata) {
  Hash hash;
  for (const auto& [key, value] : metadata)
    if (key != checksum_key) hash.text(key).text(value);
  return hash.hex();
}

static std::map<std::string, std::string> with_own(std::map<std::string, std::string> metadata,
                                                   const std::string& fingerprint) {
  metadata.emplace(format_key, format_version);
  metadata.emplace(fingerprint_key, fingerprint);
  metadata.emplace(checksum_key, metadata_checksum(metadata));
  return metadata;
}

// ---- names in a folder

static constexpr const char* best_name = "best.safetensors";

std::string checkpoint_name(size_t step) {
  return format("step_%08zu.safetensors", step);
}

std::optional<size_t> checkpoint_step(const std::string& name) {
  constexpr std::string_view prefix = "step_";
  size_t step = 0;
  if (!name.starts_with(prefix)) return std::nullopt;
  std::from_chars(name.data() + prefix.size(), name.data() + name.size(), step);
  return name == checkpoint_name(step) ? std::optional(step) : std::nullopt;
}

std::vector<std::string> folder_names(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    names.push_back(at->path().filename().string());
  require(!error || error == std::errc::no_such_file_or_directory, "%s: cannot list: %s", folder.c_str(),
          error.message().c_str());
  return names;
}

std::map<size_t, std::string, std::greater<>> list_checkpoints(const std::string& folder) {
  std::map<size_t, std::string, std::greater<>> found;
  for (const std::string& name : folder_names(folder))
    if (const auto step = checkpoint_step(name)) found[*step] = folder + "/" + name;
  return found;
}

// ---- names of what is not finished

static constexpr std::string_view unfinished_suffix = ".tmp.";

// A number as std::to_string writes it, of up to `most`.
static bool is_number(std::string_view text, size_t most) {
  size_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return text == std::to_string(value) && value <= most;
}

std::optional<std::string> finished_name(const std::string& unfinished) {
  constexpr size_t most_processes = size_t{1} << 22;  // Linux
  const size_t at = unfinished.rfind(unfinished_suffix);
  if (at == 0 || at == std::string::npos) return std::nullopt;
  const std::string_view numbers = std::string_view(unfinished).substr(at + unfinished_suffix.size());
  const size_t dot = std::min(numbers.find('.'), numbers.size());
  const bool ours = is_number(numbers.substr(0, dot), most_processes) &&
                    (dot == numbers.size() || is_number(numbers.substr(dot + 1), SIZE_MAX));
  return ours ? std::optional(unfinished.substr(0, at)) : std::nullopt;
}

std::string unfinished_name(const std::string& path) {
  // A leftover that could not be deleted may have this process id too.
  const std::string name = path + std::string(unfinished_suffix) + std::to_string(::getpid());
  std::string free = name;
  struct stat s;
  for (size_t i = 2; ::lstat(free.c_str(), &s) == 0; i++) free = name + "." + std::to_string(i);
  return free;
}

// ---- atomic, durable writing

static std::string folder_of(const std::string& path) {
  const auto folder = std::filesystem::path(path).parent_path();
  return folder.empty() ? "." : folder.string();
}

// The lock says that the writer lives; the system drops it when the process ends, in whatever way. Its process id would
// not do: containers hand out the same few again. Where locks are not supported, leftovers stay.
static void remove_if_unlocked(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (descriptor < 0) return;
  if (::flock(descriptor, LOCK_EX | LOCK_NB) == 0) ::unlink(path.c_str());
  ::close(descriptor);
}

// The name to write under, once the temporary files of killed runs are deleted: of this path, and of any step and of
// the best if this is a step. Before writing, because a full disk needs their space.
static std::string cleared_way(const std::string& path) {
  const std::string folder = folder_of(path), own = std::filesystem::path(path).filename().string();
  for (const std::string& name : folder_names(folder)) {
    const std::optional<std::string> target = finished_name(name);
    if (target && (*target == own || (checkpoint_step(own) && (checkpoint_step(*target) || *target == best_name))))
      remove_if_unlocked(folder + "/" + name);
  }
  return unfinished_name(path);
}

// Refuses what rename must not replace (a device such as /dev/null) or could not, after hours of writing (a folder).
static std::string file_or_nothing(const std::string& path) {
  struct stat s;
  require(::stat(path.c_str(), &s) != 0 || S_ISREG(s.st_mode),
          "%s: exists and is not a regular file: cannot replace it", path.c_str());
  return path;
}

AtomicFile::AtomicFile(const std::string& path)
    : path_(file_or_nothing(path)), file_(cleared_way(path), O_WRONLY | O_CREAT | O_EXCL, 0666) {
  ::flock(file_.descriptor(), LOCK_EX | LOCK_NB);
}

AtomicFile::~AtomicFile() {
  if (!committed_) ::unlink(file_.path().c_str());
}

void AtomicFile::commit() {
  file_.sync();
  if (::rename(file_.path().c_str(), path_.c_str()) != 0) fail_errno(path_, "rename the finished file to");
  committed_ = true;
  File(folder_of(path_), O_RDONLY | O_DIRECTORY).sync();  // the new name too must outlive a power cut
}

void write_text(const std::string& path, const std::string& text) {
  AtomicFile file(path);
  file.write(text.data(), text.size());
  file.commit();
}

void write_safetensors(const std::string& path, const std::vector<TensorView>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<TensorForm> forms;
  for (const TensorView& t : tensors) {
    require(t.data || t.bytes() == 0, "%s: tensor %s has no data", path.c_str(), quote(t.name).c_str());
    forms.push_back({t.name, "F32", t.shape});
  }
  const std::string header = safetensors_header(path, forms, metadata);
  AtomicFile file(path);
  file.write(header.data(), header.size());
  for (const TensorView& t : tensors) file.write(t.data, t.bytes());
  file.commit();
}

std::vector<size_t> order_of_saving(const std::vector<TensorForm>& tensors) {
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return tensors[a].name < tensors[b].name; });
  return order;
}

void save_checkpoint(const std::string& path, const std::vector<TensorForm>& tensors, const ValuesOf& values,
                     std::map<std::string, std::string> metadata) {
  for (const auto& [key, value] : metadata)
    require(!key.starts_with(own_keys), "%s: metadata key %s: keys that begin with %s are the checkpoint's own",
            path.c_str(), quote(key).c_str(), own_keys.data());
  const std::string unsigned_header = safetensors_header(path, tensors, with_own(metadata, Hash().hex()));
  std::vector<size_t> begins(1, unsigned_header.size());
  for (const TensorForm& t : tensors)
    begins.push_back(begins.back() + tensor_bytes(t.shape, dtype_size(t.dtype)).value());
  AtomicFile file(path);
  file.write(unsigned_header.data(), unsigned_header.size());
  Hash hash;
  for (const size_t i : order_of_saving(tensors)) {
    const float* const data = values(i);
    const size_t bytes = begins[i + 1] - begins[i];
    add_tensor(hash, tensors[i].name, tensors[i].dtype, tensors[i].shape);
    hash.bytes(data, bytes);
    file.seek(begins[i]);
    file.write(data, bytes);
  }
  const std::string header = safetensors_header(path, tensors, with_own(std::move(metadata), hash.hex()));
  file.seek(0);
  file.write(header.data(), header.size());  // as long as before
  file.commit();
}

size_t checkpoint_bytes(const std::vector<TensorForm>& tensors, std::map<std::string, std::string> metadata,
                        size_t step) {
  metadata["step"] = std::to_string(step);
  size_t bytes = safetensors_header("", tensors, with_own(std::move(metadata), Hash().hex())).size();
  for (const TensorForm& t : tensors) bytes += tensor_bytes(t.shape, dtype_size(t.dtype)).value();
  return bytes;
}

// ---- reading

static void verify(const std::string& path, const char* what, const std::string& stored, const std::string& found) {
  require(stored == found, "%s: checksum of %s is %s, expected %s: the file is corrupt", path.c_str(), what,
          found.c_str(), quote(stored).c_str());
}

Checkpoint::Checkpoint(const std::string& path) : file_(path) {
  const auto& keys = metadata();
  const auto own = keys.lower_bound(std::string(own_keys));
  has_training_state_ = own != keys.end() && own->first.starts_with(own_keys);
  if (!has_training_state_) return;
  // One key of ours promises all three: a damaged key must not turn the file into a foreign, unchecked one.
  for (const char* key : {format_key, fingerprint_key, checksum_key})
    require(keys.contains(key), "%s: metadata lacks %s: the header is damaged", path.c_str(), key);
  if (keys.at(format_key) != format_version)
    throw OtherVersion(
        format("%s: checkpoint format %s, expected %s: written by another version of this program: read "
               "it with that one",
               path.c_str(), quote(keys.at(format_key)).c_str(), format_version));
  verify(path, "metadata", keys.at(checksum_key), metadata_checksum(keys));
  verify(path, "tensors", keys.at(fingerprint_key), fingerprint(file_));
}

size_t Checkpoint::step() const {
  require(has_training_state_, "%s: carries no training state, only weights: it was not written by gated.cu",
          path().c_str());
  const auto found = metadata().find("step");
  require(found != metadata().end(), "%s: metadata has no \"step\"", path().c_str());
  const std::string& text = found->second;
  size_t step = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), step);
  require(error == std::errc() && end == text.data() + text.size(), "%s: step is %s, expected a whole number",
          path().c_str(), quote(text).c_str());
  return step;
}

const TensorEntry& Checkpoint::entry(const std::string& name, const std::vector<size_t>& shape) const {
  const auto found = tensors().find(name);
  require(found != tensors().end(), "%s: no tensor %s among the %zu it holds", path().c_str(), quote(name).c_str(),
          tensors().size());
  const TensorEntry& t = found->second;
  require(t.dtype == "F32" && t.shape == shape, "%s: tensor %s is %s %s, expected F32 %s", path().c_str(),
          quote(name).c_str(), t.dtype.c_str(), shape_text(t.shape).c_str(), shape_text(shape).c_str());
  return t;
}

void Checkpoint::read_numbers(const std::string& name, const std::vector<size_t>& shape, float* dst, size_t begin,
                              size_t n) const {
  file_.read_floats(name, entry(name, shape), dst, begin, n);
}

// ---- rotation

void prepare_checkpoint_folder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  require(!error, "%s: cannot create the checkpoint folder: %s", folder.c_str(), error.message().c_str());
  // (No AtomicFile: a start that is refused later on deletes nothing.)
  const File probe(unfinished_name(folder + "/" + checkpoint_name(0)), O_WRONLY | O_CREAT | O_EXCL, 0666);
  ::unlink(probe.path().c_str());
}

File hold_folder(const std::string& folder) {
  File held(folder, O_RDONLY | O_DIRECTORY);
  require(::flock(held.descriptor(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK,
          "--out=%s: another run that has not ended writes there: wait for it, end it, or name another folder",
          folder.c_str());
  return held;
}

void save_step(const std::string& folder, size_t step, const std::vector<TensorForm>& tensors, const ValuesOf& values,
               std::map<std::string, std::string> metadata, size_t keep, size_t always) {
  metadata["step"] = std::to_string(step);
  save_checkpoint(folder + "/" + checkpoint_name(step), tensors, values, std::move(metadata));
  keep_newest(folder, step, keep, always);
}

void keep_newest(const std::string& folder, size_t step, size_t keep, size_t always) {
  size_t kept = 0;
  for (const auto& [other, path] : list_checkpoints(folder)) {
    if (keep == 0 || other > step || other == always || kept++ < keep) continue;
    if (::unlink(path.c_str()) != 0)
      std::fprintf(stderr, "warning: %s: cannot delete: %s\n", path.c_str(), std::strerror(errno));
  }
}

std::string best_checkpoint(const std::string& folder) {
  return folder + "/" + best_name;
}

std::string hint_at_best(const std::string& folder) {
  const std::string best = best_checkpoint(folder);
  return is_there(best) ? format("; there is its best.safetensors: --from=%s names that", best.c_str()) : "";
}

void name_best(const std::string& folder, size_t step) {
  const std::string from = folder + "/" + checkpoint_name(step), to = best_checkpoint(folder);
  std::error_code error;
  if (!is_there(from) || std::filesystem::equivalent(from, to, error)) return;
  const std::string unfinished = cleared_way(to);
  std::filesystem::create_hard_link(from, unfinished, error);
  if (error) std::filesystem::copy_file(from, unfinished, error);
  if (!error) std::filesystem::rename(unfinished, to, error);
  if (!error) return;
  std::fprintf(stderr, "warning: %s: cannot write: %s: it stays as it was\n", to.c_str(), error.message().c_str());
  ::unlink(unfinished.c_str());
}

std::optional<Checkpoint> find_latest(const std::string& folder, size_t last) {
  auto candidates = list_checkpoints(folder);
  std::erase_if(candidates, [&](const auto& c) { return c.first > last; });
  for (const auto& [step, path] : candidates) {
    require(::access(path.c_str(), R_OK) == 0 || errno != EACCES,
            "%s: cannot open: Permission denied: it may be good, and going on from an older one would overwrite it",
            path.c_str());
    try {
      Checkpoint checkpoint(path);
      require(checkpoint.step() == step, "%s: holds step %zu, expected the step of its name", path.c_str(),
              checkpoint.step());
      return checkpoint;
    } catch (const OtherVersion&) {
      throw;
    } catch (const Error& e) {
      std::fprintf(stderr, "warning: %s; trying the checkpoint before it\n", e.what());
    }
  }
  require(candidates.empty(), "%s: none of its %zu checkpoints can be read: name another folder to start anew%s",
          folder.c_str(), candidates.size(), hint_at_best(folder).c_str());
  return std::nullopt;
}

}  // namespace gated
