// What the configs of transformers' image processors may say.
#include "data/media/image_processor_config.h"

#include "base/config_reader.h"
#include "base/error.h"
#include "data/media/image_processor_classes.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <string>
#include <vector>

namespace fvlm {
namespace {

using namespace image_processors;
using Json = nlohmann::json;

// transformers reads null as if the option were left out.
Json without_nulls(const Json& object) {
  Json out = Json::object();
  for (const auto& [key, value] : object.items())
    if (!value.is_null()) out[key] = value;
  return out;
}

class Reader {
 public:
  Reader(const Json& config, const std::string& where) : config_(without_nulls(config)), reader_(config_, where) {}

  ImageProcessor read(bool of_videos) {
    family_ = &find_family(of_videos);
    std::vector<const char*> known(known_keys.begin(), known_keys.end());
    if (of_videos) known.insert(known.end(), video_keys.begin(), video_keys.end());
    const bool is_of_lfm2 = family_->tile_form == TileForm::lfm2_vl;
    if (is_of_lfm2) known.insert(known.end(), lfm2_keys.begin(), lfm2_keys.end());
    const bool is_of_gemma4 = family_->tile_form == TileForm::gemma4;
    if (is_of_gemma4) known.insert(known.end(), gemma4_keys.begin(), gemma4_keys.end());
    reader_.refuse_unknown(known);
    read_filter();
    if (family_->tile_form == TileForm::pixtral) {
      read_cells_of_pixtral();
    } else if (is_of_lfm2) {
      read_cells_of_lfm2();
    } else if (is_of_gemma4) {
      read_cells_of_gemma4();
    } else if (family_->has_cells()) {
      read_cells();
    } else {
      read_resize();
      read_crop_and_tiles();
    }
    read_values();
    if (is_of_gemma4) to_both_signs();
    reader_.refuse_unless(reader_.flag("do_convert_rgb", true), "do_convert_rgb", "encoders read RGB images");
    reader_.refuse_unless(reader_.text("data_format", "channels_first") == "channels_first", "data_format",
                          "frames are [channels, height, width]");
    reader_.refuse_unless(!reader_.has("input_data_format"), "input_data_format", "images come from files");
    reader_.refuse_unless(!reader_.flag("do_pan_and_scan", false), "do_pan_and_scan",
                          "an image is one frame; set it to false");
    if (of_videos && family_->has_cells()) read_limits_of_videos();
    if (of_videos && !family_->has_cells()) read_sampling();
    reader_.finish("change the option, or take another image processor: images would not be what the model was "
                   "trained on");
    return out_;
  }

 private:
  const ProcessorClass& find_family(bool of_videos) {
    std::string type = reader_.text("image_processor_type", "");
    if (of_videos) {
      constexpr std::string_view images = "ImageProcessor";
      if (const size_t at = type.find(images); at != std::string::npos)
        type.replace(at, images.size(), "VideoProcessor");
      type = reader_.text("video_processor_type", type);
    }
    if (type.empty()) { // the name of such classes before transformers 4.26
      type = reader_.text("feature_extractor_type", "");
      constexpr std::string_view ending = "FeatureExtractor";
      if (type.ends_with(ending)) type.replace(type.size() - ending.size(), ending.size(), "ImageProcessor");
    }
    constexpr std::string_view fast = "Fast";
    if (type.ends_with(fast)) type.resize(type.size() - fast.size());
    std::vector<std::string> names;
    for (const ProcessorClass& family : families) {
      if (family.is_of_videos != of_videos) continue;
      if (type == family.type) return family;
      names.emplace_back(family.type);
    }
    const char* what = of_videos ? "video" : "image";
    throw Error(ErrorKind::data, type.empty() ? fmt::format("'{}_processor_type' is missing", what)
                                              : fmt::format("the {} processor '{}' is not supported", what, type))
        .at(reader_.where())
        .advise("supported are {}", fmt::join(names, ", "));
  }

  void refuse(const char* key, const std::string& expected) { reader_.refuse_unless(false, key, expected); }

  // The sizes of an object that has exactly these keys.
  bool sizes(const Json& object, std::initializer_list<std::pair<const char*, int64_t*>> keys) {
    const Json present = without_nulls(object);
    if (present.size() != keys.size()) return false;
    for (const auto& [key, out] : keys) {
      const auto found = present.find(key);
      if (found == present.end() || !length(*found, *out)) return false;
    }
    return true;
  }
  static bool length(const Json& value, int64_t& out) {
    if (!value.is_number_integer() || value < 1 || value > max_edge) return false;
    out = value.get<int64_t>();
    return true;
  }
  // [height, width] or an object of both.
  bool exact_size(const Json& value, ImageSize& out) {
    if (value.is_array()) return value.size() == 2 && length(value[0], out.height) && length(value[1], out.width);
    return value.is_object() && sizes(value, {{"height", &out.height}, {"width", &out.width}});
  }

  void read_filter() {
    constexpr ResizeFilter filters[]{ResizeFilter::lanczos, ResizeFilter::bilinear, ResizeFilter::bicubic};
    const int64_t resample = reader_.has("resample") ? reader_.whole("resample", std::nullopt, 0, 5) : -1;
    reader_.refuse_unless(resample == -1 || (resample >= 1 && resample <= 3), "resample",
                          "1 (Lanczos), 2 (bilinear) and 3 (bicubic) are supported");
    out_.filter = resample >= 1 && resample <= 3 ? filters[resample - 1] : family_->filter;
  }

  void read_resize() {
    const bool to_square = reader_.flag("default_to_square", false);
    if (!reader_.flag("do_resize", true)) return;
    out_.resize = family_->resize;
    out_.edge = family_->edge;
    out_.size = {family_->edge, family_->edge};
    if (reader_.has("size")) read_size(config_["size"], to_square);
    if (out_.resize != Resize::exact) out_.size = {};
    if (out_.resize == Resize::exact) out_.edge = 0;
  }

  void read_size(const Json& size, bool to_square) {
    int64_t edge = 0;
    ImageSize exact;
    if (exact_size(size, exact)) {
      out_.resize = Resize::exact;
      out_.size = exact;
    } else if (length(size, edge)) {
      out_.resize = to_square ? Resize::exact : Resize::shortest_edge;
      out_.edge = edge;
      out_.size = {edge, edge};
    } else if (!family_->tile && size.is_object() && sizes(size, {{"shortest_edge", &edge}})) {
      out_.resize = Resize::shortest_edge;
      out_.edge = edge;
    } else if (family_->tile && size.is_object() && sizes(size, {{"longest_edge", &edge}})) {
      out_.resize = Resize::longest_edge;
      out_.edge = edge;
    } else {
      refuse("size", fmt::format("expected 'height' and 'width', or '{}' alone, of 1 to {} pixels",
                                 family_->tile ? "longest_edge" : "shortest_edge", max_edge));
    }
    if (family_->tile && out_.resize == Resize::shortest_edge) refuse("size", "expected an object with 'longest_edge'");
  }

  void read_crop_and_tiles() {
    for (const char* key : {"crop_to_patches", "min_patches", "max_patches"})
      reader_.refuse_unless(family_->has_patches() || !reader_.has(key), key,
                            "this processor does not cut images into patches");
    reader_.refuse_unless(family_->has_grids() || !reader_.has("image_grid_pinpoints"), "image_grid_pinpoints",
                          "this processor does not cut images into grids");
    for (const char* key :
         {"min_pixels", "max_pixels", "patch_size", "temporal_patch_size", "merge_size", "spatial_merge_size"})
      reader_.refuse_unless(!reader_.has(key), key, "this processor does not cut images into cells");
    if (family_->tile) {
      int64_t tile = family_->tile;
      if (reader_.has("max_image_size") &&
          !(config_["max_image_size"].is_object() && sizes(config_["max_image_size"], {{"longest_edge", &tile}})))
        refuse("max_image_size", fmt::format("expected 'longest_edge' of 1 to {} pixels", max_edge));
      out_.tile = tile;
      out_.splits_into_tiles = reader_.flag("do_image_splitting", true);
      reader_.refuse_unless(!reader_.flag("do_center_crop", false), "do_center_crop", "this processor does not crop");
      reader_.flag("do_pad", true); // adds empty frames to a batch, which models leave out
      return;
    }
    for (const char* key : {"max_image_size", "do_image_splitting"})
      reader_.refuse_unless(!reader_.has(key), key, "this processor does not cut images");
    reader_.refuse_unless(!reader_.has("pad_size"), "pad_size", "images are only padded to a square");
    if (family_->has_patches()) return read_patches();
    if (family_->has_grids()) return read_grids();
    const bool pad = reader_.flag("do_pad", false);
    reader_.refuse_unless(!pad || family_->may_pad_to_square, "do_pad", "only LlavaImageProcessor pads images");
    if (pad && family_->may_pad_to_square) out_.square_padding = mean_color();
    if (reader_.flag("do_center_crop", family_->center_crop)) out_.center_crop = crop_size();
  }

  std::array<uint8_t, 3> mean_color() {
    std::array<uint8_t, 3> color{};
    const std::array<double, 3> mean = channels("image_mean", family_->mean, 0, 1);
    for (size_t i = 0; i < 3; ++i) color[i] = static_cast<uint8_t>(mean[i] * 255);
    return color;
  }

  ImageSize crop_size() {
    ImageSize crop{family_->edge, family_->edge};
    int64_t edge = 0;
    if (reader_.has("crop_size")) {
      if (length(config_["crop_size"], edge))
        crop = {edge, edge};
      else if (!exact_size(config_["crop_size"], crop))
        refuse("crop_size", fmt::format("expected 'height' and 'width' of 1 to {} pixels", max_edge));
    } else if (!family_->center_crop) {
      refuse("do_center_crop", "'crop_size' is missing");
    }
    return crop;
  }

  void read_patches() {
    constexpr int64_t most_patches = 256;
    out_.tile_form = TileForm::internvl;
    out_.min_tiles = reader_.whole("min_patches", 1, 1, most_patches);
    out_.max_tiles = reader_.whole("max_patches", 12, 1, most_patches);
    const bool resizes = reader_.flag("do_resize", true);
    reader_.refuse_unless(resizes, "do_resize", "frames have one size");
    if (resizes && (out_.resize != Resize::exact || out_.size.height != out_.size.width))
      refuse("size", "expected equal 'height' and 'width': frames are squares");
    for (const char* key : {"do_center_crop", "do_pad"})
      reader_.refuse_unless(!reader_.flag(key, false), key, "this processor does neither crop nor pad");
    out_.tile = out_.size.height;
    out_.size = {};
    out_.resize = Resize::none;
    // transformers' InternVLProcessor cuts images whatever the image processor's own setting is.
    const bool crops = reader_.flag("crop_to_patches", false);
    out_.splits_into_tiles =
        (crops || reader_.text("processor_class", "") == "InternVLProcessor") && out_.max_tiles > 1;
  }

  void read_grids() {
    out_.tile_form = *family_->tile_form;
    out_.splits_into_tiles = true;
    if (out_.tile_form == TileForm::llava_onevision) out_.padding_of_several = mean_color();
    const bool resizes = reader_.flag("do_resize", true);
    reader_.refuse_unless(resizes, "do_resize", "frames have one size");
    const ImageSize tile = out_.resize == Resize::exact ? out_.size : ImageSize{out_.edge, out_.edge};
    if (resizes && tile.height != tile.width) refuse("size", "expected equal 'height' and 'width': frames are squares");
    if (reader_.flag("do_center_crop", family_->center_crop) && crop_size() != tile)
      refuse("crop_size", "tiles are as large as 'size' says");
    reader_.flag("do_pad", true); // adds empty frames to a batch, which models leave out
    out_.tile = tile.height;
    out_.resize = Resize::none;
    out_.size = {};
    out_.edge = 0;
    read_grid_sizes();
  }

  void read_grid_sizes() {
    constexpr size_t most_grids = 1024;
    // What transformers takes without any.
    Json sizes = {{336, 672}, {672, 336}, {672, 672}, {1008, 336}, {336, 1008}};
    if (out_.tile_form == TileForm::llava_onevision) {
      sizes = Json::array();
      for (int64_t height = 384; height <= 2304; height += 384)
        for (int64_t width = 384; width <= 2304; width += 384) sizes.push_back({height, width});
    }
    if (reader_.has("image_grid_pinpoints")) sizes = config_["image_grid_pinpoints"];
    const int64_t tile = std::max<int64_t>(*out_.tile, 1);
    bool good = sizes.is_array() && !sizes.empty() && sizes.size() <= most_grids;
    for (const Json& each : good ? sizes : Json::array()) {
      ImageSize size;
      good = good && each.is_array() && exact_size(each, size) && size.height % tile == 0 && size.width % tile == 0;
      out_.grids.push_back({size.height / tile, size.width / tile});
    }
    if (!good)
      refuse("image_grid_pinpoints", fmt::format("expected 1 to {} lists of a height and a width, multiples of the "
                                                 "{} pixels of a tile",
                                                 most_grids, tile));
  }

  // `patch_size` is one number or an object with both sides, and `size` the longest sides that an image may have.
  void read_cells_of_pixtral() {
    int64_t patch = 0;
    ImageSize sides{family_->patch, family_->patch};
    const Json written = config_.value("patch_size", Json());
    if (!written.is_null() && !exact_size(written, sides)) {
      if (!length(written, patch)) refuse("patch_size", fmt::format("expected one number of 1 to {}", max_edge));
      sides = {patch, patch};
    }
    if (sides.height != sides.width) refuse("patch_size", "patches are squares");
    for (const char* key : {"min_pixels", "max_pixels", "temporal_patch_size", "merge_size"})
      reader_.refuse_unless(!reader_.has(key), key, "this processor has no such option");
    out_.tile_form = is_of_lighton_ocr(config_) ? TileForm::lighton_ocr : TileForm::pixtral;
    out_.splits_into_tiles = true;
    out_.tile = std::max<int64_t>(1, sides.height) * reader_.whole("spatial_merge_size", 1, 1, most_patches);
    require_whole_cells();
    out_.size = {family_->edge, family_->edge};
    int64_t edge = 0;
    if (!reader_.has("size") || exact_size(config_["size"], out_.size)) return;
    const bool is_edge = length(config_["size"], edge) ||
                         (config_["size"].is_object() && sizes(config_["size"], {{"longest_edge", &edge}}));
    if (!is_edge)
      refuse("size", fmt::format("expected 'longest_edge', or 'height' and 'width', of 1 to {} pixels", max_edge));
    out_.size = {edge, edge};
  }

  void read_cells_of_lfm2() {
    for (const char* key : {"min_pixels", "max_pixels", "patch_size", "temporal_patch_size", "merge_size"})
      reader_.refuse_unless(!reader_.has(key), key, "this processor has no such option");
    reader_.refuse_unless(reader_.flag("use_image_special_tokens", true), "use_image_special_tokens",
                          "images stand between tokens of their own");
    out_.tile_form = TileForm::lfm2_vl;
    out_.splits_into_tiles = true;
    require_whole_cells();
    constexpr int64_t most_tokens = 1 << 16, most_tiles = 1024;
    out_.patch = reader_.whole("encoder_patch_size", 16, 1, max_edge);
    const int64_t cell = out_.patch * reader_.whole("downsample_factor", 2, 1, most_patches);
    out_.tile = cell;
    out_.min_pixels = reader_.whole("min_image_tokens", 64, 1, most_tokens) * cell * cell;
    out_.max_pixels = reader_.whole("max_image_tokens", 256, 1, most_tokens) * cell * cell;
    if (out_.min_pixels > out_.max_pixels) reader_.problems().add("'min_image_tokens' is more than 'max_image_tokens'");
    const int64_t tile = reader_.whole("tile_size", 512, 1, max_edge);
    out_.min_tiles = reader_.whole("min_tiles", 2, 1, most_tiles);
    out_.max_tiles = reader_.whole("max_tiles", 10, 1, most_tiles);
    const double tolerance = reader_.number("max_pixels_tolerance", 2, 1, 1e6);
    out_.adds_whole = reader_.flag("use_thumbnail", true);
    if (!reader_.flag("do_image_splitting", true) || out_.max_tiles == 1) return;
    reader_.refuse_unless(out_.min_tiles > 1 && out_.min_tiles <= out_.max_tiles, "min_tiles",
                          "a large image is cut into several tiles: 2 to 'max_tiles' are");
    reader_.refuse_unless(tile % cell == 0, "tile_size",
                          fmt::format("a tile consists of cells: a multiple of {} is", cell));
    out_.tile_cells = tile / cell;
    out_.split_pixels = static_cast<double>(out_.max_pixels) * tolerance;
  }

  void read_cells_of_gemma4() {
    for (const char* key : {"min_pixels", "max_pixels", "temporal_patch_size", "merge_size", "spatial_merge_size"})
      reader_.refuse_unless(!reader_.has(key), key, "this processor has no such option");
    out_.tile_form = TileForm::gemma4;
    out_.splits_into_tiles = true;
    require_whole_cells();
    const int64_t cell = reader_.whole("patch_size", family_->patch, 1, max_edge) *
                         reader_.whole("pooling_kernel_size", 3, 1, most_patches),
                  tokens = reader_.whole("max_soft_tokens", 280, 1, 1120);
    constexpr std::array<int64_t, 5> choices{70, 140, 280, 560, 1120};
    reader_.refuse_unless(std::ranges::count(choices, tokens) > 0, "max_soft_tokens",
                          fmt::format("one of {} is", fmt::join(choices, ", ")));
    out_.tile = cell;
    out_.max_pixels = tokens * cell * cell;
  }

  // Its models read values from 0 to 1, of which they make values from -1 to 1 themselves.
  void to_both_signs() {
    for (size_t i = 0; i < 3; ++i) {
      out_.deviation[i] /= 2;
      out_.mean[i] += out_.deviation[i];
    }
  }

  void require_whole_cells() {
    reader_.refuse_unless(reader_.flag("do_resize", true), "do_resize", "both sides are multiples of a cell");
    reader_.refuse_unless(!reader_.flag("do_center_crop", false), "do_center_crop", "this processor does not crop");
  }

  void read_cells() {
    constexpr int64_t most_pixels = 64 << 20;
    const int64_t patch = reader_.square("patch_size", family_->patch, 1, max_edge),
                  merge = reader_.whole("merge_size", 2, 1, most_patches);
    const bool is_of_paddle = family_->tile_form == TileForm::paddleocr;
    out_.step_frames = reader_.whole("temporal_patch_size", is_of_paddle ? 1 : 2, 1, most_patches);
    reader_.refuse_unless(!is_of_paddle || out_.step_frames == 1, "temporal_patch_size",
                          "this encoder reads single images: 1 is");
    out_.tile_form = *family_->tile_form;
    out_.splits_into_tiles = true;
    out_.tile = patch * merge;
    require_whole_cells();
    reader_.refuse_unless(!reader_.flag("do_pad", false), "do_pad", "this processor does not pad");
    reader_.refuse_unless(!reader_.has("spatial_merge_size"), "spatial_merge_size",
                          "this processor calls it merge_size");
    // Of the whole image. The limits beside 'size' go first, as in transformers.
    const auto limit = [&](const char* own, const char* in_size, int64_t otherwise) {
      if (reader_.has(own)) return reader_.whole(own, std::nullopt, 1, most_pixels);
      if (!reader_.has("size")) return otherwise;
      const Json* found =
          config_["size"].is_object() && config_["size"].contains(in_size) ? &config_["size"][in_size] : nullptr;
      const bool is_good = found && found->is_number_integer() && *found >= 1 && *found <= most_pixels;
      if (!is_good) refuse("size", fmt::format("expected a '{}' of 1 to {} pixels", in_size, most_pixels));
      return is_good ? found->get<int64_t>() : otherwise;
    };
    out_.min_pixels = limit("min_pixels", "shortest_edge", family_->min_pixels);
    out_.max_pixels = limit("max_pixels", "longest_edge", family_->max_pixels);
    if (out_.min_pixels > out_.max_pixels)
      reader_.problems().add("at least {} pixels are more than at most {}", out_.min_pixels, out_.max_pixels);
  }

  void read_limits_of_videos() {
    constexpr int64_t most_tokens = 1 << 24;
    VideoProcessor& video = out_.video.emplace();
    video.min_pixels = out_.min_pixels;
    video.max_pixels = out_.max_pixels;
    video.counts_all_frames = std::string_view(family_->type) == qwen3_videos;
    const int64_t tokens = reader_.whole("max_video_tokens", video.counts_all_frames ? 768 : 128000, 1, most_tokens);
    if (reader_.flag("cap_pixels_per_frame", false)) video.max_tokens = tokens;
  }

  // Where 'size' and the size in 'video_sampling' are both there, transformers takes the first.
  void read_sampling() {
    constexpr int64_t most_frames = 1 << 16;
    VideoProcessor::Sampling& sampling = out_.video.emplace().sampling.emplace();
    if (out_.resize != Resize::longest_edge) refuse("size", "frames of a video are resized by 'longest_edge'");
    sampling.edge = out_.edge;
    const Json* found = reader_.object("video_sampling");
    if (!found) {
      sampling.per_second = reader_.number("fps", sampling.per_second, 1e-3, 1e3);
      sampling.max_frames = reader_.whole("num_frames", sampling.max_frames, 1, most_frames);
      return;
    }
    ConfigReader in(*found, reader_.where());
    constexpr std::array known{"fps", "max_frames", "video_size"};
    in.refuse_unknown(known);
    sampling.per_second = in.number("fps", std::nullopt, 1e-3, 1e3);
    sampling.max_frames = in.whole("max_frames", std::nullopt, 1, most_frames);
    const Json* size = in.object("video_size");
    if (!reader_.has("size") && (!size || !sizes(*size, {{"longest_edge", &sampling.edge}})))
      refuse("video_sampling", fmt::format("expected a 'video_size' with 'longest_edge' of 1 to {} pixels", max_edge));
    in.finish("change 'video_sampling'");
  }

  // A number for all channels, or one for each.
  std::array<double, 3> channels(const char* key, std::array<double, 3> out, double min, double max) {
    if (!reader_.has(key)) return out;
    const Json& value = config_[key];
    bool good = value.is_number() || (value.is_array() && value.size() == 3);
    for (size_t i = 0; good && i < 3; ++i) {
      const Json& one = value.is_array() ? value[i] : value;
      good = one.is_number() && one >= min && one <= max;
      if (good) out[i] = one.get<double>();
    }
    if (!good) refuse(key, fmt::format("expected one number, or three, from {:g} to {:g}", min, max));
    return out;
  }

  void read_values() {
    const double factor = reader_.number("rescale_factor", 1.0 / 255, 1e-6, 1e6);
    if (reader_.flag("do_rescale", true)) out_.rescale_factor = factor;
    const std::array<double, 3> mean = channels("image_mean", family_->mean, -1e4, 1e4),
                                deviation = channels("image_std", family_->deviation, 1e-6, 1e4);
    if (!reader_.flag("do_normalize", family_->tile_form != TileForm::gemma4)) return;
    for (size_t i = 0; i < 3; ++i) {
      out_.mean[i] = static_cast<float>(mean[i]);
      out_.deviation[i] = static_cast<float>(deviation[i]);
    }
  }

  const Json config_;
  ConfigReader reader_;
  const ProcessorClass* family_ = nullptr;
  ImageProcessor out_;
};

} // namespace

bool is_of_lighton_ocr(const Json& config) {
  const auto word = config.find("processor_class");
  return word != config.end() && (*word == "LightOnOcrProcessor" || *word == "LightOnOCRProcessor");
}

ImageProcessor image_processor_of(const nlohmann::json& config, const std::string& where, bool of_videos) {
  return Reader(config, where).read(of_videos);
}

} // namespace fvlm
