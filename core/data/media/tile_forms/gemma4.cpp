#include "data/media/tile_forms/tile_form.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace fvlm {
namespace {

using namespace image_processors;

// Its models read values from 0 to 1, of which they make values from -1 to 1 themselves.
constexpr ProcessorClass gemma4_classes[]{{.type = "Gemma4ImageProcessor",
                                           .mean = zero,
                                           .deviation = one,
                                           .normalizes = false,
                                           .to_both_signs = true,
                                           .patch = 16}};
constexpr const char* gemma4_options[]{"patch_size", "max_soft_tokens", "pooling_kernel_size"};

void read_gemma4(ProcessorReader& in) {
  in.out.splits_into_tiles = true;
  in.require_whole_cells();
  const int64_t cell = in.config.whole("patch_size", in.family->patch, 1, max_edge) *
                       in.config.whole("pooling_kernel_size", 3, 1, most_patches),
                tokens = in.config.whole("max_soft_tokens", 280, 1, 1120);
  constexpr std::array<int64_t, 5> choices{70, 140, 280, 560, 1120};
  in.config.refuse_unless(std::ranges::count(choices, tokens) > 0, "max_soft_tokens",
                          fmt::format("one of {} is", fmt::join(choices, ", ")));
  in.out.tile = cell;
  in.out.max_pixels = tokens * cell * cell;
}

// The largest size of whole cells that has the image's aspect ratio, but for rounding, and at most so many pixels.
ImageSize by_most_pixels(ImageSize image, int64_t cell, int64_t max_pixels) {
  const auto height = static_cast<double>(image.height), width = static_cast<double>(image.width),
             scale = std::sqrt(static_cast<double>(max_pixels) / (height * width));
  const auto cells = [&](double length) {
    return static_cast<int64_t>(std::floor(length * scale / static_cast<double>(cell)));
  };
  ImageSize size{cells(height), cells(width)};
  // Narrower than a cell.
  const int64_t longest = max_pixels / (cell * cell);
  if (size.height == 0) size = {1, std::min(image.width / image.height, longest)};
  if (size.width == 0) size = {std::min(image.height / image.width, longest), 1};
  return {size.height * cell, size.width * cell};
}

void cut_gemma4(const ImageProcessor& processor, ImageSize image, CutSizes& sizes) {
  sizes.tiled = by_most_pixels(image, *processor.tile, processor.max_pixels);
}

} // namespace

const TileFormRules gemma4_rules{
    .classes = gemma4_classes, .options = gemma4_options, .read = read_gemma4, .cut = cut_gemma4};

} // namespace fvlm
