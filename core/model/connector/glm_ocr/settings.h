// The connector of GLM-OCR and GLM-4.1V: a decoder row for every square of factor x factor patches. A linear makes one
// row of them, a second one with a LayerNorm and a GELU follows, and then a gated MLP.
#pragma once
#include "model/connector/squares_of_patches.h"

namespace fvlm::connector {

struct GlmOcr : Cloneable<GlmOcr, SquaresOfPatches, plan::ConnectorSettings> {
  std::string_view name() const override { return "glm_ocr"; }
  WeightLayout layout(int64_t encoder_width, int64_t decoder_width) const override;
  nlohmann::json config_json() const override;
  void read_config(ConfigReader& reader) override;

  int64_t hidden = 4608;
};

} // namespace fvlm::connector
