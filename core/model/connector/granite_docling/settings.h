// The connector of Granite Docling: the patches of a square, side by side in one row, go through a linear, to which a
// fixed position in the frame is added, and through a second one, with LayerNorms around both. Further layers of the
// encoder have an MLP each, whose rows are added behind the decoder's first layers: DeepStack.
#pragma once
#include "model/connector/squares_of_patches.h"

namespace fvlm::connector {

struct GraniteDocling : Cloneable<GraniteDocling, SquaresOfPatches, plan::ConnectorSettings> {
  GraniteDocling() { factor = 4; }
  std::string_view name() const override { return "granite_docling"; }
  WeightLayout layout(int64_t encoder_width, int64_t decoder_width) const override;
  nlohmann::json config_json() const override;
  void read_config(ConfigReader& reader) override;
  // What the names of its weights begin with.
  static std::string merger(int64_t index);

  int64_t deepstack = 3;
};

} // namespace fvlm::connector
