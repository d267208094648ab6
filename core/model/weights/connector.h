// The connector of fVLM: what turns a frame into one visual token, and a hidden state into the next query.
#pragma once
#include "model/weights/towers.h"

namespace fvlm {

struct ConnectorConfig {
  std::string_view kind() const { return "foveated"; }

  int64_t query_dim = 384;
  double visual_scale = 0.14;
  bool shallow = false; // one cross-attention on the tower's last layer in place of one a layer

  // The mode that a word on the command line names; "shallow" is coarse_fine with a connector made shallow, and an
  // empty word the first mode. Throws Error(usage).
  std::string select_mode(std::string_view word);

  bool operator==(const ConnectorConfig&) const = default;
};

// The "connector" object of fvlm.json: {"kind": "fvlm", "query_dim": 384, "visual_scale": 0.14, "attend": "deep"}.
ConnectorConfig read_connector_config(const nlohmann::json& config, const std::string& where);
nlohmann::json config_json(const ConnectorConfig& config);

WeightLayout layout_of(const ConnectorConfig& config, const VisionConfig& vision, const DecoderConfig& decoder);

} // namespace fvlm
