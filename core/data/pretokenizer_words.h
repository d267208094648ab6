// The implementation of the template each_word() of pretokenizer.h.
#pragma once
#include "data/normalization.h"
#include "data/pretokenizer.h"
#include "data/unicode.h"

#include <algorithm>
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

template <class Word>
void each_marked_word(const Metaspace& rules, std::string_view piece, bool is_first, Word& word) {
  using Prepend = Metaspace::Prepend;
  std::string text = replace_all(piece, " ", Metaspace::mark);
  const bool prepends = rules.prepend == Prepend::always || (rules.prepend == Prepend::first && is_first);
  if (prepends && !text.empty() && !text.starts_with(Metaspace::mark)) text.insert(0, Metaspace::mark);
  const std::string_view all = text;
  for (size_t begin = 0; begin < all.size();) {
    const size_t next = rules.split ? all.find(Metaspace::mark, begin + 1) : all.npos, end = std::min(next, all.size());
    word(all.substr(begin, end - begin));
    begin = end;
  }
}

} // namespace detail

template <class Word>
void each_word(const PreTokenizer& rules, std::string_view piece, bool is_first, Word&& word) {
  if (rules.metaspace) return detail::each_marked_word(*rules.metaspace, piece, is_first, word);
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
