#include "model/weights/visual_rows.h"

#include "base/json.h"

#include <filesystem>

namespace fvlm {
namespace {

constexpr uint64_t max_config_bytes = uint64_t{1} << 20;

VisionConfig vision_config(const plan::Model& model) {
  if (!std::holds_alternative<std::string>(model.vision))
    return read_vision_config(fresh_vision_config(model), "model.vision");
  const auto file = std::filesystem::path(std::get<std::string>(model.vision)) / "config.json";
  return read_vision_config(read_json_object(file, max_config_bytes), file.string());
}

} // namespace

nlohmann::json fresh_vision_config(const plan::Model& model) {
  if (const auto* bytes = std::get_if<plan::Bytes>(&model.vision))
    return {{"model_type", "bytes"},
            {"hidden_size", bytes->width},
            {"num_hidden_layers", bytes->layers},
            {"num_attention_heads", bytes->heads},
            {"intermediate_size", bytes->mlp.value_or(4 * bytes->width)},
            {"max_bytes", bytes->max_bytes}};
  const plan::FreshVision& fresh = *model.fresh_vision();
  const int64_t mlp = fresh.mlp.value_or(4 * fresh.width);
  nlohmann::json config = {{"hidden_size", fresh.width},
                           {"num_hidden_layers", fresh.layers},
                           {"num_attention_heads", fresh.heads},
                           {"image_size", model.image_size},
                           {"patch_size", fresh.patch_size}};
  if (std::holds_alternative<plan::Dinov2>(model.vision)) {
    config["model_type"] = "dinov2";
    config["mlp_ratio"] = (static_cast<double>(mlp) + 0.5) / static_cast<double>(fresh.width); // it is rounded down
    return config;
  }
  config["intermediate_size"] = mlp;
  if (const auto* clip = std::get_if<plan::Clip>(&model.vision)) {
    config["model_type"] = "clip_vision_model";
    if (clip->drop_class_token) config["vision_feature_select_strategy"] = "default";
  } else {
    config["model_type"] = "siglip_vision_model";
    config["vision_use_head"] = false;
  }
  return config;
}

plan::VisualRows visual_rows(const plan::Model& model) {
  // Connectors that do not ask for the tokens do not go with cells.
  bool of_cells = false;
  plan::VisualRows rows = model.connector->visual_rows([&] {
    const VisionConfig vision = vision_config(model);
    of_cells = vision.reads_cells();
    return tokens_per_frame(vision, model.image_size, model.image_size);
  });
  rows.of_cells = of_cells;
  return rows;
}

plan::VisualRows visual_rows(const plan::ConnectorSettings& connector, const VisionConfig& vision, int64_t image_size) {
  plan::VisualRows rows = connector.visual_rows([&] { return tokens_per_frame(vision, image_size, image_size); });
  rows.of_cells = vision.reads_cells();
  return rows;
}

} // namespace fvlm
