// The connector of Ovis2: a linear and a LayerNorm make of every square of patches a distribution over the words of a
// visual vocabulary, and its row of the decoder is the mean of their embeddings. The last words of the vocabulary are
// no images': they stand around and between tiles, see ImageIndicators.
#pragma once
#include "model/connector/squares_of_patches.h"
#include "recipe/image_indicators.h"

namespace fvlm::connector {

struct Ovis2 : Cloneable<Ovis2, SquaresOfPatches, plan::ConnectorSettings> {
  std::string_view name() const override { return "ovis2"; }
  int64_t rows_per_frame(const TokensPerFrame& tokens) const override {
    return SquaresOfPatches::rows_per_frame(tokens) + ImageIndicators::count;
  }
  WeightLayout layout(int64_t encoder_width, int64_t decoder_width) const override;
  nlohmann::json config_json() const override;
  void read_config(ConfigReader& reader) override;

  static constexpr int64_t min_vocabulary = ImageIndicators::count + 1, max_vocabulary = 1 << 24;
  int64_t vocabulary = 65536;
};

} // namespace fvlm::connector
