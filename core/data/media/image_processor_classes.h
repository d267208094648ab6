// The image processors of transformers: their defaults, and the words of their configs.
#pragma once
#include "data/media/image_processor.h"

#include <array>
#include <optional>

namespace fvlm::image_processors {

using Resize = ImageProcessor::Resize;

inline constexpr int64_t max_edge = 1 << 14, most_patches = 64; // of a cell along each side
inline constexpr std::array<double, 3> clip_mean{0.48145466, 0.4578275, 0.40821073},
    clip_deviation{0.26862954, 0.26130258, 0.27577711}, half{0.5, 0.5, 0.5}, zero{0, 0, 0}, one{1, 1, 1};

// A class of image processors, with what holds where a config leaves an option out: CLIP's, unless it says otherwise.
struct ProcessorClass {
  const char* type;
  Resize resize = Resize::shortest_edge;
  int64_t edge = 224;
  ResizeFilter filter = ResizeFilter::bicubic;
  bool center_crop = false; // to `edge`
  int64_t tile = 0;         // 0: images are not cut as in Idefics3
  bool may_pad_to_square = false;
  std::optional<TileForm> tile_form = {}; // of InternVL, which calls tiles patches, and of LLaVA, which lists its grids
  const std::array<double, 3>&mean = clip_mean, &deviation = clip_deviation;

  // Of cells: what they are made of, and the limits of a video, 0 for images.
  int64_t patch = 14, min_pixels = 56 * 56, max_pixels = 28 * 28 * 1280;
  bool is_of_videos = false;

  constexpr bool has_patches() const { return tile_form == TileForm::internvl; }
  constexpr bool has_cells() const { return tile_form && fvlm::has_cells(*tile_form); }
  constexpr bool has_grids() const { return tile_form && !has_patches() && !has_cells(); }
};

inline constexpr ProcessorClass of_idefics3(const char* type, bool is_of_videos = false) {
  return {.type = type,
          .resize = Resize::longest_edge,
          .edge = 4 * 364,
          .filter = ResizeFilter::lanczos,
          .tile = 364,
          .mean = half,
          .deviation = half,
          .is_of_videos = is_of_videos};
}

inline constexpr ProcessorClass of_videos(const char* type, int64_t patch, const std::array<double, 3>& mean,
                                          const std::array<double, 3>& deviation) {
  const int64_t cell = 4 * patch * patch;
  return {.type = type,
          .tile_form = TileForm::qwen2_vl,
          .mean = mean,
          .deviation = deviation,
          .patch = patch,
          .min_pixels = 128 * cell,
          .max_pixels = 768 * cell,
          .is_of_videos = true};
}

inline constexpr auto bilinear = ResizeFilter::bilinear;
inline constexpr const char* qwen3_videos = "Qwen3VLVideoProcessor";

inline constexpr ProcessorClass families[]{
    {.type = "CLIPImageProcessor", .center_crop = true},
    {.type = "SiglipImageProcessor", .resize = Resize::exact, .mean = half, .deviation = half},
    {.type = "Gemma3ImageProcessor", .resize = Resize::exact, .filter = bilinear, .mean = half, .deviation = half},
    {.type = "BitImageProcessor", .center_crop = true},
    {.type = "LlavaImageProcessor", .center_crop = true, .may_pad_to_square = true},
    {.type = "LlavaNextImageProcessor", .center_crop = true, .tile_form = TileForm::llava_next},
    {.type = "LlavaOnevisionImageProcessor",
     .resize = Resize::exact,
     .edge = 384,
     .tile_form = TileForm::llava_onevision},
    of_idefics3("Idefics3ImageProcessor"),
    of_idefics3("SmolVLMImageProcessor"),
    {.type = "Qwen2VLImageProcessor", .tile_form = TileForm::qwen2_vl},
    {.type = "PaddleOCRVLImageProcessor",
     .tile_form = TileForm::paddleocr,
     .min_pixels = 384 * 384,
     .max_pixels = 1536 * 1536},
    {.type = "Glm46VImageProcessor",
     .tile_form = TileForm::glm,
     .min_pixels = 112 * 112,
     .max_pixels = 28 * 28 * 15000},
    {.type = "Glm4vImageProcessor", .tile_form = TileForm::glm, .min_pixels = 112 * 112, .max_pixels = 28 * 28 * 15000},
    {.type = "PixtralImageProcessor", .edge = 1024, .tile_form = TileForm::pixtral, .patch = 16},
    {.type = "Lfm2VlImageProcessor",
     .filter = ResizeFilter::bilinear,
     .tile_form = TileForm::lfm2_vl,
     .mean = half,
     .deviation = half,
     .patch = 16},
    {.type = "Gemma4ImageProcessor", .tile_form = TileForm::gemma4, .mean = zero, .deviation = one, .patch = 16},
    {.type = "GotOcr2ImageProcessor", .resize = Resize::exact, .edge = 384, .tile_form = TileForm::internvl},
    of_videos("Qwen2VLVideoProcessor", 14, clip_mean, clip_deviation),
    of_videos(qwen3_videos, 16, half, half),
    of_idefics3("SmolVLMVideoProcessor", true),
};

// Options that change no pixel come last.
inline constexpr std::array known_keys{
    "image_processor_type", "feature_extractor_type", "do_convert_rgb", "do_resize", "size", "resample",
    "default_to_square", "do_center_crop", "crop_size", "do_rescale", "rescale_factor", "do_normalize", "image_mean",
    "image_std", "do_pad", "pad_size", "do_image_splitting", "max_image_size", "data_format", "input_data_format",
    // of video, of the program that reads the config, and of text
    "video_sampling", "processor_class", "_valid_processor_keys", "return_tensors", "return_row_col_info", "device",
    "disable_grouping", "image_seq_length", "auto_map",
    // of InternVL and Gemma 3
    "crop_to_patches", "min_patches", "max_patches", "do_pan_and_scan", "pan_and_scan_min_crop_size",
    "pan_and_scan_max_num_crops", "pan_and_scan_min_ratio_to_activate",
    // of LLaVA-NeXT and LLaVA-OneVision
    "image_grid_pinpoints", "aspect_ratio_setting",
    // of Qwen2-VL, and the last one of PixtralProcessor and LightOnOcrProcessor
    "min_pixels", "max_pixels", "patch_size", "temporal_patch_size", "merge_size", "spatial_merge_size"};

// What a processor of videos has besides. Which frames are read is the engine's own choice, but for SmolVLM2.
inline constexpr std::array video_keys{"video_processor_type", "cap_pixels_per_frame", "max_video_tokens",
                                       "do_sample_frames",     "num_frames",           "fps",
                                       "min_frames",           "max_frames",           "max_duration",
                                       "return_metadata",      "video_metadata",       "use_token_compression",
                                       "max_image_size"};

// Of LFM2-VL, whose 'size' is not used, and of its processor of text and images together.
inline constexpr std::array lfm2_keys{
    "downsample_factor",       "min_tiles", "max_tiles",          "use_thumbnail",   "min_image_tokens",
    "max_image_tokens",        "tile_size", "encoder_patch_size", "max_num_patches", "max_pixels_tolerance",
    "use_image_special_tokens"};

// Of Gemma 4.
inline constexpr std::array gemma4_keys{"max_soft_tokens", "pooling_kernel_size"};

} // namespace fvlm::image_processors
