// The decoder rows that a frame takes at most, for limits of samples and packs.
#pragma once
#include "data/media/image_processor.h"
#include "recipe/plan.h"

#include <optional>

namespace fvlm::budget {

// Those that the connector makes of a frame; or, where LLaVA-NeXT's or LLaVA-OneVision's image processor cuts images
// and not all rows of a tile are read, the most that any sample has for each of its frames on average, rounded up.
int64_t most_rows_per_frame(const plan::VisualRows& rows, const std::optional<ImageProcessor>& processor);
// Of a plan's model. Throws Error(data) where its vision folder cannot be read.
int64_t most_rows_per_frame(const plan::Model& model);

} // namespace fvlm::budget
