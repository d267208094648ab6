#include "model/weights/visual_rows.h"

#include "base/json.h"

#include <filesystem>

namespace fvlm {
namespace {

constexpr uint64_t max_config_bytes = uint64_t{1} << 20;

VisionConfig vision_config(const plan::Model& model) {
  if (const auto* fresh = std::get_if<plan::Dinov2>(&model.vision)) {
    VisionConfig config;
    config.model_type = "dinov2";
    config.patch_size = fresh->patch_size;
    return config;
  }
  if (const auto* fresh = std::get_if<plan::Bytes>(&model.vision)) {
    VisionConfig config;
    config.model_type = "bytes";
    config.max_bytes = fresh->max_bytes;
    return config;
  }
  const auto file = std::filesystem::path(std::get<std::string>(model.vision)) / "config.json";
  return read_vision_config(read_json_object(file, max_config_bytes), file.string());
}

} // namespace

plan::VisualRows visual_rows(const plan::Model& model) {
  return model.connector->visual_rows(
      [&] { return tokens_per_frame(vision_config(model), model.image_size, model.image_size); });
}

plan::VisualRows visual_rows(const plan::ConnectorSettings& connector, const VisionConfig& vision, int64_t image_size) {
  return connector.visual_rows([&] { return tokens_per_frame(vision, image_size, image_size); });
}

} // namespace fvlm
