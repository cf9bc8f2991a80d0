// terminal: how wide the terminal is, and text that fits it. tests/test_terminal.cpp, tests/test_cli.cpp
#pragma once
#include <string>
#include <vector>

namespace gated {

// Columns of the terminal that stdout is; 80 where it is none.
size_t terminal_width();

// `head`, then the words of `text`, in lines of at most `width`; all but the first begin with `indent` spaces, or with
// fewer where less than 20 columns would be left. A word is never broken.
std::string wrapped(const std::string& head, const std::string& text, size_t indent, size_t width);

// One column of a line: how it may be written, the longest first.
using Column = std::vector<std::string>;

// One line of at most `width`: its columns, two spaces apart. Where they are too wide each takes its next shorter form,
// those at the right first, and again until all are at their shortest; then columns are left out from the right. The
// first two always stay.
std::string fitted(const std::vector<Column>& columns, size_t width);

}  // namespace gated
