// The connector of LFM2-VL, LFM3-VL and MiniCPM-V: a decoder row for every square of factor x factor patches, which a
// LayerNorm and two linears take to the decoder.
#pragma once
#include "model/connector/squares_of_patches.h"

namespace fvlm::connector {

struct Lfm2Vl : Cloneable<Lfm2Vl, SquaresOfPatches, plan::ConnectorSettings> {
  std::string_view name() const override { return "lfm2_vl"; }
  WeightLayout layout(int64_t encoder_width, int64_t decoder_width) const override;
  nlohmann::json config_json() const override;
  void read_config(ConfigReader& reader) override;

  int64_t hidden = 2560;
  bool bias = true, norm = true, norm_patches = false;
  double norm_eps = usual_eps;
  static constexpr double usual_eps = 1e-5;
};

} // namespace fvlm::connector
