// How large the samples of a stage are, from a look at some of them: what sizes of packs go by before training has
// opened everything.
#pragma once
#include "recipe/plan.h"

#include <cstdint>
#include <string>

namespace fvlm {

class VideoDecoder;

struct DataSizes {
  plan::Stage stage; // its limits lowered to what was seen; as it was where nothing could be
  std::string said;  // what was looked at, or why nothing was
  bool seen = false;
};

// Measures up to 256 samples of each source, out of at most four of its shards, whose indices are made where there are
// none. `video`: null: a stage with videos keeps the recipe's limits.
DataSizes look_at_sizes(const plan::Plan& plan, const plan::Stage& stage, const VideoDecoder* video);

} // namespace fvlm
