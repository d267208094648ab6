#include "data/media/resize.h"

#include "base/error.h"
#include "data/media/resize_loops.h"

#include <algorithm>

namespace fvlm {
namespace {

bool sensible(const Image& image, int64_t width, int64_t height, size_t out_bytes) {
  return image.width > 0 && image.height > 0 && width > 0 && height > 0 &&
         image.rgb.size() == static_cast<size_t>(image.width * image.height * 3) &&
         out_bytes == static_cast<size_t>(width * height * 3);
}

} // namespace

void resize(const Image& image, int64_t width, int64_t height, std::span<uint8_t> out_hwc, ResizeFilter filter) {
  if (!sensible(image, width, height, out_hwc.size()))
    throw Error(ErrorKind::internal, "resize: {} x {} pixels in {} bytes to {} x {} in {} bytes", image.width,
                image.height, image.rgb.size(), width, height, out_hwc.size());
  if (image.height > 100 * image.width && height < image.height && width != image.width) {
    Image shortened{image.width, height, std::vector<uint8_t>(static_cast<size_t>(image.width * height * 3))};
    resize(image, image.width, height, shortened.rgb, filter);
    return resize(shortened, width, height, out_hwc, filter);
  }
  const ResizeLoops& loops = fastest_resize_loops();
  const int64_t in_stride = image.width * 3, stride = width * 3;
  const uint8_t* lines = image.rgb.data(); // [image.height, width, 3] after the first pass
  std::vector<uint8_t> narrowed;
  if (width != image.width) {
    const Taps taps(image.width, width, filter);
    uint8_t* out = out_hwc.data();
    if (height != image.height) {
      narrowed.resize(static_cast<size_t>(stride * image.height));
      lines = out = narrowed.data();
    }
    // The loops may read past the end of a line: those near the end of the image are read from a copy.
    const int64_t near_end = std::max<int64_t>(image.height - 1 - resize_slack / in_stride, 0);
    loops.across(taps, near_end, image.rgb.data(), out);
    std::vector<uint8_t> rest(image.rgb.begin() + near_end * in_stride, image.rgb.end());
    rest.resize(rest.size() + resize_slack);
    loops.across(taps, image.height - near_end, rest.data(), out + near_end * stride);
    if (height == image.height) return;
  } else if (height == image.height) {
    std::ranges::copy(image.rgb, out_hwc.begin());
    return;
  }
  const Taps taps(image.height, height, filter);
  for (int64_t y = 0; y < height; ++y) loops.down(taps, y, lines, stride, out_hwc.data() + y * stride);
}

} // namespace fvlm
