// One row of the table of towers, for the files that define a tower.
#pragma once
#include "base/config_reader.h"
#include "model/weights/blocks.h"

#include <nlohmann/json.hpp>

#include <variant>

namespace fvlm {

template <class Config>
struct TowerFunctions {
  Config (*read)(ConfigReader& config); // notes problems in the reader; ranges bound what layout() allocates
  nlohmann::json (*write)(const Config& config);
  WeightLayout (*layout)(const Config& config);
};

// The program and its tensor module each have the constants, under one name: nothing in them is to be destroyed.
struct Tower {
  const char* model_type;
  const char* architecture;
  std::variant<TowerFunctions<VisionConfig>, TowerFunctions<DecoderConfig>> functions;
  const std::vector<FusedNames>& (*fused_weights)();
  // Of a vision tower: see tokens_per_frame() in towers.h. Null for a decoder.
  int64_t (*tokens_per_frame)(const VisionConfig& config, int64_t height, int64_t width);
};

// Bounds on what a config may ask for, far above any model there is.
constexpr int64_t most_layers = 1024, most_heads = 1 << 16, most_features = 1 << 20;

extern const Tower dinov2_tower, llama_tower;

} // namespace fvlm
