#include "cli/processor_options.h"

#include <algorithm>

namespace fvlm::cli {

Options& with_processor_options(Options& options) {
  return options
      .value("min-pixels", "N",
             "fewest pixels of an image, for image processors that make cells of images of any size (Qwen2-VL to "
             "Qwen3.5, GLM, PaddleOCR-VL and so on); default: the model's")
      .value("max-pixels", "N", "most pixels of an image, for the same; fewer make answers faster")
      .value("video-min-pixels", "N",
             "the same of a video, of each frame or of all together as the model's processor counts them")
      .value("video-max-pixels", "N", "the same of a video");
}

ProcessorOverrides processor_overrides_of(const ParsedOptions& parsed) {
  ProcessorOverrides overrides;
  for (const ProcessorLimit& limit : processor_limits)
    if (const std::string option = option_of(limit); parsed.value(option))
      overrides.*limit.value = parsed.integer_or(option, 1, 1, ProcessorOverrides::largest);
  return overrides;
}

std::string option_of(const ProcessorLimit& limit) {
  std::string option = limit.key;
  std::ranges::replace(option, '_', '-');
  return option;
}

} // namespace fvlm::cli
