#include "data/media/frame_preparation.h"

#include "base/error.h"
#include "data/media/decode_image.h"
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
  const Image image = decode_image(file, {.white_background = true});
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
  ImageProcessor whole = *processor_;
  whole.splits_into_tiles = false;
  std::vector<uint8_t> pixels(frame);
  for (size_t first = 0; first < times.size(); first += at_once) {
    const auto some = times.subspan(first, std::min(at_once, times.size() - first));
    std::vector<uint8_t> raw(some.size() * decoded);
    decode_video(decoder, file, some, info.width, info.height, raw);
    for (auto begin = raw.begin(); begin != raw.end(); begin += static_cast<std::ptrdiff_t>(decoded)) {
      const Image image{info.width, info.height, {begin, begin + static_cast<std::ptrdiff_t>(decoded)}};
      process_pixels(whole, image, pixels);
      take(pixels);
    }
  }
}

void FramePreparation::require_videos() const {
  if (has_cells())
    throw Error(ErrorKind::data,
                "videos, and folders of their frames, are not supported for an encoder that reads images of any size")
        .advise("show single images in place of a video, each with an <image> in the text");
}

ImageLayout FramePreparation::layout(std::span<const std::byte> file, int64_t images) const {
  if (!makes_tiles()) return {0, 0, {image_size_, image_size_}};
  const Image head = decode_image(file, {.only_size = true});
  return layout_of(for_images(*processor_, images), {head.height, head.width});
}

} // namespace fvlm
