// The connector of fVLM: what turns a frame into one visual token, and a hidden state into the next query.
#pragma once
#include "model/weights/towers.h"

namespace fvlm {

struct ConnectorConfig {
  int64_t query_dim = 384;
  double visual_scale = 0.14;
  bool shallow = false; // one cross-attention on the tower's last layer in place of one a layer

  bool operator==(const ConnectorConfig&) const = default;
};

// The "connector" object of fvlm.json: {"kind": "fvlm", "query_dim": 384, "visual_scale": 0.14, "attend": "deep"}.
ConnectorConfig read_connector_config(const nlohmann::json& config, const std::string& where);
nlohmann::json config_json(const ConnectorConfig& config);

WeightLayout layout_of(const ConnectorConfig& config, const VisionConfig& vision, const DecoderConfig& decoder);

} // namespace fvlm
