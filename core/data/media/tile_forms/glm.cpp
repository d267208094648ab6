#include "data/media/tile_forms/qwen2_vl.h"
#include "data/media/tile_forms/sizes.h"
#include "data/media/tile_forms/tile_form.h"

namespace fvlm {
namespace {

using namespace image_processors;

constexpr int64_t least_pixels = 112 * 112;
constexpr ProcessorClass of_images(const char* type) {
  return {.type = type, .min_pixels = least_pixels, .max_pixels = 28 * 28 * 15000};
}
constexpr ProcessorClass of_videos(const char* type) {
  return {.type = type, .min_pixels = least_pixels, .max_pixels = 28 * 28 * 60000, .is_of_videos = true};
}
constexpr ProcessorClass glm_classes[]{of_images("Glm46VImageProcessor"), of_videos("Glm46VVideoProcessor")},
    glm4v_classes[]{of_images("Glm4vImageProcessor"), of_videos("Glm4vVideoProcessor")};
// The last one changes nothing in transformers.
constexpr const char* glm_options[]{"min_pixels",          "max_pixels", "patch_size",
                                    "temporal_patch_size", "merge_size", "max_image_size"};

void read_glm(ProcessorReader& in) {
  read_qwen2_vl_cells(in, 2);
  if (in.family->is_of_videos)
    in.out.video =
        VideoProcessor{.min_pixels = in.out.min_pixels, .max_pixels = in.out.max_pixels, .counts_all_frames = true};
}

// The limits are for as many copies of the image as the frames of a step.
void cut_glm(const ImageProcessor& processor, ImageSize image, CutSizes& sizes) {
  image = sizes::of_a_cell_at_least(image, *processor.tile);
  sizes::require_ratio(image);
  if (processor.resize == Resize::exact) return; // a frame of a video
  sizes.tiled = sizes::by_pixels(image, *processor.tile, processor.min_pixels, processor.max_pixels, 0,
                                 processor.step_frames, processor.step_frames);
}

// The limits are for all frames of a video, of which there are as many as its steps have.
ImageSize glm_video(const ImageProcessor& processor, ImageSize frame, int64_t frames) {
  const int64_t cell = *processor.tile, together = processor.step_frames,
                shown = (frames + together - 1) / together * together;
  frame = sizes::of_a_cell_at_least(frame, cell);
  sizes::require_ratio(frame);
  return sizes::by_pixels(frame, cell, processor.video->min_pixels, processor.video->max_pixels, 0, shown, shown);
}

constexpr TileFormRules rules(std::span<const ProcessorClass> classes) {
  return {.classes = classes,
          .options = glm_options,
          .read = read_glm,
          .cut = cut_glm,
          .has_videos = true,
          .has_pixel_limits = true,
          .tells_first_time = true,
          .video_size = glm_video};
}

} // namespace

const TileFormRules glm_rules = rules(glm_classes), glm4v_rules = rules(glm4v_classes);

} // namespace fvlm
