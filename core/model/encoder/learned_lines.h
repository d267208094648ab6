// Learned positions of a square grid for images of any size: what a line of patches has of a line of the grid.
#pragma once
#include "model/encoder/encoder.h"
#include "model/weights/towers.h"

#include <vector>

namespace fvlm::model {

// Where a patch of a line is on a line of learned positions: among so many neighbors, each with its share.
struct Between {
  std::vector<int64_t> neighbors;
  std::vector<float> shares;
};

// How many neighbors a patch has on a line.
inline int64_t line_neighbors(const VisionConfig& config) {
  return config.position_buckets ? 1 : config.position_cubic ? 4 : 2;
}
// Of all patches of a line of `size`, interpolated or the nearest as the config has it, in float32 as transformers
// computes it. Both lines end at the same margins, or with position_centers or position_cubic each position and each
// patch is the middle of its equal share of the image, and those ahead of the first middle or behind the last are
// there.
std::vector<Between> learned_line(int64_t size, const VisionConfig& config);

// float32 [patches, learned positions]: the share of each with antialiased linear interpolation, zeros for padding.
// `merge`: patches along a side of a cell.
at::Tensor antialiased_shares(const CellLayout& layout, int64_t merge, int64_t side);

} // namespace fvlm::model
