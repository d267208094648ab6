// Which files of a Hugging Face folder say how its images and videos are prepared.
#include "base/error.h"
#include "base/json.h"
#include "data/media/image_processor_config.h"
#include "data/media/override_processor.h"
#include "data/media/tile_forms/tile_form.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <string>

namespace fvlm {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr uint64_t max_bytes = 1 << 20; // of a file

std::string model_type_in(const fs::path& folder) {
  const auto file = folder / "config.json";
  const Json config = exists(file) ? read_json_object(file, max_bytes) : Json::object();
  const auto found = config.find("model_type");
  return found != config.end() && found->is_string() ? found->get<std::string>() : "";
}

// Its frames go through the same normalization and the same encoder as images do.
VideoProcessor read_videos(const Json& config, const std::string& where, const ImageProcessor& images) {
  const ImageProcessor videos = image_processor_of(config, where, true);
  ImageProcessor expected = images;
  expected.min_pixels = videos.min_pixels;
  expected.max_pixels = videos.max_pixels;
  expected.video = videos.video;
  if (!images.has_cells()) { // of frames that are not cut
    expected.edge = videos.edge;
    expected.splits_into_tiles = videos.splits_into_tiles;
  }
  if (videos != expected)
    throw Error(ErrorKind::data,
                "videos are prepared with another patch_size, merge_size, temporal_patch_size, resample, image_mean, "
                "image_std or rescale_factor than images")
        .at(where)
        .advise("give both the same: one encoder reads them");
  return *videos.video;
}

// What the processor of text and images together says of images. Those of Pixtral and LightOnOCR decide how large
// their cells are, whatever the image processor says.
Json completed(Json images, const Json& processor) {
  if (processor.contains("processor_class") && !images.contains("processor_class"))
    images["processor_class"] = processor["processor_class"];
  const Json type = images.value("image_processor_type", Json());
  // Of LFM2-VL, MiniCPM-V and HunyuanOCR.
  for (const char* of_both : {"use_image_special_tokens", "use_image_id", "cat_extra_token"})
    if (processor.contains(of_both) && !processor[of_both].is_null()) images[of_both] = processor[of_both];
  const bool is_of_lighton = is_of_lighton_ocr(images);
  if ((processor.empty() && !is_of_lighton) || !type.is_string() ||
      !type.get_ref<const std::string&>().starts_with("PixtralImage"))
    return images;
  images["patch_size"] = processor.value("patch_size", Json(is_of_lighton ? 14 : 16));
  images["spatial_merge_size"] = processor.value("spatial_merge_size", Json(is_of_lighton ? 2 : 1));
  return images;
}

// The object of that name in processor_config.json, which goes first as in transformers.
std::optional<ProcessorConfig> find_nested(const fs::path& folder, const char* section) {
  const auto file = folder / "processor_config.json";
  if (!exists(file)) return std::nullopt;
  Json whole = read_json_object(file, max_bytes);
  const auto found = whole.find(section);
  if (found == whole.end() || !found->is_object()) return std::nullopt;
  return ProcessorConfig{file, section, std::move(whole)};
}

std::optional<ImageProcessor> find_images(const fs::path& folder) {
  const auto config = find_image_config(folder);
  if (!config) return std::nullopt;
  const auto of_text_too = folder / "processor_config.json";
  const Json processor = exists(of_text_too) ? read_json_object(of_text_too, max_bytes) : Json::object();
  return image_processor_of(completed(config->content(), processor), config->file.string());
}

} // namespace

std::optional<ProcessorConfig> find_image_config(const fs::path& folder) {
  // fVLM's frames have the size that DINOv2 reads, and are not cropped.
  const std::string type = model_type_in(folder);
  if (type == "dinov2" || type == "dinov2_with_registers") return std::nullopt;
  if (auto nested = find_nested(folder, "image_processor")) return nested;
  const auto own = folder / "preprocessor_config.json";
  if (!exists(own)) return std::nullopt;
  return ProcessorConfig{own, nullptr, read_json_object(own, max_bytes)};
}

std::optional<ProcessorConfig> find_video_config(const fs::path& folder, const ImageProcessor& images) {
  if (!images.tile || !rules_of(images.tile_form).has_videos) return std::nullopt;
  if (images.has_cells() && images.step_frames < 2) return std::nullopt;
  if (auto nested = find_nested(folder, "video_processor")) return nested;
  if (const auto own = folder / video_config_file; exists(own))
    return ProcessorConfig{own, nullptr, read_json_object(own, max_bytes)};
  // Older folders of Qwen2-VL and Qwen2.5-VL, and those of SmolVLM2, have one file for both.
  const auto of_both = folder / "preprocessor_config.json";
  const std::string type_of_model = model_type_in(folder);
  constexpr std::array newer{"qwen3_vl", "qwen3_5", "lfm3_vl"};
  const bool needs_own = *traits_of(images.tile_form).before_video ||
                         std::ranges::any_of(newer, [&](const char* type) { return type_of_model.starts_with(type); });
  if (!exists(of_both) || needs_own) return std::nullopt;
  ProcessorConfig config{of_both, nullptr, read_json_object(of_both, max_bytes)};
  const auto type = config.whole.find("image_processor_type");
  const bool says_videos = config.whole.contains("video_sampling") && type != config.whole.end() && type->is_string() &&
                           type->get_ref<const std::string&>().starts_with("SmolVLM");
  if (!images.has_cells() && !says_videos) return std::nullopt;
  return config;
}

std::optional<ImageProcessor> find_image_processor(const fs::path& folder, const ProcessorOverrides& overrides) {
  auto found = find_images(folder);
  if (found)
    if (const auto videos = find_video_config(folder, *found))
      found->video = read_videos(videos->content(), videos->file.string(), *found);
  if (overrides == ProcessorOverrides()) return found;
  if (!found)
    throw Error(ErrorKind::data, "the limits of images cannot be set: there is no image processor that has some")
        .at(folder.string())
        .advise("leave out min_pixels, max_pixels and those of videos");
  override_processor(*found, overrides, folder);
  return found;
}

} // namespace fvlm
