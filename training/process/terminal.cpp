#include "training/process/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <sstream>

namespace gated {

size_t terminal_width() {
  winsize size{};
  const bool known = isatty(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : 80;
}

std::string wrapped(const std::string& head, const std::string& text, size_t indent, size_t width) {
  const std::string margin = "\n" + std::string(std::min(indent, width > 20 ? width - 20 : 0), ' ');
  std::string out = head;
  size_t column = head.size();
  bool begins = true;  // no word stands in this line yet
  std::istringstream words(text);
  for (std::string word; words >> word; begins = false) {
    if (!begins && column + 1 + word.size() > width) {
      out += margin;
      column = margin.size() - 1;
      begins = true;
    }
    out += (begins ? "" : " ") + word;
    column += !begins + word.size();
  }
  return out + "\n";
}

std::string fitted(const std::vector<Column>& columns, size_t width) {
  std::vector<size_t> form(columns.size());
  const auto line = [&] {
    std::string text;
    for (size_t i = 0; i < form.size(); i++) text += (i ? "  " : "") + columns[i][form[i]];
    return text;
  };
  for (bool shortened = true; shortened;) {
    shortened = false;
    for (size_t i = columns.size(); i-- > 0 && line().size() > width;)
      if (form[i] + 1 < columns[i].size()) {
        form[i]++;
        shortened = true;
      }
  }
  while (form.size() > 2 && line().size() > width) form.pop_back();
  return line();
}

}  // namespace gated
