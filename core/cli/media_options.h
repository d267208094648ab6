// The options that say how pictures and videos outside of shards become frames, the same for every verb that takes
// them.
#pragma once
#include "cli/options.h"
#include "data/samples/media_file.h"
#include "model/vlm.h"

#include <string>

namespace fvlm::cli {

inline constexpr const char* media_option_names[] = {"system", "frames", "image-frames", "image-size"};

// Adds --system, --frames, --image-frames and --image-size.
Options& with_media_options(Options& options);

// Without a video decoder.
MediaOptions media_options_of(const ParsedOptions& parsed, const model::VlmConfig& config);
std::string system_of(const ParsedOptions& parsed);

} // namespace fvlm::cli
