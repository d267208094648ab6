// The connector of Qwen2-VL, Qwen2.5-VL, Qwen3-VL, Qwen3.5 and PaddleOCR-VL, their merger: the patches of each cell of
// an image, side by side in one row, go through two linears to the decoder. Qwen3-VL has further ones of the kind,
// which read other layers of the encoder, and whose rows are added behind the decoder's first layers: DeepStack.
#pragma once
#include "model/connector/squares_of_patches.h"

namespace fvlm::connector {

struct Qwen2Vl : Cloneable<Qwen2Vl, SquaresOfPatches, plan::ConnectorSettings> {
  std::string_view name() const override { return "qwen2_vl"; }
  WeightLayout layout(int64_t encoder_width, int64_t decoder_width) const override;
  nlohmann::json config_json() const override;
  void read_config(ConfigReader& reader) override;
  // What the names of its weights begin with.
  static std::string deepstack_merger(int64_t index);

  static constexpr double usual_eps = 1e-6;
  bool rms_norm = false;
  double norm_eps = usual_eps;
  int64_t deepstack = 0;
};

} // namespace fvlm::connector
