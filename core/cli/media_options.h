// The options that say how pictures, videos and questions outside of shards are put before a model, the same for every
// verb that does so.
#pragma once
#include "cli/options.h"
#include "data/samples/media_file.h"
#include "model/vlm.h"

#include <filesystem>
#include <string>

namespace fvlm::cli {

inline constexpr const char* media_option_names[] = {"system", "frames", "image-frames", "image-size"};

// Adds --system, --frames, --image-frames and --image-size.
Options& with_media_options(Options& options);

struct AsTrained {
  MediaOptions media; // without a video decoder
  std::string system; // the system turn
};

// As the options say; what they leave open is as the run had it that `model` is a checkpoint of, else as is usual.
AsTrained as_trained(const ParsedOptions& parsed, const std::filesystem::path& model, const model::VlmConfig& config);

} // namespace fvlm::cli
