// Whether a grammar has a text.
#pragma once
#include "grammar/grammar.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

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

// What a grammar is made of, texts that it has, and others.
struct Texts {
  std::string source;
  std::vector<std::string> valid, invalid;
};

inline void expect_texts(const std::vector<Texts>& cases, const std::function<Grammar(const std::string&)>& made_of) {
  for (const Texts& one : cases) {
    SCOPED_TRACE(one.source);
    const Grammar grammar = made_of(one.source);
    for (const std::string& text : one.valid) EXPECT_TRUE(has(grammar, text)) << text;
    for (const std::string& text : one.invalid) EXPECT_FALSE(has(grammar, text)) << text;
  }
}

} // namespace fvlm::grammar
