#include "data/media/draw.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <string_view>

namespace fvlm {
namespace {

constexpr MarkColor black{"black", {0, 0, 0}};
constexpr std::array<MarkColor, 8> colors{{{"red", {255, 40, 40}},
                                           {"green", {40, 220, 40}},
                                           {"blue", {60, 110, 255}},
                                           {"yellow", {255, 225, 0}},
                                           {"magenta", {255, 0, 255}},
                                           {"cyan", {0, 230, 230}},
                                           {"orange", {255, 140, 0}},
                                           {"white", {255, 255, 255}}}};

// Pixels from the first to the last, both included.
struct Area {
  int64_t left, top, right, bottom;
  Area grown(int64_t by) const { return {left - by, top - by, right + by, bottom + by}; }
};

void fill(Image& image, const Area& area, const MarkColor& color) {
  const int64_t right = std::min(area.right, image.width - 1), bottom = std::min(area.bottom, image.height - 1);
  for (int64_t y = std::max<int64_t>(area.top, 0); y <= bottom; ++y)
    for (int64_t x = std::max<int64_t>(area.left, 0); x <= right; ++x)
      std::ranges::copy(color.rgb, image.rgb.begin() + (y * image.width + x) * 3);
}

// The outermost `width` pixels of the area.
void outline(Image& image, const Area& area, int64_t width, const MarkColor& color) {
  const auto [left, top, right, bottom] = area;
  if (2 * width > std::min(right - left, bottom - top)) return fill(image, area, color);
  fill(image, {left, top, right, top + width - 1}, color);
  fill(image, {left, bottom - width + 1, right, bottom}, color);
  fill(image, {left, top, left + width - 1, bottom}, color);
  fill(image, {right - width + 1, top, right, bottom}, color);
}

constexpr int64_t digit_width = 3, digit_height = 5;
// By digit, row by row.
constexpr std::array<std::string_view, 10> digits{
    "#### ## ## ####", " # ##  #  # ###", "###  #####  ###", "###  ####  ####", "# ## ####  #  #",
    "####  ###  ####", "####  #### ####", "###  #  #  #  #", "#### ##### ####", "#### ####  ####"};

// Black digits on the color.
void draw_number(Image& image, int64_t left, int64_t top, int64_t number, const MarkColor& color) {
  const std::string text = fmt::format("{}", number);
  const int64_t scale = mark_width(image), step = (digit_width + 1) * scale;
  fill(image, {left, top, left + step * std::ssize(text) + scale - 1, top + (digit_height + 2) * scale - 1}, color);
  for (size_t i = 0; i < text.size(); ++i)
    for (int64_t pixel = 0; pixel < digit_width * digit_height; ++pixel) {
      if (digits[static_cast<size_t>(text[i] - '0')][static_cast<size_t>(pixel)] != '#') continue;
      const int64_t x = left + scale + step * static_cast<int64_t>(i) + pixel % digit_width * scale,
                    y = top + scale + pixel / digit_width * scale;
      fill(image, {x, y, x + scale - 1, y + scale - 1}, black);
    }
}

int64_t pixel_at(double place, int64_t size) {
  return std::clamp(static_cast<int64_t>(std::floor(place)), int64_t{0}, size - 1);
}

} // namespace

const MarkColor& mark_color(int64_t number) {
  return colors[static_cast<size_t>(number) % colors.size()];
}

int64_t mark_width(const Image& image) {
  constexpr int64_t pixels_a_line = 240;
  return 1 + std::max(image.width, image.height) / pixels_a_line;
}

void draw_mark(Image& image, std::span<const double> place, int64_t number) {
  const MarkColor& color = mark_color(number);
  const int64_t width = mark_width(image), x = pixel_at(place[0], image.width), y = pixel_at(place[1], image.height);
  if (place.size() == 2) {
    const Area dot = Area{x, y, x, y}.grown(width);
    fill(image, dot.grown(1), black);
    fill(image, dot, color);
    return draw_number(image, dot.right + 2, y, number, color);
  }
  const auto last = [](double end, int64_t begin, int64_t size) { // a box ends where its last pixel does
    return std::max(begin, pixel_at(std::ceil(end) - 1, size));
  };
  const Area box{x, y, last(place[2], x, image.width), last(place[3], y, image.height)};
  outline(image, box.grown(1), width + 2, black);
  outline(image, box, width, color);
  draw_number(image, x, y, number, color);
}

} // namespace fvlm
