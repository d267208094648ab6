// Whether a grammar has a text.
#pragma once
#include "grammar/grammar.h"

#include <string_view>

namespace fvlm::grammar {

inline bool has(const Grammar& grammar, std::string_view text) {
  Automaton automaton(grammar);
  Automaton::State state = automaton.begin();
  for (const char c : text) {
    state = automaton.next(state, static_cast<uint8_t>(c));
    if (state == Automaton::none) return false;
  }
  return automaton.accepts(state);
}

} // namespace fvlm::grammar
