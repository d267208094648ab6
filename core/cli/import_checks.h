// What has to be right about Hugging Face folders besides their weights, before they are imported.
#pragma once
#include "data/tokenizer.h"
#include "model/weights/model_directory.h"

#include <cstdint>
#include <filesystem>
#include <functional>

namespace fvlm::cli {

// Nothing that trains, evaluates or answers can do without it. Throws Error(data).
Tokenizer require_tokenizer(const std::filesystem::path& decoder, const DecoderConfig& config);

// Throws Error(data) for an image processor that the engine does not have, and warns where there is none: but for
// DINOv2, whose frames are prepared so on purpose, and encoders of bytes, the model was trained on images prepared
// otherwise.
void check_image_processor(const std::filesystem::path& vision, const VisionConfig& config);

// Of the folder of a whole model: WholeImportRequest's check_before_writing.
std::function<void(const ModelDescription&, int64_t image_token_id)> whole_model_check(std::filesystem::path folder);

} // namespace fvlm::cli
