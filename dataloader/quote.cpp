#include "dataloader/quote.h"

#include <nlohmann/json.hpp>

namespace gated {

std::string clipped(const std::string& text, size_t longest) {
  return text.size() <= longest ? text : text.substr(0, longest) + "...";
}

std::string quote(const std::string& text) {
  return nlohmann::json(clipped(text)).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

}  // namespace gated
