// The blocks of a pack's decoder rows that attend to each other in both directions, as attention reads them.
#pragma once
#include "ops/bidirectional_attention.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

namespace fvlm::model {

// `last`: the last row that each attends to, which is one for all rows of a block, and of others their own. `usual`:
// how many rows blocks have at most in most packs of a capacity, so that these have one shape.
ops::BidirectionalBlocks bidirectional_blocks(std::span<const int32_t> last, int64_t usual, at::Device device);

} // namespace fvlm::model
