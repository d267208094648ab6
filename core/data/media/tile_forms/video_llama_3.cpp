#include "data/media/tile_forms/qwen2_vl.h"
#include "data/media/tile_forms/sizes.h"
#include "data/media/tile_forms/tile_form.h"

namespace fvlm {
namespace {

using namespace image_processors;

constexpr ProcessorClass video_llama_3_classes[]{
    {.type = "VideoLlama3ImageProcessor", .mean = half, .deviation = half}};

// Each patch of an image is a cell.
void read_video_llama_3(ProcessorReader& in) {
  read_qwen2_vl_cells(in, 1, 1);
  in.config.refuse_unless(in.out.step_frames == 1, "temporal_patch_size", "this encoder reads single images: 1 is");
  in.config.refuse_unless(in.config.whole("merge_size", 1, 1, most_patches) == 1, "merge_size",
                          "each patch of an image becomes a row of the decoder: 1 is");
}

void cut_video_llama_3(const ImageProcessor& processor, ImageSize image, CutSizes& sizes) {
  sizes::require_ratio(image);
  sizes.tiled = sizes::by_pixels(image, *processor.tile, processor.min_pixels, processor.max_pixels);
}

} // namespace

const TileFormRules video_llama_3_rules{.classes = video_llama_3_classes,
                                        .options = qwen2_vl_options,
                                        .read = read_video_llama_3,
                                        .cut = cut_video_llama_3,
                                        .has_pixel_limits = true};

} // namespace fvlm
