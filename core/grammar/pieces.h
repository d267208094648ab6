// What parsers of patterns and of GBNF share: the text that they read, and the pieces of a grammar that they make of
// it.
#pragma once
#include "grammar/grammar.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

namespace fvlm::grammar {

// A part of a text that a grammar has: it leads to the node that it gets.
using Piece = std::function<Grammar::Node(Grammar::Node)>;

// One of them, of which there is at least one; and all of them, one behind the other.
Piece either_of(Grammar& grammar, std::vector<Piece> options);
Piece in_order(std::vector<Piece> pieces);

// How many characters a text in UTF-8 has.
int64_t characters_in(std::string_view text);

// A text, and how far it is read.
class SourceText {
 protected:
  explicit SourceText(std::string_view text) : text_(text) {}

  bool is_over() const { return at_ == text_.size(); }
  bool begins(std::string_view words) const { return text_.substr(at_).starts_with(words); }
  bool take(std::string_view words) {
    const bool found = begins(words);
    if (found) at_ += words.size();
    return found;
  }
  // A number of digits, from 0 to `most`; nothing where there is none.
  std::optional<int64_t> take_number(int64_t most);

  std::string_view text_;
  size_t at_ = 0;
};

} // namespace fvlm::grammar
