// The connector of LatentWire: learned latents attend to the bytes of a text, and an adapter takes them to the decoder,
// as loud as the decoder's own embeddings.
#pragma once
#include "recipe/connector_settings.h"

namespace fvlm::connector {

// Bits of a value in a mode that sends the latents over a wire; 0 in others. Values of fewer than 16 bits come in
// groups, each with a scale in fp16.
int64_t wire_bits(std::string_view mode);
inline constexpr int64_t wire_group = 32;

struct ByteLatents : Cloneable<ByteLatents, plan::ConnectorSettings> {
  std::string_view name() const override { return "byte_latents"; }
  std::vector<plan::ConnectorMode> modes() const override;
  std::string inference_mode() const override { return "latents"; }
  std::optional<int64_t> wire_bytes(const Wire& wire) const override;
  int64_t rows_per_frame(const TokensPerFrame&) const override { return latents + private_latents; }
  bool rows_in_place() const override { return true; }
  bool reads_bytes() const override { return true; }
  WeightLayout layout(int64_t encoder_width, int64_t decoder_width) const override;
  bool goes_with_several_decoders() const override { return true; }
  void append_decoder(WeightLayout& layout, const std::string& decoder, int64_t encoder_width,
                      int64_t decoder_width) const override;
  nlohmann::json config_json() const override;
  void read_config(ConfigReader& reader) override;

  int64_t latents = 8, private_latents = 0, heads = 8;
  bool color = false;
};

} // namespace fvlm::connector
