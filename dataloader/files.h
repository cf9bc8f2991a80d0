// files: which files a --data string names, and their bytes through mmap
//   --data=a.txt | folder | 'shards/*.bin' | @list.txt | several of these, comma-separated
// A pattern (with * ? or [) becomes its matches in byte order, whatever the locale. A list file names one
// path a line, taken as it stands (no patterns, so a comma or a star in a name is no obstacle); blank lines
// are skipped.
// tests/test_dataloader.cpp
#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gated {

// A whole file, readable in place; the kernel pages it in and out, so 100 GB of shards cost no memory.
// The file must not shrink while it is mapped: reading past a new, nearer end is a SIGBUS.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path);
  MappedFile(MappedFile&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile();

  std::span<const unsigned char> bytes() const { return {static_cast<const unsigned char*>(data_), size_}; }
  std::string_view text() const { return {static_cast<const char*>(data_), size_}; }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

// The files of a --data string, in its order. Refuses a string that names none.
std::vector<std::string> named_paths(const std::string& spec);

// All regular files under a folder, by path in byte order. Names that begin with a dot (.git, editor files)
// are passed over, and symbolic links to folders are not followed.
std::vector<std::string> files_under(const std::string& folder);

}  // namespace gated
