// GIFs as an image, which is their first frame, and as a video.
#include "data/media/decoders.h"
#include "data/media/gif.h"
#include "data/media/resize.h"
#include "data/media/video.h"

namespace fvlm {
namespace {

Image image_of(const GifReader& gif, bool white_background) {
  Image image{gif.width(), gif.height(), {gif.rgba().begin(), gif.rgba().end()}};
  rgba_to_rgb(image.rgb, white_background);
  return image;
}

} // namespace

Decoded decode_gif(std::span<const std::byte> bytes, const DecodeOptions& options) {
  GifReader gif(bytes);
  check_image_size(static_cast<uint64_t>(gif.width()), static_cast<uint64_t>(gif.height()), options);
  if (options.only_size) return {{gif.width(), gif.height(), {}}};
  gif.next();
  return {image_of(gif, options.white_background)};
}

VideoInfo probe_gif(std::span<const std::byte> bytes) {
  GifReader gif(bytes);
  check_image_size(static_cast<uint64_t>(gif.width()), static_cast<uint64_t>(gif.height()), {});
  VideoInfo info{0, gif.width(), gif.height()};
  int64_t frames = 0;
  for (; gif.skip(); ++frames) info.seconds += gif.seconds();
  info.is_still = frames == 1;
  if (info.is_still) info.seconds = 0;
  return info;
}

// A time behind the end shows the last frame.
void decode_gif(std::span<const std::byte> bytes, std::span<const double> times, int64_t width, int64_t height,
                std::span<uint8_t> out) {
  const auto frame_bytes = static_cast<size_t>(width * height * 3);
  GifReader gif(bytes);
  check_image_size(static_cast<uint64_t>(gif.width()), static_cast<uint64_t>(gif.height()), {});
  Image shown;
  double end = 0;
  size_t done = 0;
  const auto fill_until = [&](double time) {
    if (done < times.size() && times[done] < time && shown.rgb.empty()) shown = image_of(gif, true);
    for (; done < times.size() && times[done] < time; ++done)
      resize(shown, width, height, out.subspan(done * frame_bytes, frame_bytes));
  };
  while (gif.next()) {
    end += gif.seconds();
    shown = {};
    fill_until(end);
  }
  fill_until(times.empty() ? 0 : times.back() + 1);
}

} // namespace fvlm
