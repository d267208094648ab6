#include "data/media/tile_forms/qwen2_vl.h"
#include "data/media/tile_forms/sizes.h"
#include "data/media/tile_forms/tile_form.h"

namespace fvlm {
namespace {

using namespace image_processors;

constexpr ProcessorClass hunyuan_classes[]{
    {.type = "HunYuanVLImageProcessor", .patch = 16, .min_pixels = 512 * 512, .max_pixels = 2048 * 2048}};
// The last one is an option of its processor of text and images together.
constexpr const char* hunyuan_options[]{"min_pixels", "max_pixels",         "patch_size",     "temporal_patch_size",
                                        "merge_size", "spatial_patch_size", "cat_extra_token"};

void read_hunyuan(ProcessorReader& in) {
  read_qwen2_vl_cells(in, 1);
  in.out.filter = in.family->filter; // whatever the config says
  in.config.refuse_unless(in.out.step_frames == 1, "temporal_patch_size", "this encoder reads single images: 1 is");
  in.config.refuse_unless(in.config.whole("spatial_patch_size", 1, 1, max_edge) == 1, "spatial_patch_size",
                          "a cell has one row: 1 is");
  in.config.refuse_unless(in.config.flag("cat_extra_token", true), "cat_extra_token",
                          "an image has a row before its cells and one behind them: true is");
}

void cut_hunyuan(const ImageProcessor& processor, ImageSize image, CutSizes& sizes) {
  sizes::require_ratio(image);
  sizes.tiled = sizes::by_pixels(image, *processor.tile, processor.min_pixels, processor.max_pixels);
}

} // namespace

const TileFormRules hunyuan_rules{.classes = hunyuan_classes,
                                  .options = hunyuan_options,
                                  .read = read_hunyuan,
                                  .cut = cut_hunyuan,
                                  .has_pixel_limits = true};

} // namespace fvlm
