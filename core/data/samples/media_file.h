// MediaFile: a picture, a video or a folder of pictures on disk, as frames that a model reads; what a shard's samples
// hold, outside of shards.
#pragma once
#include "data/media/random_access.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace fvlm {

class VideoDecoder;

struct MediaOptions {
  int64_t image_size = 224;            // pixels a side
  int64_t most_frames = 64;            // of a video (a frame a second, else evenly) or a folder
  int64_t image_frames = 1;            // that a still picture is repeated to
  double pictures_a_second = 3;        // of a folder, where a time span is wanted
  const VideoDecoder* video = nullptr; // none: videos are refused
};

struct TimeSpan {
  double begin = 0, end = 0; // seconds
};

class MediaFile {
 public:
  // Looks at what there is, without its pixels. `span`: of a video or a folder, in place of all of it. Throws
  // Error(data).
  MediaFile(std::filesystem::path path, const MediaOptions& options, std::optional<TimeSpan> span = {});

  int64_t frames() const { return frames_; }
  // [frames, 3, image_size, image_size], normalised. Throws Error(data).
  void decode(std::span<float> frames) const;

 private:
  void find_pictures(std::optional<TimeSpan> span);
  void find_times(std::optional<TimeSpan> span);
  std::filesystem::path path_;
  MediaOptions options_;
  int64_t frames_ = 0;
  std::vector<std::filesystem::path> pictures_; // one, or one a frame; or
  std::shared_ptr<const RandomAccess> video_;   // a video
  std::vector<double> times_;                   // of its frames
};

} // namespace fvlm
