#include "dataloader/strict_json.h"

#include <set>
#include <vector>

#include "core/check.h"
#include "dataloader/quote.h"

namespace gated {

namespace {

// A pass of its own over the text, as nlohmann-json's callback while building the tree takes quadratic time.
class Rules : public nlohmann::json_sax<nlohmann::json> {
 public:
  Rules(const std::string& where, size_t depth) : where_(where), most_(depth) {}
  bool start_object(size_t) override {
    keys_.emplace_back();
    return deeper();
  }
  bool start_array(size_t) override { return deeper(); }
  bool key(std::string& name) override {
    require(keys_.back().insert(name).second, "%s has the key %s twice, expected once", where_.c_str(),
            quote(name).c_str());
    return true;
  }
  bool end_object() override {
    keys_.pop_back();
    return end_array();
  }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool parse_error(size_t, const std::string&, const nlohmann::json::exception& e) override {
    const std::string reason = e.what();  // "[json.exception.parse_error.101] parse error at line ..."
    fail("%s is not valid JSON: %s", where_.c_str(), quote(reason.substr(reason.find(' ') + 1)).c_str());
  }
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const std::string&) override { return true; }
  bool string(std::string&) override { return true; }
  bool binary(binary_t&) override { return true; }

 private:
  bool deeper() {
    require(++depth_ <= most_, "%s is nested deeper than %zu levels", where_.c_str(), most_);
    return true;
  }
  const std::string& where_;
  size_t most_, depth_ = 0;
  std::vector<std::set<std::string>> keys_;  // of each object that is still open
};

}  // namespace

nlohmann::json parse_strict_json(const std::string& file, const char* what, const std::string& text, size_t depth) {
  const std::string where = *what ? file + ": " + what : file + ": it";
  require(text.find('\0') == std::string::npos, "%s has a NUL byte, expected JSON", where.c_str());
  const size_t begin = text.find_first_not_of(" \t\r\n");
  require(begin != std::string::npos && text[begin] == '{', "%s does not begin with '{', expected a JSON object",
          where.c_str());
  Rules rules(where, depth);
  nlohmann::json::sax_parse(text, &rules);
  return nlohmann::json::parse(text);
}

}  // namespace gated
