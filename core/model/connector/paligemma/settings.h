// The connector of PaliGemma: every token of the encoder goes through one linear. In the decoder all rows of a prompt
// attend to each other.
#pragma once
#include "recipe/connector_settings.h"

namespace fvlm::connector {

struct PaliGemma : Cloneable<PaliGemma, plan::ConnectorSettings> {
  std::string_view name() const override { return "paligemma"; }
  std::vector<plan::ConnectorMode> modes() const override;
  int64_t rows_per_frame(const TokensPerFrame& tokens) const override { return tokens(); }
  bool rows_in_place() const override { return true; }
  WeightLayout layout(int64_t encoder_width, int64_t decoder_width) const override;
  nlohmann::json config_json() const override;
  void read_config(ConfigReader& reader) override;
};

} // namespace fvlm::connector
