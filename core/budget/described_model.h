// The model that a Plan names, known from its configs alone: towers from folders or as the recipe describes them, the
// connector as it says.
#pragma once
#include "model/weights/model_directory.h"
#include "recipe/plan.h"

#include <cstdint>
#include <optional>

namespace fvlm::budget {

// All but the parameters. Throws Error(data) for folders that make no sense, and Error(recipe) where the recipe asks
// for what their models do not have: an image size that is no multiple of the patch, layers that are not there.
ModelDescription describe(const plan::Plan& plan);

// Of the decoder's folder, where it is there and can be read: a recipe is right on a machine without its models, too.
std::optional<int64_t> decoder_positions(const plan::Model& model);

} // namespace fvlm::budget
