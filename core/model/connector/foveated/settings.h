// The foveated connector of fVLM: it attends to every frame with a query, and the decoder makes the next one.
#pragma once
#include "recipe/connector_settings.h"

namespace fvlm::connector {

enum class Attend { deep, shallow };

struct Foveated : Cloneable<Foveated, plan::ConnectorSettings> {
  std::string_view name() const override { return "foveated"; }
  std::string_view kind() const override { return "fvlm"; }
  std::vector<plan::ConnectorMode> modes() const override;
  std::string recommended_training_mode() const override { return "refined"; } // its queries are those of generation
  std::vector<std::string> views() const override { return {"coarse"}; }
  // "shallow" is coarse_fine with queries that attend to the last layer alone.
  std::string select_mode(std::string_view word) override;
  WeightLayout layout(int64_t encoder_width, int64_t decoder_width) const override;
  nlohmann::json config_json() const override;
  void read_config(ConfigReader& reader) override;
  void adopt_shapes(const ShapeOf& shape_of) override;

  bool shallow() const { return attend == Attend::shallow; }

  int64_t query_dim = 384;
  double visual_scale = 0.14;
  Attend attend = Attend::deep; // shallow: one cross-attention on the encoder's last layer in place of one a layer
};

} // namespace fvlm::connector
