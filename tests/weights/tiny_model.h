// Tiny seeded towers as Hugging Face folders, so that tests need no Python and no download.
#pragma once
#include "base/file.h"
#include "model/weights/convert.h"
#include "model/weights/initialize.h"
#include "model/weights/safetensors_writer.h"
#include "model/weights/towers.h"

#include <nlohmann/json.hpp>

#include <filesystem>
#include <string>

namespace fvlm::tiny {

// DINOv2 with 2 layers of 2 heads: patches of 4 x 4 pixels, position embeddings for 5 x 5 of them.
inline VisionConfig vision_config() {
  return {.model_type = "dinov2",
          .hidden_size = 8,
          .num_hidden_layers = 2,
          .num_attention_heads = 2,
          .intermediate_size = 32,
          .image_size = 20,
          .patch_size = 4,
          .num_channels = 3,
          .layer_norm_eps = 1e-6,
          .layerscale_value = 1,
          .initializer_range = 0.3,
          .use_mask_token = true};
}

// Llama with 2 layers, 4 heads over 2 key-value heads and 97 tokens.
inline DecoderConfig decoder_config() {
  return {.model_type = "llama",
          .vocab_size = 97,
          .hidden_size = 16,
          .intermediate_size = 24,
          .num_hidden_layers = 2,
          .num_attention_heads = 4,
          .num_key_value_heads = 2,
          .head_dim = 4,
          .max_position_embeddings = 512,
          .rope_theta = 10000,
          .rms_norm_eps = 1e-5,
          .initializer_range = 0.3,
          .tie_word_embeddings = true,
          .eos_token_id = {2}};
}

// The values of a tensor of a tiny tower: as for a fresh one, but constants are disturbed, so that every bias and every
// scale matters.
inline std::vector<float> values_of(const TensorSpec& spec, uint64_t seed) {
  std::vector<float> out(TensorInfo{spec.name, DType::f32, spec.shape}.elements());
  Initializer fill = spec.fill;
  if (fill.kind != Initializer::Kind::constant) {
    initialize_weights(out, fill, seed, spec.name);
    return out;
  }
  initialize_weights(out, {Initializer::Kind::normal, 0.1}, seed, spec.name);
  for (float& value : out) value += static_cast<float>(fill.value);
  return out;
}

// config.json and model.safetensors of a tower, loadable by transformers.
template <class Config>
void write_folder(const std::filesystem::path& folder, const Config& config, uint64_t seed) {
  std::filesystem::create_directories(folder);
  WeightLayout layout = layout_of(config);
  std::vector<TensorInfo> tensors;
  for (const TensorSpec& spec : layout.tensors) tensors.push_back({spec.name, DType::f32, spec.shape});
  SafetensorsWriter writer(folder / "model.safetensors", tensors);
  for (const TensorInfo& tensor : writer.order())
    for (const TensorSpec& spec : layout.tensors)
      if (spec.name == tensor.name) writer.append(std::as_bytes(std::span<const float>(values_of(spec, seed))));
  writer.commit();
  write_file_atomic(folder / "config.json", config_json(config).dump(2) + "\n");
}

// Two bytes and a token of both: as small as a byte-level tokenizer can be.
constexpr const char* tokenizer_json =
    R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]},
 "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false}, "decoder": {"type": "ByteLevel"}})";

// Both towers below `folder`, vision/ and decoder/, and a tokenizer.
inline void write_towers(const std::filesystem::path& folder, uint64_t seed = 1) {
  write_folder(folder / "vision", vision_config(), seed);
  write_folder(folder / "decoder", decoder_config(), seed);
  write_file_atomic(folder / "decoder" / "tokenizer.json", tokenizer_json);
}

} // namespace fvlm::tiny
