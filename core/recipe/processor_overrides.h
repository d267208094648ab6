// The limits of an image processor that a user sets in place of those in the encoder's folder, as people do with
// transformers' `min_pixels` and `max_pixels`.
#pragma once
#include <cstdint>
#include <optional>

namespace fvlm {

struct ProcessorOverrides {
  static constexpr int64_t largest = 64 << 20; // pixels, of a limit in a folder, too

  std::optional<int64_t> min_pixels, max_pixels;             // of an image
  std::optional<int64_t> video_min_pixels, video_max_pixels; // as the processor of videos counts them
  bool operator==(const ProcessorOverrides&) const = default;
};

// By their keys in a recipe and in messages.
struct ProcessorLimit {
  const char* key;
  std::optional<int64_t> ProcessorOverrides::*value;
  bool is_of_videos;
};
inline constexpr ProcessorLimit processor_limits[]{
    {"min_pixels", &ProcessorOverrides::min_pixels, false},
    {"max_pixels", &ProcessorOverrides::max_pixels, false},
    {"video_min_pixels", &ProcessorOverrides::video_min_pixels, true},
    {"video_max_pixels", &ProcessorOverrides::video_max_pixels, true},
};

} // namespace fvlm
