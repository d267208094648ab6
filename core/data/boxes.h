// How models write boxes and points of an image, and which of these ways a family of models was trained with.
#pragma once
#include "data/tokenizer.h"
#include "recipe/box_form.h"

#include <array>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace fvlm {

// Of the decoder in this folder, which a tokenizer is read from. Nothing where its family has no form, or none that is
// known, and where the folder is empty. Throws Error(data) for a damaged config.
std::optional<plan::BoxForm> box_form_of(const std::filesystem::path& folder);

// The special tokens that stand in texts of this form, so that what spells them there is the token and no text.
std::span<const std::string_view> box_tokens(plan::BoxForm form);

// Throws Error(data) where the tokenizer lacks a token of this form.
void require_box_tokens(const Tokenizer& tokenizer, plan::BoxForm form);

// The sizes of an image along one side: `own` in the unit of a box's coordinates, `resized` in pixels as the image's
// processor makes it, which only BoxForm::pixels needs.
struct BoxSide {
  double own = 1, resized = 0;
};

// `place`: x and y of a point, or those of the upper left and the lower right corner of a box. `sides`: along x and y.
// Coordinates are rounded to the nearest whole number, halves to the even one.
std::string box_text(plan::BoxForm form, std::span<const double> place, const std::array<BoxSide, 2>& sides);
// What a box is of.
std::string box_name_text(plan::BoxForm form, const std::string& name);

} // namespace fvlm
