// The config of one image processor, or of one of videos; find_image_processor() says where it lies.
#pragma once
#include "data/media/image_processor.h"

#include <nlohmann/json_fwd.hpp>

#include <string>

namespace fvlm {

// `where`: its file. Throws Error(data) with every option that is not supported.
ImageProcessor image_processor_of(const nlohmann::json& config, const std::string& where, bool of_videos = false);

// Whether the processor of text and images that the config names is that of LightOnOCR, in either of its spellings.
bool is_of_lighton_ocr(const nlohmann::json& config);

} // namespace fvlm
