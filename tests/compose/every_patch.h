// A toy connector with several rows of the decoder for each frame, in place of <image> in the text: every patch's
// hidden state, through one linear.
#pragma once
#include "model/connector/connector.h"
#include "model/connector/settings.h"

namespace fvlm {
namespace connector {

struct EveryPatch : Cloneable<EveryPatch, plan::ConnectorSettings> {
  std::string_view name() const override { return "every_patch"; }
  std::vector<plan::ConnectorMode> modes() const override { return {{"patches", "one pass", "one pass"}}; }
  int64_t rows_per_frame(const TokensPerFrame& tokens_per_frame) const override { return tokens_per_frame() - 1; }
  bool rows_in_place() const override { return true; }
  WeightLayout layout(int64_t encoder_width, int64_t decoder_width) const override;
  nlohmann::json config_json() const override;
  void read_config(ConfigReader& reader) override;
};

Settings every_patch_settings();

} // namespace connector

namespace model {

std::unique_ptr<Connector> every_patch_connector(const plan::ConnectorSettings&, const Parts&, Parameters&);

} // namespace model
} // namespace fvlm
