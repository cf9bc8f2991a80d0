// hf_keys: the values of a config.json of Hugging Face's transformers, each checked when it is read.
// training/models/hf_config.h
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/check.h"
#include "dataloader/quote.h"

namespace gated {

// The keys of a config.json, or of an object in it. A null is as good as no key.
class Keys {
 public:
  Keys(std::string where, const nlohmann::json& object) : where_(std::move(where)), object_(object) {}

  const nlohmann::json* find(const std::string& key) const {
    const auto at = object_.find(key);
    return at == object_.end() || at->is_null() ? nullptr : &*at;
  }
  bool has(const std::string& key) const { return find(key) != nullptr; }

  size_t whole(const std::string& key) const {
    return typed(key, &nlohmann::json::is_number_unsigned, "a whole number").get<size_t>();
  }
  size_t one_or_more(const std::string& key) const {
    const size_t value = whole(key);
    if (value == 0) refuse(key, "1 or more");
    return value;
  }
  size_t whole_or(const std::string& key, size_t absent) const { return has(key) ? whole(key) : absent; }
  double real(const std::string& key) const { return typed(key, &nlohmann::json::is_number, "a number").get<double>(); }
  double real_or(const std::string& key, double absent) const { return has(key) ? real(key) : absent; }
  bool flag(const std::string& key) const {
    return typed(key, &nlohmann::json::is_boolean, "true or false").get<bool>();
  }
  bool flag_or(const std::string& key, bool absent) const { return has(key) ? flag(key) : absent; }
  std::string text_or(const std::string& key, const std::string& absent) const {
    return has(key) ? typed(key, &nlohmann::json::is_string, "a string").get<std::string>() : absent;
  }
  std::vector<std::string> texts(const std::string& key) const {
    std::vector<std::string> texts;
    for (const nlohmann::json& item : typed(key, &nlohmann::json::is_array, "a list of strings")) {
      if (!item.is_string()) refuse(key, "a list of strings");
      texts.push_back(item.get<std::string>());
    }
    return texts;
  }
  Keys object(const std::string& key) const {
    return Keys(where_ + ": " + key, typed(key, &nlohmann::json::is_object, "an object"));
  }

  // Two keys for the same, or one key in two places, have to say the same where both are there.
  void require_agreement(const std::string& key, const Keys& other, const std::string& others_key) const {
    const nlohmann::json *here = find(key), *there = other.find(others_key);
    if (here && there && *here != *there)
      refuse(key, shown(there) + ", as " + other.where_ + ": " + quote(others_key) + " says");
  }

  [[noreturn]] void refuse(const std::string& key, const std::string& expected) const {
    fail("%s: %s is %s, expected %s", where_.c_str(), quote(key).c_str(), shown(find(key)).c_str(), expected.c_str());
  }

 private:
  static std::string shown(const nlohmann::json* value) {
    if (!value) return "not there";
    return quote(value->is_string() ? value->get<std::string>() : value->dump());
  }
  const nlohmann::json& typed(const std::string& key, bool (nlohmann::json::*is)() const noexcept,
                              const char* expected) const {
    const nlohmann::json* value = find(key);
    if (!value || !(value->*is)()) refuse(key, expected);
    return *value;
  }
  std::string where_;
  const nlohmann::json& object_;
};

}  // namespace gated
