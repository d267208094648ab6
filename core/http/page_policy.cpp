#include "http/page_policy.h"

#include "base/base64.h"
#include "base/hash.h"

#include <fmt/format.h>

namespace fvlm {

std::string policy_source(std::string_view text) {
  const std::string hex = sha256_hex(text);
  std::string digest;
  for (size_t at = 0; at < hex.size(); at += 2) digest += static_cast<char>(std::stoi(hex.substr(at, 2), nullptr, 16));
  return fmt::format("'sha256-{}'", encode_base64(digest));
}

} // namespace fvlm
