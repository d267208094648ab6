// Sets of characters as a grammar of bytes reads them, in UTF-8.
#pragma once
#include "grammar/grammar.h"

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace fvlm::grammar {

// Code points from the first to the last, both included.
using CharacterRange = std::pair<uint32_t, uint32_t>;
using CharacterRanges = std::vector<CharacterRange>;

// Sorted, apart from each other, and without surrogates, which no text has.
CharacterRanges normal(CharacterRanges ranges);
// All characters but those of normal ranges.
CharacterRanges all_but(const CharacterRanges& ranges);

// Nodes that read one character of a set.
class CharacterNodes {
 public:
  explicit CharacterNodes(Grammar& grammar) : g_(grammar) {}
  // `ranges` are normal and not empty. Characters of ASCII are a byte, and a set with others is a rule of its own.
  Grammar::Node one_of(const CharacterRanges& ranges, Grammar::Node next);

 private:
  Grammar& g_;
  std::map<CharacterRanges, Grammar::Rule> rules_;
};

} // namespace fvlm::grammar
