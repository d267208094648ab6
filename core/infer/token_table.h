// A tokenizer's tokens by the bytes that they add to an answer.
#pragma once
#include "data/tokenizer.h"
#include "grammar/token_constraint.h"

#include <memory>

namespace fvlm::infer {

// The tokenizer outlives it.
std::shared_ptr<const grammar::TokenTable> token_table_of(const Tokenizer& tokenizer);

} // namespace fvlm::infer
