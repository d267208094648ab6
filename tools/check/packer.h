// Packer trials: items, bins, and the rules that bins keep.
#pragma once
#include "check/context.h"

#include <fvlm/packer.h>

namespace fvlm::check {

struct PackerCase {
  std::vector<int64_t> capacity; // one a dimension
  int64_t max_items = 0;
  std::vector<int64_t> sizes; // [items, dimensions]
  uint64_t seed = 0;

  int64_t dimensions() const { return static_cast<int64_t>(capacity.size()); }
  int64_t items() const { return static_cast<int64_t>(sizes.size()) / dimensions(); }
  bool fits(int64_t item) const; // an empty bin
};

struct Bins {
  std::string failure; // pack() did not return FVLM_OK
  std::vector<int32_t> of_item;
  int32_t count = 0;
};

Trial packer_trial(const PackerCase& packer);
fvlm_support packer_supports(Context& context, const PackerCase& packer);
Bins pack(Context& context, const PackerCase& packer, const Variation& variation = {});

// Items as the engine's data makes them: one dimension of text lengths, or frames and tokens.
PackerCase uniform_items(int64_t items, int dimensions, uint64_t seed);

// The stream of ragged samples that the engine is measured on, in tokens: 47 % images of 8 frames, 39 % videos of 1 to
// 64 frames, 14 % text alone, a token a frame, text of 24 to 1024 tokens.
std::vector<int64_t> ragged_lengths(int64_t items, uint64_t seed);

} // namespace fvlm::check
