// What the configs of transformers' image processors may say.
#include "data/media/image_processor_config.h"

#include "base/error.h"
#include "data/media/image_processor_reader.h"
#include "data/media/tile_forms/tile_form.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

namespace fvlm {
namespace {

using namespace image_processors;

// Of images that are not cut.
constexpr ProcessorClass whole_classes[]{
    {.type = "CLIPImageProcessor", .center_crop = true},
    {.type = "SiglipImageProcessor", .resize = Resize::exact, .mean = half, .deviation = half},
    {.type = "Gemma3ImageProcessor",
     .resize = Resize::exact,
     .filter = ResizeFilter::bilinear,
     .mean = half,
     .deviation = half},
    {.type = "BitImageProcessor", .center_crop = true},
    {.type = "LlavaImageProcessor", .center_crop = true, .may_pad_to_square = true},
    {.type = "DeepseekVLImageProcessor", .resize = Resize::into_square, .edge = 384},
};
// Of the last one.
constexpr const char* into_square_options[]{"min_size", "background_color"};

// Options of all, and such as change no pixel.
constexpr const char* common_options[]{
    "image_processor_type", "feature_extractor_type", "do_convert_rgb", "do_resize", "size", "resample",
    "default_to_square", "do_center_crop", "crop_size", "do_rescale", "rescale_factor", "do_normalize", "image_mean",
    "image_std", "do_pad", "pad_size", "data_format", "input_data_format",
    // of video, of the program that reads the config, and of text
    "video_sampling", "processor_class", "_valid_processor_keys", "return_tensors", "return_row_col_info", "device",
    "disable_grouping", "image_seq_length", "auto_map", "use_fast", "transformers_version", "_name_or_path",
    "_processor_class",
    // of Gemma 3, and of LLaVA-NeXT and LLaVA-OneVision
    "do_pan_and_scan", "pan_and_scan_min_crop_size", "pan_and_scan_max_num_crops", "pan_and_scan_min_ratio_to_activate",
    "aspect_ratio_setting"};

// What a processor of videos has besides. Which frames are read is the engine's own choice, but for SmolVLM2.
constexpr const char* video_options[]{"video_processor_type", "cap_pixels_per_frame", "max_video_tokens",
                                      "do_sample_frames",     "num_frames",           "fps",
                                      "min_frames",           "max_frames",           "max_duration",
                                      "return_metadata",      "video_metadata",       "use_token_compression"};

// As transformers calls it today.
std::string class_in(ConfigReader& config, bool of_videos) {
  std::string type = config.text("image_processor_type", "");
  if (of_videos) {
    constexpr std::string_view images = "ImageProcessor";
    if (const size_t at = type.find(images); at != std::string::npos) type.replace(at, images.size(), "VideoProcessor");
    type = config.text("video_processor_type", type);
  }
  if (type.empty()) { // the name of such classes before transformers 4.26
    type = config.text("feature_extractor_type", "");
    constexpr std::string_view ending = "FeatureExtractor";
    if (type.ends_with(ending)) type.replace(type.size() - ending.size(), ending.size(), "ImageProcessor");
  }
  constexpr std::string_view fast = "Fast";
  if (type.ends_with(fast)) type.resize(type.size() - fast.size());
  return type;
}

// Sets the reader's class. Nothing: of images that are not cut.
std::optional<TileForm> find_class(ProcessorReader& in, bool of_videos) {
  const std::string type = class_in(in.config, of_videos);
  std::vector<std::string> names;
  const auto find = [&](std::span<const ProcessorClass> classes) {
    for (const ProcessorClass& each : classes) {
      if (each.is_of_videos != of_videos) continue;
      names.emplace_back(each.type);
      if (type == each.type) in.family = &each;
    }
    return in.family != nullptr;
  };
  if (find(whole_classes)) return std::nullopt;
  for (const TileForm form : all_tile_forms())
    if (find(rules_of(form).classes)) return form;
  const char* what = of_videos ? "video" : "image";
  throw Error(ErrorKind::data, type.empty() ? fmt::format("'{}_processor_type' is missing", what)
                                            : fmt::format("the {} processor '{}' is not supported", what, type))
      .at(in.config.where())
      .advise("supported are {}", fmt::join(names, ", "));
}

void refuse_options_of_others(ProcessorReader& in, std::span<const char* const> own, bool of_videos) {
  std::vector<const char*> known(std::begin(common_options), std::end(common_options));
  if (of_videos) known.insert(known.end(), std::begin(video_options), std::end(video_options));
  known.insert(known.end(), own.begin(), own.end());
  for (const TileForm form : all_tile_forms())
    for (const char* key : rules_of(form).options) {
      const auto is_it = [&](std::string_view other) { return other == key; };
      if (std::ranges::any_of(known, is_it)) continue;
      known.push_back(key);
      in.config.refuse_unless(!in.config.has(key), key, "this processor has no such option");
    }
  in.config.refuse_unknown(known);
}

} // namespace

bool is_of_lighton_ocr(const nlohmann::json& config) {
  const auto word = config.find("processor_class");
  return word != config.end() && (*word == "LightOnOcrProcessor" || *word == "LightOnOCRProcessor");
}

ImageProcessor image_processor_of(const nlohmann::json& config, const std::string& where, bool of_videos) {
  ProcessorReader in(config, where);
  const std::optional<TileForm> form = find_class(in, of_videos);
  const bool is_into_square = in.family->resize == Resize::into_square;
  std::span<const char* const> own;
  if (form) own = rules_of(*form).options;
  if (is_into_square) own = into_square_options;
  refuse_options_of_others(in, own, of_videos);
  in.read_filter();
  if (form) {
    in.out.tile_form = *form;
    rules_of(*form).read(in);
  } else if (is_into_square) {
    in.read_into_square();
  } else {
    in.read_resize();
    in.read_crop();
  }
  in.read_values();
  ConfigReader& reader = in.config;
  reader.refuse_unless(reader.flag("do_convert_rgb", true), "do_convert_rgb", "encoders read RGB images");
  reader.refuse_unless(reader.text("data_format", "channels_first") == "channels_first", "data_format",
                       "frames are [channels, height, width]");
  reader.refuse_unless(!reader.has("pad_size"), "pad_size", "images are only padded to a square");
  reader.refuse_unless(!reader.has("input_data_format"), "input_data_format", "images come from files");
  reader.refuse_unless(!reader.flag("do_pan_and_scan", false), "do_pan_and_scan",
                       "an image is one frame; set it to false");
  reader.finish("change the option, or take another image processor: images would not be what the model was trained "
                "on");
  return in.out;
}

} // namespace fvlm
