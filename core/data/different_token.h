// Whether two tokenizers mean the same by their ids.
#pragma once
#include "data/tokenizer.h"

#include <optional>
#include <string>

namespace fvlm {

// Of the first `ids` tokens the first that is another one: "id 7 is 'a' there and 'b'", theirs first. Nothing: none is.
std::optional<std::string> different_token(const Tokenizer& ours, const Tokenizer& theirs, size_t ids);

} // namespace fvlm
