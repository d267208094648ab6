// The connector of Mistral Small 3.1, Ministral 3 and LightOnOCR: a decoder row for every square of factor x factor
// patches, whose normalized features go through a linear that makes one patch of them, and through two linears to the
// decoder.
#pragma once
#include "model/connector/squares_of_patches.h"

namespace fvlm::connector {

struct Mistral3 : Cloneable<Mistral3, SquaresOfPatches, plan::ConnectorSettings> {
  std::string_view name() const override { return "mistral3"; }
  WeightLayout layout(int64_t encoder_width, int64_t decoder_width) const override;
  nlohmann::json config_json() const override;
  void read_config(ConfigReader& reader) override;

  bool bias = false;
  double norm_eps = 1e-5;
};

} // namespace fvlm::connector
