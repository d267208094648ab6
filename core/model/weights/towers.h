// Configs of encoders and decoders: Hugging Face's config.json as structs, and what tensors such a model consists of.
// Which there are: core/model/encoder/encoders.inc and core/model/decoder/decoders.inc.
#pragma once
#include "model/weights/layout.h"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace fvlm {

// The fields are called as in transformers, and have its defaults when config.json leaves them out.
struct VisionConfig {
  std::string model_type;
  int64_t hidden_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t intermediate_size = 0; // of the MLP: hidden_size * mlp_ratio
  int64_t image_size = 0;        // at which the position embedding was trained
  int64_t patch_size = 0;
  int64_t num_channels = 0;
  double layer_norm_eps = 0;
  double layerscale_value = 0;  // for fresh weights
  double initializer_range = 0; // for fresh weights
  bool use_mask_token = true;

  int64_t head_dim() const { return hidden_size / num_attention_heads; }
  int64_t grid() const { return image_size / patch_size; } // position embeddings a side, the CLS one apart
  bool operator==(const VisionConfig&) const = default;
};

struct DecoderConfig {
  std::string model_type;
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
  int64_t head_dim = 0;
  int64_t max_position_embeddings = 0;
  double rope_theta = 0;
  double rms_norm_eps = 0;
  double initializer_range = 0; // for fresh weights
  bool tie_word_embeddings = false;
  std::vector<int64_t> eos_token_id; // generation stops at any of these

  bool operator==(const DecoderConfig&) const = default;
};

// Throws Error(data) at `where` with everything in the config that is wrong or not supported.
VisionConfig read_vision_config(const nlohmann::json& config, const std::string& where);
DecoderConfig read_decoder_config(const nlohmann::json& config, const std::string& where);

// The config.json of an encoder or decoder that no folder brought along.
nlohmann::json config_json(const VisionConfig& config);
nlohmann::json config_json(const DecoderConfig& config);

WeightLayout layout_of(const VisionConfig& config);
WeightLayout layout_of(const DecoderConfig& config);

// The class of transformers that loads its folder: "Dinov2Model".
const char* architecture_of(const VisionConfig& config);
const char* architecture_of(const DecoderConfig& config);

} // namespace fvlm
