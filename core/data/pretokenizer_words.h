// The implementation of the template each_word() of pretokenizer.h.
#pragma once
#include "data/normalization.h"
#include "data/pretokenizer.h"

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
  if (!rules.splits_as_gpt2) return word(part);
  const WordSplit gpt2{WordPattern::gpt2};
  for (size_t at = 0; at < part.size();) {
    const size_t end = word_end(gpt2, part, at);
    word(part.substr(at, end - at));
    at = end;
  }
}

// `split`: the next one of the rules' that the part goes through.
template <class Word>
void each_word_behind(const PreTokenizer& rules, size_t split, std::string_view part, Word& word) {
  if (split == rules.splits.size()) return each_word_of_part(rules, part, word);
  for (size_t at = 0; at < part.size();) {
    const size_t end = word_end(rules.splits[split], part, at);
    each_word_behind(rules, split + 1, part.substr(at, end - at), word);
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
  detail::each_word_behind(rules, 0, piece, word);
}

} // namespace fvlm
