#include "data/media/tile_forms/sizes.h"
#include "data/media/tile_forms/tile_form.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace fvlm {
namespace {

using namespace image_processors;

constexpr ProcessorClass llava_next_classes[]{{.type = "LlavaNextImageProcessor", .center_crop = true}};
constexpr ProcessorClass llava_onevision_classes[]{
    {.type = "LlavaOnevisionImageProcessor", .resize = Resize::exact, .edge = 384}};
constexpr const char* grid_options[]{"image_grid_pinpoints"};

void read_grid_sizes(ProcessorReader& in) {
  constexpr size_t most_grids = 1024;
  // What transformers takes without any.
  Json sizes = {{336, 672}, {672, 336}, {672, 672}, {1008, 336}, {336, 1008}};
  if (in.out.tile_form == TileForm::llava_onevision) {
    sizes = Json::array();
    for (int64_t height = 384; height <= 2304; height += 384)
      for (int64_t width = 384; width <= 2304; width += 384) sizes.push_back({height, width});
  }
  if (in.config.has("image_grid_pinpoints")) sizes = in.json["image_grid_pinpoints"];
  const int64_t tile = std::max<int64_t>(*in.out.tile, 1);
  bool good = sizes.is_array() && !sizes.empty() && sizes.size() <= most_grids;
  for (const Json& each : good ? sizes : Json::array()) {
    ImageSize size;
    good = good && each.is_array() && in.exact_size(each, size) && size.height % tile == 0 && size.width % tile == 0;
    in.out.grids.push_back({size.height / tile, size.width / tile});
  }
  if (!good)
    in.refuse("image_grid_pinpoints", fmt::format("expected 1 to {} lists of a height and a width, multiples of the "
                                                  "{} pixels of a tile",
                                                  most_grids, tile));
}

void read_grids(ProcessorReader& in) {
  in.read_resize();
  in.out.splits_into_tiles = true;
  if (in.out.tile_form == TileForm::llava_onevision) in.out.padding_of_several = in.mean_color();
  const bool resizes = in.config.flag("do_resize", true);
  in.config.refuse_unless(resizes, "do_resize", "frames have one size");
  const ImageSize tile = in.out.resize == Resize::exact ? in.out.size : ImageSize{in.out.edge, in.out.edge};
  if (resizes && tile.height != tile.width)
    in.refuse("size", "expected equal 'height' and 'width': frames are squares");
  if (in.config.flag("do_center_crop", in.family->center_crop) && in.crop_size() != tile)
    in.refuse("crop_size", "tiles are as large as 'size' says");
  in.config.flag("do_pad", true); // adds empty frames to a batch, which models leave out
  in.out.tile = tile.height;
  in.out.resize = Resize::none;
  in.out.size = {};
  in.out.edge = 0;
  read_grid_sizes(in);
}

// Of grids in which the image keeps as many pixels, the smallest.
ImageSize by_kept_pixels(ImageSize image, int64_t tile, const std::vector<ImageSize>& grids) {
  const int64_t pixels = image.height * image.width;
  int64_t most = 0, least_rest = std::numeric_limits<int64_t>::max();
  ImageSize best;
  for (const ImageSize& grid : grids) {
    const ImageSize size{grid.height * tile, grid.width * tile};
    const double scale = std::min(static_cast<double>(size.width) / static_cast<double>(image.width),
                                  static_cast<double>(size.height) / static_cast<double>(image.height));
    const int64_t kept = std::min(pixels, sizes::truncated(static_cast<double>(image.width) * scale) *
                                              sizes::truncated(static_cast<double>(image.height) * scale)),
                  rest = size.height * size.width - kept;
    if (kept > most || (kept == most && rest < least_rest)) most = kept, least_rest = rest, best = size;
  }
  return best;
}

// The largest size that has the image's aspect ratio and fits into another.
ImageSize fitted(ImageSize image, ImageSize into) {
  const double by_width = static_cast<double>(into.width) / static_cast<double>(image.width),
               by_height = static_cast<double>(into.height) / static_cast<double>(image.height);
  const auto scaled = [](int64_t length, double scale, int64_t most) {
    return std::min(static_cast<int64_t>(std::ceil(static_cast<double>(length) * scale)), most);
  };
  return by_width < by_height ? ImageSize{scaled(image.height, by_width, into.height), into.width}
                              : ImageSize{into.height, scaled(image.width, by_height, into.width)};
}

// The image is resized to fit in the grid, with black margins on both sides.
void cut_into_grid(const ImageProcessor& processor, ImageSize image, CutSizes& sizes) {
  sizes.tiled = by_kept_pixels(image, *processor.tile, processor.grids);
  sizes.resized = fitted(image, sizes.tiled);
}

} // namespace

const TileFormRules llava_next_rules{
    .classes = llava_next_classes, .options = grid_options, .read = read_grids, .cut = cut_into_grid};
const TileFormRules llava_onevision_rules{
    .classes = llava_onevision_classes, .options = grid_options, .read = read_grids, .cut = cut_into_grid};

} // namespace fvlm
