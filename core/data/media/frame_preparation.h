// FramePreparation: how an image becomes the frames that a model reads, squares of one size: as the image processor of
// its encoder says, or, without one, resized to the square and normalized with ImageNet's mean and std.
#pragma once
#include "data/media/image_processor.h"
#include "data/media/random_access.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

namespace fvlm {

class VideoDecoder;

class FramePreparation {
 public:
  // `image_size`: pixels a side. A processor that makes frames of another size is scaled: all its lengths change in
  // proportion. Throws Error(data) for a processor whose frames are no squares of one size.
  FramePreparation(int64_t image_size, const std::optional<ImageProcessor>& processor = {});

  int64_t image_size() const { return image_size_; }
  const std::optional<ImageProcessor>& processor() const { return processor_; }
  bool makes_tiles() const { return processor_ && processor_->splits_into_tiles; } // several frames of an image
  bool has_cells() const { return processor_ && processor_->has_cells(); } // the tiles are cells, see ImageProcessor
  // video_text() stands for a video.
  bool has_video_text() const { return processor_ && processor_->has_video_text(); }
  // A video is not read as so many images would be.
  bool has_own_videos() const { return has_cells() || has_video_text(); }
  // Throws Error(data) where frames are cells and the encoder's folder does not say how those of videos are made.
  void require_videos() const;
  // Whether tile_text() stands for an image.
  bool has_tile_text() const { return processor_ && processor_->tile; }
  TileForm tile_form() const { return processor_ ? processor_->tile_form : TileForm::idefics3; }

  // Called with each frame, bytes [image_size, image_size, 3].
  using TakeFrame = std::function<void(std::span<const uint8_t> pixels)>;
  // Decodes the file of one of so many images of a sample. Throws Error(data). [any thread]
  void prepare_image(std::span<const std::byte> file, int64_t images, const TakeFrame& take) const;
  // One frame, never cut into tiles, at each of the times in seconds, or the cells of all that stand in video_cells();
  // without a decoder, of a GIF alone. [any thread]
  void prepare_video(const VideoDecoder* decoder, const RandomAccess& file, std::span<const double> times,
                     const TakeFrame& take) const;
  // The same of a video whose so many frames are pictures of one size. [any thread]
  using ReadPicture = std::function<Image(int64_t frame)>;
  void prepare_pictures(int64_t count, const ReadPicture& read, const TakeFrame& take) const;
  static Image decoded(std::span<const std::byte> file); // as an image processor reads it

  int64_t most_frames(int64_t most) const; // of a video, where its encoder's folder says fewer than `most`
  // Which frames of a video of so many seconds are read, `most` of them at most.
  std::vector<double> video_times(double seconds, int64_t most) const;
  // Where frames are cells: those of a video with frames of this size at these times, one entry for all of it or one
  // for each step that has a label.
  std::vector<TileGrid> video_cells(ImageSize frame, std::span<const double> times) const;
  // The most frames of a video, of so many, that have no more than `max_cells` cells; at least one.
  int64_t frames_within(int64_t max_cells, ImageSize frame, int64_t frames) const;
  // From the head of an image's file: its size, and the tiles that it will be cut into.
  static ImageSize size_of(std::span<const std::byte> file);
  ImageLayout layout(std::span<const std::byte> file, int64_t images) const;
  // See fvlm::resized_size(), of one of so many images of a sample.
  std::optional<ImageSize> resized_size(ImageSize image, int64_t images) const;

  const NormalizationTable& normalization() const { return table_; }
  void normalise(std::span<const uint8_t> hwc, std::span<float> chw) const { fvlm::normalise(hwc, chw, table_); }
  void denormalise(std::span<const float> chw, std::span<uint8_t> hwc) const { fvlm::denormalise(chw, hwc, table_); }

 private:
  int64_t missing_frames(int64_t frames) const;
  int64_t steps_of(int64_t frames) const;

  int64_t image_size_;
  std::optional<ImageProcessor> processor_;
  NormalizationTable table_;
};

} // namespace fvlm
