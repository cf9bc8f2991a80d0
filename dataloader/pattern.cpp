#define PCRE2_CODE_UNIT_WIDTH 8
#include "dataloader/pattern.h"

#include <pcre2.h>

#include "core/check.h"
#include "dataloader/quote.h"

namespace gated {

struct Pattern::Compiled {
  pcre2_code* code;
  pcre2_match_context* limits = pcre2_match_context_create(nullptr);

  explicit Compiled(pcre2_code* c) : code(c) {
    pcre2_set_match_limit(limits, 10'000'000);
    pcre2_set_heap_limit(limits, 100'000);  // KiB
  }
  Compiled(const Compiled&) = delete;
  ~Compiled() {
    pcre2_match_context_free(limits);
    pcre2_code_free(code);
  }
};

static std::string pcre2_message(int error) {
  PCRE2_UCHAR text[120] = "";
  pcre2_get_error_message(error, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

Pattern::Pattern(const std::string& regex, std::string where) : Pattern(regex, 0, std::move(where)) {}

Pattern Pattern::literal(const std::string& text, const std::string& where) {
  return Pattern(text, PCRE2_LITERAL, where);
}

Pattern::Pattern(const std::string& regex, uint32_t options, std::string where) : where_(std::move(where)) {
  int error;
  size_t at;
  const uint32_t unicode = PCRE2_UTF | (options & PCRE2_LITERAL ? 0 : PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C);
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(regex.data()), regex.size(), options | unicode, &error, &at, nullptr);
  require(code, "%s: the regular expression %s is not understood at byte %zu: %s", where_.c_str(), quote(regex).c_str(),
          at, pcre2_message(error).c_str());
  compiled_ = std::make_shared<Compiled>(code);
}

void Pattern::split(std::string_view text, const std::function<void(size_t, size_t, bool)>& part) const {
  // U+200B is of the same kind as U+180E and of the same length, and no \s of PCRE2.
  std::string subject(text);
  for (size_t at = 0; (at = subject.find("\u180e", at)) != subject.npos;) subject.replace(at, 3, "\u200b");

  const std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> match(
      pcre2_match_data_create_from_pattern(compiled_->code, nullptr), pcre2_match_data_free);
  const size_t* found = pcre2_get_ovector_pointer(match.get());
  size_t done = 0;
  uint32_t checked = 0;
  for (size_t from = 0; from < subject.size();) {
    const int status = pcre2_match(compiled_->code, reinterpret_cast<PCRE2_SPTR>(subject.data()), subject.size(), from,
                                   PCRE2_NOTEMPTY | checked, match.get(), compiled_->limits);
    if (status == PCRE2_ERROR_NOMATCH) break;
    require(status > 0, "%s: the regular expression fails on this text: %s", where_.c_str(),
            pcre2_message(status).c_str());
    checked = PCRE2_NO_UTF_CHECK;                                   // the first search has looked at all of it
    const size_t begin = std::max(found[0], done), end = found[1];  // (\K moves a match's begin)
    if (end <= begin) break;
    if (begin > done) part(done, begin, false);
    part(begin, end, true);
    from = done = end;
  }
  if (done < text.size()) part(done, text.size(), false);
}

}  // namespace gated
