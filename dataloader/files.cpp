#include "dataloader/files.h"

#include <glob.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <sstream>

#include "core/check.h"

namespace gated {

// ---- a file
[[noreturn]] void fail_errno(const std::string& path, const char* action) {
  fail("%s: cannot %s: %s", path.c_str(), action, std::strerror(errno));
}

File::File(std::string path) : File(std::move(path), O_RDONLY | O_NONBLOCK) {
  size();
}

File::File(std::string path, int flags, mode_t mode) : path_(std::move(path)) {
  fd_ = ::open(path_.c_str(), flags | O_CLOEXEC, mode);
  if (fd_ < 0) fail_errno(path_, flags & O_CREAT ? "create" : "open");
}

File::~File() {
  if (fd_ >= 0) ::close(fd_);
}

size_t File::size() const {
  struct stat s;
  if (::fstat(fd_, &s) != 0) fail_errno(path_, "stat");
  require(S_ISREG(s.st_mode), "%s: not a regular file", path_.c_str());
  return static_cast<size_t>(s.st_size);
}

void File::read(void* dst, size_t n, size_t offset) const {
  for (size_t done = 0; done < n;) {
    const ssize_t got = ::pread(fd_, static_cast<char*>(dst) + done, n - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_errno(path_, "read");
    require(got > 0, "%s: ends at byte %zu, expected more, to byte %zu: it was cut short after it was opened",
            path_.c_str(), size(), offset + n);
    done += static_cast<size_t>(got);
  }
}

void File::write(const void* src, size_t n) {
  for (size_t done = 0; done < n;) {
    const ssize_t put = ::write(fd_, static_cast<const char*>(src) + done, n - done);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail_errno(path_, "write");
    done += static_cast<size_t>(put);
  }
}

void File::seek(size_t offset) {
  if (::lseek(fd_, off_t(offset), SEEK_SET) < 0) fail_errno(path_, "seek in");
}

void File::sync() {
  // EINVAL: a file system that cannot sync this kind of file, as some network ones cannot sync a folder.
  if (::fsync(fd_) != 0 && errno != EINVAL) fail_errno(path_, "fsync");
}

bool is_there(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(std::filesystem::symlink_status(path, error));
}

std::string read_file(const std::string& path) {
  const File file(path);
  std::string text(file.size(), '\0');
  file.read(text.data(), text.size(), 0);
  return text;
}

// ---- which files

static std::vector<std::string> listed_paths(const std::string& list) {
  require(!list.empty(), "@: expected @FILE, a file that names a path a line");
  std::istringstream lines(read_file(list));
  std::vector<std::string> paths;
  for (std::string line; std::getline(lines, line);) {
    require(line.find('\0') == line.npos, "%s: has NUL bytes: not a list of paths", list.c_str());
    line.erase(line.find_last_not_of(" \t\r") + 1);
    if (!line.empty()) paths.push_back(line);
  }
  require(!paths.empty(), "%s: names no file, expected a path a line", list.c_str());
  return paths;
}

static std::vector<std::string> matching_paths(const std::string& pattern) {
  glob_t found{};
  // A folder that is not there is no match; one that cannot be read would be data silently left out.
  const auto stop = [](const char*, int error) { return int(error != ENOENT && error != ENOTDIR); };
  const int status = glob(pattern.c_str(), GLOB_NOSORT, stop, &found);
  std::vector<std::string> paths(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  globfree(&found);
  require(status == 0 || status == GLOB_NOMATCH, "%s: a folder of this pattern cannot be read", pattern.c_str());
  require(!paths.empty(), "%s: no file matches", pattern.c_str());
  std::sort(paths.begin(), paths.end());
  return paths;
}

std::vector<std::string> between_commas(const std::string& list) {
  std::istringstream in(list + ",");
  std::vector<std::string> words;
  for (std::string word; std::getline(in, word, ',');) words.push_back(word);
  return words;
}

std::vector<std::string> named_paths(const std::string& spec) {
  std::vector<std::string> paths;
  for (const std::string& item : between_commas(spec)) {
    require(!item.empty(), "data \"%s\": an empty path", spec.c_str());
    const bool is_pattern = item.find_first_of("*?[") != item.npos;
    const std::vector<std::string> more = item[0] == '@' ? listed_paths(item.substr(1))
                                          : is_pattern   ? matching_paths(item)
                                                         : std::vector{item};
    paths.insert(paths.end(), more.begin(), more.end());
  }
  return paths;
}

std::vector<std::string> files_under(const std::string& folder) {
  namespace fs = std::filesystem;
  std::vector<std::string> paths;
  std::error_code error;
  fs::recursive_directory_iterator entry(folder, error);
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    std::error_code ignored;  // a dangling link is no file
    if (entry->path().filename().native().starts_with('.')) {
      entry.disable_recursion_pending();
    } else if (entry->is_regular_file(ignored)) {
      paths.push_back(entry->path().native());
    }
  }
  require(!error, "%s: cannot be walked: %s", folder.c_str(), error.message().c_str());
  std::sort(paths.begin(), paths.end());
  return paths;
}

}  // namespace gated
