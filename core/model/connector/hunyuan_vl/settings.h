// The connector of HunyuanOCR: two convolutions, which other models have as linears, make one row of every square of
// factor x factor patches, and a linear a row of the decoder of that. An image has learned rows besides: one behind
// each line of squares, which goes through that linear, too, one before the image and one behind it.
#pragma once
#include "model/connector/squares_of_patches.h"
#include "recipe/image_row_order.h"

namespace fvlm::connector {

struct HunyuanVl : Cloneable<HunyuanVl, SquaresOfPatches, plan::ConnectorSettings> {
  std::string_view name() const override { return "hunyuan_vl"; }
  // Each square's own row, and for whatever a text needs behind or before it the learned ones: see ImageRowOrder.
  int64_t rows_per_frame(const TokensPerFrame& tokens) const override {
    return ImageRowOrder::rows_per_cell * SquaresOfPatches::rows_per_frame(tokens);
  }
  WeightLayout layout(int64_t encoder_width, int64_t decoder_width) const override;
  nlohmann::json config_json() const override;
  void read_config(ConfigReader& reader) override;

  double norm_eps = 1e-5;
};

} // namespace fvlm::connector
