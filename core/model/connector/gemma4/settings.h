// The connector of Gemma 4: the mean of every square of patches becomes a row, which is scaled, maybe standardized, and
// goes through a norm and a matrix to the decoder.
#pragma once
#include "model/connector/squares_of_patches.h"

namespace fvlm::connector {

struct Gemma4 : Cloneable<Gemma4, SquaresOfPatches, plan::ConnectorSettings> {
  Gemma4() { factor = 3; }
  std::string_view name() const override { return "gemma4"; }
  WeightLayout layout(int64_t encoder_width, int64_t decoder_width) const override;
  nlohmann::json config_json() const override;
  void read_config(ConfigReader& reader) override;

  bool standardize = false;
  double norm_eps = 1e-6;
};

} // namespace fvlm::connector
