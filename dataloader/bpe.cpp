#include "dataloader/bpe.h"

#include <queue>

#include "core/check.h"
#include "dataloader/quote.h"
#include "dataloader/utf8.h"

namespace gated {

static uint64_t pair_key(int32_t first, int32_t second) {
  return uint64_t(uint32_t(first)) << 32 | uint32_t(second);
}

std::optional<int32_t> Bpe::id_of(const std::string& token) const {
  const auto found = vocab.find(token);
  if (found == vocab.end()) return {};
  return found->second;
}

const Bpe::Merge* Bpe::find(int32_t first, int32_t second) const {
  const auto found = merges_.find(pair_key(first, second));
  return found == merges_.end() ? nullptr : &found->second;
}

void Bpe::add_merge(const std::string& first, const std::string& second, const std::string& where) {
  const std::optional<int32_t> a = id_of(first), b = id_of(second), whole = id_of(first + second);
  for (const auto& [id, token] : {std::pair(a, first), std::pair(b, second), std::pair(whole, first + second)})
    require(id.has_value(), "%s: %s is not in the vocabulary", where.c_str(), quote(token).c_str());
  merges_.insert_or_assign(pair_key(*a, *b), Merge{rank_++, *whole});
}

std::optional<size_t> Bpe::encode(std::string_view word, std::vector<int32_t>& ids) const {
  if (word.empty()) return {};
  if (ignore_merges)
    if (const std::optional<int32_t> id = id_of(std::string(word))) return ids.push_back(*id), std::nullopt;

  // A list in an array: merging two neighbours unlinks the right one.
  struct Symbol {
    int32_t id;
    ptrdiff_t before, behind;
  };
  std::vector<Symbol> symbols;
  const auto append = [&](int32_t id) {
    const ptrdiff_t at = ptrdiff_t(symbols.size());
    if (at > 0) symbols.back().behind = at;
    symbols.push_back({id, at - 1, -1});
  };
  bool behind_unknown = false;
  for (size_t at = 0; at < word.size();) {
    const size_t length = std::max<size_t>(utf8_front(word.substr(at)).length, 1);
    const std::string character(word.substr(at, length));
    at += length;
    std::vector<int32_t> found;
    if (const std::optional<int32_t> id = id_of(character)) {
      found = {*id};
    } else if (byte_fallback) {
      for (const char c : character)
        if (const std::optional<int32_t> byte = id_of(format("<0x%02X>", unsigned(static_cast<unsigned char>(c)))))
          found.push_back(*byte);
      if (found.size() != length) found.clear();
    }
    const bool is_unknown = found.empty();
    if (is_unknown) {
      if (!unknown) return at - length;
      if (!(fuse_unknown && behind_unknown)) append(*unknown);
    }
    for (const int32_t id : found) append(id);
    behind_unknown = is_unknown;
  }

  struct Candidate {
    size_t rank;
    ptrdiff_t first;
    int32_t whole;
    bool operator<(const Candidate& c) const {
      return rank != c.rank ? rank > c.rank : first > c.first;
    }  // least on top
  };
  std::priority_queue<Candidate> candidates;
  const auto look_at = [&](ptrdiff_t first) {
    if (first < 0 || symbols[size_t(first)].behind < 0) return;
    const Symbol& s = symbols[size_t(first)];
    if (const Merge* m = find(s.id, symbols[size_t(s.behind)].id)) candidates.push({m->rank, first, m->whole});
  };
  for (size_t i = 0; i + 1 < symbols.size(); i++) look_at(ptrdiff_t(i));
  constexpr int32_t merged = -1;
  while (!candidates.empty()) {
    const Candidate c = candidates.top();
    candidates.pop();
    Symbol& first = symbols[size_t(c.first)];
    if (first.id == merged || first.behind < 0) continue;
    Symbol& second = symbols[size_t(first.behind)];
    const Merge* m = find(first.id, second.id);
    if (!m || m->rank != c.rank) continue;  // one of the two has been merged since
    first.id = c.whole;
    second.id = merged;
    first.behind = second.behind;
    if (second.behind >= 0) symbols[size_t(second.behind)].before = c.first;
    look_at(first.before);
    look_at(c.first);
  }
  for (ptrdiff_t at = 0; at >= 0; at = symbols[size_t(at)].behind) ids.push_back(symbols[size_t(at)].id);
  return {};
}

}  // namespace gated
