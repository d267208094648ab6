// Sizes of images that several families compute in the same way. Digits are cut off, and lengths rounded, in
// transformers' order and precision, so that sizes are equal to its own.
#pragma once
#include "data/media/image_processor.h"

#include <cstdint>
#include <limits>

namespace fvlm::sizes {

inline int64_t truncated(double length) {
  return static_cast<int64_t>(length);
}
// The next multiple.
inline int64_t multiple(int64_t length, int64_t of) {
  return (length + of - 1) / of * of;
}
// The nearest multiple; of two that are equally close the even one.
int64_t rounded_to(int64_t length, int64_t cell);

// Throws Error(data) for an image that is more than 200 times as long as it is narrow.
void require_ratio(ImageSize image);

// Both sides are rounded to multiples of a cell, and to `least` at least, so that the image has about as many pixels as
// before, but min_pixels to max_pixels. The limits are for so many frames together, where rounding counts `padded` of
// them.
ImageSize by_pixels(ImageSize image, int64_t cell, int64_t min_pixels, int64_t max_pixels, int64_t least = 0,
                    int64_t frames = 1, int64_t padded = 1);

// In proportion, but for digits that are cut off, so that the shorter side has a cell's length at least.
ImageSize of_a_cell_at_least(ImageSize image, int64_t cell);

// Of all grids of min_tiles to max_tiles tiles the one whose aspect ratio is closest to the image's; of those that are
// equally close, the one with more tiles, as long as they have less than twice the image's pixels. No side has more
// than `max_side` tiles. In pixels.
ImageSize by_aspect_ratio(ImageSize image, int64_t tile, int64_t min_tiles, int64_t max_tiles,
                          int64_t max_side = std::numeric_limits<int64_t>::max());

} // namespace fvlm::sizes
