// Whole characters that a text may go on with, whichever of a set they are: as inside of a string, also where their
// number has limits.
#pragma once
#include "grammar/grammar.h"

#include <cstddef>
#include <optional>
#include <string_view>
#include <unordered_map>

namespace fvlm::grammar {

// Characters of ASCII by their bytes; with all_beyond every other character as well, as UTF-8.
using CharacterSet = ByteSet;
constexpr size_t all_beyond = 0x80;

// Whether the characters of a text in UTF-8 are all of the set.
bool consists_of(std::string_view text, const CharacterSet& set);

class CharacterRuns {
 public:
  struct Run {
    CharacterSet set;
    size_t length;   // any so many of these may follow, and each fewer
    bool is_longest; // none of the set follows so many, where they are fewer than was asked for
  };
  // Of the largest set that leads to one state; nothing where it is small.
  std::optional<Run> of(Automaton& automaton, Automaton::State state, size_t most);

 private:
  // Where the characters of the set lead to.
  struct Step {
    CharacterSet set;
    Automaton::State next;
  };
  const Step& step(Automaton& automaton, Automaton::State state);

  std::unordered_map<Automaton::State, Step> steps_;
};

} // namespace fvlm::grammar
