// Checks that the longest sequences of a Plan fit in the decoder's positions. resolve() does this for a decoder that
// the recipe describes; for one from a folder, the caller that reads its config.json has to.
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

// Finds the mixes, of stages and evaluation sets, whose longest sequence exceeds `positions`.
std::vector<LongSequences> find_long_sequences(const plan::Plan& plan, int64_t positions, int64_t rows_per_frame);

inline constexpr const char* long_sequences_advice = "lower data.max_text_tokens or data.max_frames";

// Throws RecipeError where find_long_sequences() finds any.
void require_positions(const Resolved& resolved, int64_t positions, int64_t rows_per_frame);

} // namespace fvlm::recipe
