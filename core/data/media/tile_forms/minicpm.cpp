#include "data/media/tile_forms/sizes.h"
#include "data/media/tile_forms/tile_form.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace fvlm {
namespace {

using namespace image_processors;

constexpr const char* ocr_type = "MiniCPMOcrImageProcessor";
constexpr ProcessorClass minicpm_classes[]{{.type = "MiniCPMV4_6ImageProcessor", .mean = half, .deviation = half},
                                           {.type = ocr_type, .mean = half, .deviation = half}};
constexpr const char* small_key = "small_image_upsize"; // of MiniCPM-OCR
// The last one is an option of its processor of text and images together.
constexpr const char* minicpm_options[]{"patch_size",      "max_slice_nums", "scale_resolution", "slice_mode",
                                        "downsample_mode", small_key,        "use_image_id"};

void read_minicpm(ProcessorReader& in) {
  constexpr int64_t most_tiles = 1024;
  constexpr const char* mode_key = "downsample_mode";
  const bool is_ocr = in.family->type == std::string_view(ocr_type);
  in.out.splits_into_tiles = true;
  in.require_whole_cells();
  const std::string mode = in.config.text(mode_key, is_ocr ? "4x" : "16x");
  in.config.refuse_unless(mode == "16x" || mode == "4x", mode_key, "16x and 4x are");
  in.out.tile = in.config.whole("patch_size", in.family->patch, 1, max_edge) * (mode == "4x" ? 2 : 4);
  in.out.edge = in.config.whole("scale_resolution", 448, 1, max_edge);
  in.out.max_tiles = in.config.whole("max_slice_nums", 9, 1, most_tiles);
  if (!in.config.flag("slice_mode", true)) in.out.max_tiles = 1;
  const std::string small = is_ocr ? in.config.text(small_key, "always") : "always";
  in.config.refuse_unless(small == "always" || small == "never", small_key,
                          "whether small images grow does not depend on their text: always and never are");
  in.out.keeps_small = small == "never";
  in.out.numbers_images = in.config.flag("use_image_id", true);
}

ImageSize in_cells(int64_t height, int64_t width, int64_t cell) {
  return {std::max(sizes::rounded_to(height, cell), cell), std::max(sizes::rounded_to(width, cell), cell)};
}

// The size in whole cells that has the image's aspect ratio, but for rounding, and the area of a square of `edge`.
ImageSize by_area(double height, double width, int64_t edge, int64_t cell) {
  const double ratio = width / height;
  const int64_t lines = sizes::truncated(static_cast<double>(edge) / std::sqrt(ratio)),
                columns = sizes::truncated(static_cast<double>(lines) * ratio);
  return in_cells(lines, columns, cell);
}

// The grid of about as many parts as the image is larger than a square of `edge`, of those with one part less or more
// the one whose aspect ratio is closest; nothing where the image is not larger.
std::optional<ImageSize> grid_of_parts(ImageSize image, int64_t edge, int64_t max_parts) {
  const auto height = static_cast<double>(image.height), width = static_cast<double>(image.width);
  const double log_ratio = std::log(width / height), times = width * height / static_cast<double>(edge * edge);
  const int64_t parts = std::min(sizes::truncated(std::min(std::ceil(times), 1e9)), max_parts);
  if (parts <= 1) return std::nullopt;
  ImageSize best{1, 1};
  double least = std::numeric_limits<double>::infinity();
  for (int64_t count = parts - 1; count <= std::min(parts + 1, max_parts); ++count)
    for (int64_t rows = 1; rows <= count && count > 1; ++rows) {
      if (count % rows != 0) continue;
      const ImageSize grid{rows, count / rows};
      const double error =
          std::abs(log_ratio - std::log(static_cast<double>(grid.width) / static_cast<double>(grid.height)));
      if (error < least || (error == least && rows > best.height)) best = grid;
      least = std::min(least, error);
    }
  return best;
}

// The image grows or shrinks to the area of a square of `edge`, or with `keeps_small` shrinks alone. One that is larger
// follows as a grid of up to max_tiles parts, each of which grows or shrinks to that area.
void cut_minicpm(const ImageProcessor& processor, ImageSize image, CutSizes& sizes) {
  const int64_t cell = *processor.tile, edge = processor.edge;
  sizes.tiled = by_area(static_cast<double>(image.height), static_cast<double>(image.width), edge, cell);
  if (processor.keeps_small && image.height * image.width <= edge * edge)
    sizes.tiled = in_cells(image.height, image.width, cell);
  const auto grid = grid_of_parts(image, edge, processor.max_tiles);
  if (!grid) return;
  const auto side = [](int64_t length, int64_t parts) {
    return static_cast<double>(std::max(sizes::rounded_to(length, parts), parts) / parts);
  };
  const ImageSize part = by_area(side(image.height, grid->height), side(image.width, grid->width), edge, cell);
  sizes.whole = std::exchange(sizes.tiled, {part.height * grid->height, part.width * grid->width});
  sizes.tile_cells = {part.height / cell, part.width / cell};
  sizes.is_whole_first = true;
}

} // namespace

const TileFormRules minicpm_rules{
    .classes = minicpm_classes, .options = minicpm_options, .read = read_minicpm, .cut = cut_minicpm};

} // namespace fvlm
