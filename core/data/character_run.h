// A split pattern that is one class of characters: "[\r\n]", "\s?[A-Za-z]+", "\p{N}{1,3}".
#pragma once
#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

namespace fvlm {

class CharacterRun {
 public:
  // Of a regular expression in valid UTF-8. Nothing for any other one.
  static std::optional<CharacterRun> parse(std::string_view pattern);

  // The end of the match that begins at `at`, or `at` where there is none. The text must be valid UTF-8.
  size_t end(std::string_view text, size_t at) const;

 private:
  size_t run_end(std::string_view text, size_t at) const;

  std::vector<bool> characters_; // by code point
  bool may_begin_with_space_ = false;
  size_t most_ = 1; // characters of the class
};

} // namespace fvlm
