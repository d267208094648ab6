// Learned positions of a square grid for images of any size: what a line of patches has of a line of the grid.
#pragma once
#include "model/encoder/encoder.h"
#include "model/weights/towers.h"

#include <array>
#include <vector>

namespace fvlm::model {

// Where a line of `size` patches has its patch `index` on a line of `side` learned positions: between two neighbors, in
// float32 as transformers computes it. Both lines end at the same margins, or with `centers` each position and each
// patch is the middle of its equal share of the image, and those ahead of the first middle or behind the last are
// there.
struct Between {
  std::array<int64_t, 2> neighbors;
  std::array<float, 2> shares;

  Between(int64_t index, int64_t size, int64_t side, bool centers);
  explicit Between(int64_t position) : neighbors{position, position}, shares{1, 0} {}
};

// Of all patches of a line, interpolated or the nearest as the config has it.
std::vector<Between> learned_line(int64_t size, const VisionConfig& config);

// float32 [patches, learned positions]: the share of each with antialiased linear interpolation, zeros for padding.
// `merge`: patches along a side of a cell.
at::Tensor antialiased_shares(const CellLayout& layout, int64_t merge, int64_t side);

} // namespace fvlm::model
