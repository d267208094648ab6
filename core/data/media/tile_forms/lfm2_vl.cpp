#include "data/media/tile_forms/sizes.h"
#include "data/media/tile_forms/tile_form.h"

#include <fmt/format.h>

#include <algorithm>

namespace fvlm {
namespace {

using namespace image_processors;

constexpr ProcessorClass lfm2_vl_classes[]{
    {.type = "Lfm2VlImageProcessor", .filter = ResizeFilter::bilinear, .mean = half, .deviation = half, .patch = 16}};
// Its 'size' is not used. The last one is an option of its processor of text and images together.
constexpr const char* lfm2_vl_options[]{
    "do_image_splitting",   "downsample_factor",       "min_tiles", "max_tiles",          "use_thumbnail",
    "min_image_tokens",     "max_image_tokens",        "tile_size", "encoder_patch_size", "max_num_patches",
    "max_pixels_tolerance", "use_image_special_tokens"};

void read_lfm2_vl(ProcessorReader& in) {
  in.config.refuse_unless(in.config.flag("use_image_special_tokens", true), "use_image_special_tokens",
                          "images stand between tokens of their own");
  in.out.splits_into_tiles = true;
  in.require_whole_cells();
  constexpr int64_t most_tokens = 1 << 16, most_tiles = 1024;
  in.out.patch = in.config.whole("encoder_patch_size", 16, 1, max_edge);
  const int64_t cell = in.out.patch * in.config.whole("downsample_factor", 2, 1, most_patches);
  in.out.tile = cell;
  in.out.min_pixels = in.config.whole("min_image_tokens", 64, 1, most_tokens) * cell * cell;
  in.out.max_pixels = in.config.whole("max_image_tokens", 256, 1, most_tokens) * cell * cell;
  if (in.out.min_pixels > in.out.max_pixels)
    in.config.problems().add("'min_image_tokens' is more than 'max_image_tokens'");
  const int64_t tile = in.config.whole("tile_size", 512, 1, max_edge);
  in.out.min_tiles = in.config.whole("min_tiles", 2, 1, most_tiles);
  in.out.max_tiles = in.config.whole("max_tiles", 10, 1, most_tiles);
  const double tolerance = in.config.number("max_pixels_tolerance", 2, 1, 1e6);
  in.out.adds_whole = in.config.flag("use_thumbnail", true);
  if (!in.config.flag("do_image_splitting", true) || in.out.max_tiles == 1) return;
  in.config.refuse_unless(in.out.min_tiles > 1 && in.out.min_tiles <= in.out.max_tiles, "min_tiles",
                          "a large image is cut into several tiles: 2 to 'max_tiles' are");
  in.config.refuse_unless(tile % cell == 0, "tile_size",
                          fmt::format("a tile consists of cells: a multiple of {} is", cell));
  in.out.tile_cells = tile / cell;
  in.out.split_pixels = static_cast<double>(in.out.max_pixels) * tolerance;
}

// An image of more than `split_pixels` becomes the one of min_tiles to max_tiles tiles of tile_cells cells a side whose
// aspect ratio is closest, and with `adds_whole` the whole image behind them.
void cut_lfm2_vl(const ImageProcessor& processor, ImageSize image, CutSizes& sizes) {
  const int64_t cell = *processor.tile;
  const ImageSize alone = sizes::by_pixels(image, cell, processor.min_pixels, processor.max_pixels, cell);
  const auto pixels = static_cast<double>(std::max(processor.patch, sizes::rounded_to(image.height, cell)) *
                                          std::max(processor.patch, sizes::rounded_to(image.width, cell)));
  sizes.tiled = alone;
  if (processor.split_pixels == 0 || pixels <= processor.split_pixels) return;
  sizes.tiled = sizes::by_aspect_ratio(image, processor.tile_cells * cell, processor.min_tiles, processor.max_tiles);
  sizes.tile_cells = {processor.tile_cells, processor.tile_cells};
  if (processor.adds_whole) sizes.whole = alone;
}

} // namespace

const TileFormRules lfm2_vl_rules{
    .classes = lfm2_vl_classes, .options = lfm2_vl_options, .read = read_lfm2_vl, .cut = cut_lfm2_vl};

} // namespace fvlm
