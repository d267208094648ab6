#include "data/media/tile_forms/internvl.h"
#include "data/media/tile_forms/sizes.h"
#include "data/media/tile_forms/tile_form.h"

#include <algorithm>

namespace fvlm {
namespace {

using namespace image_processors;

constexpr ProcessorClass ovis2_classes[]{{.type = "Ovis2ImageProcessor", .resize = Resize::exact, .edge = 384}};
constexpr const char* ovis2_options[]{"crop_to_patches", "min_patches", "max_patches", "use_covering_area_grid"};

void read_ovis2(ProcessorReader& in) {
  read_square_tiles(in);
  in.out.tiles_cover = in.config.flag("use_covering_area_grid", true);
}

// The pixels of a region of an image that are left where it is shrunk to fit into a square. Its longer side alone is
// shortened, and the other in proportion.
double pixels_kept(int64_t width, int64_t height, int64_t side) {
  const auto [shorter, longer] = std::minmax(width, height);
  if (longer <= side) return static_cast<double>(longer * shorter);
  return static_cast<double>(side) *
         (static_cast<double>(shorter) / static_cast<double>(longer) * static_cast<double>(side));
}

// The share of the image's pixels that so many lines and columns of regions keep, each in a tile of its own. The last
// ones have what is left of a division without a remainder.
double share_kept(ImageSize image, ImageSize grid, int64_t tile) {
  const int64_t height = image.height / grid.height, width = image.width / grid.width;
  double kept = 0;
  for (int64_t line = 0; line < grid.height; ++line)
    for (int64_t column = 0; column < grid.width; ++column)
      kept += pixels_kept(column == grid.width - 1 ? image.width - column * width : width,
                          line == grid.height - 1 ? image.height - line * height : height, tile);
  return kept / static_cast<double>(image.width * image.height);
}

// Of the grids that keep more than nine tenths of the image's pixels the one with the fewest tiles, and of several the
// one that keeps the most; where none does, the one that keeps the most. As transformers has it, the lines of regions
// are then the columns of tiles: an image that is twice as wide as a tile has two lines of them.
ImageSize by_covered_area(ImageSize image, int64_t tile, int64_t max_tiles) {
  constexpr double enough = 0.9;
  ImageSize best{1, 1};
  double most = 0;
  for (int64_t tiles = 1; tiles <= max_tiles; ++tiles) {
    for (int64_t lines = 1; lines <= tiles; ++lines) {
      if (tiles % lines != 0) continue;
      const ImageSize grid{lines, tiles / lines};
      if (const double share = share_kept(image, grid, tile); share > most) most = share, best = grid;
    }
    if (most > enough) break;
  }
  return {best.width * tile, best.height * tile};
}

void cut_ovis2(const ImageProcessor& processor, ImageSize image, CutSizes& sizes) {
  sizes.tiled = processor.tiles_cover
                    ? by_covered_area(image, *processor.tile, processor.max_tiles)
                    : sizes::by_aspect_ratio(image, *processor.tile, processor.min_tiles, processor.max_tiles);
}

} // namespace

const TileFormRules ovis2_rules{
    .classes = ovis2_classes, .options = ovis2_options, .read = read_ovis2, .cut = cut_ovis2};

} // namespace fvlm
