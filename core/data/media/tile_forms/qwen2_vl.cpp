#include "data/media/tile_forms/qwen2_vl.h"

#include "data/media/tile_forms/sizes.h"
#include "data/media/tile_forms/tile_form.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <string_view>

namespace fvlm {
namespace {

using namespace image_processors;

constexpr const char* qwen3_videos = "Qwen3VLVideoProcessor";

constexpr ProcessorClass of_videos(const char* type, int64_t patch, const std::array<double, 3>& mean,
                                   const std::array<double, 3>& deviation) {
  const int64_t cell = 4 * patch * patch;
  return {.type = type,
          .mean = mean,
          .deviation = deviation,
          .patch = patch,
          .min_pixels = 128 * cell,
          .max_pixels = 768 * cell,
          .is_of_videos = true};
}
constexpr ProcessorClass qwen2_vl_classes[]{{.type = "Qwen2VLImageProcessor"},
                                            of_videos("Qwen2VLVideoProcessor", 14, clip_mean, clip_deviation),
                                            of_videos(qwen3_videos, 16, half, half)};

void read_limits_of_videos(ProcessorReader& in) {
  constexpr int64_t most_tokens = 1 << 24;
  VideoProcessor& video = in.out.video.emplace();
  video.min_pixels = in.out.min_pixels;
  video.max_pixels = in.out.max_pixels;
  video.counts_all_frames = std::string_view(in.family->type) == qwen3_videos;
  const int64_t tokens = in.config.whole("max_video_tokens", video.counts_all_frames ? 768 : 128000, 1, most_tokens);
  if (in.config.flag("cap_pixels_per_frame", false)) video.max_tokens = tokens;
}

void read_qwen2_vl(ProcessorReader& in) {
  read_qwen2_vl_cells(in, 2);
  if (in.family->is_of_videos) read_limits_of_videos(in);
}

void cut_qwen2_vl(const ImageProcessor& processor, ImageSize image, CutSizes& sizes) {
  sizes::require_ratio(image);
  if (processor.resize == Resize::exact) return; // a frame of a video
  sizes.tiled = sizes::by_pixels(image, *processor.tile, processor.min_pixels, processor.max_pixels);
}

// The size of the frames of a video. Numbers are truncated where transformers does it.
ImageSize qwen2_vl_video(const ImageProcessor& processor, ImageSize frame, int64_t frames) {
  const VideoProcessor& video = *processor.video;
  const int64_t cell = *processor.tile, steps = processor.step_frames,
                least = static_cast<int64_t>(static_cast<double>(video.min_pixels) * 1.05);
  int64_t most = video.max_pixels;
  sizes::require_ratio(frame);
  if (!video.counts_all_frames) {
    if (video.max_tokens) {
      const auto all = static_cast<int64_t>(static_cast<double>(*video.max_tokens * cell * cell) * 0.9);
      most = std::max(std::min(most, all * steps / frames), least);
    }
    return sizes::by_pixels(frame, cell, video.min_pixels, most);
  }
  frames = std::max(frames, steps); // of one frame a step is made, too
  if (video.max_tokens) most = std::max(std::min(*video.max_tokens * cell * cell, most / frames), least) * frames;
  frame = sizes::of_a_cell_at_least(frame, cell);
  const auto padded =
      static_cast<int64_t>(std::nearbyint(static_cast<double>(frames) / static_cast<double>(steps))) * steps;
  return sizes::by_pixels(frame, cell, video.min_pixels, most, 0, frames, padded);
}

} // namespace

void read_qwen2_vl_cells(ProcessorReader& in, int64_t step_frames, int64_t merge_size) {
  const int64_t patch = in.config.square("patch_size", in.family->patch, 1, max_edge),
                merge = in.config.whole("merge_size", merge_size, 1, most_patches);
  in.out.step_frames = in.config.whole("temporal_patch_size", step_frames, 1, most_patches);
  in.out.splits_into_tiles = true;
  in.out.tile = patch * merge;
  in.require_whole_cells();
  in.config.refuse_unless(!in.config.flag("do_pad", false), "do_pad", "this processor does not pad");
  // Of the whole image. The limits beside 'size' go first, as in transformers.
  const auto limit = [&](const char* own, const char* in_size, int64_t otherwise) {
    if (in.config.has(own)) return in.config.whole(own, std::nullopt, 1, ProcessorOverrides::largest);
    if (!in.config.has("size")) return otherwise;
    const Json* found =
        in.json["size"].is_object() && in.json["size"].contains(in_size) ? &in.json["size"][in_size] : nullptr;
    const bool is_good = found && found->is_number_integer() && *found >= 1 && *found <= ProcessorOverrides::largest;
    if (!is_good)
      in.refuse("size", fmt::format("expected a '{}' of 1 to {} pixels", in_size, ProcessorOverrides::largest));
    return is_good ? found->get<int64_t>() : otherwise;
  };
  in.out.min_pixels = limit("min_pixels", "shortest_edge", in.family->min_pixels);
  in.out.max_pixels = limit("max_pixels", "longest_edge", in.family->max_pixels);
  if (in.out.min_pixels > in.out.max_pixels)
    in.config.problems().add("at least {} pixels are more than at most {}", in.out.min_pixels, in.out.max_pixels);
}

const TileFormRules qwen2_vl_rules{.classes = qwen2_vl_classes,
                                   .options = qwen2_vl_options,
                                   .read = read_qwen2_vl,
                                   .cut = cut_qwen2_vl,
                                   .has_videos = true,
                                   .has_pixel_limits = true,
                                   .video_size = qwen2_vl_video};

} // namespace fvlm
