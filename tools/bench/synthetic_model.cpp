#include "bench/synthetic_model.h"

#include "base/error.h"
#include "base/text.h"
#include "model/loading.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/tensor.h>

#include <cmath>
#include <utility>

namespace fvlm::bench {
namespace {

at::Generator dice(uint64_t seed) {
  return at::make_generator<at::CPUGeneratorImpl>(seed);
}

HuggingFaceFolder folder_of(const nlohmann::json& config) {
  HuggingFaceFolder folder;
  folder.config = config;
  return folder;
}

ModelDescription description_of(const Shape& shape) {
  ModelDescription description;
  description.name = shape.name;
  auto vision = read_vision_config(nlohmann::json::parse(shape.vision), shape.name);
  auto decoder = read_decoder_config(nlohmann::json::parse(shape.decoder), shape.name);
  // Scaled so that a linear preserves the magnitude of its input.
  vision.initializer_range = 1 / std::sqrt(static_cast<double>(vision.hidden_size));
  decoder.initializer_range = 1 / std::sqrt(static_cast<double>(decoder.hidden_size));
  description.parts = {{"vision", vision, folder_of(config_json(vision))},
                       {"connector", shape.connector_config(), {}},
                       {"decoder", decoder, folder_of(config_json(decoder))}};
  return description;
}

at::Tensor filled(const TensorInfo& info, const Initializer& fill, at::Generator& generator) {
  at::Tensor tensor = at::empty(info.shape, at::kFloat);
  switch (fill.kind) {
  case Initializer::Kind::constant:
    // GhostVis initializes its output projections and head to 0: gradients would not reach the connector.
    if (fill.value == 0 && info.shape.size() == 2 && info.shape[0] > 1)
      return tensor.normal_(0, 1 / std::sqrt(static_cast<double>(info.shape[1])), generator);
    return tensor.fill_(fill.value);
  case Initializer::Kind::normal:
    return tensor.normal_(0, fill.value, generator);
  case Initializer::Kind::uniform:
    return tensor.uniform_(-fill.value, fill.value, generator);
  case Initializer::Kind::log_uniform:
    return tensor.uniform_(0.01, fill.value, generator).log_();
  }
  return tensor;
}

// Captions of 8 to 15 tokens on clips of four frames, one text in sixteen without; and all alike.
std::vector<BatchShape> quickstart_batches() {
  BatchShape ragged{"ragged", {}, {}}, even{"even", {}, {}};
  for (int64_t sample = 0; sample < 32; ++sample) {
    ragged.frames.push_back(sample % 16 == 15 ? 0 : 4);
    ragged.text.push_back(8 + sample * 5 % 8);
    even.frames.push_back(4);
    even.text.push_back(12);
  }
  return {ragged, even};
}

// LatentWire's: the decoder is frozen.
std::vector<Shape> question_shapes() {
  return {{"tiny-latentwire",
           "the parts of LatentWire, small",
           R"({"model_type": "bytes", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
           "intermediate_size": 128, "max_bytes": 48})",
           R"({"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
           "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 512, "tie_word_embeddings": true})",
           R"({"kind": "byte_latents", "latents": 4, "heads": 2})",
           0,
           {},
           1,
           {"decoder"},
           QuestionLengths{12, 2, 6}},
          {"latentwire",
           "LatentWire: 512 bytes as 8 latents for a frozen decoder of Llama-3.2-1B's shape, its own teacher",
           R"({"model_type": "bytes", "hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 8,
           "intermediate_size": 1024, "max_bytes": 512})",
           R"({"model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32,
           "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 8192, "vocab_size": 128256,
           "tie_word_embeddings": true, "rms_norm_eps": 1e-5, "max_position_embeddings": 131072, "rope_theta": 5e5,
           "rope_scaling": {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                            "original_max_position_embeddings": 8192}})",
           R"({"kind": "byte_latents", "latents": 8, "heads": 8})",
           0,
           {},
           1,
           {"decoder"},
           QuestionLengths{160, 2, 16}}};
}

// Those of Qwen2-VL and Qwen2.5-VL; the frames are the cells of an image. The heads of the small ones are as wide as
// those of the published ones, and the MLP of one is as little divisible.
std::vector<Shape> cell_shapes() {
  static constexpr const char *layer_norm = R"({"kind": "qwen2_vl"})",
                              *rms_norm = R"({"kind": "qwen2_vl", "rms_norm": true})";
  return {{"tiny-qwen2-vl",
           "the parts of Qwen2-VL, small",
           R"({"model_type": "qwen2_vl_vision", "depth": 2, "embed_dim": 160, "num_heads": 2, "mlp_ratio": 2,
           "hidden_size": 256})",
           R"({"model_type": "qwen2_vl_text", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 2,
           "num_key_value_heads": 1, "intermediate_size": 128, "vocab_size": 512, "tie_word_embeddings": true,
           "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]}})",
           layer_norm,
           28,
           {},
           32},
          {"tiny-qwen2.5-vl",
           "the parts of Qwen2.5-VL, small",
           R"({"model_type": "qwen2_5_vl_vision", "depth": 3, "hidden_size": 160, "num_heads": 2,
           "intermediate_size": 172, "out_hidden_size": 256, "fullatt_block_indexes": [1]})",
           R"({"model_type": "qwen2_5_vl_text", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 2,
           "num_key_value_heads": 1, "intermediate_size": 128, "vocab_size": 512, "tie_word_embeddings": true,
           "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]}})",
           rms_norm,
           28,
           {},
           32},
          {"qwen2-vl-2b",
           "Qwen2-VL-2B: an image of 448 x 448 pixels, which becomes 256 rows of the decoder",
           R"({"model_type": "qwen2_vl_vision", "depth": 32, "embed_dim": 1280, "num_heads": 16, "mlp_ratio": 4,
           "hidden_size": 1536})",
           R"({"model_type": "qwen2_vl_text", "hidden_size": 1536, "num_hidden_layers": 28, "num_attention_heads": 12,
           "num_key_value_heads": 2, "intermediate_size": 8960, "vocab_size": 151936, "tie_word_embeddings": true,
           "rms_norm_eps": 1e-6, "max_position_embeddings": 32768,
           "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]}})",
           layer_norm,
           28,
           {},
           256},
          {"qwen2.5-vl-3b",
           "Qwen2.5-VL-3B: an image of 448 x 448 pixels, which becomes 256 rows of the decoder",
           R"({"model_type": "qwen2_5_vl_vision", "depth": 32, "hidden_size": 1280, "num_heads": 16,
           "intermediate_size": 3420, "out_hidden_size": 2048, "window_size": 112,
           "fullatt_block_indexes": [7, 15, 23, 31]})",
           R"({"model_type": "qwen2_5_vl_text", "hidden_size": 2048, "num_hidden_layers": 36, "num_attention_heads": 16,
           "num_key_value_heads": 2, "intermediate_size": 11008, "vocab_size": 151936, "tie_word_embeddings": true,
           "rms_norm_eps": 1e-6, "max_position_embeddings": 128000,
           "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]}})",
           rms_norm,
           28,
           {},
           256}};
}

constexpr const char* dinov2_small =
    R"({"model_type": "dinov2", "hidden_size": 384, "num_hidden_layers": 12, "num_attention_heads": 6,
        "image_size": 518, "patch_size": 14})";

// Decoders of which generation is measured, with mixtures of experts.
std::vector<Shape> expert_shapes() {
  static constexpr const char* connector = R"({"kind": "fvlm", "query_dim": 64, "visual_scale": 0.14})";
  return {{"tiny-experts",
           "a decoder of 2 layers of 128, with 8 experts, of which 2 answer",
           dinov2_small,
           R"({"model_type": "qwen3_moe", "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
           "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 256, "moe_intermediate_size": 64,
           "num_experts": 8, "num_experts_per_tok": 2, "norm_topk_prob": true, "vocab_size": 512})",
           connector,
           224,
           {}},
          {"experts",
           "6 of the 48 layers of Qwen3-30B-A3B, with 128 experts, of which 8 answer; takes 8 GB of disk",
           dinov2_small,
           R"({"model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 6, "num_attention_heads": 32,
           "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144, "moe_intermediate_size": 768,
           "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": true, "vocab_size": 32768,
           "tie_word_embeddings": false, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "max_position_embeddings": 40960})",
           connector,
           224,
           {}}};
}

std::vector<Shape> picture_shapes() {
  // One batch with sizes as in training, where padding costs the peer time, and one of equal sizes, where it costs
  // nothing.
  static const std::vector<BatchShape> batches = {
      {"ragged", {0, 1, 4, 8}, {160, 32, 64, 96}},
      {"even", {4, 4, 4, 4}, {64, 64, 64, 64}},
  };
  static const std::vector<BatchShape> one_image = {{"even", {1, 1}, {24, 24}}};
  static const std::vector<std::string> connector_alone = {"vision", "decoder"};
  static constexpr const char* fvlm_64 = R"({"kind": "fvlm", "query_dim": 64, "visual_scale": 0.14})";
  static constexpr const char* fvlm_384 = R"({"kind": "fvlm", "query_dim": 384, "visual_scale": 0.14})";
  return {
      {"tiny", "a vision tower of 3 layers of 64, a decoder of 4 of 128",
       R"({"model_type": "dinov2", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
           "image_size": 56, "patch_size": 14})",
       R"({"model_type": "llama", "hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
           "num_key_value_heads": 2, "intermediate_size": 256, "vocab_size": 512, "tie_word_embeddings": true})",
       fvlm_64, 56, batches},
      {"quickstart", "the model of recipes/quickstart.lua and its batches of 32",
       R"({"model_type": "dinov2", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
           "image_size": 32, "patch_size": 8})",
       R"({"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
           "intermediate_size": 128, "vocab_size": 464, "tie_word_embeddings": true})",
       fvlm_64, 32, quickstart_batches()},
      {"135m", "fVLM-135M: DINOv2 small and SmolLM2-135M", dinov2_small,
       R"({"model_type": "llama", "hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9,
           "num_key_value_heads": 3, "intermediate_size": 1536, "vocab_size": 49152, "tie_word_embeddings": true,
           "rms_norm_eps": 1e-5, "max_position_embeddings": 8192, "rope_theta": 1e5})",
       fvlm_384, 224, batches},
      {"360m", "DINOv2 small and SmolLM2-360M", dinov2_small,
       R"({"model_type": "llama", "hidden_size": 960, "num_hidden_layers": 32, "num_attention_heads": 15,
           "num_key_value_heads": 5, "intermediate_size": 2560, "vocab_size": 49152, "tie_word_embeddings": true,
           "rms_norm_eps": 1e-5, "max_position_embeddings": 8192, "rope_theta": 1e5})",
       fvlm_384, 224, batches},
      {"1.7b", "fVLM-1.7B: DINOv2 small and SmolLM2-1.7B", dinov2_small,
       R"({"model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 32,
           "num_key_value_heads": 32, "intermediate_size": 8192, "vocab_size": 49152, "tie_word_embeddings": true,
           "rms_norm_eps": 1e-5, "max_position_embeddings": 8192, "rope_theta": 1.3e5})",
       fvlm_384, 224, batches},
      {"tiny-ghostvis", "the parts of GhostVis, small",
       R"({"model_type": "clip_vision_model", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
           "num_attention_heads": 4, "image_size": 56, "patch_size": 14})",
       R"({"model_type": "ghostvis", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
           "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 512})",
       R"({"kind": "perceiver", "queries": 4, "layers": 2, "heads": 4, "projector_width": 96})", 56, one_image, 1,
       connector_alone},
      {"tiny-smolvlm", "the parts of SmolVLM, small",
       R"({"model_type": "siglip_vision_model", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
           "num_attention_heads": 4, "image_size": 64, "patch_size": 8, "vision_use_head": false})",
       R"({"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
           "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 512})",
       R"({"kind": "pixel_shuffle", "factor": 4})", 64, one_image, 1},
      {"ghostvis", "GhostVis d20, whose connector alone learns: CLIP-L/14 at 336 pixels, 64 queries",
       R"({"model_type": "clip_vision_model", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
           "num_attention_heads": 16, "image_size": 336, "patch_size": 14})",
       R"({"model_type": "ghostvis", "hidden_size": 1280, "num_hidden_layers": 20, "num_attention_heads": 10,
           "num_key_value_heads": 5, "intermediate_size": 3456, "vocab_size": 65536})",
       R"({"kind": "perceiver", "queries": 64, "layers": 2, "heads": 8, "projector_width": 2048})", 336, one_image, 1,
       connector_alone},
      {"smolvlm", "SmolVLM-256M: SigLIP at 512 pixels, SmolLM2-135M",
       R"({"model_type": "siglip_vision_model", "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
           "num_attention_heads": 12, "image_size": 512, "patch_size": 16, "vision_use_head": false})",
       R"({"model_type": "llama", "hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9,
           "num_key_value_heads": 3, "intermediate_size": 1536, "vocab_size": 49280, "rms_norm_eps": 1e-5,
           "max_position_embeddings": 8192, "rope_theta": 1e5})",
       R"({"kind": "pixel_shuffle", "factor": 4})", 512, one_image, 1},
      {"gemma3-4b", "Gemma 3 4B: SigLIP at 896 pixels, an image of which becomes 256 rows of the decoder",
       R"({"model_type": "siglip_vision_model", "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27,
           "num_attention_heads": 16, "image_size": 896, "patch_size": 14, "vision_use_head": false})",
       R"({"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34, "num_attention_heads": 8,
           "num_key_value_heads": 4, "head_dim": 256, "intermediate_size": 10240, "vocab_size": 262208,
           "sliding_window": 1024, "max_position_embeddings": 131072,
           "rope_scaling": {"rope_type": "linear", "factor": 8.0}})",
       R"({"kind": "gemma3", "factor": 4})", 896, one_image, 1},
  };
}

} // namespace

const std::vector<Shape>& shapes() {
  static const std::vector<Shape> all = [] {
    std::vector<Shape> all_kinds = picture_shapes();
    for (auto* more : {cell_shapes, question_shapes, expert_shapes})
      for (Shape& shape : more()) all_kinds.push_back(std::move(shape));
    return all_kinds;
  }();
  return all;
}

int64_t Shape::vocabulary() const {
  return nlohmann::json::parse(decoder).at("vocab_size").get<int64_t>();
}

ConnectorConfig Shape::connector_config() const {
  return read_connector_config(nlohmann::json::parse(connector), name);
}

void Shape::require_whole_frames() const {
  if (!read_vision_config(nlohmann::json::parse(vision), name).reads_cells()) return;
  throw Error(ErrorKind::usage, "its frames are the cells of an image, and no frames of their own")
      .at(name)
      .advise("`bench profile`, `bench step`, `bench op` and `bench dpo` measure this shape");
}

const Shape& shape_named(std::string_view name) {
  std::vector<std::string> names;
  for (const Shape& shape : shapes()) {
    if (shape.name == name) return shape;
    names.emplace_back(shape.name);
  }
  throw Error(ErrorKind::usage, "there is no shape '{}'", name).advise("one of: " + join(names, ", "));
}

void make_model(const Shape& shape, const std::filesystem::path& folder, DType dtype) {
  const ModelDescription description = description_of(shape);
  std::map<std::string, Initializer> fills;
  for (const ModelPart& part : description.parts)
    for (const TensorSpec& spec : description.layout(part).tensors) fills[part.name + "." + spec.name] = spec.fill;
  ModelDirectoryWriter writer(folder, description, [dtype](const std::string&) { return dtype; });
  at::Generator generator = dice(1);
  for (const TensorInfo& info : writer.order()) {
    const at::Tensor tensor = filled(info, fills.at(info.name), generator).to(model::scalar_type(dtype));
    writer.append({static_cast<const std::byte*>(tensor.data_ptr()), static_cast<size_t>(tensor.nbytes())});
  }
  writer.commit();
}

void make_batch(const Shape& shape, const BatchShape& batch, const std::filesystem::path& file) {
  const auto sum = [](const std::vector<int64_t>& counts) {
    int64_t total = 0;
    for (const int64_t count : counts) total += count;
    return total;
  };
  at::Generator generator = dice(2);
  const at::Tensor ids = at::empty({sum(batch.text)}, at::kLong).random_(0, shape.vocabulary(), generator);
  const at::Tensor frames = at::empty({sum(batch.frames), 3, shape.frame, shape.frame}).normal_(0, 1, generator);
  model::write_tensors(file, {{"frames", frames},
                              {"frame_counts", at::tensor(batch.frames, at::kLong)},
                              {"input_ids", ids},
                              {"text_lengths", at::tensor(batch.text, at::kLong)},
                              {"loss_mask", at::ones_like(ids)}});
}

} // namespace fvlm::bench
