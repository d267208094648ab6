#include "data/different_token.h"

#include "base/terminal.h"

#include <fmt/format.h>

namespace fvlm {
namespace {

// Nothing where the id is not used.
std::optional<std::string> token_of(const Tokenizer& tokenizer, size_t id) {
  const auto token = static_cast<TokenId>(id);
  if (!tokenizer.contains(token)) return std::nullopt;
  return tokenizer.bytes_of(token);
}

std::string shown_token(const std::optional<std::string>& token) {
  return token ? fmt::format("'{}'", strip_control_characters(*token)) : "no token";
}

} // namespace

std::optional<std::string> different_token(const Tokenizer& ours, const Tokenizer& theirs, size_t ids) {
  for (size_t id = 0; id < ids; ++id) {
    const auto here = token_of(ours, id), there = token_of(theirs, id);
    if (here != there) return fmt::format("id {} is {} there and {}", id, shown_token(there), shown_token(here));
  }
  return std::nullopt;
}

} // namespace fvlm
