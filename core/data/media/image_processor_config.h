// The config of one image processor, or of one of videos; find_image_processor() says where it lies.
#pragma once
#include "data/media/image_processor.h"

#include <nlohmann/json.hpp>

#include <filesystem>
#include <optional>
#include <string>

namespace fvlm {

// `where`: its file. Throws Error(data) with every option that is not supported.
ImageProcessor image_processor_of(const nlohmann::json& config, const std::string& where, bool of_videos = false);

// Where a Hugging Face folder says how its images, or its videos, are prepared: a file, or an object in one. Nothing
// where it says nothing of them.
struct ProcessorConfig {
  std::filesystem::path file;
  const char* section = nullptr; // null: the whole file
  nlohmann::json whole;          // content of the file
  const nlohmann::json& content() const { return section ? whole.at(section) : whole; }
};
inline constexpr const char* video_config_file = "video_preprocessor_config.json";
std::optional<ProcessorConfig> find_image_config(const std::filesystem::path& folder);
std::optional<ProcessorConfig> find_video_config(const std::filesystem::path& folder, const ImageProcessor& images);

// Whether the processor of text and images that the config names is that of LightOnOCR, in either of its spellings.
bool is_of_lighton_ocr(const nlohmann::json& config);

} // namespace fvlm
