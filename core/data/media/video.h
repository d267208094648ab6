// Decodes frames of videos: GIFs here, mp4 files through a plugin of the kind "fvlm.video/1": see fvlm/video.h.
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
  double seconds = 0; // from the file; 0 when it does not say
  int64_t width = 0, height = 0;
  bool is_still = false; // a GIF of one frame, which has no length
};

struct VideoLimits {
  int64_t most_pixels = 16 << 20; // of a frame
  double seconds = 5;             // CPU time that may pass until the next frame arrives
};

// [any thread]: every call creates its own plugin instance.
class VideoDecoder {
 public:
  // The table and the host live as long as the process: as select() and Registry::candidates() give them,
  // `VideoDecoder(choice.plugin->name(), *choice.table, choice.plugin->host)`.
  VideoDecoder(std::string plugin, const fvlm_video_v1& table, const fvlm_host* host, VideoLimits limits = {});

  // The query for the selection of a plugin.
  static fvlm_video_query query(const VideoLimits& limits = {});

  // Both throw Error(data) for a file that is damaged or beyond the limits, Error(plugin) where the plugin misbehaves,
  // and whatever `file` throws.
  VideoInfo probe(const RandomAccess& file) const;

  // Decodes the frames at these times (seconds, ascending) and resizes them to out_nhwc [times, height, width, 3].
  // Where the video ends early, its last frame is repeated for up to two seconds.
  void decode(const RandomAccess& file, std::span<const double> times, int64_t width, int64_t height,
              std::span<uint8_t> out_nhwc) const;

 private:
  struct Call;
  std::string plugin_;
  const fvlm_video_v1& table_;
  const fvlm_host* host_;
  VideoLimits limits_;
};

// The decoder that `kernels.video` of the recipe selects. nullopt when no plugin decodes video and the recipe names
// none; mp4 files are then broken samples. Throws Error(plugin) when the recipe names a plugin that is not available.
std::optional<VideoDecoder> choose_video_decoder(Registry& registry, const std::vector<std::string>& preferences);

// The same of a GIF, which the engine decodes itself, and of other files by the decoder. Throws Error(data) where that
// is null.
VideoInfo probe_video(const VideoDecoder* decoder, const RandomAccess& file);
void decode_video(const VideoDecoder* decoder, const RandomAccess& file, std::span<const double> times, int64_t width,
                  int64_t height, std::span<uint8_t> out_nhwc);

// One frame per second: 0, 1, 2, ... below `seconds`, at least one. If that is more than `most`, `most` of them spread
// evenly, including the first and the last.
std::vector<double> sample_frame_times(double seconds, int64_t most);
// So many frames a second, at most `most`, spread evenly from the first to the last one of a video of 24 frames a
// second; of a long one without the first and the last second. The times of transformers' SmolVLMVideoProcessor.
std::vector<double> sample_evenly(double seconds, double per_second, int64_t most);

} // namespace fvlm
