// Texts of a grammar that a user writes: GBNF, as llama.cpp has it, and what of EBNF vLLM's grammars have in common
// with it.
//
//   root  ::= "[" (item ("," item)*)? "]"   # the rule that is the whole text
//   item  ::= [0-9]+ | root | name{1,3}
//   name  ::= [^\x00-\x20"]
#pragma once
#include "grammar/grammar.h"

#include <string_view>

namespace fvlm::grammar {

// Throws Error(usage), with line and column, for what is no grammar, for a rule that calls itself before it has read
// anything, and for one that never ends.
Grammar of_gbnf(std::string_view text);

} // namespace fvlm::grammar
