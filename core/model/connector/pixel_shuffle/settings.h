// The connector of Idefics3 and SmolVLM: squares of patches become one row each, which one linear takes to the decoder.
#pragma once
#include "model/connector/squares_of_patches.h"

namespace fvlm::connector {

struct PixelShuffle : Cloneable<PixelShuffle, SquaresOfPatches, plan::ConnectorSettings> {
  PixelShuffle() { factor = 4; }
  std::string_view name() const override { return "pixel_shuffle"; }
  WeightLayout layout(int64_t encoder_width, int64_t decoder_width) const override;
};

} // namespace fvlm::connector
