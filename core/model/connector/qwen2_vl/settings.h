// The connector of Qwen2-VL and Qwen2.5-VL, their merger: the patches of each cell of an image, side by side in one
// row, go through two linears to the decoder.
#pragma once
#include "recipe/connector_settings.h"

#include <algorithm>

namespace fvlm::connector {

struct Qwen2Vl : Cloneable<Qwen2Vl, plan::ConnectorSettings> {
  std::string_view name() const override { return "qwen2_vl"; }
  std::vector<plan::ConnectorMode> modes() const override;
  int64_t rows_per_frame(const TokensPerFrame& tokens) const override {
    return std::max<int64_t>(1, tokens() / (factor * factor));
  }
  bool rows_in_place() const override { return true; }
  WeightLayout layout(int64_t encoder_width, int64_t decoder_width) const override;
  nlohmann::json config_json() const override;
  void read_config(ConfigReader& reader) override;

  int64_t factor = 2;
  bool rms_norm = false;
};

} // namespace fvlm::connector
