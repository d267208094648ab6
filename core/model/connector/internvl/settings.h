// The connector of InternVL: squares of patches become one row each, which a LayerNorm and two linears take to the
// decoder.
#pragma once
#include "model/connector/squares_of_patches.h"

namespace fvlm::connector {

struct InternVl : Cloneable<InternVl, SquaresOfPatches, plan::ConnectorSettings> {
  std::string_view name() const override { return "internvl"; }
  WeightLayout layout(int64_t encoder_width, int64_t decoder_width) const override;
};

} // namespace fvlm::connector
