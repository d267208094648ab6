// Whether a model that learns from a chat template's answers learns to end them.
#pragma once
#include "data/tokenizer.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace fvlm {

// What is wrong, and what to do, where the chat template called `name` of the tokenizer's folder writes none of `ends`
// among the labels of an answer, as that of LLaVA 1.5: the trained model would talk on after every answer. `ends`: the
// tokens at which generation stops.
std::optional<std::string> missing_answer_end(const Tokenizer& tokenizer, const std::string& name,
                                              std::span<const int64_t> ends);

} // namespace fvlm
