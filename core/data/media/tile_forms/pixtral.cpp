#include "base/error.h"
#include "data/media/image_processor_config.h"
#include "data/media/tile_forms/sizes.h"
#include "data/media/tile_forms/tile_form.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>

namespace fvlm {
namespace {

using namespace image_processors;

constexpr ProcessorClass pixtral_classes[]{{.type = "PixtralImageProcessor", .edge = 1024, .patch = 16}};
// The last one is an option of PixtralProcessor and LightOnOcrProcessor.
constexpr const char* pixtral_options[]{"patch_size", "spatial_merge_size"};

// `patch_size` is one number or an object with both sides, and `size` the longest sides that an image may have.
void read_pixtral(ProcessorReader& in) {
  int64_t patch = 0;
  ImageSize sides{in.family->patch, in.family->patch};
  const Json written = in.json.value("patch_size", Json());
  if (!written.is_null() && !in.exact_size(written, sides)) {
    if (!in.length(written, patch)) in.refuse("patch_size", fmt::format("expected one number of 1 to {}", max_edge));
    sides = {patch, patch};
  }
  if (sides.height != sides.width) in.refuse("patch_size", "patches are squares");
  if (is_of_lighton_ocr(in.json)) in.out.tile_form = TileForm::lighton_ocr;
  in.out.splits_into_tiles = true;
  in.out.tile = std::max<int64_t>(1, sides.height) * in.config.whole("spatial_merge_size", 1, 1, most_patches);
  in.require_whole_cells();
  in.out.size = {in.family->edge, in.family->edge};
  int64_t edge = 0;
  if (!in.config.has("size") || in.exact_size(in.json["size"], in.out.size)) return;
  const bool is_edge = in.length(in.json["size"], edge) ||
                       (in.json["size"].is_object() && in.sizes(in.json["size"], {{"longest_edge", &edge}}));
  if (!is_edge)
    in.refuse("size", fmt::format("expected 'longest_edge', or 'height' and 'width', of 1 to {} pixels", max_edge));
  in.out.size = {edge, edge};
}

// The size that fits in another, with both sides rounded up to multiples of a cell.
ImageSize by_longest_sides(ImageSize image, int64_t cell, ImageSize most) {
  const auto height = static_cast<double>(image.height), width = static_cast<double>(image.width),
             ratio = std::max(height / static_cast<double>(most.height), width / static_cast<double>(most.width));
  if (ratio > 1) image = {sizes::truncated(height / ratio), sizes::truncated(width / ratio)};
  if (image.height < 1 || image.width < 1)
    throw Error(ErrorKind::data,
                "an image of {:.0f} x {:.0f} pixels is too long and narrow: shrunk to {} x {}, it has "
                "no pixels",
                width, height, most.width, most.height)
        .advise("crop or pad images that are so long and narrow");
  return {sizes::multiple(image.height, cell), sizes::multiple(image.width, cell)};
}

void cut_pixtral(const ImageProcessor& processor, ImageSize image, CutSizes& sizes) {
  sizes.tiled = by_longest_sides(image, *processor.tile, processor.size);
}

} // namespace

const TileFormRules pixtral_rules{
    .classes = pixtral_classes, .options = pixtral_options, .read = read_pixtral, .cut = cut_pixtral};
// Its config names Pixtral's class, and read_pixtral() tells the two apart.
const TileFormRules lighton_ocr_rules{.options = pixtral_options, .read = read_pixtral, .cut = cut_pixtral};

} // namespace fvlm
