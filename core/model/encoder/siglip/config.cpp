// SigLIP's vision encoder (transformers' SiglipVisionModel), by itself or as part of a whole SigLIP, the one of
// Idefics3 and SmolVLM, which has the same weights, and for images of any size SigLIP 2's (Siglip2VisionModel) and
// those of PaddleOCR-VL (PaddleOCRVisionModel), VideoLLaMA 3 (VideoLlama3VisionModel), MiniCPM-V 4.6 and 4.7
// (MiniCPMV4_6VisionModel, MiniCPMV4_7VisionModel) and MiniCPM-OCR (MiniCPMOcrVisionModel). Granite Docling's
// (GraniteDoclingVisionModel) is that of Idefics3, but for its positions, and is read at inner layers, too.
#include "model/encoder/axial_rope.h"
#include "model/weights/vit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>

namespace fvlm {
namespace {

bool is_siglip(const std::string& model_type) {
  return model_type == "siglip_vision_model";
}

bool is_siglip2(const std::string& model_type) {
  return model_type == "siglip2_vision_model";
}

bool is_paddleocr(const std::string& model_type) {
  return model_type == "paddleocr_vl_vision";
}

bool is_docling(const std::string& model_type) {
  return model_type == "granite_docling_vision";
}

bool is_video_llama(const std::string& model_type) {
  return model_type == "video_llama_3_vision";
}

bool is_minicpm47(const std::string& model_type) {
  return model_type == "minicpmv4_7_vision";
}

bool is_minicpm(const std::string& model_type) {
  return model_type == "minicpmv4_6_vision" || is_minicpm47(model_type) || model_type == "minicpm_ocr_vision";
}

// The keys are those of the whole model's config, and import writes them here.
struct CanvasKey {
  const char* key;
  int64_t CanvasTokens::*token;
};
constexpr CanvasKey canvas_keys[]{{"image_start_id", &CanvasTokens::image_start_id},
                                  {"image_end_id", &CanvasTokens::image_end_id},
                                  {"slice_start_id", &CanvasTokens::slice_start_id},
                                  {"slice_end_id", &CanvasTokens::slice_end_id},
                                  {"newline_id", &CanvasTokens::newline_id}};

// A cell is what becomes one row of the decoder: 4 x 4 patches, or where squares of patches stay as they are, 2 x 2.
void read_minicpm(ConfigReader& reader, VisionConfig& out) {
  out.num_position_embeddings = out.grid() * out.grid();
  if (is_minicpm47(out.model_type) &&
      std::ranges::any_of(canvas_keys, [&](const CanvasKey& each) { return reader.has(each.key); })) {
    CanvasTokens& canvas = out.canvas.emplace();
    for (const auto& [key, token] : canvas_keys) canvas.*token = reader.whole(key, std::nullopt, 0);
  }
  out.rows_as_text = !out.canvas;
  reader.refuse_unless(out.spatial_merge_size == 2 || out.spatial_merge_size == 4, "spatial_merge_size", "2 and 4 are");
  reader.refuse_unless(reader.square("window_kernel_size", 2, 1, 64) == 2, "window_kernel_size",
                       "the tower merges squares of 2 x 2 patches");
  const int64_t layer = reader.whole("insert_layer_id", 6, -1, most_layers);
  if (out.spatial_merge_size != 4) return;
  out.insert_layer_id = layer;
  reader.refuse_unless(layer >= 0 && layer < out.num_hidden_layers, "insert_layer_id",
                       fmt::format("squares are merged behind one of the {} layers", out.num_hidden_layers));
}

// Frames are cells of images, whose learned positions, if there are any, are those of a square grid, interpolated or,
// of MiniCPM-V, the nearest.
void read_any_size(ConfigReader& reader, VisionConfig& out) {
  const bool is_paddle = is_paddleocr(out.model_type);
  out.spatial_merge_size = reader.whole("spatial_merge_size",
                                        is_minicpm(out.model_type) ? 4
                                        : is_paddle                ? 2
                                                                   : 1,
                                        1, 64); // import writes it here for LFM2-VL and MiniCPM-V
  out.temporal_patch_size = 1;
  if (is_video_llama(out.model_type)) {
    reader.refuse_unless(out.spatial_merge_size == 1, "spatial_merge_size", "each patch of an image is a row: 1 is");
    out.axial_rope = true;
    check_axial_rope(reader, out);
  } else if (is_paddle) {
    out.num_position_embeddings = out.grid() * out.grid();
    out.position_centers = out.axial_rope = true;
    check_axial_rope(reader, out);
  } else if (is_minicpm(out.model_type)) {
    read_minicpm(reader, out);
  } else {
    constexpr int64_t most_positions = 1 << 16;
    out.num_position_embeddings = reader.whole("num_patches", 256, 1, most_positions);
    out.position_antialias = true;
    reader.refuse_unless(out.position_side() * out.position_side() == out.num_position_embeddings, "num_patches",
                         "positions are those of a square grid: a square number is");
  }
  out.image_size = out.patch_size * out.spatial_merge_size;
  reader.refuse_unless(out.vision_feature_layers.empty(), "vision_feature_layer",
                       "the decoder reads the last layer of this tower, normalized; leave it out");
}

// Import writes the size of the router here, which is a key of the whole model's config.
void read_docling(ConfigReader& reader, VisionConfig& out) {
  constexpr const char* layers = "deepstack_visual_indexes";
  out.deepstack_visual_indexes = reader.has(layers) ? reader.wholes(layers, {}) : std::vector<int64_t>{3, 7, 10};
  const std::vector<int64_t>& taken = out.deepstack_visual_indexes;
  const bool ascend = std::ranges::adjacent_find(taken, std::greater_equal()) == taken.end();
  reader.refuse_unless(ascend && (taken.empty() || taken.back() < out.num_hidden_layers), layers,
                       fmt::format("layers from 0 to {} in ascending order are", out.num_hidden_layers - 1));
  out.scale_factor = reader.whole("scale_factor", 4, 1, 64);
  out.out_hidden_size = reader.whole("out_hidden_size", 1024, 1, most_features);
  out.use_fine_route = reader.flag("use_fine_route", true);
  out.density_router_hidden_size = reader.whole("density_router_hidden_size", 0, 0, most_features);
  reader.refuse_unless(!out.use_fine_route || out.scale_factor % 2 == 0, "scale_factor",
                       "the fine route has squares of half as many patches along each side: an even number is");
  reader.refuse_unless(out.vision_feature_layers.empty(), "vision_feature_layer",
                       "the connector reads the last layer of this tower, normalized; leave it out");
}

VisionConfig read(ConfigReader& reader, const std::string& model_type) {
  const bool has_head = is_siglip(model_type) || is_siglip2(model_type), paddle = is_paddleocr(model_type),
             video_llama = is_video_llama(model_type), minicpm = is_minicpm(model_type),
             docling = is_docling(model_type), is_base = has_head || video_llama || minicpm || docling;
  VisionConfig defaults;
  defaults.model_type = model_type;
  defaults.hidden_size = is_base ? 768 : 1152;
  defaults.intermediate_size = paddle ? 4304 : 3072;
  defaults.num_hidden_layers = paddle ? 27 : 12;
  defaults.num_attention_heads = is_base ? 12 : 16;
  defaults.image_size = paddle ? 384 : docling ? 512 : 224;
  defaults.patch_size = paddle ? 14 : is_base ? 16 : 32;
  defaults.layer_norm_eps = 1e-6;
  defaults.hidden_act = "gelu_pytorch_tanh";
  defaults.initializer_range = 0.02;
  defaults.position_buckets = !has_head && !video_llama && !paddle && !docling;
  VisionConfig out = read_vit(reader, defaults);
  out.vision_use_head = has_head && reader.flag("vision_use_head", true);
  if (is_siglip2(model_type) || paddle || video_llama || minicpm) read_any_size(reader, out);
  if (docling) read_docling(reader, out);
  reader.refuse_unless(out.vision_feature_select_strategy == "full", "vision_feature_select_strategy",
                       "there is no class token that could be dropped");
  return out;
}

nlohmann::json write(const VisionConfig& config) {
  nlohmann::json out = write_vit(config);
  const bool siglip2 = is_siglip2(config.model_type);
  if (is_siglip(config.model_type) || siglip2) out["vision_use_head"] = config.vision_use_head;
  if (siglip2) {
    out.erase("image_size");
    out["num_patches"] = config.num_position_embeddings;
  } else if (is_video_llama(config.model_type)) {
    out.erase("image_size");
  } else if (config.reads_cells()) {
    out["image_size"] = config.patch_size * config.position_side();
  }
  if (is_docling(config.model_type)) {
    out["deepstack_visual_indexes"] = config.deepstack_visual_indexes;
    out["out_hidden_size"] = config.out_hidden_size;
    out["scale_factor"] = config.scale_factor;
    out["use_fine_route"] = config.use_fine_route;
    if (config.density_router_hidden_size > 0) out["density_router_hidden_size"] = config.density_router_hidden_size;
  }
  if (config.insert_layer_id >= 0) out["insert_layer_id"] = config.insert_layer_id;
  for (const auto& [key, token] : canvas_keys)
    if (config.canvas) out[key] = (*config.canvas).*token;
  if (config.spatial_merge_size > 1 || config.axial_rope) out["spatial_merge_size"] = config.spatial_merge_size;
  return out;
}

// What merges squares of patches; it is in all files, used or not.
void add_merger(const VisionConfig& config, WeightLayout& out, const Initializer& fill) {
  const Initializer zero, one{Initializer::Kind::constant, 1};
  const int64_t width = config.hidden_size, square = 4 * width, mlp = 4 * config.intermediate_size;
  const auto add = [&](const std::string& stem, std::vector<int64_t> shape, const Initializer& weight) {
    const int64_t outputs = shape[0];
    const bool is_used = config.insert_layer_id >= 0;
    out.tensors.push_back({"vit_merger." + stem + ".weight", std::move(shape), weight, is_used});
    out.tensors.push_back({"vit_merger." + stem + ".bias", {outputs}, zero, is_used});
  };
  for (const char* name : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.out_proj"})
    add(name, {width, width}, fill);
  add("layer_norm1", {width}, one);
  add("pre_norm", {square}, one);
  add("linear_1", {mlp, square}, fill);
  add("linear_2", {width, mlp}, fill);
}

// What files have for transformers' sake alone: the finer way through the connector, and the router that chooses it.
// The rest of the connector is the connector's, and what drafts tokens is nobody's.
void add_unused_of_docling(const VisionConfig& config, WeightLayout& out, const Initializer& fill) {
  const Initializer zero, one{Initializer::Kind::constant, 1};
  const int64_t width = config.hidden_size, rows = config.out_hidden_size, side = config.scale_factor / 2,
                square = width * side * side, router = config.density_router_hidden_size;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape, const Initializer& weight) {
    out.tensors.push_back({name, std::move(shape), weight, false});
  };
  const auto add_layer = [&](const std::string& stem, std::vector<int64_t> shape, const Initializer& weight) {
    const int64_t outputs = shape[0];
    add(stem + ".weight", std::move(shape), weight);
    add(stem + ".bias", {outputs}, zero);
  };
  if (config.use_fine_route) {
    add("connector.fine.projection.weight", {rows, square}, fill);
    for (size_t i = 0; i < config.deepstack_visual_indexes.size(); ++i) {
      const std::string merger = fmt::format("connector.fine.deepstack_mergers.{}.", i);
      add_layer(merger + "layer_norm", {square}, one);
      add_layer(merger + "linear_1", {rows, square}, fill);
      add_layer(merger + "linear_2", {rows, rows}, fill);
    }
  }
  if (router > 0) {
    add_layer("density_router.att", {1, width}, fill);
    add_layer("density_router.norm", {width}, one);
    add_layer("density_router.fc1", {router, width}, fill);
    add_layer("density_router.fc2", {1, router}, fill);
  }
  out.ignored.insert(out.ignored.end(), {"connector.*", "mtp.*"});
}

WeightLayout layout(const VisionConfig& config) {
  const auto normal = [](double deviation) { return Initializer{Initializer::Kind::normal, deviation}; };
  const auto xavier = [](int64_t in, int64_t out) {
    return Initializer{Initializer::Kind::uniform, std::sqrt(6.0 / static_cast<double>(in + out))};
  };
  const int64_t width = config.hidden_size, mlp = config.intermediate_size,
                pixels = config.num_channels * config.patch_size * config.patch_size;
  const Initializer square = xavier(width, width), plain = normal(config.initializer_range);
  // transformers widens the normal to make up for truncation, and truncates far outside of it.
  constexpr double deviation_of_truncated = 0.87962566103423978;
  VitInitializers initializers{.class_token = {},
                               .position = normal(1 / std::sqrt(static_cast<double>(width))),
                               .patch = normal(1 / std::sqrt(static_cast<double>(pixels)) / deviation_of_truncated),
                               .query_key_value = square,
                               .out = square,
                               .up = xavier(width, mlp),
                               .down = xavier(mlp, width),
                               .mlp_bias = normal(1e-6)};
  if (!is_siglip(config.model_type) && !is_siglip2(config.model_type))
    initializers = {{}, plain, plain, plain, plain, plain, plain, {}};
  WeightLayout out = vit_layout(config, false, true, initializers);
  for (TensorSpec& spec : out.tensors) {
    const bool is_linear = is_siglip2(config.model_type); // the patch embedding
    if (spec.name == "embeddings.patch_embedding.weight" && is_linear) spec.shape = {width, pixels};
    if (spec.name == "embeddings.position_embedding.weight" && config.reads_cells())
      spec.shape = {config.num_position_embeddings, width};
  }
  if (is_video_llama(config.model_type))
    std::erase_if(out.tensors,
                  [](const TensorSpec& spec) { return spec.name == "embeddings.position_embedding.weight"; });
  if (is_minicpm(config.model_type)) add_merger(config, out, plain);
  if (is_docling(config.model_type)) add_unused_of_docling(config, out, plain);
  // What published files of PaddleOCR-VL have besides, and transformers does not read.
  if (is_paddleocr(config.model_type))
    out.ignored.insert(out.ignored.end(), {"embeddings.packing_position_embedding.weight", "head.*"});
  if (!config.vision_use_head) return out;
  const auto unused = [&](const std::string& name, std::vector<int64_t> shape, Initializer fill) {
    out.tensors.push_back({"head." + name, std::move(shape), fill, false});
  };
  const Initializer one{Initializer::Kind::constant, 1};
  unused("probe", {1, 1, width}, square);
  unused("attention.in_proj_weight", {3 * width, width}, xavier(width, 3 * width));
  unused("attention.in_proj_bias", {3 * width}, {});
  unused("attention.out_proj.weight", {width, width}, square);
  unused("attention.out_proj.bias", {width}, {});
  unused("layernorm.weight", {width}, one);
  unused("layernorm.bias", {width}, {});
  unused("mlp.fc1.weight", {mlp, width}, initializers.up);
  unused("mlp.fc1.bias", {mlp}, initializers.mlp_bias);
  unused("mlp.fc2.weight", {width, mlp}, initializers.down);
  unused("mlp.fc2.bias", {width}, initializers.mlp_bias);
  return out;
}

int64_t token_count(const VisionConfig& config, int64_t height, int64_t width) {
  const int64_t side = config.merged_side();
  return vit_tokens_per_frame<false>(config, height, width) / (side * side);
}

} // namespace

EncoderFamily siglip_family() {
  return {.name = "siglip",
          .types = {{"siglip_vision_model", "SiglipVisionModel", "siglip"},
                    {"siglip2_vision_model", "Siglip2VisionModel", "siglip2"},
                    {"paddleocr_vl_vision", "PaddleOCRVisionModel"},
                    {"video_llama_3_vision", "VideoLlama3VisionModel"},
                    {"minicpmv4_6_vision", "MiniCPMV4_6VisionModel"},
                    {"minicpmv4_7_vision", "MiniCPMV4_7VisionModel"},
                    {"minicpm_ocr_vision", "MiniCPMOcrVisionModel"},
                    {"granite_docling_vision", "GraniteDoclingVisionModel"},
                    {"idefics3_vision", "Idefics3VisionTransformer"},
                    {"smolvlm_vision", "SmolVLMVisionTransformer"}},
          .read = read,
          .write = write,
          .layout = layout,
          .fused_weights = vit_fused_weights(),
          .tokens_per_frame = token_count};
}

} // namespace fvlm
