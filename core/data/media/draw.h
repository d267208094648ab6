// Boxes and points drawn on an image, each with its number, for people to see where they are.
#pragma once
#include "data/media/image.h"

#include <cstdint>
#include <span>

namespace fvlm {

// A color of marks. They come in this order, and again from the first.
struct MarkColor {
  const char* name;
  uint8_t rgb[3];
};
const MarkColor& mark_color(int64_t number);

// Pixels of the lines on an image, so that they are seen where it is shown as a whole.
int64_t mark_width(const Image& image);

// `place` in pixels, with or without fractions: x1, y1, x2, y2 of a box, whose outline is drawn within it, with a black
// line of a pixel on both sides; x, y of a point, a dot with such a line around it. The number stands in the upper left
// corner of the box, and beside the point. What lies outside of the image is left out.
void draw_mark(Image& image, std::span<const double> place, int64_t number);

} // namespace fvlm
