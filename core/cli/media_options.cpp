#include "cli/media_options.h"

#include "base/error.h"
#include "data/chat.h"

#include <algorithm>

namespace fvlm::cli {

Options& with_media_options(Options& options) {
  return options.value("system", "TEXT", "the system turn (You are a helpful AI assistant.); empty: none")
      .value("frames", "N", "at most N of a video, evenly (64)")
      .value("image-frames", "N", "a still picture is repeated to N frames (1), as replicate_image_frames had it")
      .value("image-size", "N", "pixels a side (224, or what the vision tower was made for where that is less)");
}

MediaOptions media_options_of(const ParsedOptions& parsed, const model::VlmConfig& config) {
  MediaOptions options;
  // What recipes say where nobody says anything else, and no more than the position embedding was made for.
  const int64_t usual = std::min(config.vision.image_size, options.image_size);
  options.image_size = parsed.integer_or("image-size", usual);
  options.most_frames = parsed.integer_or("frames", options.most_frames);
  options.image_frames = parsed.integer_or("image-frames", options.image_frames);
  if (options.image_size < 1 || options.most_frames < 1 || options.image_frames < 1)
    throw Error(ErrorKind::usage, "--frames, --image-frames and --image-size want 1 or more");
  return options;
}

std::string system_of(const ParsedOptions& parsed) {
  return parsed.value_or("system", std::string(default_system_line));
}

} // namespace fvlm::cli
