#include "data/media/tile_forms/qwen2_vl.h"
#include "data/media/tile_forms/sizes.h"
#include "data/media/tile_forms/tile_form.h"

#include <cmath>

namespace fvlm {
namespace {

using namespace image_processors;

constexpr ProcessorClass paddleocr_classes[]{
    {.type = "PaddleOCRVLImageProcessor", .min_pixels = 384 * 384, .max_pixels = 1536 * 1536}};

void read_paddleocr(ProcessorReader& in) {
  read_qwen2_vl_cells(in, 1);
  in.config.refuse_unless(in.out.step_frames == 1, "temporal_patch_size", "this encoder reads single images: 1 is");
}

// In proportion, but for rounding, so that each side has a cell's length at least.
ImageSize of_a_rounded_cell_at_least(ImageSize image, int64_t cell) {
  const auto in_proportion = [cell](int64_t other, int64_t shorter) {
    return static_cast<int64_t>(std::nearbyint(static_cast<double>(other * cell) / static_cast<double>(shorter)));
  };
  if (image.height < cell) image = {cell, in_proportion(image.width, image.height)};
  if (image.width < cell) image = {in_proportion(image.height, image.width), cell};
  return image;
}

void cut_paddleocr(const ImageProcessor& processor, ImageSize image, CutSizes& sizes) {
  image = of_a_rounded_cell_at_least(image, *processor.tile);
  sizes::require_ratio(image);
  sizes.tiled = sizes::by_pixels(image, *processor.tile, processor.min_pixels, processor.max_pixels);
}

} // namespace

const TileFormRules paddleocr_rules{.classes = paddleocr_classes,
                                    .options = qwen2_vl_options,
                                    .read = read_paddleocr,
                                    .cut = cut_paddleocr,
                                    .has_pixel_limits = true};

} // namespace fvlm
