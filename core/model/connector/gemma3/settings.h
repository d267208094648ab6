// The connector of Gemma 3: the mean of every square of patches becomes a row, which a norm and a matrix take to the
// decoder. There the rows of an image attend to each other.
#pragma once
#include "model/connector/squares_of_patches.h"

namespace fvlm::connector {

struct Gemma3 : Cloneable<Gemma3, SquaresOfPatches, plan::ConnectorSettings> {
  std::string_view name() const override { return "gemma3"; }
  WeightLayout layout(int64_t encoder_width, int64_t decoder_width) const override;
};

} // namespace fvlm::connector
