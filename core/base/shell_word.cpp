#include "base/shell_word.h"

namespace fvlm {

std::string shell_word(std::string_view text) {
  constexpr std::string_view meaning = " \t\n\"'\\`$&|;<>()[]{}*?!#~";
  if (!text.empty() && text.find_first_of(meaning) == std::string_view::npos) return std::string(text);
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

} // namespace fvlm
