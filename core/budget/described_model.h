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

// Puts the adapters of a plan's model on the parts that it names. Throws Error(recipe) for what these do not have.
void add_adapters(const plan::Model& model, ModelDescription& description);

// Of the decoder's folder, where it is there and can be read: a recipe is right on a machine without its models, too.
std::optional<int64_t> decoder_positions(const plan::Model& model);

} // namespace fvlm::budget
