// In place of a connector, where a decoder reads text alone.
#pragma once
#include "recipe/connector_settings.h"

namespace fvlm::connector {

struct TextOnly : Cloneable<TextOnly, plan::ConnectorSettings> {
  std::string_view name() const override { return "text_only"; }
  std::vector<plan::ConnectorMode> modes() const override;
  bool reads_frames() const override { return false; }
  int64_t rows_per_frame(const TokensPerFrame&) const override { return 0; }
  WeightLayout layout(int64_t encoder_width, int64_t decoder_width) const override;
  nlohmann::json config_json() const override;
  void read_config(ConfigReader& reader) override;
};

} // namespace fvlm::connector
