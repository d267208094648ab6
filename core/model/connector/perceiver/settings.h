// The connector of GhostVis: learned queries attend to the frame's tokens in a few layers (a perceiver resampler), and
// a projector takes what they have read to the decoder.
#pragma once
#include "recipe/connector_settings.h"

namespace fvlm::connector {

struct Perceiver : Cloneable<Perceiver, plan::ConnectorSettings> {
  std::string_view name() const override { return "perceiver"; }
  std::vector<plan::ConnectorMode> modes() const override;
  int64_t rows_per_frame(const TokensPerFrame&) const override { return queries; }
  bool rows_in_place() const override { return true; }
  WeightLayout layout(int64_t encoder_width, int64_t decoder_width) const override;
  nlohmann::json config_json() const override;
  void read_config(ConfigReader& reader) override;

  int64_t queries = 64, layers = 2, heads = 8, projector_width = 2048;
};

} // namespace fvlm::connector
