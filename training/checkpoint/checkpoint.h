// checkpoint: a training state on disk that is either whole or absent
//
// A checkpoint is a safetensors file (training/checkpoint/safetensors.h), so other programs read its weights. Its
// metadata holds the run's strings (step, configuration) and three keys of its own:
//   gated.format       "1"
//   gated.fingerprint  H over the tensors in ascending name order: name, dtype, rank, dimensions, bytes
//   gated.checksum     H over the other metadata in ascending key order: key, value
// H is the hash of core/hash.h. The fingerprint does not depend on where a file puts a tensor: it also compares two
// runs that wrote nothing. A changed byte of name, shape, data or metadata shows when the file is opened, before one
// weight is overwritten.
//
// Writing: under an unfinished name in the same folder, fsync, rename onto <path>, fsync of the folder. rename
// replaces in one step (POSIX), so at any moment, kill -9 and power loss included, <path> is the old file or
// the new one.
//
// tests/test_checkpoint.cpp
#pragma once
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "training/checkpoint/safetensors.h"

namespace gated {

// H over tensors in memory, and over a file.
std::string fingerprint(const std::vector<TensorView>& tensors);
std::string fingerprint(const SafetensorsFile& file);

// ---- names in a folder: step_00001000.safetensors

std::string checkpoint_name(size_t step);
// The inverse: nothing for any other name.
std::optional<size_t> checkpoint_step(const std::string& name);

// File names of a folder; none when it does not exist.
std::vector<std::string> folder_names(const std::string& folder);

// step -> path, newest first.
std::map<size_t, std::string, std::greater<>> list_checkpoints(const std::string& folder);

// ---- names of what is not finished: a.tmp.17, and a.tmp.17.2 where process 17 finds that name taken

// The name that it will have: "a". Nothing where the name is none that unfinished_name() gives.
std::optional<std::string> finished_name(const std::string& unfinished);
// A name beside `path` that nothing has.
std::string unfinished_name(const std::string& path);

// ---- atomic, durable writing

// Appears at `path` on commit(), whole and on stable storage; without commit() it leaves no trace.
class AtomicFile {
 public:
  explicit AtomicFile(const std::string& path);
  AtomicFile(const AtomicFile&) = delete;
  ~AtomicFile();

  void write(const void* src, size_t n) { file_.write(src, n); }
  void seek(size_t offset) { file_.seek(offset); }

  void commit();

 private:
  std::string path_;
  File file_;
  bool committed_ = false;
};

void write_text(const std::string& path, const std::string& text);

// A safetensors file of these. The previous file at `path` stays until the new one is complete, and stays for good if
// that fails.
void write_safetensors(const std::string& path, const std::vector<TensorView>& tensors,
                       const std::map<std::string, std::string>& metadata);
// The values of tensor i of a list, on the host, until the next is asked for.
using ValuesOf = std::function<const float*(size_t i)>;
// In what order save_checkpoint asks for them, once each: that of their names, as the fingerprint wants them.
std::vector<size_t> order_of_saving(const std::vector<TensorForm>& tensors);

// The same with the metadata that a checkpoint has of its own. One tensor at a time has to be in memory. Its
// fingerprint stands before the data and is known behind it: it is written last.
void save_checkpoint(const std::string& path, const std::vector<TensorForm>& tensors, const ValuesOf& values,
                     std::map<std::string, std::string> metadata);

// How large that file becomes where these are its tensors and `step` its step.
size_t checkpoint_bytes(const std::vector<TensorForm>& tensors, std::map<std::string, std::string> metadata,
                        size_t step);

// ---- reading

// It is whole, as far as this program can tell, and none of ours.
struct OtherVersion : Error {
  using Error::Error;
};

class Checkpoint {
 public:
  // Opens, checks the structure and, for a file of our own, every byte that carries meaning.
  explicit Checkpoint(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const std::map<std::string, std::string>& metadata() const { return file_.header().metadata; }
  const std::map<std::string, TensorEntry>& tensors() const { return file_.header().tensors; }

  // False for a safetensors file of another program: it gives weights, nothing to continue from.
  bool has_training_state() const { return has_training_state_; }

  // Refuses a file that gives nothing to continue from.
  size_t step() const;

  // What the file says of a float tensor, which must be there and have this shape; and its values, or n of them from
  // element `begin` on, of which a NaN or an infinity is refused.
  const TensorEntry& entry(const std::string& name, const std::vector<size_t>& shape) const;
  void read_numbers(const std::string& name, const std::vector<size_t>& shape, float* dst, size_t begin = 0,
                    size_t n = SIZE_MAX) const;

 private:
  SafetensorsFile file_;
  bool has_training_state_ = false;
};

// ---- rotation

// For the start of a run, so that a folder that cannot be written is refused then, not at the first save.
void prepare_checkpoint_folder(const std::string& folder);

// Keeps every other process from holding the folder until the file is closed. Refuses one that another process holds; a
// file system without locks is no hindrance.
[[nodiscard]] File hold_folder(const std::string& folder);

// Writes the checkpoint of `step`, then deletes all but the newest `keep` and that of step `always`.
void save_step(const std::string& folder, size_t step, const std::vector<TensorForm>& tensors, const ValuesOf& values,
               std::map<std::string, std::string> metadata, size_t keep, size_t always = 0);

// Deletes all checkpoints but the newest `keep` (0 keeps all) and that of step `always`. Only steps up to `step` count:
// newer files are what a run was resumed from behind, and must not push out what replaces them.
void keep_newest(const std::string& folder, size_t step, size_t keep, size_t always = 0);

// The checkpoint that a folder keeps beside the newest: that of the lowest validation loss.
std::string best_checkpoint(const std::string& folder);
// What a refusal of the folder adds: how to name that file; nothing where it is not there.
std::string hint_at_best(const std::string& folder);

// Makes it that of `step`, where that is there, and in one step. Where the file system has hard links both names are
// one file.
void name_best(const std::string& folder, size_t step);

// The newest checkpoint that can be continued from; those passed over are named on stderr. Nothing when the
// folder has none. Refused when it has some and none is good: starting anew would hide that they are lost. Refused too
// where one of another version, or one that may not be read, is newer: going on behind it would overwrite it in time.
// Steps after `last` are not looked at.
std::optional<Checkpoint> find_latest(const std::string& folder, size_t last = SIZE_MAX);

}  // namespace gated
