// MediaFile: an image, a video or a folder of images on disk, or images at hand, decoded to frames for the model.
// Samples of shards have SampleReader for that.
#pragma once
#include "data/media/frame_preparation.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace fvlm {

class VideoDecoder;

struct MediaOptions {
  int64_t image_size = 224;                // pixels a side
  int64_t max_frames = 64;                 // of a video (one frame per second, or spread evenly) or a folder
  std::optional<int64_t> max_cells;        // of a video, where frames are cells
  int64_t image_frames = 1;                // how often a still image is repeated
  double images_per_second = 3;            // frame rate of a folder, for a time span; else they are a second apart
  const VideoDecoder* video = nullptr;     // null: videos are rejected
  std::optional<ImageProcessor> processor; // of the encoder

  FramePreparation preparation() const { return {image_size, processor}; }
};

struct TimeSpan {
  double begin = 0, end = 0; // seconds
};

// An image's file; or its content, and then the path is a name for messages.
struct Picture {
  std::filesystem::path path;
  std::string content = {};
};

class MediaFile {
 public:
  // Finds the frames without decoding them. `span` selects a part of a video or folder. Throws Error(data).
  MediaFile(std::filesystem::path path, const MediaOptions& options, std::optional<TimeSpan> span = {});
  // A video's file, or its content, which must outlive it.
  MediaFile(std::shared_ptr<const RandomAccess> video, const MediaOptions& options);
  MediaFile(std::span<const std::byte> video, const MediaOptions& options);
  // The images of one prompt, in their order.
  MediaFile(std::vector<Picture> images, const MediaOptions& options);

  int64_t frames() const { return frames_; }
  // As a Sample has them.
  int64_t copies() const { return copies_; }
  int64_t distinct_frames() const { return squares_ > 0 ? squares_ : frames_ / copies_; }
  const std::vector<TileGrid>& tiles() const { return tiles_; } // see Media
  const std::vector<double>& times() const { return times_; }   // the same, of a video
  double seconds() const { return seconds_; }
  int64_t pixels() const { return pixels_; } // of all frames of a video, as they are in its file
  // [distinct_frames, 3, image_size, image_size], normalised. Throws Error(data).
  void decode(std::span<float> frames) const;

 private:
  void find_pictures(std::optional<TimeSpan> span);
  void find_times(std::optional<TimeSpan> span);
  std::filesystem::path path_;
  MediaOptions options_;
  void count_tiles();
  int64_t frames_within(ImageSize frame, int64_t frames) const;
  void place_cells(ImageSize frame);
  int64_t frames_ = 0, copies_ = 1, squares_ = 0; // squares: of cells of a video
  std::vector<TileGrid> tiles_;
  std::vector<Picture> pictures_;             // one, or one a frame; or
  std::shared_ptr<const RandomAccess> video_; // a video
  std::vector<double> times_;                 // of the frames of a video, or of pictures that are one
  double seconds_ = 0;
  int64_t pixels_ = 0;
};

} // namespace fvlm
