// GhostVis without its resampler: the encoder's tokens of a frame are averaged in a number of ranges, and a projector
// takes the means to the decoder.
#pragma once
#include "recipe/connector_settings.h"

namespace fvlm::connector {

struct AveragePool : Cloneable<AveragePool, plan::ConnectorSettings> {
  std::string_view name() const override { return "average_pool"; }
  std::vector<plan::ConnectorMode> modes() const override;
  int64_t rows_per_frame(const TokensPerFrame&) const override { return rows; }
  bool rows_in_place() const override { return true; }
  WeightLayout layout(int64_t encoder_width, int64_t decoder_width) const override;
  nlohmann::json config_json() const override;
  void read_config(ConfigReader& reader) override;

  int64_t rows = 64, projector_width = 2048;
};

} // namespace fvlm::connector
