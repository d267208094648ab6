// Whether a model directory reads the tokens of a recipe's model, as its teacher or when it is evaluated by the recipe.
#pragma once
#include "recipe/plan.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace fvlm::budget {

// The first token that the first decoder of `model` has otherwise than that of the recipe: "id 7 is 'a' there and 'b'".
// Tokens that only one of them has behind those of the other are no difference. Nothing: there is none, or one of the
// two has no tokenizer.json to compare.
std::optional<std::string> different_token(const plan::Model& recipe, const std::filesystem::path& model);

// Throws Error(data) at the teacher's folder unless its tokens are the recipe's, and its embedding has as many rows as
// the recipe's model: `rows` and `own`.
void require_teacher_tokens(const plan::Model& recipe, const std::filesystem::path& teacher, int64_t rows, int64_t own);

} // namespace fvlm::budget
