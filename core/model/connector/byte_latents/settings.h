// The connector of LatentWire: learned latents attend to the bytes of a text, and an adapter takes them to the decoder,
// as loud as the decoder's own embeddings.
#pragma once
#include "recipe/connector_settings.h"

namespace fvlm::connector {

struct ByteLatents : Cloneable<ByteLatents, plan::ConnectorSettings> {
  std::string_view name() const override { return "byte_latents"; }
  std::vector<plan::ConnectorMode> modes() const override;
  int64_t rows_per_frame(const TokensPerFrame&) const override { return latents + private_latents; }
  bool rows_in_place() const override { return true; }
  bool reads_bytes() const override { return true; }
  WeightLayout layout(int64_t encoder_width, int64_t decoder_width) const override;
  nlohmann::json config_json() const override;
  void read_config(ConfigReader& reader) override;

  int64_t latents = 8, private_latents = 0, heads = 8;
  bool color = false;
};

} // namespace fvlm::connector
