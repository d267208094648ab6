// A toy connector: the mean of a frame's hidden states, through one linear, is its one visual token. It stands for what
// somebody adds to the engine: these three files, and the two calls of compose_test.cpp in place of a line in
// connectors.inc.
#pragma once
#include "model/connector/settings.h"

namespace fvlm::connector {

struct MeanPool : Cloneable<MeanPool, plan::ConnectorSettings> {
  std::string_view name() const override { return "mean_pool"; }
  std::vector<plan::ConnectorMode> modes() const override { return {{"pooled", "one pass", "one pass"}}; }
  WeightLayout layout(int64_t encoder_width, int64_t decoder_width) const override;
  nlohmann::json config_json() const override;
  void read_config(ConfigReader& reader) override;

  double scale = 1;
};

Settings mean_pool_settings();

} // namespace fvlm::connector
