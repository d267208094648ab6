// Frames of mp4 files, through the chosen table of the plugin kind "fvlm.video/1": see fvlm/video.h.
#pragma once
#include "data/media/random_access.h"

#include <fvlm/video.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace fvlm {

class Registry;

struct VideoInfo {
  double seconds = 0; // as the file says; 0: it does not
  int64_t width = 0, height = 0;
};

struct VideoLimits {
  int64_t most_pixels = 16 << 20; // of a frame
  double seconds = 5;             // of the processor's time that may pass until the next frame comes out
};

// [any thread]: each call has an instance of its own.
class VideoDecoder {
 public:
  // The table and the host live as long as the process: as select() and Registry::candidates() give them,
  // `VideoDecoder(choice.plugin->name(), *choice.table, choice.plugin->host)`.
  VideoDecoder(std::string plugin, const fvlm_video_v1& table, const fvlm_host* host, VideoLimits limits = {});

  // What selection is asked for.
  static fvlm_video_query query(const VideoLimits& limits = {});

  // Both throw Error(data) for a file that is damaged or beyond the limits, Error(plugin) where the plugin misbehaves,
  // and whatever `file` throws.
  VideoInfo probe(const RandomAccess& file) const;

  // The frames that are shown at these times (seconds, ascending), resized: out_nhwc [times, height, width, 3]. Where
  // the file ends early, its last frame stands in for up to two seconds.
  void decode(const RandomAccess& file, std::span<const double> times, int64_t width, int64_t height,
              std::span<uint8_t> out_nhwc) const;

 private:
  struct Call;
  std::string plugin_;
  const fvlm_video_v1& table_;
  const fvlm_host* host_;
  VideoLimits limits_;
};

// The one that a recipe's `kernels.video` chooses. Nothing where no plugin decodes video and the recipe names none:
// mp4s are then broken samples. Throws Error(plugin) where the recipe names one that is not to be had.
std::optional<VideoDecoder> choose_video_decoder(Registry& registry, const std::vector<std::string>& wishes);

// One frame a second: 0, 1, 2, ... below `seconds`, at least one. Where these are more than `most`: so many of them,
// evenly, the first and the last among them.
std::vector<double> frame_times(double seconds, int64_t most);

} // namespace fvlm
