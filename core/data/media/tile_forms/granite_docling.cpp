#include "data/media/tile_forms/internvl.h"
#include "data/media/tile_forms/sizes.h"
#include "data/media/tile_forms/tile_form.h"

#include <algorithm>

namespace fvlm {
namespace {

using namespace image_processors;

constexpr ProcessorClass docling_classes[]{
    {.type = "GraniteDoclingImageProcessor", .resize = Resize::exact, .edge = 512}};
constexpr const char* docling_options[]{"crop_to_patches",   "min_patches",     "max_patches",      "fine_route",
                                        "dense_max_patches", "dense_max_scale", "dense_min_aspect", "dense_max_aspect"};

void read_docling(ProcessorReader& in) {
  constexpr int64_t most_tiles = 256;
  constexpr double most = 1e6;
  read_square_tiles(in, 32, true);
  in.config.refuse_unless(!in.config.flag("fine_route", false), "fine_route",
                          "images have the rows of the coarse route: only false is");
  const SpreadTiles spread{
      in.config.whole("dense_max_patches", 0, 0, most_tiles), in.config.number("dense_max_scale", 0, 0, most),
      in.config.number("dense_min_aspect", 0, 0, most), in.config.number("dense_max_aspect", 0, 0, most)};
  if (spread.max_tiles > 0 && (spread.max_scale > 0 || spread.min_aspect > 0)) in.out.spread = spread;
}

ImageSize grid_of(const ImageProcessor& processor, ImageSize image, int64_t max_tiles) {
  constexpr int64_t max_side = 16; // there are no tokens for more
  return sizes::by_aspect_ratio(image, *processor.tile, std::min(processor.min_tiles, max_tiles), max_tiles, max_side);
}

bool is_spread(const ImageProcessor& processor, ImageSize image) {
  if (!processor.spread) return false;
  const SpreadTiles& rule = *processor.spread;
  const auto width = static_cast<double>(image.width);
  const double aspect = width / static_cast<double>(image.height);
  if (rule.min_aspect > 0 && aspect <= rule.min_aspect) return false;
  if (rule.max_aspect > 0 && aspect > rule.max_aspect) return false;
  return rule.max_scale <= 0 ||
         static_cast<double>(grid_of(processor, image, processor.max_tiles).width) / width < rule.max_scale;
}

void cut_docling(const ImageProcessor& processor, ImageSize, CutSizes& sizes) {
  const bool has_more = is_spread(processor, sizes.resized);
  sizes.tiled = grid_of(processor, sizes.resized, has_more ? processor.spread->max_tiles : processor.max_tiles);
}

} // namespace

const TileFormRules granite_docling_rules{
    .classes = docling_classes, .options = docling_options, .read = read_docling, .cut = cut_docling};

} // namespace fvlm
