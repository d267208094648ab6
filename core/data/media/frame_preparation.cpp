#include "data/media/frame_preparation.h"

#include "base/error.h"
#include "data/media/decode_image.h"
#include "data/media/tile_forms/tile_form.h"
#include "data/media/video.h"

#include <fmt/format.h>

#include <algorithm>

namespace fvlm {
namespace {

ImageProcessor scaled_to(ImageProcessor processor, int64_t side) {
  const auto size = frame_size(processor);
  if (!size || size->height != size->width)
    throw Error(ErrorKind::data, size ? fmt::format("the image processor makes frames of {} x {} pixels, and the "
                                                    "engine reads squares",
                                                    size->width, size->height)
                                      : "the image processor makes frames of a size that depends on the image, and "
                                        "the engine reads squares of one size")
        .advise("set 'crop_size', or 'height' and 'width' of 'size', to one number in preprocessor_config.json");
  const int64_t from = size->height;
  const auto scale = [&](int64_t& length) {
    if (length > 0) length = std::max<int64_t>(1, (length * side + from / 2) / from);
  };
  scale(processor.size.height);
  scale(processor.size.width);
  scale(processor.edge);
  scale(processor.min_edge);
  if (processor.has_video_text()) scale(processor.video->sampling->edge);
  if (processor.center_crop) processor.center_crop = {side, side};
  if (processor.has_cells() && side != from)
    throw Error(ErrorKind::data,
                "the image processor cuts images into cells of {0} x {0} pixels, and image_size is {1}", from, side)
        .advise("set the model's image_size to {}: images themselves may have any size", from);
  if (processor.tile) processor.tile = side;
  return processor;
}

} // namespace

FramePreparation::FramePreparation(int64_t image_size, const std::optional<ImageProcessor>& processor)
    : image_size_(image_size), table_(imagenet_normalization()) {
  if (!processor) return;
  processor_ = scaled_to(*processor, image_size);
  table_ = normalization_of(*processor_);
}

void FramePreparation::prepare_image(std::span<const std::byte> file, int64_t images, const TakeFrame& take) const {
  const auto frame = static_cast<size_t>(image_size_ * image_size_ * 3);
  if (!processor_) {
    std::vector<uint8_t> pixels(frame);
    resize(decode_image(file, {.width = image_size_, .height = image_size_}), image_size_, image_size_, pixels);
    return take(pixels);
  }
  const Image image = decoded(file);
  const ImageProcessor processor = for_images(*processor_, images);
  std::vector<uint8_t> pixels(static_cast<size_t>(layout_of(processor, {image.height, image.width}).frames()) * frame);
  process_pixels(processor, image, pixels);
  for (size_t at = 0; at < pixels.size(); at += frame) take(std::span(pixels).subspan(at, frame));
}

void FramePreparation::prepare_video(const VideoDecoder* decoder, const RandomAccess& file,
                                     std::span<const double> times, const TakeFrame& take) const {
  require_videos();
  const auto frame = static_cast<size_t>(image_size_ * image_size_ * 3);
  if (!processor_) {
    std::vector<uint8_t> pixels(times.size() * frame);
    decode_video(decoder, file, times, image_size_, image_size_, pixels);
    for (size_t at = 0; at < pixels.size(); at += frame) take(std::span(pixels).subspan(at, frame));
    return;
  }
  constexpr size_t max_bytes = size_t{128} << 20; // of frames at the video's own size
  const VideoInfo info = probe_video(decoder, file);
  const size_t decoded = static_cast<size_t>(info.width * info.height * 3);
  const size_t at_once = std::clamp<size_t>(max_bytes / std::max<size_t>(decoded, 1), 1, times.size());
  const ImageSize size{info.height, info.width};
  const ImageProcessor prepares = for_video(*processor_, size, std::ssize(times));
  std::vector<uint8_t> pixels(static_cast<size_t>(layout_of(prepares, size).frames()) * frame);
  const auto take_all = [&] {
    for (size_t at = 0; at < pixels.size(); at += frame) take(std::span(pixels).subspan(at, frame));
  };
  for (size_t first = 0; first < times.size(); first += at_once) {
    const auto some = times.subspan(first, std::min(at_once, times.size() - first));
    std::vector<uint8_t> raw(some.size() * decoded);
    decode_video(decoder, file, some, info.width, info.height, raw);
    for (auto begin = raw.begin(); begin != raw.end(); begin += static_cast<std::ptrdiff_t>(decoded)) {
      const Image image{info.width, info.height, {begin, begin + static_cast<std::ptrdiff_t>(decoded)}};
      process_pixels(prepares, image, pixels);
      take_all();
    }
  }
  for (int64_t i = 0; i < missing_frames(std::ssize(times)); ++i) take_all();
}

void FramePreparation::prepare_pictures(int64_t count, const ReadPicture& read, const TakeFrame& take) const {
  const auto frame = static_cast<size_t>(image_size_ * image_size_ * 3);
  std::optional<ImageSize> size;
  std::vector<uint8_t> pixels;
  for (int64_t i = 0; i < count + missing_frames(count); ++i) {
    if (i < count) {
      const Image image = read(i);
      const ImageSize own{image.height, image.width};
      if (own != size.value_or(own))
        throw Error(ErrorKind::data, "frame {} of the video has {} x {} pixels, and the first one {} x {}", i,
                    own.width, own.height, size->width, size->height)
            .advise("give all frames of a video one size");
      size = own;
      const ImageProcessor prepares = for_video(*processor_, own, count);
      pixels.resize(static_cast<size_t>(layout_of(prepares, own).frames()) * frame);
      process_pixels(prepares, image, pixels);
    }
    for (size_t at = 0; at < pixels.size(); at += frame) take(std::span(pixels).subspan(at, frame));
  }
}

int64_t FramePreparation::most_frames(int64_t most) const {
  return has_video_text() ? std::min(most, processor_->video->sampling->max_frames) : most;
}

std::vector<double> FramePreparation::video_times(double seconds, int64_t most) const {
  if (!has_video_text()) return sample_frame_times(seconds, most);
  return sample_evenly(seconds, processor_->video->sampling->per_second, most_frames(most));
}

// Of the last step, which shows the last frame in their place.
int64_t FramePreparation::missing_frames(int64_t frames) const {
  return has_cells() ? steps_of(frames) * processor_->step_frames - frames : 0;
}

int64_t FramePreparation::steps_of(int64_t frames) const {
  return (frames + processor_->step_frames - 1) / processor_->step_frames;
}

std::vector<TileGrid> FramePreparation::video_cells(ImageSize frame, std::span<const double> times) const {
  const int64_t frames = std::ssize(times), steps = steps_of(frames), together = processor_->step_frames;
  TileGrid cells = layout_of(for_video(*processor_, frame, frames), frame).grid();
  cells.step_frames = together;
  if (frames > 1)
    cells.step_seconds =
        (times.back() - times.front()) / static_cast<double>(frames - 1) * static_cast<double>(together);
  if (!processor_->video->counts_all_frames) {
    cells.steps = steps;
    return {cells};
  }
  std::vector<TileGrid> all;
  for (int64_t step = 0; step < steps; ++step) {
    const auto at = [&](int64_t place) { return times[static_cast<size_t>(std::min(place, frames - 1))]; };
    const double first = at(step * together);
    cells.label_seconds =
        rules_of(processor_->tile_form).tells_first_time ? first : (first + at((step + 1) * together - 1)) / 2;
    all.push_back(cells);
  }
  return all;
}

int64_t FramePreparation::frames_within(int64_t max_cells, ImageSize frame, int64_t frames) const {
  for (; frames > 1; --frames) {
    const ImageLayout cells = layout_of(for_video(*processor_, frame, frames), frame);
    if (steps_of(frames) * cells.frames() <= max_cells) break;
  }
  return frames;
}

void FramePreparation::require_videos() const {
  if (!has_cells() || processor_->video) return;
  if (!rules_of(processor_->tile_form).has_videos)
    throw Error(ErrorKind::data, "videos are not supported with the image processor of {}",
                traits_of(processor_->tile_form).model)
        .advise("show single images, each with an <image> in the text");
  throw Error(ErrorKind::data, "the model's folder does not say how videos are prepared")
      .advise("copy the video_preprocessor_config.json of the model there, or show single images in place of a video, "
              "each with an <image> in the text");
}

Image FramePreparation::decoded(std::span<const std::byte> file) {
  return decode_image(file, {.white_background = true});
}

ImageSize FramePreparation::size_of(std::span<const std::byte> file) {
  const Image head = decode_image(file, {.only_size = true});
  return {head.height, head.width};
}

std::optional<ImageSize> FramePreparation::resized_size(ImageSize image, int64_t images) const {
  if (!processor_) return ImageSize{image_size_, image_size_};
  return fvlm::resized_size(for_images(*processor_, images), image);
}

ImageLayout FramePreparation::layout(std::span<const std::byte> file, int64_t images) const {
  if (!makes_tiles()) return {0, 0, {image_size_, image_size_}};
  return layout_of(for_images(*processor_, images), size_of(file));
}

} // namespace fvlm
