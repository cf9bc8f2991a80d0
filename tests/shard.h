// shard: a file of tokens, as llm.c lays it out.
#pragma once
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace gated {

template <class Token = uint16_t>
std::string shard_of(const std::vector<Token>& tokens, int32_t magic = sizeof(Token) == 2 ? 20240520 : 20240801,
                     int32_t version = sizeof(Token) == 2 ? 1 : 7, int32_t vocab = 0) {
  const int32_t header[] = {magic, version, int32_t(tokens.size()), vocab};
  std::string s(1024, '\0');
  std::memcpy(s.data(), header, sizeof header);
  return s.append(reinterpret_cast<const char*>(tokens.data()), sizeof(Token) * tokens.size());
}

}  // namespace gated
