#include "data/media/tile_forms/qwen2_vl.h"
#include "data/media/tile_forms/sizes.h"
#include "data/media/tile_forms/tile_form.h"

namespace fvlm {
namespace {

using namespace image_processors;

constexpr int64_t least_pixels = 112 * 112, most_pixels = 28 * 28 * 15000;
constexpr ProcessorClass glm_classes[]{
    {.type = "Glm46VImageProcessor", .min_pixels = least_pixels, .max_pixels = most_pixels},
    {.type = "Glm4vImageProcessor", .min_pixels = least_pixels, .max_pixels = most_pixels}};

void read_glm(ProcessorReader& in) {
  read_qwen2_vl_cells(in, 2);
}

// The limits are for as many copies of the image as the frames of a step.
void cut_glm(const ImageProcessor& processor, ImageSize image, CutSizes& sizes) {
  image = sizes::of_a_cell_at_least(image, *processor.tile);
  sizes::require_ratio(image);
  sizes.tiled = sizes::by_pixels(image, *processor.tile, processor.min_pixels, processor.max_pixels, 0,
                                 processor.step_frames, processor.step_frames);
}

} // namespace

const TileFormRules glm_rules{.classes = glm_classes, .options = qwen2_vl_options, .read = read_glm, .cut = cut_glm};

} // namespace fvlm
