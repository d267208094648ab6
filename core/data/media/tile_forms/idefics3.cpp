#include "data/media/tile_forms/sizes.h"
#include "data/media/tile_forms/tile_form.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace fvlm {
namespace {

using namespace image_processors;

constexpr ProcessorClass of_idefics3(const char* type, bool is_of_videos = false) {
  return {.type = type,
          .resize = Resize::longest_edge,
          .edge = 4 * 364,
          .filter = ResizeFilter::lanczos,
          .mean = half,
          .deviation = half,
          .is_of_videos = is_of_videos};
}
constexpr ProcessorClass idefics3_classes[]{of_idefics3("Idefics3ImageProcessor"), of_idefics3("SmolVLMImageProcessor"),
                                            of_idefics3("SmolVLMVideoProcessor", true)};
constexpr const char* idefics3_options[]{"max_image_size", "do_image_splitting"};

// Where 'size' and the size in 'video_sampling' are both there, transformers takes the first.
void read_video_sampling(ProcessorReader& in) {
  constexpr int64_t most_frames = 1 << 16;
  VideoProcessor::Sampling& sampling = in.out.video.emplace().sampling.emplace();
  if (in.out.resize != Resize::longest_edge) in.refuse("size", "frames of a video are resized by 'longest_edge'");
  sampling.edge = in.out.edge;
  const Json* found = in.config.object("video_sampling");
  if (!found) {
    sampling.per_second = in.config.number("fps", sampling.per_second, 1e-3, 1e3);
    sampling.max_frames = in.config.whole("num_frames", sampling.max_frames, 1, most_frames);
    return;
  }
  ConfigReader sampled(*found, in.config.where());
  constexpr std::array known{"fps", "max_frames", "video_size"};
  sampled.refuse_unknown(known);
  sampling.per_second = sampled.number("fps", std::nullopt, 1e-3, 1e3);
  sampling.max_frames = sampled.whole("max_frames", std::nullopt, 1, most_frames);
  const Json* size = sampled.object("video_size");
  if (!in.config.has("size") && (!size || !in.sizes(*size, {{"longest_edge", &sampling.edge}})))
    in.refuse("video_sampling", fmt::format("expected a 'video_size' with 'longest_edge' of 1 to {} pixels", max_edge));
  sampled.finish("change 'video_sampling'");
}

void read_idefics3(ProcessorReader& in) {
  in.read_resize();
  int64_t tile = 364;
  if (in.config.has("max_image_size") &&
      !(in.json["max_image_size"].is_object() && in.sizes(in.json["max_image_size"], {{"longest_edge", &tile}})))
    in.refuse("max_image_size", fmt::format("expected 'longest_edge' of 1 to {} pixels", max_edge));
  in.out.tile = tile;
  in.out.splits_into_tiles = in.config.flag("do_image_splitting", true);
  in.config.refuse_unless(!in.config.flag("do_center_crop", false), "do_center_crop", "this processor does not crop");
  in.config.flag("do_pad", true); // adds empty frames to a batch, which models leave out
  if (in.family->is_of_videos) read_video_sampling(in);
}

// Both sides become multiples of the tile.
void cut_idefics3(const ImageProcessor& processor, ImageSize, CutSizes& sizes) {
  const int64_t tile = *processor.tile;
  const ImageSize image = sizes.resized;
  const double ratio = static_cast<double>(image.width) / static_cast<double>(image.height);
  if (image.width >= image.height) {
    const int64_t width = sizes::multiple(image.width, tile);
    sizes.tiled = {sizes::multiple(sizes::truncated(static_cast<double>(width) / ratio), tile), width};
  } else {
    const int64_t height = sizes::multiple(image.height, tile);
    sizes.tiled = {height, sizes::multiple(sizes::truncated(static_cast<double>(height) * ratio), tile)};
  }
}

} // namespace

const TileFormRules idefics3_rules{.classes = idefics3_classes,
                                   .options = idefics3_options,
                                   .read = read_idefics3,
                                   .cut = cut_idefics3,
                                   .whole_is_of_tiles = true,
                                   .has_videos = true};

} // namespace fvlm
