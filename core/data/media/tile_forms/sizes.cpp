#include "data/media/tile_forms/sizes.h"

#include "base/error.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace fvlm::sizes {

int64_t rounded_to(int64_t length, int64_t cell) {
  return static_cast<int64_t>(std::nearbyint(static_cast<double>(length) / static_cast<double>(cell))) * cell;
}

void require_ratio(ImageSize image) {
  constexpr int64_t max_ratio = 200;
  if (std::max(image.height, image.width) > max_ratio * std::min(image.height, image.width))
    throw Error(ErrorKind::data, "an image of {} x {} pixels is more than {} times as long as it is narrow",
                image.width, image.height, max_ratio)
        .advise("crop or pad images that are so long and narrow");
}

ImageSize by_pixels(ImageSize image, int64_t cell, int64_t min_pixels, int64_t max_pixels, int64_t least,
                    int64_t frames, int64_t padded) {
  const auto side = static_cast<double>(cell), height = static_cast<double>(image.height),
             width = static_cast<double>(image.width), pixels = static_cast<double>(frames) * height * width;
  const ImageSize size{std::max(least, rounded_to(image.height, cell)), std::max(least, rounded_to(image.width, cell))};
  if (padded * size.height * size.width > max_pixels) {
    const double shrink = std::sqrt(pixels / static_cast<double>(max_pixels));
    const auto rounded = [&](double length) {
      return std::max(cell, static_cast<int64_t>(std::floor(length / shrink / side)) * cell);
    };
    return {rounded(height), rounded(width)};
  }
  if (padded * size.height * size.width < min_pixels) {
    const double grow = std::sqrt(static_cast<double>(min_pixels) / pixels);
    const auto rounded = [&](double length) { return static_cast<int64_t>(std::ceil(length * grow / side)) * cell; };
    return {rounded(height), rounded(width)};
  }
  return size;
}

ImageSize of_a_cell_at_least(ImageSize image, int64_t cell) {
  if (std::min(image.height, image.width) >= cell) return image;
  const auto height = static_cast<double>(image.height), width = static_cast<double>(image.width);
  const double scale = std::max(static_cast<double>(cell) / height, static_cast<double>(cell) / width);
  return {truncated(height * scale), truncated(width * scale)};
}

ImageSize by_aspect_ratio(ImageSize image, int64_t tile, int64_t min_tiles, int64_t max_tiles, int64_t max_side) {
  const double ratio = static_cast<double>(image.width) / static_cast<double>(image.height);
  double least = std::numeric_limits<double>::infinity();
  ImageSize best{1, 1};
  for (int64_t tiles = min_tiles; tiles <= max_tiles; ++tiles)
    for (int64_t columns = 1; columns <= std::min(tiles, max_side); ++columns) {
      if (tiles % columns != 0 || tiles / columns > max_side) continue;
      const ImageSize grid{tiles / columns, columns};
      const double difference = std::abs(ratio - static_cast<double>(grid.width) / static_cast<double>(grid.height));
      const bool has_pixels_for_it = 2 * image.height * image.width > tile * tile * tiles;
      if (difference < least || (difference == least && has_pixels_for_it)) best = grid;
      least = std::min(least, difference);
    }
  return {best.height * tile, best.width * tile};
}

} // namespace fvlm::sizes
