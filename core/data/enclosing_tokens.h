// The tokens that a tokenizer puts around a text by itself, as the post_processor of its tokenizer.json says.
#pragma once
#include "data/tokenizer.h"

#include <vector>

namespace fvlm {

struct EnclosingTokens {
  std::vector<TokenId> before, after;
};
// Of a single text, where it is a TemplateProcessing; else none.
EnclosingTokens enclosing_tokens(const Tokenizer& tokenizer);

} // namespace fvlm
