// files: an open file, and which files a --data string names
//   --data=a.txt | folder | 'shards/*.bin' | @list.txt | several of these, comma-separated
// A pattern (with * ? or [) becomes its matches in byte order, whatever the locale. A list file names one
// path a line, taken as it stands (no patterns, so a comma or a star in a name is no obstacle); blank lines
// are skipped.
// tests/test_dataloader.cpp
#pragma once
#include <fcntl.h>

#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace gated {

// ---- a file: every failure names the path, the action and errno's text

[[noreturn]] void fail_errno(const std::string& path, const char* action);

// An open file, read by pread: a file that is cut short under us is an Error, where a mapping of it would raise SIGBUS.
// Both loops are there because the system may move fewer bytes than asked: Linux moves 2 GiB a call at most, and a disk
// that fills up takes what still fits.
class File {
 public:
  // To be read. Refuses what is no regular file, a named pipe without waiting for its writer.
  explicit File(std::string path);
  File(std::string path, int flags, mode_t mode = 0);
  File(File&& other) noexcept : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}
  File& operator=(File&& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~File();

  const std::string& path() const { return path_; }
  int descriptor() const { return fd_; }

  size_t size() const;
  void read(void* dst, size_t n, size_t offset) const;
  void write(const void* src, size_t n);
  void seek(size_t offset);  // where the next write begins
  void sync();

 private:
  std::string path_;
  int fd_ = -1;
};

// Gets n bytes from `offset` on: of a file, or of bytes in memory.
using ReadBytes = std::function<void(void* dst, size_t n, size_t offset)>;

// Whether something has this name, be it a link that leads nowhere: to open it then says what is wrong.
bool is_there(const std::string& path);

// All that a file holds.
std::string read_file(const std::string& path);

// ---- which files

// The words of a list, as a flag has it: one more than it has commas, each of which may be empty.
std::vector<std::string> between_commas(const std::string& list);

// The files of a --data string, in its order. Refuses a string that names none.
std::vector<std::string> named_paths(const std::string& spec);

// All regular files under a folder, by path in byte order. Names that begin with a dot (.git, editor files)
// are passed over, and symbolic links to folders are not followed.
std::vector<std::string> files_under(const std::string& folder);

}  // namespace gated
