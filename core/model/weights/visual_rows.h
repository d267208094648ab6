// The decoder rows that a plan's model makes of a frame, known without LibTorch.
#pragma once
#include "model/weights/towers.h"
#include "recipe/plan.h"

#include <nlohmann/json_fwd.hpp>

namespace fvlm {

// The config.json of a plan's new vision tower.
nlohmann::json fresh_vision_config(const plan::Model& model);

// Reads the config of a vision folder only if the connector's rows depend on the encoder. Throws Error(data) where it
// cannot be read.
plan::VisualRows visual_rows(const plan::Model& model);
// Of a model whose configs are read, at frames of this many pixels a side.
plan::VisualRows visual_rows(const plan::ConnectorSettings& connector, const VisionConfig& vision, int64_t image_size);

} // namespace fvlm
