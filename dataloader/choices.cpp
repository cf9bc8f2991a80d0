#include "dataloader/choices.h"

#include <cstring>

#include "core/check.h"
#include "dataloader/files.h"

namespace gated {

namespace {

// The numbers of a file, one after another.
class ChoiceNumbers {
 public:
  ChoiceNumbers(std::span<const unsigned char> bytes, size_t width, const std::string& name)
      : bytes_(bytes), width_(width), name_(name) {}

  size_t place() const { return at_; }  // in bytes
  bool done() const { return at_ == bytes_.size(); }
  uint32_t next(const char* what) {
    require(bytes_.size() - at_ >= width_, "%s: question %zu ends inside its %s: truncated", name_.c_str(), question,
            what);
    uint32_t number = 0;
    std::memcpy(&number, bytes_.data() + at_, width_);
    at_ += width_;
    return number;
  }
  void expect(uint32_t number, uint32_t expected, const char* what) const {
    require(number == expected, "%s: question %zu: %s is %u, expected %u", name_.c_str(), question, what, number,
            expected);
  }
  std::vector<int32_t> tokens(size_t vocab, const char* what) {
    const uint32_t count = next(what);
    require(count > 0, "%s: question %zu has an empty %s", name_.c_str(), question, what);
    std::vector<int32_t> ids;  // not reserved: the count is not trusted
    for (uint32_t i = 0; i < count; i++) {
      const uint32_t id = next(what);
      require(id < vocab && id <= INT32_MAX, "%s: question %zu has the token %u, but the model has %zu tokens",
              name_.c_str(), question, id, vocab);
      ids.push_back(int32_t(id));
    }
    return ids;
  }

  size_t question = 0;  // that is read, for messages

 private:
  std::span<const unsigned char> bytes_;
  size_t width_, at_ = 0;
  const std::string& name_;
};

}  // namespace

std::vector<ChoiceQuestion> parse_choices(std::span<const unsigned char> file, size_t vocab, const std::string& name) {
  constexpr size_t header_bytes = 256 * sizeof(int32_t);
  require(file.size() >= header_bytes, "%s: %zu bytes, expected a header of %zu: truncated, or no questions",
          name.c_str(), file.size(), header_bytes);
  int32_t header[3];
  std::memcpy(header, file.data(), sizeof header);
  require(header[0] == 20240522, "%s: magic number %d, expected 20240522: no questions with endings", name.c_str(),
          header[0]);
  require(header[1] == 1 || header[1] == 2, "%s: version %d, expected 1 (16-bit tokens) or 2 (32-bit tokens)",
          name.c_str(), header[1]);
  require(header[2] > 0, "%s: the header announces %d questions, expected at least 1", name.c_str(), header[2]);

  const size_t width = header[1] == 1 ? 2 : 4;
  const uint32_t largest = width == 2 ? UINT16_MAX : UINT32_MAX;
  ChoiceNumbers numbers(file.subspan(header_bytes), width, name);
  std::vector<ChoiceQuestion> questions;
  for (; numbers.question < size_t(header[2]); numbers.question++) {
    const size_t begin = numbers.place();
    numbers.expect(numbers.next("head"), largest, "the number in front");
    const uint32_t bytes = numbers.next("head"), number = numbers.next("head"), right = numbers.next("head"),
                   endings = numbers.next("head");
    numbers.expect(number, uint32_t(numbers.question), "its number");
    require(endings >= 2, "%s: question %zu has %u endings, expected two or more", name.c_str(), numbers.question,
            endings);
    require(right < endings, "%s: question %zu: ending %u is the right one, but there are %u", name.c_str(),
            numbers.question, right, endings);
    ChoiceQuestion question = {numbers.tokens(vocab, "context"), {}, right};
    for (uint32_t i = 0; i < endings; i++) question.endings.push_back(numbers.tokens(vocab, "ending"));
    numbers.expect(bytes, uint32_t(numbers.place() - begin), "its length in bytes");
    questions.push_back(std::move(question));
  }
  require(numbers.done(), "%s: there are bytes after the %d questions that the header announces", name.c_str(),
          header[2]);
  return questions;
}

std::vector<ChoiceQuestion> read_choices(const std::string& path, size_t vocab) {
  const std::string bytes = read_file(path);
  return parse_choices({reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size()}, vocab, path);
}

}  // namespace gated
