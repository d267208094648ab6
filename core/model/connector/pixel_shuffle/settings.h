// The connector of Idefics3 and SmolVLM: squares of patches become one row each, which one linear takes to the decoder.
#pragma once
#include "recipe/connector_settings.h"

namespace fvlm::connector {

struct PixelShuffle : Cloneable<PixelShuffle, plan::ConnectorSettings> {
  std::string_view name() const override { return "pixel_shuffle"; }
  std::vector<plan::ConnectorMode> modes() const override;
  WeightLayout layout(int64_t encoder_width, int64_t decoder_width) const override;
  nlohmann::json config_json() const override;
  void read_config(ConfigReader& reader) override;

  int64_t factor = 4;
};

} // namespace fvlm::connector
