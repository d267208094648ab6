// The implementation of the template each_word() of pretokenizer.h.
#pragma once
#include "data/pretokenizer.h"
#include "data/unicode.h"

#include <string>

namespace fvlm {
namespace detail {

template <class Word>
void each_word_of_part(const PreTokenizer& rules, std::string_view part, Word& word) {
  if (part.empty()) return;
  std::string with_space;
  if (rules.add_prefix_space && part.front() != ' ') {
    with_space.append(" ").append(part);
    part = with_space;
  }
  for (size_t at = 0; at < part.size();) {
    size_t end = rules.pattern == WordPattern::none ? part.size() : word_end(rules.pattern, part, at);
    word(part.substr(at, end - at));
    at = end;
  }
}

} // namespace detail

template <class Word>
void each_word(const PreTokenizer& rules, std::string_view piece, Word&& word) {
  if (!rules.split_digits) {
    detail::each_word_of_part(rules, piece, word);
    return;
  }
  const uint8_t* classes = char_classes();
  size_t begin = 0;
  for (size_t at = 0; at < piece.size();) {
    Decoded decoded = decode_at(piece, at);
    if (classes[decoded.point] & class_digit_split) {
      detail::each_word_of_part(rules, piece.substr(begin, at - begin), word);
      detail::each_word_of_part(rules, piece.substr(at, decoded.length), word);
      begin = at + decoded.length;
    }
    at += decoded.length;
  }
  detail::each_word_of_part(rules, piece.substr(begin), word);
}

} // namespace fvlm
