// The connector of LLaVA: every token of the encoder goes through two linears with a GELU between them. LLaVA-NeXT's
// has a learned newline behind each line of patches besides, and LLaVA-OneVision's the patches of videos at half the
// size.
#pragma once
#include "recipe/connector_settings.h"
#include "recipe/frame_lines.h"

namespace fvlm::connector {

struct Mlp : Cloneable<Mlp, plan::ConnectorSettings> {
  std::string_view name() const override { return "mlp"; }
  std::vector<plan::ConnectorMode> modes() const override;
  int64_t rows_per_frame(const TokensPerFrame& tokens) const override {
    const int64_t patches = tokens();
    const FrameLines lines{side_of(patches), video_pooling};
    return patches + (newline ? lines.side : 0) + (video_pooling ? lines.pooled_side() * lines.pooled_side() : 0);
  }
  bool rows_in_place() const override { return true; }
  WeightLayout layout(int64_t encoder_width, int64_t decoder_width) const override;
  nlohmann::json config_json() const override;
  void read_config(ConfigReader& reader) override;

  // Patches in a line of a square of so many.
  static int64_t side_of(int64_t patches);

  bool newline = false;
  bool video_pooling = false;
};

} // namespace fvlm::connector
