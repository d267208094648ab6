// The longest sequences of a Plan against the positions that its decoder has. Of a decoder that a recipe describes
// resolve() asks this itself; of one from a folder whoever reads the folder's config.json.
#pragma once
#include "recipe/resolve.h"

#include <cstdint>
#include <string>
#include <vector>

namespace fvlm::recipe {

struct LongSequences {
  std::string mix;  // "stages.align.data"
  std::string what; // "64 frames and 1,024 text tokens are more than the decoder's 512 positions"
};

// Of the stages' mixes and those of their evaluation sets.
std::vector<LongSequences> longer_than(const plan::Plan& plan, int64_t positions);

inline constexpr const char* shorter_sequences = "lower data.max_text_tokens or data.max_frames";

// Throws RecipeError.
void require_positions(const Resolved& resolved, int64_t positions);

} // namespace fvlm::recipe
