#include "dataloader/files.h"

#include <fcntl.h>
#include <glob.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "core/check.h"

namespace gated {

MappedFile::MappedFile(const std::string& path) {
  // O_NONBLOCK: opening a pipe must reach the refusal below, not wait for its writer.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  require(fd >= 0, "%s: %s", path.c_str(), std::strerror(errno));
  struct stat info;
  const bool regular = fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
  size_ = regular ? size_t(info.st_size) : 0;
  if (size_ > 0) data_ = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd, 0);
  const int error = errno;
  close(fd);
  require(regular, "%s: not a regular file", path.c_str());
  require(data_ != MAP_FAILED, "%s: cannot be mapped: %s", path.c_str(), std::strerror(error));
}

MappedFile::~MappedFile() {
  if (data_) munmap(data_, size_);
}

static std::vector<std::string> listed_paths(const std::string& list) {
  const MappedFile file(list);
  std::vector<std::string> paths;
  for (std::string_view rest = file.text(); !rest.empty();) {
    std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    while (!line.empty() && std::strchr(" \t\r", line.back())) line.remove_suffix(1);
    require(line.find('\0') == line.npos, "%s: has NUL bytes: not a list of paths", list.c_str());
    if (!line.empty()) paths.emplace_back(line);
  }
  require(!paths.empty(), "%s: names no file", list.c_str());
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

std::vector<std::string> named_paths(const std::string& spec) {
  std::vector<std::string> paths;
  for (size_t begin = 0; begin <= spec.size();) {
    const std::string item = spec.substr(begin, spec.find(',', begin) - begin);
    begin += item.size() + 1;
    require(!item.empty(), "data \"%s\": an empty path", spec.c_str());
    std::vector<std::string> more;
    if (item[0] == '@') {
      more = listed_paths(item.substr(1));
    } else if (item.find_first_of("*?[") != item.npos) {
      more = matching_paths(item);
    } else {
      more = {item};
    }
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
