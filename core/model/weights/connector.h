// The connector of a model directory: the "connector" object of fvlm.json, and its weights.
#pragma once
#include "model/weights/towers.h"
#include "recipe/connector_settings.h"

#include <vector>

namespace fvlm {

using ConnectorConfig = plan::Connector;

// {"kind": "fvlm", "query_dim": 384, "visual_scale": 0.14, "attend": "deep"}. Throws Error(data).
ConnectorConfig read_connector_config(const nlohmann::json& config, const std::string& where);
nlohmann::json config_json(const ConnectorConfig& config);

// Of a connector that all these decoders read, of which there is one at least. Throws Error(data) where it goes with
// one alone.
WeightLayout layout_of(const ConnectorConfig& config, const VisionConfig& vision,
                       const std::vector<DecoderConfig>& decoders);

} // namespace fvlm
