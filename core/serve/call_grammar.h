// Calls of tools as a grammar: what may follow the token that begins one, where an answer otherwise has a given form.
#pragma once
#include "data/tokenizer.h"
#include "data/tool_calls.h"
#include "grammar/token_constraint.h"
#include "serve/chat_request.h"

#include <memory>

namespace fvlm::serve {

// The tokens of a vocabulary, of which those for the form's marks stand for bytes that no text has: an argument may
// not have them within. Both outlive it.
std::shared_ptr<const grammar::TokenTable> token_table_of_calls(const Tokenizer& tokenizer, const ToolCallForm& form);

// From behind the mark that begins a call to the end of the answer, in the bytes of token_table_of_calls(): one call of
// these tools, or several where they may be parallel. In forms of JSON arguments fit the tool's schema, unless it has
// keywords that a grammar does not keep; in others they have its names, and any values that can be read.
grammar::Grammar grammar_of_calls(const Tokenizer& tokenizer, const ToolCallForm& form, const OfferedTools& tools);

} // namespace fvlm::serve
